//! Matrix products with quantised operands. rocBLAS multiplies 8-bit values as integers if all
//! values of each operand share a scale. Otherwise a kernel dequantises as it loads. That kernel
//! does not compute in f64, so for f64 the operands are dequantised first.

use std::sync::atomic::{AtomicU64, Ordering};

use burn_std::{DType, FloatDType};
use hip::{Error, Template};

use super::quantize::{dequantize, unpacked};
use crate::arg::Arg;
use crate::error::invalid;
use crate::layout::{Layout, broadcast_shape, collapse};
use crate::ops::create::full_on;
use crate::ops::launch::rows;
use crate::ops::{matmul, view};
use crate::qtensor::RocmQTensor;
use crate::tensor::{RocmTensor, one_device};

const OP: &str = "q_matmul";

/// The fewest rows, and columns, of the output that one block of the kernel computes.
const TILE: usize = 64;

/// The most terms of a sum of 8-bit products that can't overflow 32 bits.
const MOST_TERMS: usize = i32::MAX as usize / (128 * 128);

/// An operand: floats or quantised.
#[derive(Clone)]
pub(crate) enum Side {
    Float(RocmTensor),
    Quantized(Box<RocmQTensor>),
}

impl Side {
    fn layout(&self) -> &Layout {
        match self {
            Self::Float(tensor) => tensor.layout(),
            Self::Quantized(tensor) => tensor.layout(),
        }
    }

    /// The tensor that holds the elements.
    fn storage(&self) -> &RocmTensor {
        match self {
            Self::Float(tensor) => tensor,
            Self::Quantized(tensor) => tensor.values(),
        }
    }

    fn expand(self, dims: &[usize]) -> hip::Result<Self> {
        Ok(match self {
            Self::Float(tensor) => Self::Float(view::expand(tensor, dims)?),
            Self::Quantized(tensor) => Self::Quantized(Box::new(super::layout::expand(*tensor, dims)?)),
        })
    }

    fn float(self, dtype: FloatDType) -> hip::Result<RocmTensor> {
        match self {
            Self::Float(tensor) => Ok(tensor),
            Self::Quantized(tensor) => dequantize(OP, &tensor, dtype),
        }
    }

    /// The type by which the kernel reads the elements.
    fn kernel_type(&self) -> hip::Result<hip::DType> {
        match self {
            Self::Float(tensor) => tensor.kernel_type(),
            Self::Quantized(_) => Ok(hip::DType::I8),
        }
    }

    /// The contiguous storage, and the scales. Floats have no scales; for them the second is any
    /// f32 tensor.
    fn inputs(&self, other: &Self) -> hip::Result<[RocmTensor; 2]> {
        match (self, other) {
            (Self::Quantized(tensor), _) => Ok([tensor.values().clone(), tensor.scales().clone()]),
            (Self::Float(tensor), Self::Quantized(other)) => {
                let all = tensor.buffer().len() / tensor.dtype_size();
                Ok([tensor.clone().view(Layout::contiguous([all])), other.scales().clone()])
            }
            (Self::Float(_), Self::Float(_)) => invalid(OP, "a quantised operand", "two float operands"),
        }
    }

    /// The bits of a value, the number of values that share a scale, and that number's logarithm.
    fn format(&self) -> [u32; 3] {
        let Self::Quantized(tensor) = self else { return [0, 0, 32] };
        let format = tensor.format();
        let block = format.block.unwrap_or(0);
        let shift = if block.is_power_of_two() { block.trailing_zeros() } else { 32 };
        [format.bits as u32, block as u32, shift]
    }

    /// Whether positions in the storage fit the kernel's 32 bits.
    fn fits(&self) -> bool {
        match self {
            Self::Float(_) => true,
            Self::Quantized(tensor) => {
                u32::try_from(tensor.values().len() * (8 / tensor.format().bits)).is_ok()
            }
        }
    }
}

/// `lhs x rhs` as floats of `dtype`, which is the dtype of a float operand. Batches broadcast.
pub(crate) fn qmatmul(lhs: Side, rhs: Side, dtype: FloatDType) -> hip::Result<RocmTensor> {
    let device = one_device(OP, &[lhs.storage(), rhs.storage()])?.clone();
    let (l, r) = (lhs.layout().dims(), rhs.layout().dims());
    let (Some((left, &[m, k])), Some((right, &[inner, n]))) =
        (l.split_last_chunk::<2>(), r.split_last_chunk::<2>())
    else {
        return invalid(OP, "matrices", format!("{l:?} and {r:?}"));
    };
    if k != inner {
        return invalid(OP, format!("a right side of {k} rows"), format!("{l:?} and {r:?}"));
    }
    let batch = broadcast_shape(OP, left, right)?;
    let with =
        |rows, columns| -> Vec<usize> { batch.as_slice().iter().copied().chain([rows, columns]).collect() };
    let dims = with(m, n);
    if dims.contains(&0) || k == 0 {
        return full_on(&device, dims, 0i64.into(), dtype.into());
    }
    if let (Side::Quantized(a), Side::Quantized(b)) = (&lhs, &rhs)
        && let Some(out) = integers(a, b, k, dtype)?
    {
        return Ok(out);
    }
    let sizes = [m, n, k].map(u32::try_from);
    let (true, [Ok(m), Ok(n), Ok(k)]) = (dtype != FloatDType::F64 && lhs.fits() && rhs.fits(), sizes) else {
        return matmul::matmul(OP, lhs.float(dtype)?, rhs.float(dtype)?);
    };
    let (lhs, rhs) = (lhs.expand(&with(m as usize, k as usize))?, rhs.expand(&with(k as usize, n as usize))?);
    let out = RocmTensor::empty(&device, dims, dtype.into())?;
    tiles(&lhs, &rhs, [m, n, k], &out)?;
    Ok(out)
}

/// Computes the product by the kernel into the packed tensor `out`.
fn tiles(lhs: &Side, rhs: &Side, [m, n, k]: [u32; 3], out: &RocmTensor) -> hip::Result<()> {
    let (a, b) = (lhs.layout(), rhs.layout());
    let rank = a.rank() - 2;
    let one = m as usize * n as usize;
    let mut outer = collapse(&out.dims()[..rank], [a, b, out.layout()].map(|t| &t.strides()[..rank]));
    // One launch covers the innermost batch axis. Each index of the other batch axes takes a launch
    // of its own.
    let (inner, step) = outer.pop().unwrap_or((1, [0; 3]));
    let kernel = Template::qmatmul.ty(lhs.kernel_type()?).ty(rhs.kernel_type()?).ty(out.kernel_type()?);
    let ([a_bits, a_block, a_shift], [b_bits, b_block, b_shift]) = (lhs.format(), rhs.format());
    let sizes = [m, n, k, a_bits, a_block, a_shift, b_bits, b_block, b_shift, 0, 0, 0];
    let last = |layout: &Layout, axis: usize| layout.strides()[rank + axis] as i64;
    let strides = [step[0] as i64, last(a, 0), last(a, 1), step[1] as i64, last(b, 0), last(b, 1)];
    let ([a_values, a_scales], [b_values, b_scales]) = (lhs.inputs(rhs)?, rhs.inputs(lhs)?);
    let device = out.hip_device();
    let grid =
        device.grid_rows(inner * (m as usize).div_ceil(TILE) * (n as usize).div_ceil(TILE), TILE * TILE);
    let flat = view::reshape(out.clone(), &[out.len()])?;
    for (i, start) in outer.offsets().iter().enumerate() {
        let dims = [
            Arg::U64(inner as u64),
            Arg::U32x12(sizes),
            Arg::I64x6(strides),
            Arg::I64(a.offset() as i64 + start[0] as i64),
            Arg::I64(b.offset() as i64 + start[1] as i64),
        ];
        let part = view::narrow(flat.clone(), 0, i * inner * one, inner * one)?;
        let inputs = [&a_values, &a_scales, &b_values, &b_scales];
        rows(OP, device, kernel, grid, &dims, &inputs, &[], &[&part])?;
    }
    Ok(())
}

/// A bit mask of the devices whose rocBLAS can't multiply 8-bit integers.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The product in rocBLAS's 8-bit integers; `None` unless the values are bytes, each side has one
/// scale, no sum can overflow, and rocBLAS has such a product for the device.
fn integers(
    a: &RocmQTensor,
    b: &RocmQTensor,
    k: usize,
    dtype: FloatDType,
) -> hip::Result<Option<RocmTensor>> {
    let bytes = |t: &RocmQTensor| t.format().bits == 8 && t.format().block.is_none();
    let device = a.hip_device();
    let bit = 1u64 << (device.info().index % 64);
    if !bytes(a) || !bytes(b) || k > MOST_TERMS || REFUSED.load(Ordering::Relaxed) & bit != 0 {
        return Ok(None);
    }
    let sums = match matmul::bytes(OP, unpacked(OP, a)?, unpacked(OP, b)?) {
        Ok(sums) => sums,
        Err(error @ (Error::Rocblas { .. } | Error::NotAvailable { .. })) => {
            log::debug!("{OP}: no product of 8-bit integers here: {error}");
            REFUSED.fetch_or(bit, Ordering::Relaxed);
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let out = RocmTensor::empty(device, sums.layout().shape().clone(), dtype.into())?;
    let n = out.len();
    let kernel = Template::scale_product.ty(out.kernel_type()?);
    debug_assert_eq!(sums.dtype_of(), DType::I32);
    let inputs = [&sums, a.scales(), b.scales()];
    rows(OP, device, kernel, device.grid(n), &[Arg::U64(n as u64)], &inputs, &[], &[&out])?;
    Ok(Some(out))
}
