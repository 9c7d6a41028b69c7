//! Views, which move no data, and ops that copy where strides can't express the result (`reshape`,
//! `slice_assign`, `repeat_dim`).

use burn_std::Slice;

use super::cat::cat_as;
use super::data::{assign, contiguous, copy};
use crate::error::invalid;
use crate::tensor::{RocmTensor, check_axis, one_device, one_dtype};

/// The same elements in row-major order under another shape.
pub(crate) fn reshape(tensor: RocmTensor, shape: &[usize]) -> hip::Result<RocmTensor> {
    match tensor.layout().reshape("reshape", shape)? {
        Some(layout) => Ok(tensor.view(layout)),
        None => reshape(contiguous(tensor)?, shape),
    }
}

/// Two axes exchanged.
pub(crate) fn swap_dims(tensor: RocmTensor, a: usize, b: usize) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().swap_dims("swap_dims", a, b)?;
    Ok(tensor.view(layout))
}

/// The last two axes exchanged; fewer than two stay as they are.
pub(crate) fn transpose(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    match tensor.layout().rank() {
        rank @ 2.. => swap_dims(tensor, rank - 2, rank - 1),
        _ => Ok(tensor),
    }
}

/// The axes in the order given.
pub(crate) fn permute(tensor: RocmTensor, axes: &[usize]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().permute("permute", axes)?;
    Ok(tensor.view(layout))
}

/// The axes given, backwards.
pub(crate) fn flip(tensor: RocmTensor, axes: &[usize]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().flip("flip", axes)?;
    Ok(tensor.view(layout))
}

/// Sizes of 1 and missing leading axes repeated.
pub(crate) fn expand(tensor: RocmTensor, shape: &[usize]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().expand("expand", shape)?;
    Ok(tensor.view(layout))
}

/// A range of every axis.
pub(crate) fn slice(tensor: RocmTensor, slices: &[Slice]) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().slice("slice", slices)?;
    Ok(tensor.view(layout))
}

/// One range of one axis.
pub(crate) fn narrow(tensor: RocmTensor, axis: usize, start: usize, len: usize) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().narrow("slice", axis, start, len)?;
    Ok(tensor.view(layout))
}

/// Windows along an axis.
pub(crate) fn unfold(tensor: RocmTensor, axis: usize, size: usize, step: usize) -> hip::Result<RocmTensor> {
    let layout = tensor.layout().unfold("unfold", axis, size, step)?;
    Ok(tensor.view(layout))
}

/// Replaces a range of the tensor's elements, in place if nobody else holds the buffer.
pub(crate) fn slice_assign(
    mut tensor: RocmTensor,
    slices: &[Slice],
    value: RocmTensor,
) -> hip::Result<RocmTensor> {
    one_device("slice_assign", &[&tensor, &value])?;
    one_dtype("slice_assign", &[&tensor, &value])?;
    let region = tensor.layout().slice("slice_assign", slices)?;
    if region.dims() != value.dims() {
        let (want, have) = (format!("a value of shape {:?}", region.dims()), format!("{:?}", value.dims()));
        return invalid("slice_assign", want, have);
    }
    let own = tensor.is_sole_holder() && tensor.layout().names_each_once();
    if !own && let Some((axis, range)) = one_cut(tensor.dims(), slices) {
        // One launch writes what stays and what is new.
        let rest = tensor.dims()[axis] - range.end;
        let ahead = narrow(tensor.clone(), axis, 0, range.start)?;
        let behind = narrow(tensor, axis, range.end, rest)?;
        return cat_as("slice_assign", vec![ahead, value, behind], axis);
    }
    let out = if own { tensor } else { copy(&tensor)? };
    let region = out.layout().slice("slice_assign", slices)?;
    assign("slice_assign", &out.clone().view(region), &value)?;
    Ok(out)
}

/// The only axis that the ranges don't take whole, and the part of it that they take. `None` if a
/// step is not 1.
fn one_cut(dims: &[usize], slices: &[Slice]) -> Option<(usize, std::ops::Range<usize>)> {
    let mut cut = None;
    for (axis, (slice, &dim)) in slices.iter().zip(dims).enumerate() {
        let range = slice.to_range(dim);
        if slice.step() != 1 || range.is_empty() {
            return None;
        }
        if range.len() != dim && cut.replace((axis, range)).is_some() {
            return None;
        }
    }
    cut
}

/// The tensor `times` over along an axis.
pub(crate) fn repeat_dim(tensor: RocmTensor, axis: usize, times: usize) -> hip::Result<RocmTensor> {
    check_axis("repeat_dim", &tensor, axis)?;
    let mut target = tensor.dims().to_vec();
    if target[axis] == 1 {
        target[axis] = times;
        return expand(tensor, &target);
    }
    // [.., d, ..] as [.., 1, d, ..], the new axis repeated, and the two merged again by one copy.
    let mut apart = target.clone();
    apart.insert(axis, 1);
    let tensor = reshape(tensor, &apart)?;
    apart[axis] = times;
    target[axis] *= times;
    let repeated = copy(&expand(tensor, &apart)?)?;
    reshape(repeated, &target)
}

/// The tensor under a shape with ones in front, as far as `rank`.
pub(crate) fn unsqueeze_to(tensor: RocmTensor, rank: usize) -> hip::Result<RocmTensor> {
    let missing = rank.saturating_sub(tensor.layout().rank());
    let dims: Vec<usize> = core::iter::repeat_n(1, missing).chain(tensor.dims().iter().copied()).collect();
    reshape(tensor, &dims)
}
