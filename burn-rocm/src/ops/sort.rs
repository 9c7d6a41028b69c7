//! Stable sorts along an axis. Floats are in IEEE 754's total order, as in Burn: a positive NaN
//! comes last.

use burn_std::DType;
use hip::Template;

use super::cast::cast;
use super::copy::packed;
use super::launch::rows;
use super::view::{narrow, permute};
use crate::arg::Arg;
use crate::dtype::{check_indices, raw_type};
use crate::error::invalid;
use crate::layout::inverse;
use crate::tensor::{RocmTensor, check_axis};

/// `TILE` of `sort.hip`: the elements that a block sorts in shared memory.
const TILE: usize = 1024;

/// The elements that one CPU thread sorts before merging. Its key-index pairs, and scratch space
/// for as many, fit a core's cache.
const SERIAL_TILE: usize = 16384;

/// The fewest elements that one thread of `sort.hip` merges.
const SHARE: usize = 16;

/// `SIGNED`, `FLOAT` and `DESCENDING` of `sort.hip`.
const SIGNED: u32 = 1;
const FLOAT: u32 = 2;
const DESCENDING: u32 = 4;

fn flags(op: &'static str, dtype: DType, descending: bool) -> hip::Result<u32> {
    use DType as D;
    let order = match dtype {
        D::F64 | D::F32 | D::Flex32 | D::F16 | D::BF16 => FLOAT,
        D::I64 | D::I32 | D::I16 | D::I8 => SIGNED,
        D::U64 | D::U32 | D::U16 | D::U8 => 0,
        _ => return invalid(op, "floats or integers", dtype.name()),
    };
    Ok(order | if descending { DESCENDING } else { 0 })
}

/// The type of the indices when an integer tensor is sorted, as in Burn's own sorts: the tensor's
/// own type, or i32 if that type can't hold every index.
pub(crate) fn index_dtype(tensor: &RocmTensor) -> DType {
    match tensor.dtype_of() {
        wide @ (DType::I64 | DType::I32 | DType::U64 | DType::U32) => wide,
        _ => DType::I32,
    }
}

/// The sorted elements and, as i32, each element's index along the axis before the sort.
fn sorted(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    descending: bool,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    check_axis(op, &tensor, axis)?;
    let flags = Arg::U32(flags(op, tensor.dtype_of(), descending)?);
    // The axis becomes the last one, so that a block reads contiguous rows.
    let last = tensor.dims().len() - 1;
    let order: Vec<usize> = (0..=last).filter(|&a| a != axis).chain([axis]).collect();
    let back = inverse(&order);
    let x = packed(permute(tensor, &order)?)?;
    let len = x.dims()[last];
    if len > i32::MAX as usize {
        return invalid(op, format!("an axis of at most {}", i32::MAX), len.to_string());
    }
    let device = x.hip_device();
    let out = RocmTensor::empty(device, x.layout().shape().clone(), x.dtype_of())?;
    let index = RocmTensor::empty(device, x.layout().shape().clone(), DType::I32)?;
    if !x.is_empty() {
        let lines = x.len() / len;
        let ty = raw_type(x.kernel_type()?);
        let kernel = |name: Template| name.ty(ty);
        let n = |v: usize| Arg::U64(v as u64);
        if len <= TILE {
            let grid = device.grid_rows(lines, len);
            let dims = [n(lines), n(len), flags];
            rows(op, device, kernel(Template::sort_rows), grid, &dims, &[&x], &[], &[&index, &out])?;
        } else {
            let serial = device.block_threads() == 1;
            let tile = if serial { SERIAL_TILE } else { TILE };
            // A pair takes two words for keys of eight bytes, otherwise one word.
            let words = if ty.size() == 8 { 2 } else { 1 };
            let pairs = || RocmTensor::empty(device, [x.len(), words], DType::U64);
            let (mut from, mut to) = (pairs()?, pairs()?);
            let grid = device.grid_rows(lines * len.div_ceil(tile), tile);
            let dims = [n(lines), n(len), n(tile), flags];
            rows(op, device, kernel(Template::sort_tiles), grid, &dims, &[&x], &[], &[&to, &from])?;
            let mut run = tile;
            while run < len {
                let grid = device.grid(lines * len.div_ceil(SHARE));
                let dims = [n(lines), n(len), n(run)];
                rows(op, device, kernel(Template::sort_merge), grid, &dims, &[&from], &[], &[&to])?;
                core::mem::swap(&mut from, &mut to);
                run *= 2;
            }
            let dims = [n(x.len()), flags];
            let grid = device.grid(x.len());
            rows(op, device, kernel(Template::sort_finish), grid, &dims, &[&from], &[], &[&index, &out])?;
        }
    }
    Ok((permute(out, &back)?, permute(index, &back)?))
}

/// Sorts the elements along an axis.
pub(crate) fn sort(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    descending: bool,
) -> hip::Result<RocmTensor> {
    Ok(sorted(op, tensor, axis, descending)?.0)
}

/// Checks that `index` holds the index of each element along the axis.
fn check_index(op: &'static str, tensor: &RocmTensor, axis: usize, index: DType) -> hip::Result<()> {
    check_axis(op, tensor, axis)?;
    let len = if tensor.is_empty() { 0 } else { tensor.dims()[axis] };
    check_indices(op, "elements along the axis", len, index)
}

/// The sorted elements, and the index that each had before.
///
/// # Errors
/// `Invalid`, also if `index` can't hold every index along the axis. The ops below have the
/// same error.
pub(crate) fn sort_with_indices(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    descending: bool,
    index: DType,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    check_index(op, &tensor, axis, index)?;
    let (out, at) = sorted(op, tensor, axis, descending)?;
    Ok((out, cast(at, index)?))
}

/// The index that each of the sorted elements had before.
pub(crate) fn argsort(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    descending: bool,
    index: DType,
) -> hip::Result<RocmTensor> {
    check_index(op, &tensor, axis, index)?;
    cast(sorted(op, tensor, axis, descending)?.1, index)
}

fn check_count(op: &'static str, tensor: &RocmTensor, axis: usize, k: usize) -> hip::Result<()> {
    check_axis(op, tensor, axis)?;
    match tensor.dims()[axis] {
        len if k > len => invalid(op, format!("k of at most {len}"), k.to_string()),
        _ => Ok(()),
    }
}

/// The `k` largest elements along an axis, the largest first.
pub(crate) fn topk(op: &'static str, tensor: RocmTensor, axis: usize, k: usize) -> hip::Result<RocmTensor> {
    check_count(op, &tensor, axis, k)?;
    narrow(sort(op, tensor, axis, true)?, axis, 0, k)
}

/// The `k` largest elements along an axis and their indices, the largest first.
pub(crate) fn topk_with_indices(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    k: usize,
    index: DType,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    check_count(op, &tensor, axis, k)?;
    check_index(op, &tensor, axis, index)?;
    let (out, at) = sorted(op, tensor, axis, true)?;
    Ok((narrow(out, axis, 0, k)?, cast(narrow(at, axis, 0, k)?, index)?))
}

/// The indices of the `k` largest elements along an axis, the largest first.
pub(crate) fn argtopk(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    k: usize,
    index: DType,
) -> hip::Result<RocmTensor> {
    check_count(op, &tensor, axis, k)?;
    check_index(op, &tensor, axis, index)?;
    cast(narrow(sorted(op, tensor, axis, true)?.1, axis, 0, k)?, index)
}
