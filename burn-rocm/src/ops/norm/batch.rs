//! Batch norm: training, inference and the gradient.

use std::sync::Arc;

use hip::{BatchNormDesc, Device, Error as RocmError, Functor, Grid, Route, Template};

use super::batch_rows::Rows;
use super::{by_miopen, fits, for_miopen, passed_over, row};
use crate::arg::Arg;
use crate::dtype::{compute_dtype, kernel_type};
use crate::error::invalid;
use crate::ops::amp::cast_all;
use crate::ops::binary::scalar;
use crate::ops::cast::cast;
use crate::ops::cat::cat;
use crate::ops::channels_last::{from_rows, is_channels_last, packed_rows};
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::launch::{max_reach, rows};
use crate::ops::miopen::{Why, whole};
use crate::ops::unary::unary;
use crate::ops::view::{narrow, reshape, swap_dims};
use crate::tensor::{RocmTensor, check_gradient, float_type, one_device, one_dtype};
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

/// The fewest elements of one part of a channel. With smaller parts, joining the sums would cost
/// more than reading the elements.
const LEAST_PART: usize = 2048;

/// Up to so many parts, joining them takes little time whatever their size.
const MANY_PARTS: usize = 64;

/// The kernels count the bytes of a part in 32 bits, at up to 8 bytes an element. So a part must
/// span fewer elements than this, including those of other channels in between.
const COUNTED: usize = 1 << 29;

/// [`COUNTED`], or less if `BURN_ROCM_LAUNCH_REACH` says so.
fn counted() -> usize {
    COUNTED.min(max_reach())
}

/// A tensor seen as `[batch, channels, spatial]`.
#[derive(Clone, Copy)]
pub(crate) struct Channels {
    batch: usize,
    channels: usize,
    spatial: usize,
}

/// The shape arguments `[batch, channels, spatial, wide, parts]` and the grid of this project's
/// kernels.
struct Plan {
    dims: [Arg; 5],
    parts: usize,
    grid: Grid,
}

impl Channels {
    fn of(op: &'static str, x: &RocmTensor, params: &[&RocmTensor]) -> hip::Result<Self> {
        float_type(op, x)?;
        let &[batch, channels, ref rest @ ..] = x.dims() else {
            return invalid(op, "an input of shape [batch, channels, ..]", format!("{:?}", x.dims()));
        };
        for param in params {
            fits(op, x, &[param])?;
            if param.dims() != [channels] {
                return invalid(
                    op,
                    format!("a value for each channel, of shape [{channels}]"),
                    format!("{:?}", param.dims()),
                );
            }
        }
        Ok(Self { batch, channels, spatial: rest.iter().product() })
    }

    /// A row-major tensor of this shape; `None` unless it is `[batch, channels, ..]`.
    pub(crate) fn of_shape(dims: &[usize]) -> Option<Self> {
        let &[batch, channels, ref rest @ ..] = dims else { return None };
        // Dims of size 0 hide the others' product.
        dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim.max(1)))?;
        let seen = Self { batch, channels, spatial: rest.iter().product() };
        // As `joined` makes it.
        Some(if seen.is_far() { Self { batch: 1, channels, spatial: batch * seen.spatial } } else { seen })
    }

    fn len(self) -> usize {
        self.batch * self.channels * self.spatial
    }

    /// Why MIOpen does not compute the training's forward pass; `None` if it does.
    pub(crate) fn trained_without_miopen(
        self,
        op: &'static str,
        device: &Device,
        dtype: DType,
    ) -> hip::Result<Option<Why>> {
        // The kernel after MIOpen processes a channel in one part.
        match self.len() > 0 && self.parts(1, 1, counted()) == 1 {
            true => self.backward_without_miopen(op, device, dtype),
            false => Ok(Some(Why::Rule("the channels are empty, or longer than one part of a kernel"))),
        }
    }

    /// As [`trained_without_miopen`](Self::trained_without_miopen), for the gradient.
    pub(crate) fn backward_without_miopen(
        self,
        op: &'static str,
        device: &Device,
        dtype: DType,
    ) -> hip::Result<Option<Why>> {
        let ty = kernel_type(dtype)?;
        passed_over(device, None, || {
            for_miopen(op, dtype, self.len(), &[])?;
            self.desc(ty).trained_correctly()?;
            device.dnn()?.has_batch_norm(ty)
        })
    }

    /// As [`trained_without_miopen`](Self::trained_without_miopen), for inference.
    pub(crate) fn inferred_without_miopen(
        self,
        op: &'static str,
        device: &Device,
        dtype: DType,
    ) -> hip::Result<Option<Why>> {
        passed_over(device, None, || {
            for_miopen(op, dtype, self.len(), &[])?;
            device.dnn()?.has_batch_norm(kernel_type(dtype)?)
        })
    }

    fn desc(self, dtype: hip::DType) -> BatchNormDesc {
        let Self { batch, channels, spatial } = self;
        BatchNormDesc { dtype, batch, channels, spatial }
    }

    fn planned(self, device: &Arc<Device>, wide: usize, parts: usize) -> Plan {
        let Self { batch, channels, spatial } = self;
        // The kernels divide by `spatial`, so an empty `spatial` is passed as an empty batch.
        let [batch, spatial] = if spatial == 0 { [0, 1] } else { [batch, spatial] };
        let size = |dim: usize| Arg::U64(dim as u64);
        let count = |count: usize| Arg::U32(count as u32);
        let dims = [size(batch), size(channels), size(spatial), count(wide), count(parts)];
        let blocks = channels.div_ceil(wide) * parts;
        let each = batch * spatial * wide / parts;
        Plan { dims, parts, grid: device.grid_rows(blocks, each) }
    }

    /// Chooses tile width and parts. Neighbouring threads take neighbouring channels if a channel's
    /// elements are not contiguous. There are enough parts to fill the device.
    fn plan(self, device: &Arc<Device>) -> Plan {
        let wide = match self.spatial {
            1 => 32,
            2..=7 => 8,
            _ => 1,
        };
        let tiles = self.channels.div_ceil(wide).max(1);
        let elements = self.batch * self.spatial * wide;
        // Somewhat more blocks than run at once, so that little time is lost waiting for the last
        // ones. Not many more, because each block of the second step joins all parts.
        let info = device.info();
        let resident = info.compute_units as usize
            * (info.max_threads_per_compute_unit / device.block_threads()).max(1) as usize;
        let wanted = (4 * resident / tiles).min(elements / LEAST_PART);
        // The blocks of a wide tile join the parts of all its channels. With more parts than this,
        // they would read more sums than elements.
        let joined = if wide == 1 { wanted } else { MANY_PARTS.max((self.batch * self.spatial / 4).isqrt()) };
        let parts = wanted.min(joined).max(1);
        self.planned(device, wide, self.parts(wide, parts, counted()))
    }

    /// The number of parts: `wanted`, or more, so that a part spans fewer than `most` elements,
    /// counted from the first sample's tile to the last one's. There are two exceptions:
    /// - If the batch is one sample of `most` elements or more, a part's elements are counted from
    ///   its own first element.
    /// - If no part can span two samples, each sample is a part. If even one channel of a sample is
    ///   too long, see [`Self::is_far`].
    fn parts(self, wide: usize, wanted: usize, most: usize) -> usize {
        let Self { batch, channels, spatial } = self;
        let sample = channels * spatial;
        if batch * sample < most {
            return wanted;
        }
        match (most - 1).saturating_sub(wide * spatial) / sample {
            // A part consists of pieces of up to 8 neighbouring elements.
            0 if batch == 1 => wanted.max(spatial.div_ceil(((most - 1) / 8 * 8).max(8))),
            // Each sample is a part.
            0 => batch,
            samples => wanted.max(batch.div_ceil(samples)),
        }
    }

    /// Whether a channel of one sample has so many elements that no part may span two samples.
    fn is_far(self) -> bool {
        self.batch > 1 && self.spatial >= counted()
    }

    /// `x` with each channel's elements contiguous: `[1, channels, batch * spatial]`.
    fn joined(self, x: RocmTensor) -> hip::Result<RocmTensor> {
        let Self { batch, channels, spatial } = self;
        let x = swap_dims(reshape(x, &[batch, channels, spatial])?, 0, 1)?;
        reshape(x, &[1, channels, batch * spatial])
    }

    /// Undoes [`Self::joined`]; `dims` is the original shape.
    fn parted(self, x: RocmTensor, dims: &[usize]) -> hip::Result<RocmTensor> {
        let Self { batch, channels, spatial } = self;
        reshape(swap_dims(reshape(x, &[channels, batch, spatial])?, 0, 1)?, dims)
    }
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
    const OP: &str = "batch_norm_train";
    let shape = Channels::of(OP, &x, &[&gamma, &beta, &running[0], &running[1]])?;
    one_dtype(OP, &[&gamma, &beta])?;
    let given = one_dtype(OP, &running.each_ref())?;
    if by_rows(&x)? {
        let (x, dims) = pixels(x)?;
        let done = batch_norm_train(x, gamma, beta, running, momentum, epsilon)?;
        return Ok(BatchNormed { output: from_pixels(done.output, &dims)?, ..done });
    }
    if shape.is_far() {
        let dims = x.dims().to_vec();
        let done = batch_norm_train(shape.joined(x)?, gamma, beta, running, momentum, epsilon)?;
        return Ok(BatchNormed { output: shape.parted(done.output, &dims)?, ..done });
    }
    let [before_mean, before_var] = running;
    let x = packed(x)?;
    let (device, dtype, ty) = (x.hip_device(), x.dtype_of(), x.kernel_type()?);
    let [gamma, beta, before_mean, before_var] = widened([gamma, beta, before_mean, before_var], dtype)?;
    let output = x.empty_like()?;
    let statistics = RocmTensor::empty(device, [2, shape.channels], compute_dtype(dtype))?;
    let after = RocmTensor::empty(device, [2, shape.channels], compute_dtype(dtype))?;
    let done = |output| -> hip::Result<BatchNormed> {
        let after = cast(after.clone(), given)?;
        Ok(BatchNormed {
            output,
            running: [row(&after, 0)?, row(&after, 1)?],
            statistics: statistics.clone(),
        })
    };
    if shape.channels == 0 {
        return done(output);
    }
    let options = [Arg::F64(momentum), Arg::F64(epsilon)];
    let library = by_miopen(device, shape.trained_without_miopen(OP, device, dtype)?, || {
        let saved = [row(&statistics, 0)?, row(&statistics, 1)?];
        device.dnn()?.batch_norm_train(
            &shape.desc(ty),
            whole(&x),
            whole(&output),
            whole(&gamma),
            whole(&beta),
            None,
            momentum,
            epsilon,
            Some(saved.each_ref().map(whole)),
        )
    })?;
    if library {
        let Plan { dims, grid, .. } = shape.planned(device, 1, 1);
        let kernel = Template::batch_norm_finish.ty(ty);
        let inputs = [&x, &gamma, &beta, &before_mean, &before_var];
        rows(OP, device, kernel, grid, &dims, &inputs, &options, &[&output, &statistics, &after])?;
        return done(output);
    }
    let params = [&gamma, &beta, &before_mean, &before_var];
    if let Some(of) = Rows::of(&x, &[], &params) {
        let (affine, before) = ([&gamma, &beta], [&before_mean, &before_var]);
        of.train(OP, &x, affine, before, [momentum, epsilon], &output, [&statistics, &after])?;
        return done(output);
    }
    let Plan { dims, parts, grid } = shape.plan(device);
    let partial = RocmTensor::empty(device, [2, parts, shape.channels], compute_dtype(dtype))?;
    let kernel = |name: Template| name.ty(ty);
    rows(OP, device, kernel(Template::batch_norm_moments), grid, &dims, &[&x], &[], &[&partial])?;
    let inputs = [&x, &gamma, &beta, &before_mean, &before_var, &partial];
    let outputs = [&output, &statistics, &after];
    rows(OP, device, kernel(Template::batch_norm_apply), grid, &dims, &inputs, &options, &outputs)?;
    done(output)
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

/// Converts a mean and a variance to the statistics that [`batch_norm_backward`] takes for an `x`
/// of `dtype`.
pub(crate) fn with_rstd(
    mean: RocmTensor,
    variance: RocmTensor,
    dtype: DType,
    epsilon: f64,
) -> hip::Result<RocmTensor> {
    const OP: &str = "batch_norm_train_backward";
    let [mean, variance] = widened([mean, variance], dtype)?;
    let deviation = unary(OP, Functor::Sqrt, scalar(OP, Functor::Add, variance, epsilon.into())?)?;
    let rows = [mean, unary(OP, Functor::Recip, deviation)?];
    let rows = rows.into_iter().map(|row| {
        let dims = [&[1], row.dims()].concat();
        reshape(row, &dims)
    });
    cat(rows.collect::<hip::Result<_>>()?, 0)
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
    [mean, variance]: [RocmTensor; 2],
    epsilon: f64,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "batch_norm_infer";
    let shape = Channels::of(OP, &x, &[&gamma, &beta, &mean, &variance])?;
    if by_rows(&x)? {
        let (x, dims) = pixels(x)?;
        let output = batch_norm_infer(x, gamma, beta, [mean, variance], epsilon)?;
        return from_pixels(output, &dims);
    }
    if shape.is_far() {
        let dims = x.dims().to_vec();
        let output = batch_norm_infer(shape.joined(x)?, gamma, beta, [mean, variance], epsilon)?;
        return shape.parted(output, &dims);
    }
    let x = packed(x)?;
    let params = widened([gamma, beta, mean, variance], x.dtype_of())?;
    let (device, ty) = (x.hip_device(), x.kernel_type()?);
    let output = x.empty_like()?;
    if output.is_empty() {
        return Ok(output);
    }
    let library = by_miopen(device, shape.inferred_without_miopen(OP, device, x.dtype_of())?, || {
        let desc = shape.desc(ty);
        let [gamma, beta, mean, variance] = params.each_ref().map(whole);
        device.dnn()?.batch_norm_infer(&desc, whole(&x), whole(&output), gamma, beta, mean, variance, epsilon)
    })?;
    if library {
        return Ok(output);
    }
    if let Some(of) = Rows::of(&x, &[], &params.each_ref()) {
        of.apply(OP, &x, params.each_ref(), Some(epsilon), &output)?;
    } else {
        let Plan { dims, grid, .. } = shape.plan(device);
        let [gamma, beta, mean, variance] = &params;
        let inputs = [&x, gamma, beta, mean, variance];
        let kernel = Template::batch_norm_infer.ty(ty);
        rows(OP, device, kernel, grid, &dims, &inputs, &[Arg::F64(epsilon)], &[&output])?;
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
    const OP: &str = "batch_norm_backward";
    let shape = Channels::of(OP, &x, &[&gamma])?;
    one_device(OP, &[&x, &grad, &statistics])?;
    check_gradient(OP, &x, &grad)?;
    let (dtype, ty, channels) = (x.dtype_of(), x.kernel_type()?, shape.channels);
    if statistics.dims() != [2, channels] || statistics.dtype_of() != compute_dtype(dtype) {
        let found = format!("{:?} of {}", statistics.dims(), statistics.dtype_of().name());
        return invalid(OP, format!("statistics [2, {channels}] of {}", compute_dtype(dtype).name()), found);
    }
    if by_rows(&x)? {
        let ((x, dims), (grad, _)) = (pixels(x)?, pixels(grad)?);
        let [dx, dgamma, dbeta] = batch_norm_backward(x, gamma, statistics, grad, epsilon)?;
        return Ok([from_pixels(dx, &dims)?, dgamma, dbeta]);
    }
    if shape.is_far() {
        let (dims, [x, grad]) = (x.dims().to_vec(), [shape.joined(x)?, shape.joined(grad)?]);
        let [dx, dgamma, dbeta] = batch_norm_backward(x, gamma, statistics, grad, epsilon)?;
        return Ok([shape.parted(dx, &dims)?, dgamma, dbeta]);
    }
    let given = gamma.dtype_of();
    let [gamma] = widened([gamma], dtype)?;
    let (x, statistics, grad) = (packed(x)?, packed(statistics)?, packed(grad)?);
    let device = x.hip_device();
    let dx = x.empty_like()?;
    if dx.is_empty() {
        let zeros = || full_on(device, [channels], 0i64.into(), given);
        return Ok([dx, zeros()?, zeros()?]);
    }
    let sums = RocmTensor::empty(device, [2, channels], compute_dtype(dtype))?;
    let library = by_miopen(device, shape.backward_without_miopen(OP, device, dtype)?, || {
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
    if library {
        // MIOpen wrote `dx` and `sums`.
    } else if let Some(of) = Rows::of(&x, &[&grad], &[&gamma, &statistics]) {
        of.backward(OP, [&x, &grad], [&gamma, &statistics], &dx, &sums)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts channels into the same parts as the kernels (`part_of` in batch_norm.hip).
    #[test]
    fn parts_are_counted_in_32_bits() {
        const MOST: usize = 500;
        let sizes = [1, 2, 3, 7, 8, 20, 63, 199, 600, 1024];
        let (mut split, mut far) = (0, 0);
        for (batch, channels, spatial, wide, wanted) in sizes.iter().flat_map(|&batch| {
            let of = move |channels| sizes.map(|spatial| (batch, channels, spatial));
            sizes
                .into_iter()
                .flat_map(of)
                .flat_map(|(b, c, s)| [(b, c, s, 1, 1), (b, c, s, 1, 5), (b, c, s, 8, 1)])
        }) {
            if spatial >= MOST && batch > 1 || wide > 1 && wide * spatial >= MOST {
                continue;
            }
            let parts = Channels { batch, channels, spatial }.parts(wide, wanted, MOST);
            split += usize::from(parts > wanted);
            let what = format!("{batch} x {channels} x {spatial}, wide {wide}, {parts} parts");
            let unit = if wide == 1 && spatial % 8 == 0 { 8 } else { 1 };
            let units = batch * spatial / unit;
            let (each, more) = (units / parts, units % parts);
            let begin = |part: usize| (part * each + part.min(more)) * unit;
            for part in (0..parts).filter(|&part| begin(part) < begin(part + 1)) {
                let (from, to) = (begin(part), begin(part + 1));
                let [first, last] = [from, to - 1].map(|at| at / spatial);
                // The elements from the part's first sample, or its first element, to the end of
                // the last sample's tile.
                let seen = match spatial < MOST {
                    true => (last - first) * channels * spatial + wide.min(channels) * spatial,
                    false => to - from,
                };
                far += usize::from(spatial >= MOST);
                assert!(seen < MOST, "{what}: {seen} are seen");
            }
        }
        assert!(split > 100 && far > 100, "{split} were split, {far} parts of far samples");
    }
}
