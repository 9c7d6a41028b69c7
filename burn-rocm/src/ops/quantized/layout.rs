//! Layout ops on quantised tensors. Views move no data, with or without blocks, because a value's
//! block depends on where it is stored. Ops that store values anew keep the values if they share
//! one scale or if whole blocks move. Otherwise they quantise again, as `burn-flex` does.

use burn_std::{DType, FloatDType, Slice};

use super::quantize::{dense, dequantize, pack, quantize, unpacked};
use crate::error::invalid;
use crate::ops::index;
use crate::ops::view;
use crate::qtensor::RocmQTensor;
use crate::tensor::RocmTensor;

/// The same elements in row-major order under another shape.
pub(crate) fn reshape(op: &'static str, tensor: RocmQTensor, shape: &[usize]) -> hip::Result<RocmQTensor> {
    match tensor.layout().reshape(op, shape)? {
        Some(layout) if tensor.blocks_fit(shape) => Ok(tensor.view(layout)),
        None if tensor.blocks_fit(shape) => reshape(op, dense(op, tensor)?, shape),
        _ => picked(op, tensor, |values| view::reshape(values, shape)),
    }
}

/// Swaps two axes.
pub(crate) fn swap_dims(tensor: RocmQTensor, a: usize, b: usize) -> hip::Result<RocmQTensor> {
    let layout = tensor.layout().swap_dims("q_swap_dims", a, b)?;
    let mut axes: Vec<usize> = (0..layout.rank()).collect();
    axes.swap(a, b);
    Ok(tensor.permuted(&axes, layout))
}

/// Swaps the last two axes.
pub(crate) fn transpose(tensor: RocmQTensor) -> hip::Result<RocmQTensor> {
    match tensor.layout().rank() {
        rank @ 2.. => swap_dims(tensor, rank - 2, rank - 1),
        rank => invalid("q_transpose", "at least two axes", rank.to_string()),
    }
}

/// Permutes the axes.
pub(crate) fn permute(tensor: RocmQTensor, axes: &[usize]) -> hip::Result<RocmQTensor> {
    let layout = tensor.layout().permute("q_permute", axes)?;
    Ok(tensor.permuted(axes, layout))
}

/// Reverses the given axes.
pub(crate) fn flip(tensor: RocmQTensor, axes: &[usize]) -> hip::Result<RocmQTensor> {
    let layout = tensor.layout().flip("q_flip", axes)?;
    Ok(tensor.view(layout))
}

/// Repeats axes of size 1 and missing leading axes to `shape`.
pub(crate) fn expand(tensor: RocmQTensor, shape: &[usize]) -> hip::Result<RocmQTensor> {
    let layout = tensor.layout().expand("q_expand", shape)?;
    Ok(tensor.view(layout))
}

/// Cuts a range out of each axis.
pub(crate) fn slice(tensor: RocmQTensor, slices: &[Slice]) -> hip::Result<RocmQTensor> {
    let layout = tensor.layout().slice("q_slice", slices)?;
    Ok(tensor.view(layout))
}

/// Repeats the tensor `times` times along an axis.
pub(crate) fn repeat_dim(tensor: RocmQTensor, axis: usize, times: usize) -> hip::Result<RocmQTensor> {
    const OP: &str = "q_repeat_dim";
    let mut target = tensor.dims().to_vec();
    let Some(&size) = target.get(axis) else {
        return invalid(OP, format!("an axis below {}", target.len()), axis.to_string());
    };
    if size == 1 {
        target[axis] = times;
        return expand(tensor, &target);
    }
    let mut apart = target.clone();
    apart.insert(axis, 1);
    if !tensor.blocks_fit(&apart) {
        return picked(OP, tensor, |values| view::repeat_dim(values, axis, times));
    }
    let tensor = reshape(OP, tensor, &apart)?;
    apart[axis] = times;
    target[axis] *= times;
    reshape(OP, expand(tensor, &apart)?, &target)
}

/// A new tensor of the elements that `pick` selects: the stored values if all share one scale, else
/// dequantised floats that are quantised again.
fn picked(
    op: &'static str,
    tensor: RocmQTensor,
    pick: impl FnOnce(RocmTensor) -> hip::Result<RocmTensor>,
) -> hip::Result<RocmQTensor> {
    let scheme = *tensor.scheme_of();
    if tensor.format().block.is_some() {
        return quantize(op, pick(dequantize(op, &tensor, FloatDType::F32)?)?, &scheme, None);
    }
    let values = pick(unpacked(op, &tensor)?)?;
    let shape = values.layout().shape().clone();
    RocmQTensor::new(op, pack(op, values, tensor.format())?, tensor.scales().clone(), None, shape, scheme)
}

/// `out[i][j] = tensor[indices[i][j]][j]` for axis 0, and likewise for the others.
pub(crate) fn gather(axis: usize, tensor: RocmQTensor, indices: RocmTensor) -> hip::Result<RocmQTensor> {
    picked("q_gather", tensor, |values| index::gather("q_gather", axis, values, indices))
}

/// The tensor's slices along an axis at a list of indices.
pub(crate) fn select(tensor: RocmQTensor, axis: usize, indices: RocmTensor) -> hip::Result<RocmQTensor> {
    const OP: &str = "q_select";
    let format = tensor.format();
    let inner: usize = tensor.dims().iter().skip(axis + 1).product();
    let bytes = inner * format.bits / 8;
    let movable = format.block.is_some_and(|block| block > 0 && inner > 0 && inner.is_multiple_of(block))
        && axis < tensor.dims().len()
        && (format.bits == 8 || inner.is_multiple_of(format.per_word()))
        && tensor.layout().is_contiguous()
        && tensor.levels().is_none()
        && format.scales(OP, tensor.dims()).is_ok();
    let Some(block) = format.block.filter(|_| movable) else {
        return picked(OP, tensor, |values| index::select(OP, values, axis, indices));
    };
    // Each slice consists of whole blocks: a row of bytes and a row of scales.
    let tensor = dense(OP, tensor)?;
    let mut shape = tensor.dims().to_vec();
    shape.truncate(axis + 1);
    let with = |last: usize| [shape.as_slice(), &[last]].concat();
    let values = view::reshape(tensor.values().clone(), &with(bytes))?;
    let scales = view::reshape(tensor.scales().clone(), &with(inner / block))?;
    let values = index::select(OP, values, axis, indices.clone())?;
    let scales = index::select(OP, scales, axis, indices)?;
    let mut shape = tensor.dims().to_vec();
    shape[axis] = values.dims()[axis];
    let (bytes, count) = (values.len(), scales.len());
    debug_assert_eq!(values.dtype_of(), DType::I8);
    let (values, scales) = (view::reshape(values, &[bytes])?, view::reshape(scales, &[count])?);
    RocmQTensor::new(OP, values, scales, None, shape, *tensor.scheme_of())
}
