//! MIOpen's handle and version.

use super::conv::Call;
use crate::numeric::device::in_stream;
use crate::runtime::Handles;
use crate::settings::Failure;
use hip_provider::miopen::{self as provider, Outcome};
use hip_provider::require;
use miopen_sys::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The object behind a `miopenHandle_t`.
pub(super) struct Handle {
    /// The handle of its stream, as a number.
    stream: AtomicUsize,
    /// The convolutions that find mode has been run for.
    pub(super) found: Mutex<Vec<Call>>,
}

static HANDLES: Handles<Handle> = Handles::new(0xa5);

/// The version of ROCm 7.2, whose behaviour this library follows.
const VERSION: [usize; 3] = [3, 5, 1];

/// A tensor of a call.
pub(super) type Operand<'a> = provider::Operand<'a, Handle>;

impl provider::Handle for Handle {
    type Tensor = ();

    fn version() -> [usize; 3] {
        VERSION
    }

    fn create(stream: miopenAcceleratorQueue_t) -> Outcome<miopenHandle_t> {
        require(!Failure::MiopenHandle.is_asked(), miopenStatusNotInitialized)?;
        let own = Handle { stream: AtomicUsize::new(stream as usize), found: Mutex::default() };
        Ok(HANDLES.insert(Arc::new(own)) as miopenHandle_t)
    }

    unsafe fn set_stream(handle: miopenHandle_t, stream: miopenAcceleratorQueue_t) -> Outcome {
        let handle = HANDLES.get(handle as usize).ok_or(miopenStatusBadParm)?;
        handle.stream.store(stream as usize, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn destroy(handle: miopenHandle_t) -> Outcome {
        HANDLES.remove(handle as usize).map(drop).ok_or(miopenStatusBadParm)
    }

    /// An unknown handle is a bad parameter.
    unsafe fn with(handle: miopenHandle_t, body: impl FnOnce(&Self) -> Outcome) -> Outcome {
        let handle = HANDLES.get(handle as usize).ok_or(miopenStatusBadParm)?;
        require(!Failure::MiopenKernels.is_asked(), miopenStatusUnknownError)?;
        in_stream(handle.stream.load(Ordering::Relaxed) as miopenAcceleratorQueue_t, || body(&handle))
            .unwrap_or(Err(miopenStatusInternalError))
    }
}

/// Refuses operands that are not packed, because this library computes packed tensors only.
pub(super) fn packed(operands: &[&Operand<'_>]) -> Outcome {
    operands.iter().try_for_each(|operand| operand.require_packed())
}
