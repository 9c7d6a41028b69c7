//! Batch normalisation. Scale, bias and statistics are `f32` for every type of data.

use super::Shared;
use super::handle::in_order;
use super::status::{by_float, input, output};
use super::tensor::{Tensor, tensor};
use crate::numeric::element::Single;
use crate::numeric::rows::{affine, affine_pair, deviations, narrowed, products, widened};
use crate::numeric::scratch::with_scratch;
use crate::runtime::parallel;
use core::ffi::c_void;
use hip_provider::miopen::{Outcome, scalar};
use hip_provider::require;
use miopen_sys::*;

/// A call as spatial batch norm: per-activation norm is that of `C*H*W` channels of one pixel.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    channels: usize,
    pixels: usize,
}

impl Shape {
    fn new(
        mode: miopenBatchNormMode_t,
        x: &Tensor,
        others: &[&Tensor],
        parameters: &Tensor,
    ) -> Outcome<Shape> {
        require(mode.name().is_some(), miopenStatusBadParm)?;
        require(x.dims.len() == 4 || x.dims.len() == 5, miopenStatusBadParm)?;
        for other in others {
            require(other.dims == x.dims && other.data == x.data, miopenStatusBadParm)?;
            other.require_packed()?;
        }
        x.require_packed()?;
        parameters.require_packed()?;
        require(parameters.data == miopenFloat, miopenStatusBadParm)?;
        let (batch, channels, pixels) = x.planes()?;
        let shape = if mode == miopenBNSpatial {
            Shape { batch, channels, pixels }
        } else {
            Shape { batch, channels: channels * pixels, pixels: 1 }
        };
        let expected = if mode == miopenBNSpatial { vec![1; x.dims.len() - 2] } else { x.dims[2..].to_vec() };
        let given = &parameters.dims;
        let fits =
            given.len() == x.dims.len() && given[0] == 1 && given[1] == channels && given[2..] == expected;
        require(fits, miopenStatusBadParm)?;
        Ok(shape)
    }

    fn len(&self) -> usize {
        self.batch * self.channels * self.pixels
    }

    /// Values that are normalised together.
    fn count(&self) -> f64 {
        (self.batch * self.pixels) as f64
    }

    /// Runs `compute(channel)` for every channel, on all cores.
    fn channels(&self, compute: impl Fn(usize) + Sync) {
        let each = (1usize << 12).div_ceil(self.batch * self.pixels);
        parallel(self.channels.div_ceil(each), |task| {
            (task * each..((task + 1) * each).min(self.channels)).for_each(&compute);
        });
    }

    /// The planes of a channel.
    fn planes(self, channel: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
        (0..self.batch).map(move |image| {
            let first = (image * self.channels + channel) * self.pixels;
            first..first + self.pixels
        })
    }

    /// Mean and variance of a channel: the mean first, then the deviations from it.
    fn moments<T: Single>(self, x: &[T], channel: usize, room: &mut [f32]) -> (f32, f64) {
        let sum: f64 = self.planes(channel).map(|plane| deviations(widened(&x[plane], room), 0.0)[0]).sum();
        let mean = (sum / self.count()) as f32;
        // Corrected by the first power: the mean was rounded.
        let (mut first, mut second) = (0.0, 0.0);
        for plane in self.planes(channel) {
            let [one, two] = deviations(widened(&x[plane], room), mean);
            first += one;
            second += two;
        }
        let off = first / self.count();
        (mean, (second / self.count() - off * off).max(0.0))
    }
}

/// Optional outputs: null, or `len` floats.
unsafe fn optional(pointer: *mut c_void, len: usize) -> Outcome<Option<Shared<f32>>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's buffer.
    let values: &mut [f32] = unsafe { output(pointer, len) }?;
    Ok(Some(Shared(values.as_mut_ptr())))
}

struct Training {
    x: *const c_void,
    y: *mut c_void,
    scale: *const c_void,
    bias: *const c_void,
    factor: f64,
    running: (*mut c_void, *mut c_void),
    epsilon: f64,
    saved: (*mut c_void, *mut c_void),
}

fn train<T: Single>(shape: Shape, call: &Training) -> Outcome {
    // SAFETY: the caller's buffers.
    let (x, y, scale, bias, running, saved) = unsafe {
        (
            input::<T>(call.x, shape.len())?,
            Shared(output::<T>(call.y, shape.len())?.as_mut_ptr()),
            input::<f32>(call.scale, shape.channels)?,
            input::<f32>(call.bias, shape.channels)?,
            (optional(call.running.0, shape.channels)?, optional(call.running.1, shape.channels)?),
            (optional(call.saved.0, shape.channels)?, optional(call.saved.1, shape.channels)?),
        )
    };
    let (epsilon, factor) = (call.epsilon, call.factor);
    shape.channels(|channel| {
        with_scratch(2 * shape.pixels, |room| {
            let (room, to) = room.split_at_mut(shape.pixels);
            let (mean, variance) = shape.moments(x, channel, room);
            let inverse = (1.0 / (variance + epsilon).sqrt()) as f32;
            let put = |to: &Option<Shared<f32>>, value: &dyn Fn(f32) -> f32| {
                if let Some(to) = to {
                    // SAFETY: inside the buffer; each channel is one task's alone.
                    unsafe { *to.get().add(channel) = value(*to.get().add(channel)) };
                }
            };
            put(&saved.0, &|_| mean);
            put(&saved.1, &|_| inverse);
            // The running variance is the unbiased one.
            let unbiased =
                if shape.count() > 1.0 { variance * shape.count() / (shape.count() - 1.0) } else { variance };
            let blend = |old: f32, new: f64| ((1.0 - factor) * f64::from(old) + factor * new) as f32;
            put(&running.0, &|old| blend(old, f64::from(mean)));
            put(&running.1, &|old| blend(old, unbiased));
            let slope = scale[channel] * inverse;
            for plane in shape.planes(channel) {
                // SAFETY: each channel's planes are one task's alone.
                let row = unsafe { core::slice::from_raw_parts_mut(y.get().add(plane.start), shape.pixels) };
                let x = widened(&x[plane], room);
                narrowed(row, to, |to| affine(x, mean, slope, bias[channel], to));
            }
        });
    });
    Ok(())
}

/// Refuses scalars other than 1 and 0; MIOpen takes null for them too.
unsafe fn usual_scalars(alpha: *const c_void, beta: *const c_void, data: miopenDataType_t) -> Outcome {
    // SAFETY: the caller's scalars.
    let (alpha, beta) = unsafe {
        let read = |pointer: *const c_void, usual: f64| {
            if pointer.is_null() { Ok(usual) } else { scalar(pointer, data) }
        };
        (read(alpha, 1.0)?, read(beta, 0.0)?)
    };
    require(alpha == 1.0 && beta == 0.0, miopenStatusBadParm)
}

pub(super) unsafe extern "C" fn miopenBatchNormalizationForwardTraining(
    handle: miopenHandle_t,
    bn_mode: miopenBatchNormMode_t,
    alpha: *mut c_void,
    beta: *mut c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    bnScaleBiasMeanVarDesc: miopenTensorDescriptor_t,
    bnScale: *mut c_void,
    bnBias: *mut c_void,
    expAvgFactor: f64,
    resultRunningMean: *mut c_void,
    resultRunningVariance: *mut c_void,
    epsilon: f64,
    resultSaveMean: *mut c_void,
    resultSaveInvVariance: *mut c_void,
) -> miopenStatus_t {
    in_order(handle, |_| {
        // SAFETY: the caller's handle, descriptors and scalars.
        let (data, shape) = unsafe {
            let (x, y, parameters) = (tensor(xDesc)?, tensor(yDesc)?, tensor(bnScaleBiasMeanVarDesc)?);
            usual_scalars(alpha, beta, x.data)?;
            (x.data, Shape::new(bn_mode, x, &[y], parameters)?)
        };
        let call = Training {
            x,
            y,
            scale: bnScale,
            bias: bnBias,
            factor: expAvgFactor,
            running: (resultRunningMean, resultRunningVariance),
            epsilon,
            saved: (resultSaveMean, resultSaveInvVariance),
        };
        by_float!(data, train(shape, &call))
    })
}

struct Inference {
    x: *const c_void,
    y: *mut c_void,
    scale: *const c_void,
    bias: *const c_void,
    mean: *const c_void,
    variance: *const c_void,
    epsilon: f64,
}

fn infer<T: Single>(shape: Shape, call: &Inference) -> Outcome {
    // SAFETY: the caller's buffers.
    let (x, y, scale, bias, mean, variance) = unsafe {
        (
            input::<T>(call.x, shape.len())?,
            Shared(output::<T>(call.y, shape.len())?.as_mut_ptr()),
            input::<f32>(call.scale, shape.channels)?,
            input::<f32>(call.bias, shape.channels)?,
            input::<f32>(call.mean, shape.channels)?,
            input::<f32>(call.variance, shape.channels)?,
        )
    };
    let epsilon = call.epsilon;
    shape.channels(|channel| {
        with_scratch(2 * shape.pixels, |room| {
            let (room, to) = room.split_at_mut(shape.pixels);
            let inverse = (1.0 / (f64::from(variance[channel]) + epsilon).sqrt()) as f32;
            let slope = scale[channel] * inverse;
            for plane in shape.planes(channel) {
                // SAFETY: each channel's planes are one task's alone.
                let row = unsafe { core::slice::from_raw_parts_mut(y.get().add(plane.start), shape.pixels) };
                let x = widened(&x[plane], room);
                narrowed(row, to, |to| affine(x, mean[channel], slope, bias[channel], to));
            }
        });
    });
    Ok(())
}

pub(super) unsafe extern "C" fn miopenBatchNormalizationForwardInference(
    handle: miopenHandle_t,
    bn_mode: miopenBatchNormMode_t,
    alpha: *mut c_void,
    beta: *mut c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    bnScaleBiasMeanVarDesc: miopenTensorDescriptor_t,
    bnScale: *mut c_void,
    bnBias: *mut c_void,
    estimatedMean: *mut c_void,
    estimatedVariance: *mut c_void,
    epsilon: f64,
) -> miopenStatus_t {
    in_order(handle, |_| {
        // SAFETY: the caller's handle, descriptors and scalars.
        let (data, shape) = unsafe {
            let (x, y, parameters) = (tensor(xDesc)?, tensor(yDesc)?, tensor(bnScaleBiasMeanVarDesc)?);
            usual_scalars(alpha, beta, x.data)?;
            (x.data, Shape::new(bn_mode, x, &[y], parameters)?)
        };
        let call = Inference {
            x,
            y,
            scale: bnScale,
            bias: bnBias,
            mean: estimatedMean,
            variance: estimatedVariance,
            epsilon,
        };
        by_float!(data, infer(shape, &call))
    })
}

struct Backward {
    x: *const c_void,
    dy: *const c_void,
    dx: *mut c_void,
    scale: *const c_void,
    scale_diff: *mut c_void,
    bias_diff: *mut c_void,
    epsilon: f64,
    saved: (*const c_void, *const c_void),
}

fn backward<T: Single>(shape: Shape, call: &Backward) -> Outcome {
    require(call.saved.0.is_null() == call.saved.1.is_null(), miopenStatusBadParm)?;
    // SAFETY: the caller's buffers.
    let (x, dy, dx, scale, scale_diff, bias_diff, saved) = unsafe {
        let saved = if call.saved.0.is_null() {
            None
        } else {
            Some((input::<f32>(call.saved.0, shape.channels)?, input::<f32>(call.saved.1, shape.channels)?))
        };
        (
            input::<T>(call.x, shape.len())?,
            input::<T>(call.dy, shape.len())?,
            Shared(output::<T>(call.dx, shape.len())?.as_mut_ptr()),
            input::<f32>(call.scale, shape.channels)?,
            Shared(output::<f32>(call.scale_diff, shape.channels)?.as_mut_ptr()),
            Shared(output::<f32>(call.bias_diff, shape.channels)?.as_mut_ptr()),
            saved,
        )
    };
    let epsilon = call.epsilon;
    shape.channels(|channel| {
        with_scratch(3 * shape.pixels, |room| {
            let (room, rest) = room.split_at_mut(shape.pixels);
            let (other, to) = rest.split_at_mut(shape.pixels);
            let (mean, inverse) = match saved {
                Some((mean, inverse)) => (mean[channel], inverse[channel]),
                None => {
                    let (mean, variance) = shape.moments(x, channel, room);
                    (mean, (1.0 / (variance + epsilon).sqrt()) as f32)
                }
            };
            // sum(dy) and sum(dy * (x - mean)).
            let (mut sum, mut moment) = (0.0f64, 0.0f64);
            for plane in shape.planes(channel) {
                let dy = widened(&dy[plane.clone()], room);
                let [one, two] = products(dy, widened(&x[plane], other), mean);
                sum += one;
                moment += two;
            }
            let scale_gradient = moment * f64::from(inverse);
            // SAFETY: inside the buffers; each channel is one task's alone.
            unsafe {
                *scale_diff.get().add(channel) = scale_gradient as f32;
                *bias_diff.get().add(channel) = sum as f32;
            }
            // dx = scale * inverse * (dy - sum/m - (x - mean) * inverse * scale_gradient / m), as dy*a + (x -
            // mean)*b + c.
            let a = scale[channel] * inverse;
            let b = -f64::from(a) * f64::from(inverse) * scale_gradient / shape.count();
            let c = -f64::from(a) * sum / shape.count();
            for plane in shape.planes(channel) {
                // SAFETY: each channel's planes are one task's alone.
                let row = unsafe { core::slice::from_raw_parts_mut(dx.get().add(plane.start), shape.pixels) };
                let dy = widened(&dy[plane.clone()], room);
                let x = widened(&x[plane], other);
                narrowed(row, to, |to| affine_pair((x, mean, b as f32), dy, a, c as f32, to));
            }
        });
    });
    Ok(())
}

pub(super) unsafe extern "C" fn miopenBatchNormalizationBackward(
    handle: miopenHandle_t,
    bn_mode: miopenBatchNormMode_t,
    alphaDataDiff: *const c_void,
    betaDataDiff: *const c_void,
    alphaParamDiff: *const c_void,
    betaParamDiff: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
    bnScaleBiasDiffDesc: miopenTensorDescriptor_t,
    bnScale: *const c_void,
    resultBnScaleDiff: *mut c_void,
    resultBnBiasDiff: *mut c_void,
    epsilon: f64,
    savedMean: *const c_void,
    savedInvVariance: *const c_void,
) -> miopenStatus_t {
    in_order(handle, |_| {
        // SAFETY: the caller's handle, descriptors and scalars.
        let (data, shape) = unsafe {
            let (x, dy, dx, parameters) =
                (tensor(xDesc)?, tensor(dyDesc)?, tensor(dxDesc)?, tensor(bnScaleBiasDiffDesc)?);
            usual_scalars(alphaDataDiff, betaDataDiff, x.data)?;
            usual_scalars(alphaParamDiff, betaParamDiff, x.data)?;
            (x.data, Shape::new(bn_mode, x, &[dy, dx], parameters)?)
        };
        let call = Backward {
            x,
            dy,
            dx,
            scale: bnScale,
            scale_diff: resultBnScaleDiff,
            bias_diff: resultBnBiasDiff,
            epsilon,
            saved: (savedMean, savedInvVariance),
        };
        by_float!(data, backward(shape, &call))
    })
}
