//! Convolutions of which each output channel has few weights, as in a network's first layer, and
//! the gradient of these weights (`conv_few.hip`). With few input channels but larger windows, the
//! forward pass runs on matrix cores.

use burn_std::DType;
use hip::{ConvDesc, Grid, KernelProblem, MatrixCores, Template};

use crate::arg::Arg;
use crate::dtype::kernel_type;
use crate::error::invalid;
use crate::ops::channels_last::{from_rows, is_channels_last, packed_rows};
use crate::ops::copy::packed;
use crate::ops::launch::{MAX_REACH, max_reach, views};
use crate::ops::norm::sum_partials;
use crate::ops::view::reshape;
use crate::tensor::RocmTensor;

/// The kernels of the gradient: the most weights of an output channel, and the output channels of a
/// thread.
const KERNELS: [(usize, usize); 2] = [(9, 8), (27, 2)];

/// The forward kernel: the most weights of an output channel, the most weights of all, and the
/// output channels of a thread.
const FORWARD: [usize; 3] = [27, 4096, 8];

/// The forward kernel on matrix cores: the most input channels, rows and columns of a window, and
/// output channels, and the pixels of a row that a block computes at a time.
const ON_CORES: [usize; 5] = [4, 7, 8, 64, 128];

/// The warps of its block, and the blocks that a compute unit gets. There are few, because each
/// block first reads the weights.
const WARPS: u32 = 4;
const BLOCKS_ON_CORES: usize = 4;

/// The kernels' block.
const THREADS: u32 = 256;

/// Neighbouring threads that add up each other's sums.
const TEAM: usize = 32;

/// The blocks that a compute unit gets. With more, it takes longer to add up the threads' sums than
/// to compute them.
const BLOCKS: usize = 2;

/// What the kernels' errors expect.
const EXPECTED: &str = "few weights for each output channel, on a GPU";

/// The number of output channels, and of weights for each. `None` if the kernels can't compute the
/// convolution. `like` is an operand.
fn few(desc: &ConvDesc, like: &RocmTensor) -> Option<(usize, usize)> {
    let (&[oc, ic, height, width], &[_, _, rows, columns]) = (desc.w.as_slice(), desc.y.as_slice()) else {
        return None;
    };
    let device = like.hip_device();
    let is_gpu = device.block_threads() > 1 && device.info().max_threads_per_block >= THREADS;
    let narrow = matches!(like.dtype_of(), DType::F32 | DType::F16 | DType::BF16);
    let below = |elements: usize| elements > 0 && elements <= MAX_REACH;
    let small = [&desc.x, &desc.y, &desc.w].iter().all(|dims| below(dims.iter().product()));
    let near = desc.padding.iter().chain(&desc.dilation).chain(&desc.stride).all(|&step| step <= 1 << 15);
    let fits = is_gpu && narrow && small && near && desc.groups == 1 && below(rows * columns);
    fits.then_some((oc, ic * height * width))
}

/// The kernel for the gradient: its most weights, and the output channels of a thread.
fn kernel(desc: &ConvDesc, grad: &RocmTensor) -> Option<(usize, usize)> {
    let (oc, taps) = few(desc, grad)?;
    KERNELS.into_iter().find(|&(most, wide)| taps <= most && oc.is_multiple_of(wide))
}

fn problem_of(
    choice: &'static str,
    template: Template,
    desc: &ConvDesc,
    dtype: DType,
) -> hip::Result<KernelProblem> {
    let pixels = desc.y[0] * desc.y[2] * desc.y[3];
    let sizes = [pixels, desc.w[0], desc.w[1..].iter().product()];
    Ok(KernelProblem::new(choice, template, kernel_type(dtype)?, sizes))
}

/// The key by which the tuning store chooses the library or the kernel for the gradient. `None` if
/// there is no kernel.
pub(super) fn problem(desc: &ConvDesc, grad: &RocmTensor) -> hip::Result<Option<KernelProblem>> {
    let choice = match is_channels_last(grad) {
        true => "library or kernel, channels last,",
        false => "library or kernel,",
    };
    let problem = || problem_of(choice, Template::conv_few_weights, desc, grad.dtype_of());
    kernel(desc, grad).map(|_| problem()).transpose()
}

/// Whether `conv_few_forward` computes the convolution.
fn has_few_weights(desc: &ConvDesc, x: &RocmTensor) -> bool {
    let [most, all, wide] = FORWARD;
    few(desc, x).is_some_and(|(oc, taps)| taps <= most && oc * taps <= all && oc.is_multiple_of(wide))
}

/// The threads of a block of `conv_few_matrix`; `None` if it does not compute the convolution.
fn on_cores(desc: &ConvDesc, x: &RocmTensor, last: bool) -> hip::Result<Option<u32>> {
    let [channels, rows, columns, outputs, _] = ON_CORES;
    let (Some(_), true, false) = (few(desc, x), last, has_few_weights(desc, x)) else { return Ok(None) };
    let &[oc, ic, height, width] = desc.w.as_slice() else { return Ok(None) };
    let fits = ic <= channels && height <= rows && width <= columns && oc <= outputs;
    if !fits || !oc.is_multiple_of(16) || desc.stride.last() != Some(&2) || desc.dilation.last() != Some(&1) {
        return Ok(None);
    }
    let info = x.hip_device().info();
    Ok(info.matrix_cores(x.kernel_type()?, desc.gradient)?.and_then(|cores| {
        let threads = WARPS * if cores == MatrixCores::Mfma { 64 } else { 32 };
        (threads <= info.max_threads_per_block).then_some(threads)
    }))
}

/// The key by which the tuning store chooses the library or the kernel for the convolution. `None`
/// if there is no kernel. If `last`, the result has its channels innermost.
pub(super) fn forward_problem(
    desc: &ConvDesc,
    x: &RocmTensor,
    last: bool,
) -> hip::Result<Option<KernelProblem>> {
    let choice = if last { "library or kernel, channels last," } else { "library or kernel," };
    let problem = |template| problem_of(choice, template, desc, x.dtype_of()).map(Some);
    match has_few_weights(desc, x) {
        true => problem(Template::conv_few_forward),
        false if on_cores(desc, x, last)?.is_some() => problem(Template::conv_few_matrix),
        false => Ok(None),
    }
}

/// The kernels' struct `FewWeights`.
fn sizes(desc: &ConvDesc, x: &RocmTensor, parts: usize) -> Arg {
    let mut sizes = [0u32; 21];
    let given = [desc.x[0], desc.w[0], desc.w[1], desc.x[2], desc.x[3], desc.y[2], desc.y[3]]
        .into_iter()
        .chain([desc.w[2], desc.w[3]])
        .chain(desc.stride.iter().chain(&desc.padding).chain(&desc.dilation).copied())
        .chain([parts])
        .chain(x.layout().strides().iter().map(|stride| stride.unsigned_abs()));
    for (to, value) in sizes.iter_mut().zip(given) {
        *to = value as u32;
    }
    Arg::U32x21(sizes)
}

/// The image as the kernels can read it: with any strides that are not negative, if they can count
/// its reach.
fn image(x: &RocmTensor) -> hip::Result<RocmTensor> {
    let near = x.layout().span().is_none_or(|(first, last)| last - first <= max_reach());
    match near && x.layout().strides().iter().all(|&stride| stride >= 0) {
        true => Ok(x.clone()),
        false => packed(x.clone()),
    }
}

/// The convolution; if `last`, with its channels innermost. [`forward_problem`] must return a
/// problem.
pub(super) fn forward(
    op: &'static str,
    desc: &ConvDesc,
    [x, weight]: [&RocmTensor; 2],
    last: bool,
) -> hip::Result<RocmTensor> {
    if forward_problem(desc, x, last)?.is_none() {
        return invalid(op, EXPECTED, format!("{desc:?}"));
    }
    let weight = if last { packed_rows(weight.clone())? } else { packed(weight.clone())? };
    let (x, device) = (image(x)?, weight.hip_device());
    let [batch, channels, height, width] = [desc.y[0], desc.y[1], desc.y[2], desc.y[3]];
    let shape = if last { vec![batch, height, width, channels] } else { desc.y.clone() };
    let out = RocmTensor::empty(device, shape, x.dtype_of())?;
    let (kernel, grid) = match on_cores(desc, &x, last)? {
        Some(threads) => {
            let rows = batch * height * width.div_ceil(ON_CORES[4]);
            let blocks = rows.min(BLOCKS_ON_CORES * device.info().compute_units as usize);
            let grid = Grid { threads, ..device.grid_rows(blocks, threads as usize) };
            (Template::conv_few_matrix.ty(x.kernel_type()?), grid)
        }
        None => {
            // Two pixels for each thread, because each block first reads the weights.
            let blocks = out.len().div_ceil(2 * THREADS as usize * FORWARD[2]);
            let grid = Grid { threads: THREADS, ..device.grid_rows(blocks, THREADS as usize) };
            (Template::conv_few_forward.ty(x.kernel_type()?).int(last.into()), grid)
        }
    };
    let dims = [sizes(desc, &x, 1)];
    views(op, device, kernel, grid, &dims, &[Some(&weight), Some(&x)], &[], &out)?;
    if last { from_rows(out) } else { Ok(out) }
}

/// The gradient of the weights, in the order of `grad`. [`problem`] must return a problem.
pub(super) fn weight_backward(
    op: &'static str,
    desc: &ConvDesc,
    [grad, x]: [&RocmTensor; 2],
) -> hip::Result<RocmTensor> {
    let Some((most, wide)) = kernel(desc, grad) else {
        return invalid(op, EXPECTED, format!("{desc:?}"));
    };
    let last = is_channels_last(grad);
    let grad = if last { packed_rows(grad.clone())? } else { packed(grad.clone())? };
    let (x, device) = (image(x)?, grad.hip_device());
    let pieces = desc.w[0] / wide;
    let across = if last { pieces.next_power_of_two().min(TEAM) } else { 1 };
    let groups = pieces.div_ceil(across);
    let pixels = desc.y[0] * desc.y[2] * desc.y[3];
    let parts = (BLOCKS * device.info().compute_units as usize / groups)
        .min(pixels.div_ceil(THREADS as usize / across))
        .max(1);
    let taps = desc.w[1..].iter().product::<usize>();
    let partial = RocmTensor::empty(device, [1, parts, desc.w[0] * taps], DType::F32)?;
    let kernel = Template::conv_few_weights.ty(grad.kernel_type()?).int(most as i32).int(last.into());
    let grid = Grid { threads: THREADS, ..device.grid_rows(groups * parts, THREADS as usize) };
    let dims = [sizes(desc, &x, parts)];
    views(op, device, kernel, grid, &dims, &[Some(&grad), Some(&x)], &[], &partial)?;
    let sum = sum_partials(op, &partial, grad.dtype_of())?;
    match last {
        true => from_rows(reshape(sum, &[desc.w[0], desc.w[2], desc.w[3], desc.w[1]])?),
        false => reshape(sum, &desc.w),
    }
}
