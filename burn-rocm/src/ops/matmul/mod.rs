//! Matrix products. rocBLAS multiplies floats, and takes transposed and broadcast views without a
//! copy. A kernel multiplies integers. It also multiplies floats if rocBLAS has no kernels for the
//! device or `BURN_ROCM_MATMUL` says so.
//!
//! [`Product::new`] checks the operands, `make` allocates the result, `write` chooses between
//! rocBLAS and the kernel, and `multiply` makes the calls that [`Plan`] cuts the product into. A
//! product whose batches may be summed next is put off (`tensor/put_off.rs`).

mod plan;

use std::sync::Once;

use burn_std::DType;
use hip::{MatrixView, Route, Template, matmul_route};

use super::copy::assign;
use super::create::full_on;
use super::launch::{max_reach, views};
use super::view::{expand, narrow, reshape, swap_dims};
use crate::arg::Arg;
use crate::error::invalid;
use crate::layout::broadcast_shape;
use crate::tensor::{RocmTensor, Work, one_device, one_dtype};
pub(crate) use plan::is_one_batch;
use plan::{Call, Plan, Side};

/// The rows, and the columns, of the output that one block of the kernel computes.
const TILE: usize = 64;

/// The options of a product.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// The op's name, for errors.
    pub(super) op: &'static str,
    /// The factor of the product.
    alpha: f64,
    /// Whether the product computes a gradient ([`hip::Blas::gemm`]). Burn's autodiff also computes
    /// gradients by `float_matmul`, and the backend can't tell those from other products.
    gradient: bool,
}

impl Request {
    pub(crate) fn new(op: &'static str, alpha: f64) -> Self {
        Self { op, alpha, gradient: false }
    }

    /// Whether the product computes a gradient.
    pub(super) fn is_gradient(&self) -> bool {
        self.gradient
    }

    /// As [`new`](Self::new), for a product that computes a gradient.
    pub(crate) fn gradient(op: &'static str, alpha: f64) -> Self {
        Self { op, alpha, gradient: true }
    }
}

/// `lhs x rhs`. Batches broadcast. The product is put off if a sum over its batches may replace it
/// ([`sum_of_batches`]).
pub(crate) fn matmul(op: &'static str, lhs: RocmTensor, rhs: RocmTensor) -> hip::Result<RocmTensor> {
    let dtype = one_dtype(op, &[&lhs, &rhs])?;
    let product = Product::new(Request::new(op, 1.0), lhs, rhs, dtype)?;
    let Some(stacked) = product.stacked()? else { return product.make(dtype) };
    let out = RocmTensor::empty(product.lhs.hip_device(), product.dims.clone(), dtype)?;
    let [rows, columns] = stacked.each_ref().map(|side| side.dims()[1]);
    let dims = [out.len() / (rows * columns), rows, columns];
    let place = out.clone();
    let run = move || {
        let _named = hip::trace::op_put_off(op, dtype.name());
        // If computing an operand fails, the product fails with the same error.
        product.lhs.settle()?;
        product.rhs.settle()?;
        product.write(&place)
    };
    Ok(out.put_off(dims, Work { run: Box::new(run), stacked }))
}

/// If `tensor` is a product that was put off and `axis` counts its matrices: the sum along `axis`,
/// which then has size 1, as one product of the operands stacked along their inner axis. The caller
/// then drops `tensor`.
pub(crate) fn sum_of_batches(
    op: &'static str,
    tensor: &RocmTensor,
    axis: usize,
) -> hip::Result<Option<RocmTensor>> {
    let mut dims = tensor.dims().to_vec();
    let Some((batches, &[rows, columns])) = dims.split_last_chunk::<2>() else { return Ok(None) };
    let count = batches.iter().product();
    if batches.get(axis) != Some(&count) {
        return Ok(None);
    }
    let Some([lhs, rhs]) = tensor.take_stacked([count, rows, columns]) else { return Ok(None) };
    dims[axis] = 1;
    reshape(product(Request::new(op, 1.0), swap_dims(lhs, 0, 1)?, rhs)?, &dims).map(Some)
}

/// `alpha * (lhs x rhs)`. Batches broadcast.
pub(crate) fn product(request: Request, lhs: RocmTensor, rhs: RocmTensor) -> hip::Result<RocmTensor> {
    let dtype = one_dtype(request.op, &[&lhs, &rhs])?;
    Product::new(request, lhs, rhs, dtype)?.make(dtype)
}

/// `lhs x rhs` of 8-bit integers by rocBLAS, with 32-bit results.
///
/// # Errors
/// `NotAvailable`, also if `BURN_ROCM_MATMUL=own` forbids rocBLAS: no kernel replaces it here.
pub(crate) fn bytes(op: &'static str, lhs: RocmTensor, rhs: RocmTensor) -> hip::Result<RocmTensor> {
    if matmul_route()? == Route::Own {
        let reason = "BURN_ROCM_MATMUL=own forbids rocBLAS".into();
        return Err(hip::Error::NotAvailable { reason, searched: Vec::new() });
    }
    Product::new(Request::new(op, 1.0), lhs, rhs, DType::I32)?.make(DType::I32)
}

/// Writes `alpha * (lhs x rhs)` to `out`, a view of the product's shape in any layout. Batches
/// broadcast. Needs no copy if [`is_one_batch`] holds for `out`.
pub(crate) fn product_to(
    request: Request,
    lhs: RocmTensor,
    rhs: RocmTensor,
    out: &RocmTensor,
) -> hip::Result<()> {
    let op = request.op;
    let dtype = one_dtype(op, &[&lhs, &rhs, out])?;
    one_device(op, &[&lhs, out])?;
    let product = Product::new(request, lhs, rhs, dtype)?;
    if out.dims() != product.dims {
        return invalid(op, format!("an output of shape {:?}", product.dims), format!("{:?}", out.dims()));
    }
    if !product.is_of_nothing() && is_one_batch(out) {
        return product.write(out);
    }
    assign(op, out, &product.make(dtype)?)
}

/// Checked operands, whose batches are expanded to the product's.
struct Product {
    request: Request,
    lhs: RocmTensor,
    rhs: RocmTensor,
    dims: Vec<usize>,
}

impl Product {
    /// `dtype` is the result's dtype: that of the operands, or i32 for i8.
    fn new(request: Request, lhs: RocmTensor, rhs: RocmTensor, dtype: DType) -> hip::Result<Self> {
        let op = request.op;
        one_device(op, &[&lhs, &rhs])?;
        let (l, r) = (lhs.dims(), rhs.dims());
        let found = || format!("{l:?} and {r:?} of {}", dtype.name());
        let (Some((left, &[m, k])), Some((right, &[inner, n]))) =
            (l.split_last_chunk::<2>(), r.split_last_chunk::<2>())
        else {
            return invalid(op, "matrices", found());
        };
        if k != inner {
            return invalid(op, format!("a right side of {k} rows"), found());
        }
        let batch =
            broadcast_shape(op, left, right).or_else(|_| invalid(op, "batches that broadcast", found()))?;
        let whole = |t: RocmTensor, rows, cols| {
            let dims: Vec<usize> = batch.as_slice().iter().copied().chain([rows, cols]).collect();
            expand(t, &dims)
        };
        let dims = batch.as_slice().iter().copied().chain([m, n]).collect();
        let (lhs, rhs) = (whole(lhs, m, k)?, whole(rhs, k, n)?);
        Ok(Self { request, lhs, rhs, dims })
    }

    /// Whether the product has no elements, or each of its sums has no terms.
    fn is_of_nothing(&self) -> bool {
        self.dims.contains(&0) || self.lhs.dims().last() == Some(&0)
    }

    /// The operands stacked along their inner axis, if each stack is a view: `[terms, rows]` and
    /// `[terms, columns]`. `None` also for a single matrix and for integers.
    fn stacked(&self) -> hip::Result<Option<[RocmTensor; 2]>> {
        let last = self.dims.len() - 1;
        let (batches, terms) = (&self.dims[..last - 1], self.lhs.dims()[last]);
        let count: usize = batches.iter().product();
        let many = count > 1 && batches.contains(&count) && !self.is_of_nothing();
        let long = count.saturating_mul(terms) > max_reach();
        if !many || long || !self.lhs.kernel_type()?.is_float() {
            return Ok(None);
        }
        let stack = |side: &RocmTensor, width: usize| -> hip::Result<Option<RocmTensor>> {
            let layout = side.layout().reshape(self.request.op, &[count * terms, width])?;
            // The stack must be packed, row by row.
            let layout = layout.filter(|layout| *layout.strides() == [width as isize, 1]);
            Ok(layout.map(|layout| side.clone().view(layout)))
        };
        let turned = swap_dims(self.lhs.clone(), last - 1, last)?;
        let Some(lhs) = stack(&turned, self.dims[last - 1])? else { return Ok(None) };
        Ok(stack(&self.rhs, self.dims[last])?.map(|rhs| [lhs, rhs]))
    }

    /// The product in a new tensor.
    fn make(&self, dtype: DType) -> hip::Result<RocmTensor> {
        let device = self.lhs.hip_device();
        if self.is_of_nothing() {
            return full_on(device, self.dims.clone(), 0i64.into(), dtype);
        }
        let out = RocmTensor::empty(device, self.dims.clone(), dtype)?;
        self.write(&out)?;
        Ok(out)
    }

    /// Writes the product to `out`, for which [`is_one_batch`] holds. rocBLAS computes it if it has
    /// the dtype and `BURN_ROCM_MATMUL` allows, else the kernel.
    fn write(&self, out: &RocmTensor) -> hip::Result<()> {
        let same = self.lhs.dtype_of() == out.dtype_of();
        let route = match !self.lhs.kernel_type()?.is_float() && same {
            true => Route::Own,
            false => {
                let route = matmul_route()?;
                if route == Route::Own {
                    hip::trace::fell_back(|| "setting BURN_ROCM_MATMUL=own");
                }
                route
            }
        };
        if route == Route::Own {
            return self.by_kernel(out);
        }
        match self.multiply(out, Self::gemm) {
            Err(error) if route == Route::Auto && same => {
                fallen_back(error)?;
                self.by_kernel(out)
            }
            done => done,
        }
    }

    /// Computes the product by the kernel, whose output is packed.
    fn by_kernel(&self, out: &RocmTensor) -> hip::Result<()> {
        if out.is_contiguous() {
            return self.multiply(out, Self::tiles);
        }
        let packed = RocmTensor::empty(out.hip_device(), self.dims.clone(), out.dtype_of())?;
        self.multiply(&packed, Self::tiles)?;
        assign(self.request.op, out, &packed)
    }

    /// Cuts the product into calls, and makes each by `call`, which is rocBLAS's or the kernel's.
    fn multiply(
        &self,
        out: &RocmTensor,
        call: fn(&Self, &[Side; 3], &Call) -> hip::Result<()>,
    ) -> hip::Result<()> {
        let Plan { sides, calls } = Plan::new(self.request.op, &self.lhs, &self.rhs, out)?;
        calls.iter().try_for_each(|part| call(self, &sides, part))
    }

    /// One call of rocBLAS.
    fn gemm(&self, sides: &[Side; 3], call: &Call) -> hip::Result<()> {
        let [m, n, k] = call.sizes;
        let sizes = [(m, k), (k, n), (m, n)];
        let [a, b, c] = std::array::from_fn(|i| {
            let Side { tensor, strides } = &sides[i];
            MatrixView {
                buffer: tensor.buffer(),
                offset: (tensor.layout().offset() as isize + call.start[i]) as usize,
                rows: sizes[i].0,
                cols: sizes[i].1,
                row_stride: strides.row,
                col_stride: strides.col,
                batch_stride: call.stride[i] as usize,
            }
        });
        let blas = self.lhs.hip_device().blas()?;
        let Request { alpha, gradient, .. } = self.request;
        blas.gemm(self.lhs.kernel_type()?, call.count, a, b, c, alpha, 0.0, gradient)
    }

    /// One launch of the kernel. Its output is packed.
    fn tiles(&self, [a, b, place]: &[Side; 3], call: &Call) -> hip::Result<()> {
        let [m, n, k] = call.sizes;
        if call.sizes.iter().any(|&size| size > i32::MAX as usize) {
            let expected = format!("sizes of at most {}", i32::MAX);
            return invalid(self.request.op, expected, format!("{m} x {k} and {k} x {n}"));
        }
        let (a, b) = (a.batch(call, 0, [m, k])?, b.batch(call, 1, [k, n])?);
        let flat = reshape(place.tensor.clone(), &[place.tensor.len()])?;
        let out = narrow(flat, 0, call.start[2] as usize, call.count * m * n)?;
        let [x, y] = [&a, &b].map(|t| [0, 1, 2].map(|axis| t.layout().strides()[axis] as i64));
        let dims = [
            Arg::U64(call.count as u64),
            Arg::U32(m as u32),
            Arg::U32(n as u32),
            Arg::U32(k as u32),
            Arg::I64x6([x[0], x[1], x[2], y[0], y[1], y[2]]),
            Arg::F64(self.request.alpha),
        ];
        let device = out.hip_device();
        let tiles = call.count * m.div_ceil(TILE) * n.div_ceil(TILE);
        let grid = device.grid_rows(tiles, TILE * TILE);
        let kernel = Template::matmul.ty(out.kernel_type()?);
        views(self.request.op, device, kernel, grid, &dims, &[Some(&a), Some(&b)], &[], &out)
    }
}

/// `Ok` if the kernel may replace rocBLAS after this error. Warns once through `log`, and tells the
/// summary.
fn fallen_back(error: hip::Error) -> hip::Result<()> {
    static ONCE: Once = Once::new();
    match error {
        hip::Error::Rocblas { .. } | hip::Error::NotAvailable { .. } => {
            let error = hip::allow_fallback(error)?;
            ONCE.call_once(|| {
                log::warn!("a kernel of this crate computes matrix products where rocBLAS fails: {error}")
            });
            hip::trace::fell_back(|| format!("rocBLAS failed: {error}"));
            Ok(())
        }
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests;
