//! The coordinates of true elements. The size of the result depends on the data, so this op reads
//! the count, and only the count, from the device.

use burn_std::{DType, IntDType};
use hip::{Functor, Template};

use super::cast::cast;
use super::copy::packed;
use super::launch::rows;
use super::scan::scan;
use super::view::reshape;
use crate::arg::Arg;
use crate::dtype::is_index;
use crate::tensor::RocmTensor;

/// Elements that one thread counts: a cache line of one-byte bools. On the CPU device, whose blocks
/// have one thread, a larger number keeps the list of counts short.
const CHUNK: usize = 64;
const SERIAL_CHUNK: usize = 4096;
/// The most dims whose coordinates one launch writes: `Sizes` in the kernel.
const DIMS: usize = 8;

/// The coordinates of the true elements, `[count, rank]`, in row-major order.
pub(crate) fn argwhere(tensor: RocmTensor, dtype: IntDType) -> hip::Result<RocmTensor> {
    const OP: &str = "bool_argwhere";
    let dtype: DType = dtype.into();
    let stored = if is_index(dtype) { dtype } else { DType::I64 };
    let tensor = packed(tensor)?;
    let (device, dims, n) = (tensor.hip_device().clone(), tensor.dims().to_vec(), tensor.len());
    let rank = dims.len();
    if n == 0 {
        return RocmTensor::empty(&device, [0, rank], dtype);
    }
    let tensor = reshape(tensor, &[n])?;
    let ty = tensor.kernel_type()?;
    let serial = device.block_threads() == 1;
    let chunk = if serial { SERIAL_CHUNK } else { CHUNK };
    let chunks = n.div_ceil(chunk);
    let counts = RocmTensor::empty(&device, [chunks], DType::I64)?;
    let head = [n, chunk].map(|v| Arg::U64(v as u64));
    let grid = device.grid(n);
    let kernel = Template::argwhere_count.ty(ty);
    rows(OP, &device, kernel, grid, &head, &[&tensor], &[], &[&counts])?;
    let ends = packed(scan(OP, Functor::CumSum, counts, 0)?)?;
    let mut last = [0; size_of::<i64>()];
    device.read(ends.buffer(), ends.byte_offset() + (chunks - 1) * last.len(), &mut last)?;
    let found = i64::from_ne_bytes(last) as usize;
    let out = RocmTensor::empty(&device, [found, rank], stored)?;
    if found == 0 {
        return cast(out, dtype);
    }
    let places = RocmTensor::empty(&device, [found], DType::I64)?;
    let head = [n, chunk, found].map(|v| Arg::U64(v as u64));
    let kernel = Template::argwhere_places.ty(ty);
    rows(OP, &device, kernel, grid, &head, &[&tensor, &ends], &[], &[&places])?;
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
        rows(OP, &device, kernel, device.grid(found), &head, &[&places], &[], &[&out])?;
    }
    cast(out, dtype)
}
