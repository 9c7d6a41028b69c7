//! Burn's plain types where its versions differ. This module and [`backend`](crate::backend) are
//! the only ones that each version of Burn has its own copy of.

use core::mem::MaybeUninit;

use burn_backend::quantization::{
    QuantMode, QuantScheme, QuantStore, QuantizedBytes, ScaleDtype, global_scale_dtype, quantizable,
};
use burn_backend::{Scalar, TensorData};
pub(crate) use burn_std::IndexingUpdateOp;
use burn_std::quantization::{global_scale_size, scale_size};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes, DType, Shape};

use hip::Functor;

use crate::error::{invalid, unsupported_with};
use crate::pinned::Pinned;
use crate::scales::{Narrow, Scales};

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

/// The dtype of host data read from a tensor of `dtype`. It is the same dtype, because burn-store
/// refuses to save a tensor whose data has another.
pub(crate) fn read_dtype(dtype: DType) -> DType {
    dtype
}

/// Lets host data keep the same bytes in other memory.
pub(crate) fn set_bytes(data: &mut TensorData, bytes: Bytes) {
    TensorData::with_bytes_mut([data], |mut all| {
        if let Some(place) = all.pop() {
            *place = bytes;
        }
    });
}

/// How the scales of a tensor of shape `dims` are laid out. A block is a rectangle.
///
/// # Errors
/// `Unsupported` for lookup tables of values, which Burn's data format can't hold, and for a pair
/// of scale levels that no backend of Burn can hold; `Invalid` if an axis does not consist of whole
/// blocks.
pub(crate) fn scales(op: &'static str, scheme: &QuantScheme, dims: &[usize]) -> hip::Result<Scales> {
    if scheme.mode != QuantMode::Symmetric || !quantizable(scheme) {
        return unsupported_with(op, DType::QFloat(*scheme), format!("the scheme {scheme:?}"));
    }
    let dtype = scheme.scale_dtype();
    // The kernel rounds up to powers of two (UE8M0), but rounds to other types to nearest. So
    // scales of the narrow types are rounded up separately (`up`).
    let (param, up) = match dtype {
        ScaleDtype::F32 => (0, None),
        ScaleDtype::UE8M0 => (3, None),
        ScaleDtype::F16 | ScaleDtype::BF16 | ScaleDtype::UE4M3 => {
            let grid = dtype.f32_grid();
            let subnormal = grid.subnormals.map(|range| [range.min_normal, range.spacing]);
            (0, Some(Narrow { step: grid.bit_step, most: dtype.max_representable(), subnormal }))
        }
    };
    let relative_to = global_scale_dtype(scheme).map(|_| dtype.max_representable());
    let Some(block) = scheme.block_size() else {
        return Ok(Scales { run: None, param, grid: None, up, relative_to });
    };
    let block: Vec<usize> = block.to_dim_vec(dims.len()).into_iter().map(usize::from).collect();
    if dims.iter().zip(&block).any(|(dim, block)| *block == 0 || !dim.is_multiple_of(*block)) {
        return invalid(op, format!("axes in whole blocks of {block:?}"), format!("{dims:?}"));
    }
    // A run extends over the innermost axes, up to and including the first with more than one
    // block.
    let spans = dims.iter().zip(&block).rev().take_while(|(dim, block)| dim == block).count();
    let ends = dims.len().saturating_sub(spans + 1);
    let run = block.iter().skip(ends).product();
    let mut grid: Vec<_> =
        dims.iter().zip(&block).take(ends + 1).map(|(dim, block)| [dim / block, *block]).collect();
    if let Some([_, last]) = grid.last_mut() {
        *last = 1;
    }
    let grid = Some(grid).filter(|grid| grid.iter().any(|[_, block]| *block > 1));
    Ok(Scales { run: Some(run), param, grid, up, relative_to })
}

/// The scheme of a tensor whose axes were permuted.
pub(crate) fn permuted(mut scheme: QuantScheme, axes: &[usize]) -> QuantScheme {
    scheme.permute_block_dims(axes.len(), axes);
    scheme
}

/// The bytes in host data of `count` block scales and of the scale that they are relative to.
pub(crate) fn scale_bytes(scheme: &QuantScheme, count: usize) -> usize {
    count * scale_size(scheme.scale_dtype()) + global_scale_size(scheme)
}

/// The block scales in host data of that shape and, if they are relative to a scale of the whole
/// tensor, that scale.
pub(crate) fn read_scales(bytes: &[u8], scheme: &QuantScheme, shape: &Shape) -> (Vec<f32>, Option<f32>) {
    // Calls Burn's decoder on data that has no values.
    let bytes = Bytes::from_elems(bytes.to_vec());
    let scheme = scheme.with_store(QuantStore::Native);
    let (_, scales) = QuantizedBytes { bytes, scheme, shape: shape.clone() }.into_vec_i8();
    (scales.block, scales.global)
}

/// Encodes scales in the format that [`read_scales`] decodes.
pub(crate) fn write_scales(scales: &[f32], global: Option<f32>, scheme: &QuantScheme) -> Vec<u8> {
    QuantizedBytes::new(Vec::<i8>::new(), [0], *scheme, scales, global).bytes.to_vec()
}

/// The result of a reduction of no elements, of floats or of integers. `all` says whether it
/// reduces the whole tensor or an axis. `None` means that the op refuses: an extreme has no
/// identity, and integers have no NaN for a mean.
pub(crate) fn of_nothing(functor: Functor, float: bool, _all: bool) -> Option<Scalar> {
    match (functor, float) {
        (Functor::Sum, _) => Some(0i64.into()),
        (Functor::Prod, _) => Some(1i64.into()),
        (Functor::Mean, true) => Some(f64::NAN.into()),
        _ => None,
    }
}

/// Whether the index of an extreme along an axis without elements is refused even if the result has
/// no elements.
pub(crate) const NO_INDEX_OF_NOTHING: bool = true;

/// Whether a NaN is always the maximum of its pooling window. Among several, the last one is.
pub(crate) const NAN_IS_MAXIMUM: bool = true;

/// Whether sampling at a point halfway between two pixels takes the one with the even index.
pub(crate) const TIES_TO_EVEN: bool = true;

/// Whether a pooling window in ceil mode may be up to `stride - 1` larger than the padded input.
/// There is then one window.
pub(crate) const WINDOW_MAY_EXCEED_INPUT: bool = true;

impl AllocationController for Pinned {
    fn alloc_align(&self) -> usize {
        Self::ALIGNMENT
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Pinned
    }

    unsafe fn memory_mut(&mut self, _policy: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        // SAFETY: this function's caller promises the same.
        Ok(unsafe { self.uninit_mut() })
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        Ok(self.uninit())
    }
}
