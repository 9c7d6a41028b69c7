//! Burn's plain types where its versions differ: the one module besides [`backend`](crate::backend) that each version
//! of Burn has of its own.

use core::mem::MaybeUninit;

use burn_backend::TensorData;
use burn_backend::quantization::{QuantLevel, QuantMode, QuantParam, QuantScheme};
pub(crate) use burn_backend::tensor::IndexingUpdateOp;
use burn_std::{AllocationController, AllocationProperty, Bytes, DType, Shape};

use crate::staging::Pinned;

/// The bytes, shape and dtype of host data.
pub(crate) fn parts(data: TensorData) -> (Bytes, Shape, DType) {
    (data.bytes, data.shape, data.dtype)
}

/// The bytes of host data.
pub(crate) fn bytes(data: &TensorData) -> &Bytes {
    &data.bytes
}

/// The shape of host data.
pub(crate) fn shape(data: &TensorData) -> &Shape {
    &data.shape
}

/// The dtype of host data.
pub(crate) fn dtype(data: &TensorData) -> DType {
    data.dtype
}

/// Lets host data keep the same bytes in other memory.
pub(crate) fn set_bytes(data: &mut TensorData, bytes: Bytes) {
    data.bytes = bytes;
}

/// The number of values that share a scale (`None`: all do), and the scales' type as `quantize.hip` numbers it.
///
/// # Errors
/// None: Burn 0.21 has no scheme with more than one level of scales.
pub(crate) fn scales(_op: &'static str, scheme: &QuantScheme) -> hip::Result<(Option<usize>, u32)> {
    let QuantMode::Symmetric = scheme.mode;
    let block = match scheme.level {
        QuantLevel::Tensor => None,
        QuantLevel::Block(block) => Some(block.num_elements()),
    };
    let param = match scheme.param {
        QuantParam::F32 => 0,
        QuantParam::F16 => 1,
        QuantParam::BF16 => 2,
        QuantParam::UE8M0 => 3,
        QuantParam::UE4M3 => 4,
    };
    Ok((block, param))
}

impl AllocationController for Pinned {
    fn alloc_align(&self) -> usize {
        Self::ALIGNMENT
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Pinned
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: what the caller of this function promises.
        unsafe { self.uninit_mut() }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        self.uninit()
    }
}
