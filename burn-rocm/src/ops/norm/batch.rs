//! Batch norm: training, inference and the gradient.

use hip::{Device, Error as RocmError, Functor, Route, Template};

use super::batch_rows::Rows;
use super::channels::{Channels, Plan};
use super::{by_miopen, row};
use crate::arg::Arg;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::amp::cast_all;
use crate::ops::binary::{binary, scalar};
use crate::ops::cast::cast;
use crate::ops::cat::cat;
use crate::ops::channels_last::{from_rows, is_channels_last, packed_rows};
use crate::ops::copy::{assign, may_be_written, packed};
use crate::ops::create::full_on;
use crate::ops::launch::{is_packed, rows};
use crate::ops::miopen::{Why, whole};
use crate::ops::unary::unary;
use crate::ops::view::{narrow, reshape};
use crate::tensor::{RocmTensor, check_gradient, one_device, one_dtype};
use burn_std::DType;

/// The result of a training step's forward pass.
#[derive(Clone, Debug)]
pub struct BatchNormed {
    /// The normalised tensor.
    pub output: RocmTensor,
    /// The batch's mean and `1 / sqrt(variance + epsilon)`: `[2, channels]`, in f64 for f64 and in
    /// f32 for all other dtypes.
    pub statistics: RocmTensor,
    /// The running mean and variance after this batch, `[channels]` each, in the dtype that they
    /// had before.
    pub running: [RocmTensor; 2],
}

/// A tensor of rank 4 as `[batch * height * width, channels]`, and the shape of its rows. A view if
/// its channels are last, else a copy.
fn pixels(x: RocmTensor) -> hip::Result<(RocmTensor, Vec<usize>)> {
    let rows = packed_rows(x)?;
    let dims = rows.dims().to_vec();
    Ok((reshape(rows, &[dims[..3].iter().product(), dims[3]])?, dims))
}

/// Undoes [`pixels`]; `dims` is the shape of the rows.
fn from_pixels(pixels: RocmTensor, dims: &[usize]) -> hip::Result<RocmTensor> {
    from_rows(reshape(pixels, dims)?)
}

/// Parameters or statistics of the channels, packed, in the type that the kernels compute in. One
/// launch widens up to four 16-bit tensors.
fn widened<const N: usize>(params: [RocmTensor; N], dtype: DType) -> hip::Result<[RocmTensor; N]> {
    let params = cast_all(params.into(), compute_dtype(dtype))?
        .into_iter()
        .map(packed)
        .collect::<hip::Result<Vec<_>>>()?;
    Ok(params.try_into().expect("as many as there were"))
}

/// How a training step of batch norm is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormStep {
    /// The weight of this batch in the new running statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether the output is the ReLU of the normalised tensor.
    pub relu: bool,
    /// Whether the new running statistics overwrite the old ones, even if others hold their memory,
    /// as [`graph::write`](crate::graph::write()) does.
    pub in_place: bool,
}

/// Normalises each channel with this batch's statistics ([Ioffe and Szegedy
/// 2015](https://arxiv.org/abs/1502.03167)):
/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`. Updates the running statistics:
/// `running * (1 - momentum) + statistic * momentum`. Both use the biased variance, as in Burn.
///
/// MIOpen computes the output if `BURN_ROCM_NORM` allows. After it one kernel updates the running
/// statistics. That kernel also recomputes channels whose variance MIOpen computes inaccurately
/// (MIOpen subtracts the squared mean from the mean of squares, which loses digits). Otherwise two
/// kernels of this project compute everything. They also do so if a channel of a sample has a
/// number of elements that is not a multiple of 4, because MIOpen then mixes channels
/// (<https://github.com/ROCm/rocm-libraries/pull/6765>).
///
/// # Shapes
/// - x, output: `[batch, channels, ..]`
/// - gamma, beta, running statistics: `[channels]`, of the dtype of `x`, or f32 with an `x` of f16
///   or bf16. Gamma and beta have the same dtype, and so do the two running statistics
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for integers, or if
/// `BURN_ROCM_NORM=miopen` and MIOpen lacks the dtype, can't count the elements or is wrong for the
/// shape; `Miopen` if only MIOpen may run and it fails; an error of the device.
pub fn batch_norm_train(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: RocmTensor,
    running: [RocmTensor; 2],
    momentum: f64,
    epsilon: f64,
) -> Result<BatchNormed, RocmError> {
    let step = BatchNormStep { momentum, epsilon, relu: false, in_place: false };
    batch_norm_step(x, gamma, beta, running, step)
}

/// [`batch_norm_train`], with a ReLU or in place if `step` says so.
///
/// With a ReLU, the kernels of this project compute everything, in as many launches and passes over
/// memory as without one. MIOpen would need two more passes for the ReLU, so it runs only if
/// `BURN_ROCM_NORM=miopen`.
///
/// # Errors
/// As for [`batch_norm_train`]. `Invalid` if statistics that are to be overwritten lie in read-only
/// memory, or are expanded.
pub fn batch_norm_step(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: RocmTensor,
    running: [RocmTensor; 2],
    step: BatchNormStep,
) -> Result<BatchNormed, RocmError> {
    const OP: &str = "batch_norm_train";
    let shape = Channels::of(OP, &x, &[&gamma, &beta, &running[0], &running[1]])?;
    one_dtype(OP, &[&gamma, &beta])?;
    let given = one_dtype(OP, &running.each_ref())?;
    if by_rows(&x)? {
        let (x, dims) = pixels(x)?;
        let done = batch_norm_step(x, gamma, beta, running, step)?;
        return Ok(BatchNormed { output: from_pixels(done.output, &dims)?, ..done });
    }
    if shape.is_far() {
        let dims = x.dims().to_vec();
        let done = batch_norm_step(shape.joined(x)?, gamma, beta, running, step)?;
        return Ok(BatchNormed { output: shape.parted(done.output, &dims)?, ..done });
    }
    if step.in_place {
        running.iter().try_for_each(|running| may_be_written(OP, running))?;
    }
    let x = packed(x)?;
    let (device, dtype, ty) = (x.hip_device(), x.dtype_of(), x.kernel_type()?);
    let [mean, variance] = running.clone();
    let [gamma, beta, before_mean, before_var] = widened([gamma, beta, mean, variance], dtype)?;
    let output = x.empty_like()?;
    let statistics = RocmTensor::empty(device, [2, shape.channels], compute_dtype(dtype))?;
    // A kernel reads a channel's old statistics before it writes the new ones.
    let direct = step.in_place && given == compute_dtype(dtype) && apart(&running);
    let after = if direct {
        running.clone()
    } else {
        let after = RocmTensor::empty(device, [2, shape.channels], compute_dtype(dtype))?;
        [row(&after, 0)?, row(&after, 1)?]
    };
    let done = |output| -> hip::Result<BatchNormed> {
        let statistics = statistics.clone();
        if direct {
            return Ok(BatchNormed { output, running: after.clone(), statistics });
        }
        let [mean, variance] = after.each_ref().map(|after| cast(after.clone(), given));
        let after = [mean?, variance?];
        if !step.in_place {
            return Ok(BatchNormed { output, running: after, statistics });
        }
        running.iter().zip(&after).try_for_each(|(running, after)| assign(OP, running, after))?;
        Ok(BatchNormed { output, running: running.clone(), statistics })
    };
    if shape.channels == 0 {
        return done(output);
    }
    let options = [step.momentum, step.epsilon];
    let outputs = [&output, &statistics, &after[0], &after[1]];
    let why = or_relu(step.relu, device, || shape.trained_without_miopen(OP, device, dtype))?;
    let library = by_miopen(device, why, || {
        let saved = [row(&statistics, 0)?, row(&statistics, 1)?];
        device.dnn()?.batch_norm_train(
            &shape.desc(ty),
            whole(&x),
            whole(&output),
            whole(&gamma),
            whole(&beta),
            None,
            step.momentum,
            step.epsilon,
            Some(saved.each_ref().map(whole)),
        )
    })?;
    if library {
        let Plan { dims, grid, .. } = shape.planned(device, 1, 1);
        let kernel = Template::batch_norm_finish.ty(ty);
        let inputs = [&x, &gamma, &beta, &before_mean, &before_var];
        rows(OP, device, kernel, grid, &dims, &inputs, &options.map(Arg::F64), &outputs)?;
        return done(if step.relu { unary(OP, Functor::Relu, output)? } else { output });
    }
    let params = [&gamma, &beta, &before_mean, &before_var];
    if let Some(of) = Rows::of(&x, &[], &params) {
        let before = [&before_mean, &before_var];
        of.train(OP, &x, [&gamma, &beta], before, options, step.relu, outputs)?;
        return done(output);
    }
    let Plan { dims, parts, grid } = shape.plan(device);
    let partial = RocmTensor::empty(device, [2, parts, shape.channels], compute_dtype(dtype))?;
    rows(OP, device, Template::batch_norm_moments.ty(ty), grid, &dims, &[&x], &[], &[&partial])?;
    let inputs = [&x, &gamma, &beta, &before_mean, &before_var, &partial];
    let kernel = if step.relu { Template::batch_norm_relu } else { Template::batch_norm_apply };
    rows(OP, device, kernel.ty(ty), grid, &dims, &inputs, &options.map(Arg::F64), &outputs)?;
    done(output)
}

/// Whether a kernel that reads these two tensors may overwrite them: they are packed and apart.
fn apart([mean, variance]: &[RocmTensor; 2]) -> bool {
    let same = || mean.byte_offset() == variance.byte_offset();
    is_packed(mean) && is_packed(variance) && !(mean.shares_buffer(variance) && same())
}

/// Why MIOpen does not compute a norm. With a ReLU the reason is the ReLU, which this project's
/// kernel applies in the same pass, unless `BURN_ROCM_NORM` demands MIOpen.
fn or_relu(
    relu: bool,
    device: &Device,
    why: impl FnOnce() -> hip::Result<Option<Why>>,
) -> hip::Result<Option<Why>> {
    match relu && device.norm_route()? != Route::Library {
        true => Ok(Some(Why::Rule("MIOpen's batch norm has no ReLU"))),
        false => why(),
    }
}

/// [`batch_norm_train`] without running statistics. Returns the normalised tensor, and the batch's
/// mean and biased variance in gamma's dtype.
pub(crate) fn batch_norm_statistics(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: RocmTensor,
    epsilon: f64,
) -> hip::Result<(RocmTensor, [RocmTensor; 2])> {
    // The momentum is 1, so the running statistics are replaced entirely.
    let before = full_on(x.hip_device(), gamma.layout().shape().clone(), 0i64.into(), gamma.dtype_of())?;
    let done = batch_norm_train(x, gamma, beta, [before.clone(), before], 1.0, epsilon)?;
    Ok((done.output, done.running))
}

/// The statistics that [`batch_norm_backward`] takes, from the mean and the variance that
/// [`batch_norm_statistics`] returned for `x`. If these have 16 bits, as gamma has, the statistics are
/// computed from `x` again: f16 has no variance above 65504, and the error of a rounded mean can be
/// larger than the deviation.
pub(crate) fn statistics_for_backward(
    x: &RocmTensor,
    [mean, variance]: [RocmTensor; 2],
    epsilon: f64,
) -> hip::Result<RocmTensor> {
    const OP: &str = "batch_norm_train_backward";
    let dtype = compute_dtype(x.dtype_of());
    if mean.dtype_of() != dtype {
        return statistics_of(OP, x.clone(), epsilon);
    }
    let [mean, variance] = widened([mean, variance], dtype)?;
    let deviation = unary(OP, Functor::Sqrt, scalar(OP, Functor::Add, variance, epsilon.into())?)?;
    let rows = [mean, unary(OP, Functor::Recip, deviation)?];
    let rows = rows.into_iter().map(|row| {
        let dims = [&[1], row.dims()].concat();
        reshape(row, &dims)
    });
    cat(rows.collect::<hip::Result<_>>()?, 0)
}

/// [`BatchNormed::statistics`] of `x`. For channels that are innermost in memory, kernels read `x`
/// once. For others this is a whole forward pass.
fn statistics_of(op: &'static str, x: RocmTensor, epsilon: f64) -> hip::Result<RocmTensor> {
    let channels = Channels::of(op, &x, &[])?.channels;
    let zeros = full_on(x.hip_device(), [2, channels], 0i64.into(), compute_dtype(x.dtype_of()))?;
    let running = [row(&zeros, 0)?, row(&zeros, 1)?];
    let x = if by_rows(&x)? { pixels(x)?.0 } else { x };
    if x.hip_device().norm_route()? != Route::Library
        && let Some(of) = Rows::of(&x, &[], &[])
    {
        return of.statistics(op, &x, running.each_ref(), epsilon);
    }
    let [gamma, beta] = running.clone();
    Ok(batch_norm_train(x, gamma, beta, running, 0.0, epsilon)?.statistics)
}

/// Whether the kernels for images with their channels last compute. With `BURN_ROCM_NORM=miopen`
/// they do not: MIOpen gets a row-major copy, because some of its versions are wrong for rows of
/// single elements.
fn by_rows(x: &RocmTensor) -> hip::Result<bool> {
    Ok(is_channels_last(x) && x.hip_device().norm_route()? != Route::Library)
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` with the running statistics, by MIOpen or
/// one kernel of this project.
///
/// # Shapes
/// - x, result: `[batch, channels, ..]`
/// - gamma, beta, running statistics: `[channels]`, of dtypes as for [`batch_norm_train`]
///
/// # Errors
/// As for [`batch_norm_train`].
pub fn batch_norm_infer(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: RocmTensor,
    statistics: [RocmTensor; 2],
    epsilon: f64,
) -> Result<RocmTensor, RocmError> {
    inferred(x, gamma, beta, statistics, epsilon, false)
}

/// [`batch_norm_infer`] and the ReLU of it, in one kernel of this project unless
/// `BURN_ROCM_NORM=miopen`.
///
/// # Errors
/// As for [`batch_norm_train`].
pub fn batch_norm_relu_infer(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: RocmTensor,
    statistics: [RocmTensor; 2],
    epsilon: f64,
) -> Result<RocmTensor, RocmError> {
    inferred(x, gamma, beta, statistics, epsilon, true)
}

fn inferred(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: RocmTensor,
    [mean, variance]: [RocmTensor; 2],
    epsilon: f64,
    relu: bool,
) -> hip::Result<RocmTensor> {
    const OP: &str = "batch_norm_infer";
    let shape = Channels::of(OP, &x, &[&gamma, &beta, &mean, &variance])?;
    if by_rows(&x)? {
        let (x, dims) = pixels(x)?;
        let output = inferred(x, gamma, beta, [mean, variance], epsilon, relu)?;
        return from_pixels(output, &dims);
    }
    if shape.is_far() {
        let dims = x.dims().to_vec();
        let output = inferred(shape.joined(x)?, gamma, beta, [mean, variance], epsilon, relu)?;
        return shape.parted(output, &dims);
    }
    let x = packed(x)?;
    let params = widened([gamma, beta, mean, variance], x.dtype_of())?;
    let (device, ty) = (x.hip_device(), x.kernel_type()?);
    let output = x.empty_like()?;
    if output.is_empty() {
        return Ok(output);
    }
    let why = or_relu(relu, device, || shape.inferred_without_miopen(OP, device, x.dtype_of()))?;
    let library = by_miopen(device, why, || {
        let desc = shape.desc(ty);
        let [gamma, beta, mean, variance] = params.each_ref().map(whole);
        device.dnn()?.batch_norm_infer(&desc, whole(&x), whole(&output), gamma, beta, mean, variance, epsilon)
    })?;
    if library {
        return if relu { unary(OP, Functor::Relu, output) } else { Ok(output) };
    }
    if let Some(of) = Rows::of(&x, &[], &params.each_ref()) {
        of.apply(OP, &x, params.each_ref(), Some(epsilon), relu, &output)?;
    } else {
        let Plan { dims, grid, .. } = shape.plan(device);
        let [gamma, beta, mean, variance] = &params;
        let inputs = [&x, gamma, beta, mean, variance];
        let kernel = if relu { Template::batch_norm_infer_relu } else { Template::batch_norm_infer };
        rows(OP, device, kernel.ty(ty), grid, &dims, &inputs, &[Arg::F64(epsilon)], &[&output])?;
    }
    Ok(output)
}

/// The gradients of [`batch_norm_train`] with respect to x, gamma and beta, from x, the output's
/// gradient and [`BatchNormed::statistics`]. Computed by MIOpen or two kernels of this project.
///
/// # Errors
/// As for [`batch_norm_train`].
pub fn batch_norm_backward(
    x: RocmTensor,
    gamma: RocmTensor,
    statistics: RocmTensor,
    grad: RocmTensor,
    epsilon: f64,
) -> Result<[RocmTensor; 3], RocmError> {
    gradients(x, gamma, None, statistics, grad, epsilon)
}

/// The gradients of [`batch_norm_step`] with a ReLU, whose output is `output`. The kernels of this
/// project do not read `output`. They compute again where it is positive.
///
/// # Errors
/// As for [`batch_norm_train`].
pub fn batch_norm_relu_backward(
    x: RocmTensor,
    [gamma, beta]: [RocmTensor; 2],
    statistics: RocmTensor,
    output: RocmTensor,
    grad: RocmTensor,
    epsilon: f64,
) -> Result<[RocmTensor; 3], RocmError> {
    const OP: &str = "batch_norm_backward";
    if x.hip_device().norm_route()? == Route::Library {
        check_gradient(OP, &output, &grad)?;
        let grad = binary(OP, Functor::ReluBackward, output, grad)?;
        return batch_norm_backward(x, gamma, statistics, grad, epsilon);
    }
    gradients(x, gamma, Some(beta), statistics, grad, epsilon)
}

/// The gradients of a batch norm; with a `beta`, of a batch norm and the ReLU after it.
fn gradients(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: Option<RocmTensor>,
    statistics: RocmTensor,
    grad: RocmTensor,
    epsilon: f64,
) -> hip::Result<[RocmTensor; 3]> {
    const OP: &str = "batch_norm_backward";
    let params: Vec<&RocmTensor> = [&gamma].into_iter().chain(&beta).collect();
    let shape = Channels::of(OP, &x, &params)?;
    one_dtype(OP, &params)?;
    one_device(OP, &[&x, &grad, &statistics])?;
    check_gradient(OP, &x, &grad)?;
    let (dtype, ty, channels) = (x.dtype_of(), x.kernel_type()?, shape.channels);
    if statistics.dims() != [2, channels] || statistics.dtype_of() != compute_dtype(dtype) {
        let found = format!("{:?} of {}", statistics.dims(), statistics.dtype_of().name());
        return invalid(OP, format!("statistics [2, {channels}] of {}", compute_dtype(dtype).name()), found);
    }
    if by_rows(&x)? {
        let ((x, dims), (grad, _)) = (pixels(x)?, pixels(grad)?);
        let [dx, dgamma, dbeta] = gradients(x, gamma, beta, statistics, grad, epsilon)?;
        return Ok([from_pixels(dx, &dims)?, dgamma, dbeta]);
    }
    if shape.is_far() {
        let (dims, [x, grad]) = (x.dims().to_vec(), [shape.joined(x)?, shape.joined(grad)?]);
        let [dx, dgamma, dbeta] = gradients(x, gamma, beta, statistics, grad, epsilon)?;
        return Ok([shape.parted(dx, &dims)?, dgamma, dbeta]);
    }
    let given = gamma.dtype_of();
    let relu = beta.is_some();
    let beta = beta.unwrap_or_else(|| gamma.clone());
    let [gamma, beta] = widened([gamma, beta], dtype)?;
    let (x, statistics, grad) = (packed(x)?, packed(statistics)?, packed(grad)?);
    let device = x.hip_device();
    let dx = x.empty_like()?;
    if dx.is_empty() {
        let zeros = || full_on(device, [channels], 0i64.into(), given);
        return Ok([dx, zeros()?, zeros()?]);
    }
    let sums = RocmTensor::empty(device, [2, channels], compute_dtype(dtype))?;
    let why = or_relu(relu, device, || shape.backward_without_miopen(OP, device, dtype))?;
    let library = by_miopen(device, why, || {
        let [dscale, dbias] = [row(&sums, 0)?, row(&sums, 1)?];
        let saved = [row(&statistics, 0)?, row(&statistics, 1)?];
        device.dnn()?.batch_norm_backward(
            &shape.desc(ty),
            whole(&x),
            whole(&grad),
            whole(&dx),
            whole(&gamma),
            whole(&dscale),
            whole(&dbias),
            epsilon,
            saved.each_ref().map(whole),
        )
    })?;
    let after = relu.then_some(&beta);
    if library {
        // MIOpen wrote `dx` and `sums`.
    } else if let Some(of) = Rows::of(&x, &[&grad], &[&gamma, &beta, &statistics]) {
        of.backward(OP, [&x, &grad], &gamma, after, &statistics, &dx, &sums)?;
    } else if let Some(beta) = after {
        let Plan { dims, parts, grid } = shape.plan(device);
        let partial = RocmTensor::empty(device, [2, parts, channels], compute_dtype(dtype))?;
        let inputs = [&x, &grad, &gamma, beta, &statistics];
        let kernel = Template::batch_norm_relu_sums.ty(ty);
        rows(OP, device, kernel, grid, &dims, &inputs, &[], &[&partial])?;
        let inputs = [&x, &grad, &gamma, beta, &statistics, &partial];
        let kernel = Template::batch_norm_relu_backward.ty(ty);
        rows(OP, device, kernel, grid, &dims, &inputs, &[], &[&dx, &sums])?;
    } else {
        let partial = channel_sums(OP, &x, &grad, &statistics, [0, 1])?;
        let Plan { dims, grid, .. } = shape.plan(device);
        let kernel = Template::batch_norm_backward.ty(ty);
        let inputs = [&x, &grad, &gamma, &statistics, &partial];
        rows(OP, device, kernel, grid, &dims, &inputs, &[], &[&dx, &sums])?;
    }
    let sums = cast(sums, given)?;
    Ok([dx, row(&sums, 0)?, row(&sums, 1)?])
}

/// `[2, parts, channels]`: parts of each channel's sums of `grad * n` and of `grad`, where `n` is
/// `x` normalised with `statistics[2, rows]`. Channel `c` of sample `i` uses row
/// `i * step + c / share`.
pub(super) fn channel_sums(
    op: &'static str,
    x: &RocmTensor,
    grad: &RocmTensor,
    statistics: &RocmTensor,
    [step, share]: [usize; 2],
) -> hip::Result<RocmTensor> {
    let shape = Channels::of(op, x, &[])?;
    if shape.is_far() {
        let of_sample = |sample: usize| {
            let [x, grad] = [x, grad].map(|tensor| narrow(tensor.clone(), 0, sample, 1));
            let statistics = packed(narrow(statistics.clone(), 1, sample * step, shape.channels / share)?)?;
            channel_sums(op, &x?, &grad?, &statistics, [step, share])
        };
        return cat((0..shape.batch).map(of_sample).collect::<hip::Result<_>>()?, 1);
    }
    let device = x.hip_device();
    let Plan { dims, parts, grid } = shape.plan(device);
    let partial = RocmTensor::empty(device, [2, parts, shape.channels], statistics.dtype_of())?;
    let more = [step, share, statistics.dims()[1]].map(|value| Arg::U64(value as u64));
    let dims: Vec<Arg> = dims.into_iter().chain(more).collect();
    let kernel = Template::channel_sums.ty(x.kernel_type()?);
    rows(op, device, kernel, grid, &dims, &[x, grad, statistics], &[], &[&partial])?;
    Ok(partial)
}
