//! One kernel for the scores' product and its softmax, and one for the product and the softmax's
//! gradient (`attention_softmax.hip`), for shapes where that is faster than a library product
//! followed by a kernel over its rows.

use hip::{DType, Grid, KernelProblem, Route, Template, matmul_route};

use super::strides;
use crate::arg::Arg;
use crate::ops::launch::views;
use crate::tensor::RocmTensor;

/// Columns of one part of a block's tile (`TEAM * WIDTH` of `attention_softmax.hip`).
const PART: usize = 128;
/// Rows of a tile that has one part (`TEAMS * 32`). A tile of `n` parts has `1 / n` of them.
const ROWS: usize = 256;
/// Threads of a block (`THREADS`).
const THREADS: u32 = 256;
/// Elements of one memory access (`WIDTH`).
const WIDTH: usize = 4;
/// A product `left x right^T` of `[batch, heads, rows, terms]` and `[batch, heads, columns, terms]`
/// in one kernel with a softmax, or a softmax's gradient, of its rows.
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
    /// The kernel for these operands, or `None` if it does not take them or would be slower. It
    /// takes f32 and rows of up to 512 columns, if most of a tile is in use and each compute unit
    /// gets a tile. Matrix units multiply f32 several times faster than this kernel does, and
    /// `BURN_ROCM_MATMUL=rocblas` sends every product to rocBLAS.
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
        // The product in this kernel is half as fast as a library's, but its result does not pass
        // through memory.
        let fits = (WIDTH..=device.defaults().joined_softmax_terms).contains(&terms)
            && terms.is_multiple_of(WIDTH)
            && columns.is_multiple_of(WIDTH)
            && most_of(columns, parts * PART)
            && most_of(rows, tiles * ROWS / parts)
            && batch * heads * tiles >= info.compute_units as usize
            && [left, right].into_iter().all(is_readable);
        // Two blocks for each compute unit: a block reuses the right operand that it has read for
        // its next tiles.
        let blocks = (batch * heads * tiles).min(2 * info.compute_units as usize) as u32;
        let shape = [batch * heads, heads, rows, columns, terms, tiles];
        Ok(fits.then_some(Self { op, left, right, shape, parts, grid: Grid { blocks, threads: THREADS } }))
    }

    /// `softmax(scale left x right^T)`, and if `quiet`, with 1 added to the sum of the
    /// exponentials.
    pub(super) fn softmax(&self, scale: f64, quiet: bool) -> hip::Result<RocmTensor> {
        let out = self.out()?;
        let scalars = [Arg::F32(scale as f32), Arg::U32(quiet as u32)];
        self.launch(Template::attention_softmax, &[Some(self.left), Some(self.right)], &scalars, &out)?;
        Ok(out)
    }

    /// The gradient with respect to the scores, whose softmax is `weights`. The weights' gradient
    /// is `left x right^T`.
    pub(super) fn softmax_backward(&self, weights: &RocmTensor) -> hip::Result<RocmTensor> {
        let out = self.out()?;
        let inputs = [Some(self.left), Some(self.right), Some(weights)];
        self.launch(Template::attention_softmax_backward, &inputs, &[], &out)?;
        Ok(out)
    }

    /// Whether timing finds this kernel to be faster than `separate`, which computes the same by a
    /// library product and a kernel over its rows; true unless timing is asked for. `joined` runs this
    /// kernel.
    pub(super) fn is_faster(
        &self,
        template: Template,
        joined: impl Fn() -> hip::Result<RocmTensor>,
        separate: impl Fn() -> hip::Result<RocmTensor>,
    ) -> hip::Result<bool> {
        let device = self.left.hip_device();
        if !device.finds_kernels() {
            return Ok(true);
        }
        let [pairs, _, rows, columns, terms, _] = self.shape;
        let choice = "1: the product and its softmax in one kernel, 0: in two,";
        let sizes = [pairs * rows, columns, terms];
        let problem = KernelProblem::new(choice, template, DType::F32, sizes);
        let run = |candidate| if candidate == 1 { joined() } else { separate() };
        Ok(device.kernel_choice(problem, &[1, 0], |candidate| run(candidate).map(drop))? == 1)
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

/// Whether kernels can read the tensor four elements at a time: a row's elements are contiguous,
/// each row begins at a multiple of 16 bytes, and a pair of batch and head spans fewer than 2^32
/// elements.
pub(super) fn is_readable(tensor: &RocmTensor) -> bool {
    let layout = tensor.layout();
    let (&[.., rows, _], &[.., row, column]) = (tensor.dims(), layout.strides()) else { return false };
    let outer = layout.strides().iter().zip(tensor.dims()).take(3);
    let even = |(&stride, &dim): (&isize, &usize)| dim == 1 || (stride >= 0 && stride % WIDTH as isize == 0);
    column == 1
        && layout.offset().is_multiple_of(WIDTH)
        && outer.into_iter().all(even)
        && rows.saturating_mul(row.unsigned_abs()) < u32::MAX as usize
}
