//! Views, which move no data, and ops that copy where strides can't express the result (`reshape`,
//! `repeat_dim`).

use burn_std::Slice;

use super::copy::{contiguous, copy};
use crate::tensor::{RocmTensor, check_axis};

/// The elements in row-major order under another shape.
pub(crate) fn reshape(tensor: RocmTensor, shape: &[usize]) -> hip::Result<RocmTensor> {
    match tensor.layout().reshape("reshape", shape)? {
        Some(layout) => Ok(tensor.view(layout)),
        None => reshape(contiguous(tensor)?, shape),
    }
}

/// Swaps two axes.
pub(crate) fn swap_dims(tensor: RocmTensor, a: usize, b: usize) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().swap_dims("swap_dims", a, b)?;
    Ok(tensor.view(layout))
}

/// Swaps the last two axes. A tensor with fewer than two axes stays as it is.
pub(crate) fn transpose(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    match tensor.layout().rank() {
        rank @ 2.. => swap_dims(tensor, rank - 2, rank - 1),
        _ => Ok(tensor),
    }
}

/// Permutes the axes.
pub(crate) fn permute(tensor: RocmTensor, axes: &[usize]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().permute("permute", axes)?;
    Ok(tensor.view(layout))
}

/// Reverses the given axes.
pub(crate) fn flip(tensor: RocmTensor, axes: &[usize]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().flip("flip", axes)?;
    Ok(tensor.view(layout))
}

/// Repeats axes of size 1 and missing leading axes to `shape`.
pub(crate) fn expand(tensor: RocmTensor, shape: &[usize]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().expand("expand", shape)?;
    Ok(tensor.view(layout))
}

/// Cuts a range out of each axis.
pub(crate) fn slice(tensor: RocmTensor, slices: &[Slice]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().slice("slice", slices)?;
    Ok(tensor.view(layout))
}

/// Cuts a range out of one axis.
pub(crate) fn narrow(tensor: RocmTensor, axis: usize, start: usize, len: usize) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().narrow("slice", axis, start, len)?;
    Ok(tensor.view(layout))
}

/// Windows along an axis.
pub(crate) fn unfold(tensor: RocmTensor, axis: usize, size: usize, step: usize) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().unfold("unfold", axis, size, step)?;
    Ok(tensor.view(layout))
}

/// Repeats the tensor `times` times along an axis.
pub(crate) fn repeat_dim(tensor: RocmTensor, axis: usize, times: usize) -> hip::Result<RocmTensor> {
    check_axis("repeat_dim", &tensor, axis)?;
    let mut target = tensor.dims().to_vec();
    if target[axis] == 1 {
        target[axis] = times;
        return expand(tensor, &target);
    }
    // Views [.., d, ..] as [.., 1, d, ..], repeats the new axis, and merges the two axes in one
    // copy.
    let mut apart = target.clone();
    apart.insert(axis, 1);
    let tensor = reshape(tensor, &apart)?;
    apart[axis] = times;
    target[axis] *= times;
    let repeated = copy(&expand(tensor, &apart)?)?;
    reshape(repeated, &target)
}

/// Adds leading axes of size 1 up to `rank` axes.
pub(crate) fn unsqueeze_to(tensor: RocmTensor, rank: usize) -> hip::Result<RocmTensor> {
    let missing = rank.saturating_sub(tensor.layout().rank());
    let dims: Vec<usize> = core::iter::repeat_n(1, missing).chain(tensor.dims().iter().copied()).collect();
    reshape(tensor, &dims)
}

/// `[N, C, L]` as `[N, C, 1, L]`.
pub(crate) fn lift(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    let mut dims = tensor.dims().to_vec();
    dims.insert(2, 1);
    reshape(tensor, &dims)
}

/// `[N, C, 1, L]` as `[N, C, L]`.
pub(crate) fn lower(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    let mut dims = tensor.dims().to_vec();
    dims.remove(2);
    reshape(tensor, &dims)
}
