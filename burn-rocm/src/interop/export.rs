//! This backend's tensors for other libraries.

use core::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use burn_std::DType;
use hip::Error;

use super::dlpack::{
    DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_BITMASK_IS_COPIED, DLPACK_FLAG_BITMASK_READ_ONLY,
    DLPACK_VERSION, DLTensor, data_type,
};
use super::{Ready, dlpack_device};
use crate::device::RocmDevice;
use crate::error::unsupported;
use crate::ops::copy::copy;
use crate::tensor::RocmTensor;

/// A tensor's place in memory, for as long as the tensor is borrowed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawTensor<'a> {
    /// The address of element (0, 0, ...) on the device. For a tensor without elements, do not
    /// read or write it.
    pub pointer: *mut c_void,
    /// The sizes of the dims.
    pub shape: &'a [usize],
    /// The strides in elements: negative for a flipped dim, 0 for an expanded one.
    pub strides: &'a [isize],
    /// The elements' type. A bool is 0 or 1.
    pub dtype: DType,
    /// The device that holds the memory.
    pub device: RocmDevice,
}

/// The tensor's place in memory. Enqueues all work that writes the tensor, and makes `ready` wait
/// for it.
///
/// The backend may use the memory for another tensor once this one, its clones and its views are
/// dropped, in work that it enqueues from then on. So drop the tensor only after the work of others
/// that uses the memory, or make the backend's stream wait for that work. A write to the memory
/// changes every tensor that shares it. Ops may run later than they are called, so such a write
/// must be ordered with the backend's stream too.
///
/// # Errors
/// The tensor's fault, if a kernel found one ([`read_with_fault`](crate::read_with_fault)); the
/// error of an earlier matrix product that this call enqueues; `Capture` if this thread captures a
/// graph; an error of the device.
///
/// # Safety
/// The stream in `ready` is a live one of the device.
pub unsafe fn as_raw(tensor: &RocmTensor, ready: Ready) -> hip::Result<RawTensor<'_>> {
    // SAFETY: the caller's promise.
    unsafe { make_ready("interop::as_raw", tensor, ready)? };
    Ok(RawTensor {
        pointer: pointer(tensor),
        shape: tensor.dims(),
        strides: tensor.layout().strides(),
        dtype: tensor.dtype_of(),
        device: tensor.rocm_device(),
    })
}

/// The tensor as DLPack's `DLManagedTensor`, for a capsule named `dltensor`. It shares the tensor's
/// memory, with two exceptions, which get a copy: a tensor with a negative stride, which many
/// libraries refuse, and read-only memory, because this struct has no flag for it.
///
/// Enqueues all work that writes the tensor, and makes `ready` wait for it. The consumer calls the
/// deleter once, from any thread. The deleter waits until all streams of the device are past the
/// work that they have received, because the consumer's work may still use the memory. If nobody
/// calls it, the memory stays.
///
/// # Errors
/// The tensor's fault, if a kernel found one; the error of an earlier matrix product that this call
/// enqueues;
/// `Unsupported` for a dtype that DLPack lacks (bools of 32 bits, quantised values); `Capture` if
/// this thread captures a graph; an error of the device.
///
/// # Safety
/// The stream in `ready` is a live one of the device. The pointer goes to one consumer, which
/// follows DLPack's specification. What it writes changes every tensor that shares the memory. Ops
/// may run later than they are called, so its writes are ordered with the backend's stream.
pub unsafe fn to_dlpack(tensor: RocmTensor, ready: Ready) -> hip::Result<*mut DLManagedTensor> {
    const OP: &str = "interop::to_dlpack";
    let writable = !tensor.buffer().is_read_only();
    // SAFETY: the caller's promise.
    let (tensor, _) = unsafe { prepare(OP, tensor, writable, ready)? };
    Export::make(OP, tensor, |dl_tensor| DLManagedTensor {
        dl_tensor,
        manager_ctx: ptr::null_mut(),
        deleter: Some(release::<DLManagedTensor>),
    })
}

/// The tensor as DLPack's `DLManagedTensorVersioned`, for a capsule named `dltensor_versioned`. As
/// [`to_dlpack`], but read-only memory is shared too. One flag says whether the memory is
/// read-only, another one whether the tensor was copied.
///
/// # Errors
/// As for [`to_dlpack`].
///
/// # Safety
/// As for [`to_dlpack`].
pub unsafe fn to_dlpack_versioned(
    tensor: RocmTensor,
    ready: Ready,
) -> hip::Result<*mut DLManagedTensorVersioned> {
    const OP: &str = "interop::to_dlpack_versioned";
    // SAFETY: the caller's promise.
    let (tensor, copied) = unsafe { prepare(OP, tensor, true, ready)? };
    let mut flags = 0;
    if copied {
        flags |= DLPACK_FLAG_BITMASK_IS_COPIED;
    }
    if tensor.buffer().is_read_only() {
        flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
    }
    Export::make(OP, tensor, |dl_tensor| DLManagedTensorVersioned {
        version: DLPACK_VERSION,
        manager_ctx: ptr::null_mut(),
        deleter: Some(release::<DLManagedTensorVersioned>),
        flags,
        dl_tensor,
    })
}

/// The tensor as a consumer can take it, and whether it was copied for that.
///
/// # Safety
/// The stream in `ready` is alive.
unsafe fn prepare(
    op: &'static str,
    tensor: RocmTensor,
    shareable: bool,
    ready: Ready,
) -> hip::Result<(RocmTensor, bool)> {
    tensor.hip_device().refuse_captured(op, "captured work has not run yet")?;
    let backwards = tensor.layout().strides().iter().any(|&by| by < 0);
    let copied = (backwards || !shareable) && !tensor.is_empty();
    tensor.settle()?;
    let tensor = if copied { copy(&tensor)? } else { tensor };
    // SAFETY: the caller's promise.
    unsafe { make_ready(op, &tensor, ready)? };
    Ok((tensor, copied))
}

/// # Safety
/// The stream in `ready` is alive.
unsafe fn make_ready(op: &'static str, tensor: &RocmTensor, ready: Ready) -> hip::Result<()> {
    let buffer = tensor.shared_buffer()?;
    // SAFETY: the caller's promise.
    unsafe { tensor.hip_device().make_ready(op, buffer, ready) }
}

fn pointer(tensor: &RocmTensor) -> *mut c_void {
    // The other library uses it when it likes.
    tensor.buffer().lend();
    (tensor.buffer().address() + tensor.byte_offset()) as *mut c_void
}

/// A managed tensor `M`, and what it points to. The struct comes first, so that its address is that
/// of the whole.
#[repr(C)]
struct Export<M> {
    managed: M,
    tensor: RocmTensor,
    /// The sizes, then the strides.
    _numbers: Box<[i64]>,
}

// SAFETY: the pointers in `managed` lead to the device's memory and to `_numbers`, which the value
// owns.
unsafe impl<M> Send for Export<M> {}

impl<M> Export<M> {
    fn make(
        op: &'static str,
        tensor: RocmTensor,
        managed: impl FnOnce(DLTensor) -> M,
    ) -> hip::Result<*mut M> {
        let Some(dtype) = data_type(tensor.dtype_of()) else { return unsupported(op, tensor.dtype_of()) };
        let device = dlpack_device(&tensor.rocm_device())?;
        let (sizes, strides) = (tensor.dims(), tensor.layout().strides());
        let rank = sizes.len();
        let ndim = i32::try_from(rank).map_err(|_| Error::Invalid {
            op,
            expected: format!("at most {} dims", i32::MAX),
            found: rank.to_string(),
        })?;
        let mut numbers: Box<[i64]> =
            sizes.iter().map(|&size| size as i64).chain(strides.iter().map(|&by| by as i64)).collect();
        let shape = numbers.as_mut_ptr();
        let dl_tensor = DLTensor {
            // By DLPack's specification, null without elements.
            data: if tensor.is_empty() { std::ptr::null_mut() } else { pointer(&tensor) },
            device,
            ndim,
            dtype,
            shape,
            strides: shape.wrapping_add(rank),
            byte_offset: 0,
        };
        let export = Self { managed: managed(dl_tensor), tensor, _numbers: numbers };
        Ok(Box::into_raw(Box::new(export)).cast())
    }
}

/// The deleter.
///
/// # Safety
/// `managed` is null or came from [`Export::make`], and nobody else calls this for it.
unsafe extern "C" fn release<M: 'static>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: `make` gave the address of an `Export<M>` in a box, and only this call takes it back.
    let export = unsafe { Box::from_raw(managed.cast::<Export<M>>()) };
    // A panic must not unwind into the consumer.
    let _ = catch_unwind(AssertUnwindSafe(move || {
        let device = export.tensor.hip_device().clone();
        device.drop_after_all_work(export);
    }));
}
