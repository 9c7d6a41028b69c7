//! Reductions along one axis or over all elements.

use std::sync::Arc;

use burn_backend::Scalar;
use burn_std::{BoolDType, BoolStore, DType, IntDType, SmallVec};
use hip::{DeferredSum, Device, Functor, Grid, KernelName, KernelProblem, Template};

use super::cast::cast;
use super::cat::cat;
use super::copy::packed;
use super::create::full_on;
use super::launch::{elements as elements_of, max_reach, rows};
use super::matmul::sum_of_batches;
use super::view::{narrow, permute, reshape};
use crate::arg::Arg;
use crate::burn::{NO_INDEX_OF_NOTHING, of_nothing};
use crate::dtype::check_indices;
use crate::error::invalid;
use crate::layout::inverse;
use crate::tensor::{RocmTensor, check_axis};

/// How a reduction is cut up among blocks and threads.
#[derive(Clone, Copy, PartialEq)]
struct Cut {
    /// Blocks for each compute unit, if a few long lines are cut into parts.
    blocks: usize,
    /// How many rows of a short column one thread adds up, before the threads of a block join their
    /// sums.
    rows_each: usize,
    /// Whether a warp takes a row, where warps are enough to fill the device. Otherwise a block does.
    by_warp: bool,
}

/// What of a [`Cut`] decides how fast a reduction is.
#[derive(Clone, Copy)]
enum Deciding {
    Blocks,
    RowsEach,
    ByWarp,
}

/// A packed tensor seen as `[outer, len, inner]` around the reduced axis.
pub(super) struct Lines {
    pub(super) tensor: RocmTensor,
    pub(super) outer: usize,
    pub(super) len: usize,
    pub(super) inner: usize,
    /// The result's shape, in the order of axes that the kernel uses.
    dims: Vec<usize>,
    /// The permutation that restores the caller's order of axes.
    back: Option<Vec<usize>>,
    /// What timing has chosen, in place of the defaults.
    cut: Option<Cut>,
}

impl Lines {
    /// The lines along `axis`. Permutes a dense tensor to its order in memory, which saves a copy.
    pub(super) fn new(op: &'static str, tensor: RocmTensor, axis: usize) -> hip::Result<Self> {
        check_axis(op, &tensor, axis)?;
        let order = if tensor.is_contiguous() { None } else { tensor.layout().dense_order() };
        let (tensor, axis, back) = match order {
            Some(order) => {
                let back = inverse(&order);
                (permute(tensor, &order)?, back[axis], Some(back))
            }
            None => (tensor, axis, None),
        };
        let tensor = packed(tensor)?;
        let mut dims = tensor.dims().to_vec();
        let outer = dims[..axis].iter().product();
        let inner = dims[axis + 1..].iter().product();
        let len = dims[axis];
        dims[axis] = 1;
        Ok(Self { tensor, outer, len, inner, dims, back, cut: None })
    }

    /// A new tensor for the result, in which the reduced axis has size 1.
    fn output(&self, dtype: DType) -> hip::Result<RocmTensor> {
        RocmTensor::empty(self.tensor.hip_device(), self.dims.clone(), dtype)
    }

    /// Puts the result's axes into the caller's order.
    pub(super) fn restore(&self, out: RocmTensor) -> hip::Result<RocmTensor> {
        match &self.back {
            Some(back) => permute(out, back),
            None => Ok(out),
        }
    }

    /// The number of blocks for the columns of one part, and the number of a block's threads along
    /// a row, if a thread takes several neighbouring columns (`wide_columns`); 0 blocks if a thread
    /// takes a single column. A block has 32 threads along a row, or fewer on shorter rows.
    fn wide_blocks(&self) -> (usize, usize) {
        // `SIDE_BY_SIDE` of the kernel.
        let lanes = (16 / self.tensor.dtype_size()).min(4);
        let threads = self.tensor.hip_device().block_threads() as usize;
        if self.inner == 1 || threads == 1 || !self.inner.is_multiple_of(lanes) {
            return (0, 1);
        }
        let wide = self.inner / lanes;
        let across = wide.next_power_of_two().min(32).min(threads);
        (self.outer * wide.div_ceil(across), across)
    }

    fn cut(&self) -> Cut {
        let defaults = self.tensor.hip_device().defaults();
        self.cut.unwrap_or_else(|| Cut {
            blocks: match (self.inner, self.wide_blocks()) {
                (1, _) => defaults.sum_row_blocks,
                (_, (0, _)) => defaults.sum_column_blocks,
                _ => defaults.sum_wide_blocks,
            },
            rows_each: defaults.sum_rows_each,
            by_warp: true,
        })
    }

    /// How many blocks the lines take if none is cut into parts, and the fewest elements of a part.
    fn whole_lines(&self) -> (usize, usize) {
        let device = self.tensor.hip_device();
        let (threads, defaults) = (device.block_threads() as usize, device.defaults());
        // A block reduces a row, and a thread a column; on the CPU device a vector lane reduces a
        // column.
        match (self.inner, self.wide_blocks()) {
            (1, _) => (self.outer, defaults.sum_row_part),
            (inner, (0, _)) => ((self.outer * inner).div_ceil(threads.max(64)), defaults.sum_column_part),
            (_, (wide, _)) => (wide, defaults.sum_column_part / 2),
        }
    }

    /// The number of parts into which each line is cut, so that a few long lines fill the device; 1
    /// if there are enough lines.
    fn parts(&self) -> usize {
        let units = self.tensor.hip_device().info().compute_units as usize;
        let ((lines, least), blocks) = (self.whole_lines(), self.cut().blocks);
        if lines == 0 || lines >= units {
            1
        } else {
            // Rounds down, because one block too many adds a round in which the device is almost
            // idle (H200, sums of 8192 x 2304 f32: 29 us with 1062 blocks on 132 units).
            (blocks * units / lines).min(self.len / least).max(1)
        }
    }

    /// Launches the row kernel on `row_grid`, or the column kernel if a line's elements are not
    /// contiguous. `values` follow the shape arguments. `others` are inputs besides the lines.
    pub(super) fn launch(
        &self,
        op: &'static str,
        names: [KernelName; 2],
        row_grid: Grid,
        parts: usize,
        values: &[Arg],
        [others, outputs]: [&[&RocmTensor]; 2],
    ) -> hip::Result<()> {
        let device = self.tensor.hip_device();
        let (outer, len, inner) = (self.outer, self.len, self.inner);
        if outer * inner == 0 {
            return Ok(());
        }
        let [row, column] = names;
        let mut dims: SmallVec<[Arg; 5]> = SmallVec::new();
        dims.extend([Arg::U64(outer as u64), Arg::U64(len as u64)]);
        let (kernel, grid) = match inner {
            1 => (row, row_grid),
            _ => {
                dims.push(Arg::U64(inner as u64));
                (column, self.columns_grid(parts))
            }
        };
        dims.extend_from_slice(values);
        let inputs: SmallVec<[&RocmTensor; 2]> =
            [&self.tensor].into_iter().chain(others.iter().copied()).collect();
        rows(op, device, kernel, grid, &dims, &inputs, &[], outputs)
    }

    /// The grid of the column kernel.
    fn columns_grid(&self, parts: usize) -> Grid {
        let device = self.tensor.hip_device();
        let len = self.len.div_ceil(parts);
        match self.wide_blocks() {
            (0, _) => column_grid(device, self.outer * parts * self.inner, len),
            (blocks, across) => {
                let down = len.div_ceil(self.cut().rows_each);
                device.grid_rows(blocks * parts, across.saturating_mul(down))
            }
        }
    }

    /// Sums the result of deferred ops in one kernel with these ops, if it can. Returns whether it
    /// did.
    fn join_deferred(
        &self,
        op: &'static str,
        functor: Functor,
        [parts, count]: [usize; 2],
        out: &RocmTensor,
    ) -> hip::Result<bool> {
        let device = self.tensor.hip_device();
        let (dtype, out_dtype) = (self.tensor.kernel_type()?, out.kernel_type()?);
        let (template, grid) = match (self.inner, self.wide_blocks()) {
            (1, _) => (Template::chain_rows, self.row_grid(parts)),
            // `chain_columns` sums only in the order of wide columns (`wide_columns` of
            // reduce.hip).
            (_, (0, _)) => return Ok(false),
            _ => (Template::chain_columns, self.columns_grid(parts)),
        };
        let summed =
            matches!(functor, Functor::Sum | Functor::Mean) && [dtype, hip::DType::F32].contains(&out_dtype);
        let elements = self.outer * self.len * self.inner;
        // A trial repeats a kernel, and a chain can run only once.
        if !summed
            || device.block_threads() == 1
            || device.finds_kernels()
            || device.defers(dtype, elements * dtype.size()).is_err()
        {
            return Ok(false);
        }
        device.reduce_deferred(
            op,
            DeferredSum {
                kernel: template.functor(functor).ty(dtype).ty(out_dtype),
                grid,
                input: elements_of(&self.tensor),
                dtype,
                is_last_use: self.tensor.is_held_once(),
                sizes: [self.outer, self.len, self.inner],
                parts,
                count,
                out: elements_of(out),
                out_dtype,
            },
        )
    }

    /// One pass of a reduction: `[outer, len, inner]` to `[outer, parts, inner]` of `dtype`.
    fn pass(
        &self,
        op: &'static str,
        functor: Functor,
        parts: usize,
        count: usize,
        dtype: DType,
    ) -> hip::Result<RocmTensor> {
        let (from, to) = (self.tensor.kernel_type()?, crate::dtype::kernel_type(dtype)?);
        let shape = [self.outer, parts, self.inner];
        let out = RocmTensor::empty(self.tensor.hip_device(), shape, dtype)?;
        if self.join_deferred(op, functor, [parts, count], &out)? {
            return Ok(out);
        }
        let name = |same: Template, between: Template| match from == to {
            true => same.functor(functor).ty(from),
            false => between.functor(functor).ty(from).ty(to),
        };
        let names = [
            name(Template::reduce_rows, Template::reduce_rows_between),
            name(Template::reduce_columns, Template::reduce_columns_between),
        ];
        let values = [Arg::U64(parts as u64), Arg::U64(count as u64)];
        self.launch(op, names, self.row_grid(parts), parts, &values, [&[], &[&out]])?;
        Ok(out)
    }

    /// The whole reduction, cut up as timing has found to be fastest, if it is asked for. `to` may
    /// differ from the tensor's dtype only between f32 and narrower floats.
    fn reduce(&self, op: &'static str, functor: Functor, to: DType) -> hip::Result<RocmTensor> {
        let device = self.tensor.hip_device();
        if !device.finds_kernels() || self.outer * self.len * self.inner == 0 {
            return self.reduce_once(op, functor, to);
        }
        let Some((deciding, what)) = self.deciding() else { return self.reduce_once(op, functor, to) };
        let cut = self.cut();
        let candidates = match deciding {
            Deciding::Blocks => vec![cut.blocks, cut.blocks / 2, cut.blocks * 2],
            Deciding::RowsEach => vec![cut.rows_each, cut.rows_each / 2, cut.rows_each * 2],
            Deciding::ByWarp => vec![1, 0],
        };
        let with = |candidate: usize| {
            let cut = match deciding {
                Deciding::Blocks => Cut { blocks: candidate, ..cut },
                Deciding::RowsEach => Cut { rows_each: candidate, ..cut },
                Deciding::ByWarp => Cut { by_warp: candidate == 1, ..cut },
            };
            let (tensor, dims, back) = (self.tensor.clone(), self.dims.clone(), self.back.clone());
            Self { tensor, dims, back, cut: Some(cut), ..*self }
        };
        let template = if self.inner == 1 { Template::reduce_rows } else { Template::reduce_columns };
        let sizes = [self.outer, self.len, self.inner];
        let problem = KernelProblem::new(what, template, self.tensor.kernel_type()?, sizes);
        let chosen = device.kernel_choice(problem, &candidates, |candidate| {
            with(candidate).reduce_once(op, functor, to).map(drop)
        })?;
        with(chosen).reduce_once(op, functor, to)
    }

    /// What decides how fast the reduction is; `None` if nothing is to be chosen.
    fn deciding(&self) -> Option<(Deciding, &'static str)> {
        let device = self.tensor.hip_device();
        let (lines, least) = self.whole_lines();
        if lines > 0 && lines < device.info().compute_units as usize && self.len / least > 1 {
            // The defaults differ, so their candidates do.
            let what = match (self.inner, self.wide_blocks()) {
                (1, _) => "blocks for each compute unit, sums of rows in parts",
                (_, (0, _)) => "blocks for each compute unit, sums of single columns in parts",
                _ => "blocks for each compute unit, sums of neighbouring columns in parts",
            };
            return Some((Deciding::Blocks, what));
        }
        match self.inner {
            1 if self.fills_by_warps(self.outer) => Some((Deciding::ByWarp, "warps for sums of rows")),
            1 => None,
            _ => (self.wide_blocks().0 > 0)
                .then_some((Deciding::RowsEach, "rows of a thread, sums of columns")),
        }
    }

    /// The whole reduction, in one pass or two.
    fn reduce_once(&self, op: &'static str, functor: Functor, to: DType) -> hip::Result<RocmTensor> {
        let dtype = self.tensor.dtype_of();
        let parts = self.parts();
        if parts == 1 {
            return reshape(self.pass(op, functor, 1, self.len, to)?, &self.dims);
        }
        let half = is_half(dtype) || is_half(to);
        let (first, between) = match functor {
            Functor::Mean => (Functor::Sum, if half { DType::F32 } else { dtype }),
            Functor::Sum | Functor::Prod if half => (functor, DType::F32),
            _ => (functor, dtype),
        };
        let partial = self.pass(op, first, parts, self.len, between)?;
        let rest = Lines {
            tensor: partial,
            len: parts,
            dims: Vec::new(),
            back: None,
            cut: None,
            outer: self.outer,
            inner: self.inner,
        };
        reshape(rest.pass(op, functor, 1, self.len, to)?, &self.dims)
    }
}

/// Whether the type is a 16-bit float, whose sums are kept in f32.
fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

impl Lines {
    /// The grid of kernels in which a block takes a row and a thread reads 16 bytes at a time.
    pub(super) fn kept_row_grid(&self) -> Grid {
        self.tensor.hip_device().grid_kept_rows(self.outer, self.len)
    }

    /// A block for each part of each row, or a warp if warps are enough to fill the device.
    /// `reduce_rows` tells the two apart by the number of warps in the grid.
    fn row_grid(&self, parts: usize) -> Grid {
        let device = self.tensor.hip_device();
        let rows = self.outer * parts;
        if self.cut().by_warp && self.fills_by_warps(rows) {
            let threads = device.block_threads();
            let warps = (threads / device.info().warp_size) as usize;
            return Grid { threads, ..device.grid_rows(rows / warps, 1) };
        }
        device.grid_rows(rows, self.len.div_ceil(parts))
    }

    /// Whether as many rows fill the device if a warp takes each.
    fn fills_by_warps(&self, rows: usize) -> bool {
        let device = self.tensor.hip_device();
        device.block_threads() / device.info().warp_size > 1 && rows >= device.resident_warps()
    }
}

/// A grid with one thread for each column, sized by the number of elements in all columns.
fn column_grid(device: &Arc<Device>, columns: usize, len: usize) -> Grid {
    let whole = device.grid(columns.saturating_mul(len.max(1)));
    let enough = columns.div_ceil(whole.threads as usize).max(1);
    Grid { blocks: whole.blocks.min(enough.min(u32::MAX as usize) as u32), threads: whole.threads }
}

/// Reduces an axis to size 1 by the functor.
pub(crate) fn reduce_dim(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    axis: usize,
) -> hip::Result<RocmTensor> {
    let dtype = tensor.dtype_of();
    let lines = Lines::new(op, tensor, axis)?;
    if lines.len == 0 {
        let Some(value) = of_nothing(functor, lines.tensor.kernel_type()?.is_float(), false) else {
            return invalid(op, "at least one element along the axis", "none");
        };
        return lines.restore(full_on(lines.tensor.hip_device(), lines.dims.clone(), value, dtype)?);
    }
    if lines.len == 1 && functor != Functor::MaxAbs {
        return lines.restore(lines.tensor.clone());
    }
    lines.restore(lines.reduce(op, functor, dtype)?)
}

/// The sum along an axis, which then has size 1.
pub(crate) fn sum_dim(op: &'static str, tensor: RocmTensor, axis: usize) -> hip::Result<RocmTensor> {
    match sum_of_batches(op, &tensor, axis)? {
        Some(sum) => Ok(sum),
        None => reduce_dim(op, Functor::Sum, tensor, axis),
    }
}

/// The sum along an axis, which then has size 1. `to` is the tensor's dtype, or a narrower float
/// for f32; the sum is rounded once.
pub(crate) fn sum_dim_to(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    to: DType,
) -> hip::Result<RocmTensor> {
    let lines = Lines::new(op, tensor, axis)?;
    lines.restore(lines.reduce(op, Functor::Sum, to)?)
}

/// The sum along two axes, which then have size 1. It is rounded once, also in types narrower than
/// f32.
pub(crate) fn sum_two_dims(
    op: &'static str,
    tensor: RocmTensor,
    [first, second]: [usize; 2],
) -> hip::Result<RocmTensor> {
    let dtype = tensor.dtype_of();
    if !is_half(dtype) || tensor.is_empty() {
        return reduce_dim(op, Functor::Sum, reduce_dim(op, Functor::Sum, tensor, first)?, second);
    }
    let lines = Lines::new(op, tensor, first)?;
    let sums = lines.restore(lines.reduce(op, Functor::Sum, DType::F32)?)?;
    let lines = Lines::new(op, sums, second)?;
    lines.restore(lines.reduce(op, Functor::Sum, dtype)?)
}

/// The sums along several axes, which stay with size 1. Takes one pass for each run of axes that
/// are adjacent in memory. The result is rounded once, also in types narrower than f32.
pub(crate) fn sum_dims(op: &'static str, tensor: RocmTensor, axes: &[usize]) -> hip::Result<RocmTensor> {
    let dtype = tensor.dtype_of();
    let mut kept = tensor.dims().to_vec();
    for &axis in axes {
        check_axis(op, &tensor, axis)?;
        kept[axis] = 1;
    }
    if tensor.is_empty() {
        return full_on(tensor.hip_device(), kept, 0i64.into(), dtype);
    }
    let order = tensor.layout().dense_order().unwrap_or_else(|| (0..kept.len()).collect());
    let mut sums = packed(permute(tensor, &order)?)?;
    let shape: Vec<usize> = order.iter().map(|&axis| kept[axis]).collect();
    // Merges neighbouring axes that are both summed or both kept.
    let mut runs: Vec<(bool, usize)> = Vec::new();
    for (&axis, &size) in order.iter().zip(sums.dims()) {
        let summed = axes.contains(&axis);
        match runs.last_mut() {
            _ if size == 1 => {}
            Some((as_well, run)) if *as_well == summed => *run *= size,
            _ => runs.push((summed, size)),
        }
    }
    sums = reshape(sums, &runs.iter().map(|(_, size)| *size).collect::<Vec<_>>())?;
    // Sums the longest run first, so that the other passes read as little as possible.
    let mut left: Vec<usize> = (0..runs.len()).filter(|&run| runs[run].0).collect();
    left.sort_by_key(|&run| runs[run].1);
    while let Some(run) = left.pop() {
        let to = if is_half(dtype) && !left.is_empty() { DType::F32 } else { dtype };
        sums = sum_dim_to(op, sums, run, to)?;
    }
    permute(reshape(sums, &shape)?, &inverse(&order))
}

/// All elements as one row, in any order.
fn one_row(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    let tensor = match tensor.layout().dense_order() {
        Some(order) => permute(tensor, &order)?,
        None => tensor,
    };
    let tensor = packed(tensor)?;
    let n = tensor.len();
    reshape(tensor, &[n])
}

/// Reduces all elements by the functor to shape `[1]`.
pub(crate) fn reduce(op: &'static str, functor: Functor, tensor: RocmTensor) -> hip::Result<RocmTensor> {
    if tensor.is_empty()
        && let Some(value) = of_nothing(functor, tensor.kernel_type()?.is_float(), true)
    {
        return full_on(tensor.hip_device(), [1], value, tensor.dtype_of());
    }
    reduce_dim(op, functor, one_row(tensor)?, 0)
}

/// Whether any, or every, element along an axis is true (or not zero).
pub(crate) fn test_dim(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    axis: usize,
    store: BoolDType,
) -> hip::Result<RocmTensor> {
    let tensor = match tensor.dtype_of() {
        DType::Bool(_) => tensor,
        _ => super::compare::scalar(op, Functor::NotEqual, tensor, 0i64.into(), BoolStore::Native)?,
    };
    let lines = Lines::new(op, tensor, axis)?;
    if lines.len == 0 {
        let value: Scalar = (functor == Functor::All).into();
        let device = lines.tensor.hip_device();
        return lines.restore(full_on(device, lines.dims.clone(), value, store.into())?);
    }
    let dtype = lines.tensor.dtype_of();
    lines.restore(cast(lines.reduce(op, functor, dtype)?, store.into())?)
}

/// Whether any, or every, element of the tensor is true (or not zero): shape `[1]`.
pub(crate) fn test(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    store: BoolDType,
) -> hip::Result<RocmTensor> {
    test_dim(op, functor, one_row(tensor)?, 0, store)
}

/// The maximum or minimum along an axis, and its first index in the given dtype.
///
/// # Errors
/// `Invalid`, also if the dtype can't hold every index along the axis.
pub(crate) fn extreme_with_index(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    axis: usize,
    index: IntDType,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let ty = tensor.kernel_type()?;
    let dtype = tensor.dtype_of();
    let lines = Lines::new(op, tensor, axis)?;
    let index: DType = index.into();
    if lines.outer * lines.inner == 0 && (lines.len > 0 || !NO_INDEX_OF_NOTHING) {
        return Ok((lines.restore(lines.output(dtype)?)?, lines.restore(lines.output(index)?)?));
    }
    if lines.len == 0 {
        return invalid(op, "at least one element along the axis", "none");
    }
    check_indices(op, "elements along the axis", lines.len, index)?;
    if lines.len > max_reach() {
        let (values, at) = extreme_in_parts(op, functor, &lines)?;
        return Ok((lines.restore(values)?, lines.restore(cast(at, index)?)?));
    }
    let (values, indices) = (lines.output(dtype)?, lines.output(DType::I32)?);
    let name = |template: Template| template.functor(functor).ty(ty);
    let names = [name(Template::arg_rows), name(Template::arg_columns)];
    lines.launch(op, names, lines.row_grid(1), 1, &[Arg::U64(1)], [&[], &[&values, &indices]])?;
    Ok((lines.restore(values)?, lines.restore(cast(indices, index)?)?))
}

/// [`extreme_with_index`] along an axis beyond the kernels' 32-bit indices: takes the extremes of
/// parts of the axis, then the extreme of those. The first of several equal elements lies in the
/// first of the equal parts.
fn extreme_in_parts(
    op: &'static str,
    functor: Functor,
    lines: &Lines,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let whole = reshape(lines.tensor.clone(), &[lines.outer, lines.len, lines.inner])?;
    let most = max_reach();
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for start in (0..lines.len).step_by(most) {
        let part = narrow(whole.clone(), 1, start, most.min(lines.len - start))?;
        let (value, at) = extreme_with_index(op, functor, part, 1, IntDType::I64)?;
        values.push(value);
        places.push(super::binary::scalar(op, Functor::Add, at, (start as i64).into())?);
    }
    let (values, places) = (cat(values, 1)?, cat(places, 1)?);
    let (value, part) = extreme_with_index(op, functor, values, 1, IntDType::I64)?;
    let place = super::index::gather(op, 1, places, part)?;
    Ok((reshape(value, &lines.dims)?, reshape(place, &lines.dims)?))
}

/// [`extreme_with_index`] of an int tensor. The indices have the type of its sort indices.
pub(crate) fn int_extreme(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    axis: usize,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let index = match tensor.dims().get(axis) {
        Some(&len) if len > i32::MAX as usize => IntDType::I64,
        _ => super::sort::index_dtype(&tensor).into(),
    };
    extreme_with_index(op, functor, tensor, axis, index)
}
