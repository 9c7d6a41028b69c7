//! Sums of slices with the same index, in the compute type and rounded once.

use burn_std::DType;
use hip::Template;

use super::copy::{contiguous, packed};
use super::launch::rows;
use super::sort::sort_with_indices;
use crate::arg::Arg;
use crate::tensor::RocmTensor;

/// `PIECE` of `segment.hip`: the slices that one thread sums before sums are joined.
const PIECE: usize = 64;

/// The most comparisons of an index with another one for which indices are not sorted first.
const FEW_COMPARISONS: usize = 1 << 24;

/// Adds each slice of `value` along an axis to the slice of `out` at the corresponding index of a
/// list. `out` is contiguous and has the values' shape in all other axes. Neither tensor is empty.
/// Every run gives the same bits, with or without a sort.
pub(super) fn add(
    op: &'static str,
    flag: Arg,
    axis: usize,
    out: &RocmTensor,
    indices: &RocmTensor,
    value: &RocmTensor,
) -> hip::Result<()> {
    let value = packed(value.clone())?;
    let indices = contiguous(indices.clone())?;
    let device = out.hip_device();
    let dims = value.dims();
    let len = dims[axis];
    let (outer, inner): (usize, usize) = (dims[..axis].iter().product(), dims[axis + 1..].iter().product());
    let sizes = |last: usize| [outer, len, inner, last].map(|v| Arg::U64(v as u64));
    let size = out.dims()[axis];
    let ty = out.kernel_type()?;
    let kernel = |name: Template| -> hip::Result<_> { Ok(name.ty(ty).ty(indices.kernel_type()?)) };
    let grid = device.grid(value.len());
    if len <= PIECE && value.len().saturating_mul(len) <= FEW_COMPARISONS {
        let kernel = kernel(Template::segment_few)?;
        return rows(op, device, kernel, grid, &sizes(size), &[&indices, &value], &[flag], &[out]);
    }
    let windows = len.div_ceil(PIECE);
    let computed = if out.dtype_of() == DType::F64 { DType::F64 } else { DType::F32 };
    let pieces = RocmTensor::empty(device, [outer, windows - 1, inner], computed)?;
    // The sort is stable, so the slices of a segment keep their order.
    let (sorted, order) = sort_with_indices(op, indices.clone(), 0, false, DType::I32)?;
    if !pieces.is_empty() {
        let (kernel, grid) = (kernel(Template::segment_pieces)?, device.grid(pieces.len()));
        rows(op, device, kernel, grid, &sizes(windows), &[&sorted, &order, &value], &[], &[&pieces])?;
    }
    let inputs = [&sorted, &order, &value, &pieces];
    rows(op, device, kernel(Template::segment_sums)?, grid, &sizes(size), &inputs, &[flag], &[out])
}
