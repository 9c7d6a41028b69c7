//! The coordinates of true elements, and a tensor's elements there. The size of the result depends
//! on the data, so these ops read the count, and only the count, from the device.

use burn_std::{DType, IntDType};
use hip::{Functor, Template};

use super::cast::cast;
use super::copy::packed;
use super::index::pick_rows;
use super::launch::rows;
use super::mask::check_mask;
use super::scan::scan;
use super::view::reshape;
use crate::arg::Arg;
use crate::dtype::{check_indices, is_index};
use crate::error::invalid;
use crate::tensor::{RocmTensor, one_device};

/// Elements that one thread counts: a cache line of one-byte bools. On the CPU device, whose blocks
/// have one thread, a larger number keeps the list of counts short.
const CHUNK: usize = 64;
const SERIAL_CHUNK: usize = 4096;
/// The most dims whose coordinates one launch writes: `Sizes` in the kernel.
const DIMS: usize = 8;

/// The row-major index of each true element, as i64. Reads from the device how many there are.
fn places(op: &'static str, tensor: &RocmTensor) -> hip::Result<RocmTensor> {
    let tensor = packed(tensor.clone())?;
    let (device, n, ty) = (tensor.hip_device(), tensor.len(), tensor.kernel_type()?);
    if n == 0 {
        return RocmTensor::empty(device, [0], DType::I64);
    }
    let serial = device.block_threads() == 1;
    let chunk = if serial { SERIAL_CHUNK } else { CHUNK };
    let chunks = n.div_ceil(chunk);
    let counts = RocmTensor::empty(device, [chunks], DType::I64)?;
    let head = [n, chunk].map(|v| Arg::U64(v as u64));
    let grid = device.grid(n);
    let kernel = Template::argwhere_count.ty(ty);
    rows(op, device, kernel, grid, &head, &[&tensor], &[], &[&counts])?;
    let ends = packed(scan(op, Functor::CumSum, counts, 0)?)?;
    let mut last = [0; size_of::<i64>()];
    device.read(ends.buffer(), ends.byte_offset() + (chunks - 1) * last.len(), &mut last)?;
    let found = i64::from_ne_bytes(last) as usize;
    let places = RocmTensor::empty(device, [found], DType::I64)?;
    if found > 0 {
        let head = [n, chunk, found].map(|v| Arg::U64(v as u64));
        let kernel = Template::argwhere_places.ty(ty);
        rows(op, device, kernel, grid, &head, &[&tensor, &ends], &[], &[&places])?;
    }
    Ok(places)
}

/// The elements of the tensor where the mask is true, in row-major order.
pub(crate) fn mask_select(op: &'static str, tensor: RocmTensor, mask: RocmTensor) -> hip::Result<RocmTensor> {
    one_device(op, &[&tensor, &mask])?;
    check_mask(op, &mask)?;
    if mask.dims() != tensor.dims() {
        return invalid(op, format!("a mask of shape {:?}", tensor.dims()), format!("{:?}", mask.dims()));
    }
    let places = places(op, &mask)?;
    let n = tensor.len();
    reshape(pick_rows(op, &reshape(tensor, &[n, 1])?, &places)?, &[places.len()])
}

/// The coordinates of the true elements, `[count, rank]`, in row-major order.
///
/// # Errors
/// `Invalid` for a dtype that can't hold every coordinate; those of a read.
pub(crate) fn argwhere(tensor: RocmTensor, dtype: IntDType) -> hip::Result<RocmTensor> {
    const OP: &str = "bool_argwhere";
    let dtype: DType = dtype.into();
    let stored = if is_index(dtype) { dtype } else { DType::I64 };
    let (device, dims) = (tensor.hip_device(), tensor.dims());
    if !tensor.is_empty() {
        dims.iter().try_for_each(|&dim| check_indices(OP, "elements along each axis", dim, dtype))?;
    }
    let (rank, places) = (dims.len(), places(OP, &tensor)?);
    let found = places.len();
    let out = RocmTensor::empty(device, [found, rank], stored)?;
    if found == 0 {
        return cast(out, dtype);
    }
    let kernel = Template::place_coordinates.ty(out.kernel_type()?);
    for (part, sizes) in dims.chunks(DIMS).enumerate() {
        let mut padded = [1; DIMS];
        for (to, &from) in padded.iter_mut().zip(sizes) {
            *to = from as u64;
        }
        let inner: usize = dims[part * DIMS + sizes.len()..].iter().product();
        let u = |v: usize| Arg::U32(v as u32);
        let head = [
            Arg::U64(found as u64),
            u(rank),
            u(part * DIMS),
            u(sizes.len()),
            Arg::U64(inner as u64),
            Arg::U64x8(padded),
        ];
        rows(OP, device, kernel, device.grid(found), &head, &[&places], &[], &[&out])?;
    }
    cast(out, dtype)
}
