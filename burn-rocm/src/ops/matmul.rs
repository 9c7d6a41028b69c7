//! Matrix products: floats on rocBLAS, which takes transposed and broadcast views as they are; integers on a
//! kernel, and floats too where there is no rocBLAS for the device or `BURN_ROCM_MATMUL` says so.

use std::sync::Once;

use burn_std::DType;
use hip::{KernelName, MatrixView, Route, matmul_route};

use super::copy::{assign, contiguous, copy};
use super::create::full_on;
use super::launch::{max_reach, views};
use super::view::expand;
use super::{is_gradient, view};
use crate::arg::Arg;
use crate::error::invalid;
use crate::layout::{Layout, broadcast_shape, collapse};
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// Bytes that are worth copying to save one call: on a GPU, and on the CPU device. A call takes
/// about 4 us. In that time an H200 copies 8 MB, a GPU of half its memory bandwidth 4 MB, and a CPU
/// core 64 KB. `benches/src/bin/product_batches.rs` times both sides.
const COPIED_A_CALL: [usize; 2] = [4 << 20, 64 << 10];

/// The output of one block of the kernel is so many rows and columns.
const TILE: usize = 64;

/// `lhs x rhs`, batches broadcast.
pub(crate) fn matmul(op: &'static str, lhs: RocmTensor, rhs: RocmTensor) -> hip::Result<RocmTensor> {
    scaled(op, lhs, rhs, 1.0)
}

/// `alpha * (lhs x rhs)`, batches broadcast.
pub(crate) fn scaled(
    op: &'static str,
    lhs: RocmTensor,
    rhs: RocmTensor,
    alpha: f64,
) -> hip::Result<RocmTensor> {
    let dtype = one_dtype(op, &[&lhs, &rhs])?;
    product(op, lhs, rhs, alpha, dtype)
}

/// `lhs x rhs` of 8-bit integers by rocBLAS, as 32-bit ones.
///
/// # Errors
/// `NotAvailable` also where `BURN_ROCM_MATMUL=own` forbids rocBLAS: no kernel takes its place here.
pub(crate) fn bytes(op: &'static str, lhs: RocmTensor, rhs: RocmTensor) -> hip::Result<RocmTensor> {
    if matmul_route()? == Route::Own {
        let reason = "BURN_ROCM_MATMUL=own forbids rocBLAS".into();
        return Err(hip::Error::NotAvailable { reason, searched: Vec::new() });
    }
    product(op, lhs, rhs, 1.0, DType::I32)
}

/// `alpha * (lhs x rhs)` into `out`, a view of the product's shape whose elements lie anywhere; the product's
/// batches broadcast. No copy where [`is_one_batch`] says so of `out`.
pub(crate) fn scaled_to(
    op: &'static str,
    lhs: RocmTensor,
    rhs: RocmTensor,
    alpha: f64,
    out: &RocmTensor,
) -> hip::Result<()> {
    let dtype = one_dtype(op, &[&lhs, &rhs, out])?;
    one_device(op, &[&lhs, out])?;
    let product = Product::new(op, lhs, rhs, alpha, dtype)?;
    if out.dims() != product.dims {
        return invalid(op, format!("a place of shape {:?}", product.dims), format!("{:?}", out.dims()));
    }
    if !product.is_of_nothing() && is_one_batch(out) {
        return product.write(out);
    }
    assign(op, out, &product.make(dtype)?)
}

/// `alpha * (lhs x rhs)` as `dtype`: that of the operands, or i32 for i8.
fn product(
    op: &'static str,
    lhs: RocmTensor,
    rhs: RocmTensor,
    alpha: f64,
    dtype: DType,
) -> hip::Result<RocmTensor> {
    Product::new(op, lhs, rhs, alpha, dtype)?.make(dtype)
}

/// Operands that fit together, and whose batches are repeated to the product's.
struct Product {
    call: Call,
    lhs: RocmTensor,
    rhs: RocmTensor,
    dims: Vec<usize>,
}

impl Product {
    fn new(
        op: &'static str,
        lhs: RocmTensor,
        rhs: RocmTensor,
        alpha: f64,
        dtype: DType,
    ) -> hip::Result<Self> {
        one_device(op, &[&lhs, &rhs])?;
        let (l, r) = (lhs.dims(), rhs.dims());
        let found = || format!("{l:?} and {r:?} of {}", dtype.name());
        let (Some((&[m, k], left)), Some((&[inner, n], right))) =
            (l.split_last_chunk::<2>().map(|(b, m)| (m, b)), r.split_last_chunk::<2>().map(|(b, m)| (m, b)))
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
        Ok(Self { call: Call { op, alpha }, lhs, rhs, dims })
    }

    /// Whether it has no elements, or is a sum of none.
    fn is_of_nothing(&self) -> bool {
        self.dims.contains(&0) || self.lhs.dims().last() == Some(&0)
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

    /// The product into `out`, which [`is_one_batch`].
    fn write(&self, out: &RocmTensor) -> hip::Result<()> {
        let Self { call, lhs, rhs, .. } = self;
        let same = lhs.dtype_of() == out.dtype_of();
        if !lhs.kernel_type()?.is_float() && same {
            return self.by_kernel(out);
        }
        match matmul_route()? {
            Route::Own => self.by_kernel(out),
            Route::Library => call.multiply(lhs, rhs, out, By::Rocblas),
            Route::Auto => match call.multiply(lhs, rhs, out, By::Rocblas) {
                Err(error) if same => {
                    fallen_back(error)?;
                    self.by_kernel(out)
                }
                done => done,
            },
        }
    }

    /// The kernel's output is packed.
    fn by_kernel(&self, out: &RocmTensor) -> hip::Result<()> {
        let Self { call, lhs, rhs, dims } = self;
        if out.is_contiguous() {
            return call.multiply(lhs, rhs, out, By::Kernel);
        }
        let packed = RocmTensor::empty(out.hip_device(), dims.clone(), out.dtype_of())?;
        call.multiply(lhs, rhs, &packed, By::Kernel)?;
        assign(call.op, out, &packed)
    }
}

/// `Ok` where what went wrong is rocBLAS's affair and the kernel may take its place. Said once.
fn fallen_back(error: hip::Error) -> hip::Result<()> {
    static ONCE: Once = Once::new();
    match error {
        hip::Error::Rocblas { .. } | hip::Error::NotAvailable { .. } => {
            ONCE.call_once(|| {
                log::warn!("matrix products run on a kernel of this crate where rocBLAS fails: {error}")
            });
            Ok(())
        }
        _ => Err(error),
    }
}

/// Who multiplies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rocblas,
    Kernel,
}

/// What all parts of one product share.
#[derive(Clone, Copy)]
struct Call {
    op: &'static str,
    alpha: f64,
}

/// A matrix of a batch, as rocBLAS takes it: one of the strides is 1.
#[derive(Clone, Copy)]
struct Strides {
    row: usize,
    col: usize,
}

/// The strides of the last two axes, if rocBLAS takes them.
fn matrix(tensor: &RocmTensor) -> Option<Strides> {
    let (&[rows, cols], &[row, col]) =
        (tensor.dims().last_chunk::<2>()?, tensor.layout().strides().last_chunk::<2>()?);
    let fits = |stride: isize, extent: usize| stride > 0 && stride as usize >= extent.max(1);
    if (cols == 1 || col == 1) && (rows == 1 || fits(row, cols)) {
        return Some(Strides { row: if rows == 1 { cols } else { row as usize }, col: 1 });
    }
    if (rows == 1 || row == 1) && (cols == 1 || fits(col, rows)) {
        return Some(Strides { row: 1, col: if cols == 1 { rows } else { col as usize } });
    }
    None
}

/// Whether one call of rocBLAS takes the matrices of all batches where they lie: the last two axes as it takes a
/// matrix, and one stride that leads from each to the next.
pub(crate) fn is_one_batch(tensor: &RocmTensor) -> bool {
    let batch = tensor.dims().len().saturating_sub(2);
    let merged = collapse(&tensor.dims()[..batch], [&tensor.layout().strides()[..batch]]);
    let forward = merged.strides[0].iter().all(|&stride| stride >= 0);
    merged.shape.len() <= 1 && forward && matrix(tensor).is_some()
}

/// One operand of a product, and the strides of its matrices.
struct Side {
    tensor: RocmTensor,
    strides: Strides,
}

impl Side {
    /// The tensor with its last two axes as rocBLAS takes them, copied if need be; repeated batches are not copied.
    fn new(tensor: RocmTensor) -> hip::Result<Self> {
        if let Some(strides) = matrix(&tensor) {
            return Ok(Self { tensor, strides });
        }
        let dims = tensor.dims().to_vec();
        let batch = dims.len() - 2;
        // Only one of each repeated batch is copied.
        let mut base = tensor;
        for axis in 0..batch {
            if base.layout().strides()[axis] == 0 {
                base = view::narrow(base, axis, 0, 1)?;
            }
        }
        let tensor = expand(copy(&base)?, &dims)?;
        Ok(Self { tensor, strides: Strides { row: dims[batch + 1], col: 1 } })
    }

    fn batches(&self) -> (&[usize], &[isize]) {
        let (dims, strides) = (self.tensor.dims(), self.tensor.layout().strides());
        (&dims[..dims.len() - 2], &strides[..dims.len() - 2])
    }

    /// Whether all batches share one matrix.
    fn is_shared(&self) -> bool {
        let (dims, strides) = self.batches();
        dims.iter().zip(strides).all(|(&dim, &stride)| stride == 0 || dim == 1)
    }

    /// Whether no single stride steps through its batches and through those of `out`.
    fn is_scattered(&self, out: &RocmTensor) -> bool {
        let (dims, strides) = self.batches();
        let merged = collapse(dims, [strides, &out.layout().strides()[..dims.len()]]);
        merged.shape.len() > 1 || merged.strides[0].iter().any(|&stride| stride < 0)
    }

    /// Copies the batches one after the other. Each matrix keeps its layout, so that runs of
    /// elements are copied as runs.
    fn together(self) -> hip::Result<Self> {
        let last = self.tensor.dims().len() - 1;
        let tensor = if self.strides.col == 1 {
            contiguous(self.tensor)?
        } else {
            let turned = view::swap_dims(self.tensor, last - 1, last)?;
            view::swap_dims(contiguous(turned)?, last - 1, last)?
        };
        Self::new(tensor)
    }

    /// All batches as the rows of one tall matrix, if one stride leads through their rows.
    fn tall(&self) -> hip::Result<Option<Self>> {
        let width = self.tensor.dims()[self.tensor.dims().len() - 1];
        let layout = self.tensor.layout().reshape("matmul", &[self.tensor.len() / width, width])?;
        Ok(layout.and_then(|layout| {
            let tensor = self.tensor.clone().view(layout);
            matrix(&tensor).map(|strides| Self { tensor, strides })
        }))
    }
}

impl Call {
    fn multiply(self, lhs: &RocmTensor, rhs: &RocmTensor, out: &RocmTensor, by: By) -> hip::Result<()> {
        let [mut a, mut b] = [Side::new(lhs.clone())?, Side::new(rhs.clone())?];
        let Some(strides) = matrix(out) else {
            return invalid(self.op, "a place that rocBLAS writes to", format!("{:?}", out.layout()));
        };
        let place = Side { tensor: out.clone(), strides };
        if self.by_rows(&a, &b, &place, by)? {
            return Ok(());
        }
        let calls = calls(&merge(&a.tensor, &b.tensor, out));
        if calls > 1 {
            let scattered = [&a, &b].map(|side| side.is_scattered(out));
            let bytes =
                |side: &Side, moved| if moved { side.tensor.len() * side.tensor.dtype_size() } else { 0 };
            let copied = bytes(&a, scattered[0]) + bytes(&b, scattered[1]);
            let launches = 1 + scattered.iter().filter(|&&moved| moved).count();
            // With a shared right side all batches become one product; otherwise the copy only
            // saves calls.
            let work = if b.is_shared() { a.batches().0.iter().product() } else { calls };
            let each = COPIED_A_CALL[usize::from(out.hip_device().block_threads() == 1)];
            if copied <= work.saturating_sub(launches).saturating_mul(each) {
                a = if scattered[0] { a.together()? } else { a };
                b = if scattered[1] { b.together()? } else { b };
                if self.by_rows(&a, &b, &place, by)? {
                    return Ok(());
                }
            }
        }
        let dims = out.dims();
        let sizes = [dims[dims.len() - 2], dims[dims.len() - 1], lhs.dims()[dims.len() - 1]];
        for batch in batches(&merge(&a.tensor, &b.tensor, out)) {
            self.one([&a, &b, &place], &batch, sizes, by)?;
        }
        Ok(())
    }

    /// Multiplies all left batches, as the rows of one tall matrix, by the right side that they
    /// share. Returns `false` if their rows don't form one.
    ///
    /// A call takes as many rows as 31 bits count.
    fn by_rows(self, a: &Side, b: &Side, place: &Side, by: By) -> hip::Result<bool> {
        if !b.is_shared() {
            return Ok(false);
        }
        let (Some(a), Some(place)) = (a.tall()?, place.tall()?) else { return Ok(false) };
        let &[rows, k] = a.tensor.dims() else { return Ok(false) };
        for first in (0..rows).step_by(max_reach()) {
            let start = [first * a.strides.row, 0, first * place.strides.row].map(|at| at as isize);
            let sizes = [max_reach().min(rows - first), place.tensor.dims()[1], k];
            self.one([&a, b, &place], &Batch { count: 1, start, stride: [0; 3] }, sizes, by)?;
        }
        Ok(true)
    }

    /// One batch: matrices of one stride each, the last of them the output.
    fn one(self, sides: [&Side; 3], batch: &Batch, [m, n, k]: [usize; 3], by: By) -> hip::Result<()> {
        if by == By::Kernel {
            return self.kernel(sides, batch, [m, n, k]);
        }
        let sizes = [(m, k), (k, n), (m, n)];
        let [a, b, c] = std::array::from_fn(|i| {
            let Side { tensor, strides } = sides[i];
            MatrixView {
                buffer: tensor.buffer(),
                offset: (tensor.layout().offset() as isize + batch.start[i]) as usize,
                rows: sizes[i].0,
                cols: sizes[i].1,
                row_stride: strides.row,
                col_stride: strides.col,
                batch_stride: batch.stride[i] as usize,
            }
        });
        let (input, gradient) = (sides[0].tensor.kernel_type()?, is_gradient(self.op));
        let blas = sides[0].tensor.hip_device().blas()?;
        blas.gemm(input, batch.count, a, b, c, self.alpha, 0.0, gradient)
    }

    /// [`one`](Self::one) by the kernel, which writes a packed output.
    fn kernel(self, [a, b, place]: [&Side; 3], batch: &Batch, [m, n, k]: [usize; 3]) -> hip::Result<()> {
        let (left, right, out) = (a.strides, b.strides, &place.tensor);
        if [m, n, k].iter().any(|&size| size > i32::MAX as usize) {
            let expected = format!("sizes of at most {}", i32::MAX);
            return invalid(self.op, expected, format!("{m} x {k} and {k} x {n}"));
        }
        let strides = [batch.stride[0], left.row as isize, left.col as isize];
        let a = batched(&a.tensor, batch, 0, [m, k], strides)?;
        let strides = [batch.stride[1], right.row as isize, right.col as isize];
        let b = batched(&b.tensor, batch, 1, [k, n], strides)?;
        let flat = view::reshape(out.clone(), &[out.len()])?;
        let out = view::narrow(flat, 0, batch.start[2] as usize, batch.count * m * n)?;
        let [x, y] = [&a, &b].map(|t| [0, 1, 2].map(|axis| t.layout().strides()[axis] as i64));
        let dims = [
            Arg::U64(batch.count as u64),
            Arg::U32(m as u32),
            Arg::U32(n as u32),
            Arg::U32(k as u32),
            Arg::I64x6([x[0], x[1], x[2], y[0], y[1], y[2]]),
            Arg::F64(self.alpha),
        ];
        let device = out.hip_device();
        let tiles = batch.count * m.div_ceil(TILE) * n.div_ceil(TILE);
        let grid = device.grid_rows(tiles, TILE * TILE);
        let kernel = KernelName::new("matmul").ty(out.kernel_type()?);
        views(self.op, device, kernel, grid, &dims, &[Some(&a), Some(&b)], &[], &out)
    }
}

/// The batch axes that all three walk as one.
fn merge(a: &RocmTensor, b: &RocmTensor, out: &RocmTensor) -> crate::layout::Collapsed<3> {
    let batch = out.dims().len() - 2;
    collapse(&out.dims()[..batch], [a, b, out].map(|t| &t.layout().strides()[..batch]))
}

/// One call's share of the batches: how many, and where each operand's first is and the next ones are.
struct Batch {
    count: usize,
    start: [isize; 3],
    stride: [isize; 3],
}

impl Batch {
    fn one() -> Self {
        Self { count: 1, start: [0; 3], stride: [0; 3] }
    }
}

/// The number of calls that [`batches`] makes.
fn calls(merged: &crate::layout::Collapsed<3>) -> usize {
    let each = merged.strides.iter().any(|strides| strides.last().is_some_and(|&stride| stride < 0));
    let inner = if each { 0 } else { 1 };
    merged.shape.iter().rev().skip(inner).product()
}

/// The calls that cover the batch axes: the innermost in one, the others one by one.
fn batches(merged: &crate::layout::Collapsed<3>) -> Vec<Batch> {
    let Some((&last, outer)) = merged.shape.split_last() else { return vec![Batch::one()] };
    let at = outer.len();
    let inner: [isize; 3] = std::array::from_fn(|n| merged.strides[n][at]);
    // rocBLAS knows no negative batch stride: those one by one too.
    let each = inner.iter().any(|&stride| stride < 0);
    let mut starts = vec![[0isize; 3]];
    let one_by_one = outer.iter().copied().chain(each.then_some(last));
    for (axis, dim) in one_by_one.enumerate() {
        starts = starts
            .iter()
            .flat_map(|start| {
                (0..dim as isize)
                    .map(move |i| std::array::from_fn(|n| start[n] + i * merged.strides[n][axis]))
            })
            .collect();
    }
    let (count, stride) = if each { (1, [0; 3]) } else { (last, inner) };
    starts.into_iter().map(|start| Batch { count, start, stride }).collect()
}

/// The matrices of one operand of a batch, as a view of rank 3.
fn batched(
    tensor: &RocmTensor,
    batch: &Batch,
    operand: usize,
    [rows, cols]: [usize; 2],
    strides: [isize; 3],
) -> hip::Result<RocmTensor> {
    let start = tensor.layout().offset() as isize + batch.start[operand];
    let layout = Layout::strided("matmul", [batch.count, rows, cols], &strides, start)?;
    Ok(tensor.clone().view(layout))
}

#[cfg(test)]
mod tests;
