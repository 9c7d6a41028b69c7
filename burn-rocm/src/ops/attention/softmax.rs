//! The softmax of attention's scores, and its gradient, in one kernel each with the product ahead of it
//! (`attention_softmax.hip`), where that is the faster way.

use hip::{DType, Grid, Route, Template, matmul_route};

use super::strides;
use crate::arg::Arg;
use crate::ops::launch::views;
use crate::tensor::RocmTensor;

/// Columns that a part of a block's tile has (`TEAM * WIDTH` of `attention_softmax.hip`).
const PART: usize = 128;
/// Rows of a tile of one part (`TEAMS * 32`); of `n` parts, an `n`-th of them.
const ROWS: usize = 256;
/// Threads of a block (`THREADS`).
const THREADS: u32 = 256;
/// Elements that an access takes (`WIDTH`).
const WIDTH: usize = 4;
/// Terms of a sum up to which the kernel was measured to be faster than a product and a kernel over its rows: half
/// as fast a product saves its result's way through memory.
const MOST_TERMS: usize = 64;

/// `left x right^T` of `[batch, heads, rows, terms]` and `[batch, heads, columns, terms]`, and what becomes of its
/// rows.
pub(super) struct Joined<'a> {
    op: &'static str,
    left: &'a RocmTensor,
    right: &'a RocmTensor,
    /// `Shape` of the kernel: pairs, heads, rows, columns, terms, tiles of a pair.
    shape: [usize; 6],
    parts: usize,
    grid: Grid,
}

impl<'a> Joined<'a> {
    /// The kernel for these operands, `None` where it does not take them or is not the faster way: for f32, rows of
    /// up to 512 columns, most of a tile in use, and a tile for each compute unit. Matrix units multiply f32
    /// several times faster than the kernel would, and `BURN_ROCM_MATMUL=rocblas` wants every product in rocBLAS.
    pub(super) fn of(
        op: &'static str,
        left: &'a RocmTensor,
        right: &'a RocmTensor,
    ) -> hip::Result<Option<Self>> {
        let device = left.hip_device();
        let info = device.info();
        let (&[batch, heads, rows, terms], &[_, _, columns, _]) = (left.dims(), right.dims()) else {
            return Ok(None);
        };
        if left.kernel_type()? != DType::F32
            || matmul_route()? == Route::Library
            || info.has_f32_matrix_units()
            || device.block_threads() != THREADS
        {
            return Ok(None);
        }
        let parts = if columns > 2 * PART { 4 } else { 2 };
        let tiles = rows.div_ceil(ROWS / parts);
        let most_of = |used: usize, of: usize| 4 * used >= 3 * of && used <= of;
        let fits = (WIDTH..=MOST_TERMS).contains(&terms)
            && terms.is_multiple_of(WIDTH)
            && columns.is_multiple_of(WIDTH)
            && most_of(columns, parts * PART)
            && most_of(rows, tiles * ROWS / parts)
            && batch * heads * tiles >= info.compute_units as usize
            && [left, right].into_iter().all(is_readable);
        // Two blocks for each unit: what one has read of the right operand serves its next tiles.
        let blocks = (batch * heads * tiles).min(2 * info.compute_units as usize) as u32;
        let shape = [batch * heads, heads, rows, columns, terms, tiles];
        Ok(fits.then_some(Self { op, left, right, shape, parts, grid: Grid { blocks, threads: THREADS } }))
    }

    /// `softmax(scale left x right^T)`, over 1 + the sum of the exponentials where it is quiet.
    pub(super) fn softmax(&self, scale: f64, quiet: bool) -> hip::Result<RocmTensor> {
        let out = self.out()?;
        let scalars = [Arg::F32(scale as f32), Arg::U32(quiet as u32)];
        self.launch(Template::attention_softmax, &[Some(self.left), Some(self.right)], &scalars, &out)?;
        Ok(out)
    }

    /// The gradient by what `weights` are the softmax of, from theirs: `left x right^T`.
    pub(super) fn softmax_backward(&self, weights: &RocmTensor) -> hip::Result<RocmTensor> {
        let out = self.out()?;
        let inputs = [Some(self.left), Some(self.right), Some(weights)];
        self.launch(Template::attention_softmax_backward, &inputs, &[], &out)?;
        Ok(out)
    }

    fn out(&self) -> hip::Result<RocmTensor> {
        let [pairs, heads, rows, columns, ..] = self.shape;
        let dims = [pairs / heads, heads, rows, columns];
        RocmTensor::empty(self.left.hip_device(), dims, self.left.dtype_of())
    }

    fn launch(
        &self,
        template: Template,
        inputs: &[Option<&RocmTensor>],
        scalars: &[Arg],
        out: &RocmTensor,
    ) -> hip::Result<()> {
        let shape = Arg::I64x6(self.shape.map(|n| n as i64));
        let dims = [shape, strides(Some(self.left)), strides(Some(self.right))];
        let kernel = template.ty(DType::F32).int(self.parts as i32);
        views(self.op, self.left.hip_device(), kernel, self.grid, &dims, inputs, scalars, out)
    }
}

/// Whether a row's elements lie side by side, each row at a multiple of 16 bytes, and those of a pair within 2^32
/// elements.
fn is_readable(tensor: &RocmTensor) -> bool {
    let layout = tensor.layout();
    let (&[.., rows, _], &[.., row, column]) = (tensor.dims(), layout.strides()) else { return false };
    let outer = layout.strides().iter().zip(tensor.dims()).take(3);
    let even = |(&stride, &dim): (&isize, &usize)| dim == 1 || (stride >= 0 && stride % WIDTH as isize == 0);
    column == 1
        && layout.offset().is_multiple_of(WIDTH)
        && outer.into_iter().all(even)
        && rows.saturating_mul(row.unsigned_abs()) < u32::MAX as usize
}
