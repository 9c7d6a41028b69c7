//! Burn's plain types where its versions differ. This module and [`backend`](crate::backend) are
//! the only ones that each version of Burn has its own copy of.

use core::mem::MaybeUninit;

use burn_backend::quantization::{QuantLevel, QuantMode, QuantParam, QuantScheme};
pub(crate) use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Scalar, TensorData};
use burn_std::{AllocationController, AllocationProperty, BoolStore, Bytes, DType, Shape};

use hip::Functor;

use crate::pinned::Pinned;
use crate::scales::Scales;

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

/// The dtype of host data read from a tensor of `dtype`. One-byte bools are 0 or 1 whether they are
/// stored as `Native` or as `U8`. The host always reads Rust's bools, because Burn's own test suite
/// compares with those even where its dispatch asked for `U8`.
pub(crate) fn read_dtype(dtype: DType) -> DType {
    match dtype {
        DType::Bool(BoolStore::U8) => DType::Bool(BoolStore::Native),
        dtype => dtype,
    }
}

/// Lets host data keep the same bytes in other memory.
pub(crate) fn set_bytes(data: &mut TensorData, bytes: Bytes) {
    data.bytes = bytes;
}

/// How the scales of a tensor of shape `dims` are laid out. A block is a run of consecutive values.
///
/// # Errors
/// None: Burn 0.21 has no scheme with more than one level of scales.
pub(crate) fn scales(_op: &'static str, scheme: &QuantScheme, _dims: &[usize]) -> hip::Result<Scales> {
    let QuantMode::Symmetric = scheme.mode;
    let run = match scheme.level {
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
    Ok(Scales { run, param, grid: None, up: None, relative_to: None })
}

/// The scheme of a tensor whose axes were permuted. In Burn 0.21 blocks do not depend on axes.
pub(crate) fn permuted(scheme: QuantScheme, _axes: &[usize]) -> QuantScheme {
    scheme
}

/// The bytes of `count` block scales in host data.
pub(crate) fn scale_bytes(_scheme: &QuantScheme, count: usize) -> usize {
    4 * count
}

/// The block scales in host data of that shape and, if they are relative to a scale of the whole
/// tensor, that scale.
pub(crate) fn read_scales(bytes: &[u8], _scheme: &QuantScheme, _shape: &Shape) -> (Vec<f32>, Option<f32>) {
    (bytemuck::pod_collect_to_vec(bytes), None)
}

/// Encodes scales in the format that [`read_scales`] decodes.
pub(crate) fn write_scales(scales: &[f32], _global: Option<f32>, _scheme: &QuantScheme) -> Vec<u8> {
    bytemuck::cast_slice(scales).to_vec()
}

/// The result of a reduction of no elements, of floats or of integers. `all` says whether it
/// reduces the whole tensor or an axis. `None` means that the op refuses. The results are
/// burn-flex's, except for the mean of an empty int tensor: it is 0 here, and burn-flex panics. A
/// mean along an axis is an error, like a maximum or minimum, as in Burn's CPU backends: Burn would
/// compute a variance of 0 from a NaN mean.
pub(crate) fn of_nothing(functor: Functor, float: bool, all: bool) -> Option<Scalar> {
    match (functor, float) {
        (Functor::Sum, _) => Some(0i64.into()),
        (Functor::Prod, _) => Some(1i64.into()),
        (Functor::Max | Functor::MaxAbs, true) if all => Some(f64::NEG_INFINITY.into()),
        (Functor::Min, true) if all => Some(f64::INFINITY.into()),
        (Functor::Mean, true) if all => Some(f64::NAN.into()),
        (Functor::Mean, false) if all => Some(0i64.into()),
        _ => None,
    }
}

/// Whether the index of an extreme along an axis without elements is refused even if the result has
/// no elements.
pub(crate) const NO_INDEX_OF_NOTHING: bool = false;

/// Whether a NaN is always the maximum of its pooling window. In Burn 0.21 it is only if it comes
/// first.
pub(crate) const NAN_IS_MAXIMUM: bool = false;

/// Whether sampling at a point halfway between two pixels takes the one with the even index. In
/// Burn 0.21 it takes the one farther from 0.
pub(crate) const TIES_TO_EVEN: bool = false;

/// Whether a pooling window in ceil mode may be up to `stride - 1` larger than the padded input.
pub(crate) const WINDOW_MAY_EXCEED_INPUT: bool = false;

impl AllocationController for Pinned {
    fn alloc_align(&self) -> usize {
        Self::ALIGNMENT
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Pinned
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: this function's caller promises the same.
        unsafe { self.uninit_mut() }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
        self.uninit()
    }
}
