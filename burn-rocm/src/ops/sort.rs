//! Sorts along an axis: stable, floats in IEEE's total order as Burn has it (a NaN without a sign comes last).

use burn_std::DType;
use hip::Template;

use super::cast::cast;
use super::copy::packed;
use super::launch::rows;
use super::view::{narrow, permute};
use crate::arg::Arg;
use crate::dtype::raw_type;
use crate::error::invalid;
use crate::layout::inverse;
use crate::tensor::{RocmTensor, check_axis};

/// `TILE` of `sort.hip`: what a block sorts in its shared memory.
const TILE: usize = 1024;

/// What one thread of the CPU sorts before merging: its pairs and as many spare ones stay in a core's cache.
const SERIAL_TILE: usize = 16384;

/// The least that one thread merges, in `sort.hip`.
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

/// The type of an integer tensor's sort indices, as Burn's own sorts have it: the tensor's; i32 where that may not hold
/// every place.
pub(crate) fn index_dtype(tensor: &RocmTensor) -> DType {
    match tensor.dtype_of() {
        wide @ (DType::I64 | DType::I32 | DType::U64 | DType::U32) => wide,
        _ => DType::I32,
    }
}

/// The sorted elements and, as i32, each one's place along the axis before.
fn sorted(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    descending: bool,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    check_axis(op, &tensor, axis)?;
    let flags = Arg::U32(flags(op, tensor.dtype_of(), descending)?);
    // The axis goes last, so that a block reads a row of neighbours.
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
            // A pair is of two words for keys of eight bytes, of one otherwise.
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

/// The elements sorted along an axis.
pub(crate) fn sort(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    descending: bool,
) -> hip::Result<RocmTensor> {
    Ok(sorted(op, tensor, axis, descending)?.0)
}

/// The sorted elements and where each was.
pub(crate) fn sort_with_indices(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    descending: bool,
    index: DType,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let (out, at) = sorted(op, tensor, axis, descending)?;
    Ok((out, cast(at, index)?))
}

/// Where each of the sorted elements was.
pub(crate) fn argsort(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    descending: bool,
    index: DType,
) -> hip::Result<RocmTensor> {
    cast(sorted(op, tensor, axis, descending)?.1, index)
}

fn check_count(op: &'static str, tensor: &RocmTensor, axis: usize, k: usize) -> hip::Result<()> {
    check_axis(op, tensor, axis)?;
    match tensor.dims()[axis] {
        len if k > len => invalid(op, format!("k of at most {len}"), k.to_string()),
        _ => Ok(()),
    }
}

/// The `k` greatest elements of an axis, the greatest first.
pub(crate) fn topk(op: &'static str, tensor: RocmTensor, axis: usize, k: usize) -> hip::Result<RocmTensor> {
    check_count(op, &tensor, axis, k)?;
    narrow(sort(op, tensor, axis, true)?, axis, 0, k)
}

/// Where the `k` greatest elements of an axis are, the greatest first.
pub(crate) fn argtopk(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    k: usize,
    index: DType,
) -> hip::Result<RocmTensor> {
    check_count(op, &tensor, axis, k)?;
    cast(narrow(sorted(op, tensor, axis, true)?.1, axis, 0, k)?, index)
}
