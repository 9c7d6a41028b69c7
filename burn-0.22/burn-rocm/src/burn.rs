//! Burn's plain types where its versions differ: the one module besides [`backend`](crate::backend) that each version
//! of Burn has of its own.

use core::mem::MaybeUninit;

use burn_backend::TensorData;
use burn_backend::quantization::{QuantMode, QuantScheme, ScaleDtype};
pub(crate) use burn_std::IndexingUpdateOp;
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes, DType, Shape};

use crate::error::unsupported;
use crate::staging::Pinned;

/// The bytes, shape and dtype of host data.
pub(crate) fn parts(data: TensorData) -> (Bytes, Shape, DType) {
    data.into_parts()
}

/// The bytes of host data.
pub(crate) fn bytes(data: &TensorData) -> &Bytes {
    data.bytes()
}

/// The shape of host data.
pub(crate) fn shape(data: &TensorData) -> &Shape {
    data.shape()
}

/// The dtype of host data.
pub(crate) fn dtype(data: &TensorData) -> DType {
    data.dtype()
}

/// Lets host data keep the same bytes in other memory.
pub(crate) fn set_bytes(data: &mut TensorData, bytes: Bytes) {
    TensorData::with_bytes_mut([data], |mut all| {
        if let Some(place) = all.pop() {
            *place = bytes;
        }
    });
}

/// The number of values that share a scale (`None`: all do), and the scales' type as `quantize.hip` numbers it.
///
/// # Errors
/// `Unsupported` for two levels of scales and for tables of values.
pub(crate) fn scales(op: &'static str, scheme: &QuantScheme) -> hip::Result<(Option<usize>, u32)> {
    if scheme.mode != QuantMode::Symmetric || scheme.num_levels() > 1 {
        return unsupported(op, format!("quantised values of {scheme:?}"));
    }
    let param = match scheme.scale_dtype() {
        ScaleDtype::F32 => 0,
        ScaleDtype::F16 => 1,
        ScaleDtype::BF16 => 2,
        ScaleDtype::UE8M0 => 3,
        ScaleDtype::UE4M3 => 4,
    };
    Ok((scheme.block_size().map(|block| block.num_elements()), param))
}

impl AllocationController for Pinned {
    fn alloc_align(&self) -> usize {
        Self::ALIGNMENT
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Pinned
    }

    unsafe fn memory_mut(&mut self, _policy: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        // SAFETY: what the caller of this function promises.
        Ok(unsafe { self.uninit_mut() })
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        Ok(self.uninit())
    }
}
