//! Writing a range of a tensor.

use burn_std::Slice;

use super::cat::cat_as;
use super::copy::{assign, copy};
use super::view::narrow;
use crate::error::invalid;
use crate::tensor::{RocmTensor, one_device, one_dtype};

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
        // One launch writes the kept and the new elements.
        let rest = tensor.dims()[axis] - range.end;
        let ahead = narrow(tensor.clone(), axis, 0, range.start)?;
        let behind = narrow(tensor, axis, range.end, rest)?;
        return Ok(cat_as("slice_assign", vec![ahead, value, behind], axis)?.skip_check());
    }
    let out = if own { tensor } else { copy(&tensor)? };
    let region = out.layout().slice("slice_assign", slices)?;
    assign("slice_assign", &out.clone().view(region), &value)?;
    // What surrounds the range may be undefined: caches begin as `Tensor::empty`.
    Ok(out.skip_check())
}

/// The only axis that the slices cut, and its range. `None` if they cut several axes or have a step
/// other than 1.
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
