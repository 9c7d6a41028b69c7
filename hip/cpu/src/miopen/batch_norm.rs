//! Batch norm. Scale, bias and statistics are `f32` for every data type.

use super::Shared;
use super::handle::{Handle, Operand, packed};
use super::status::{by_float, input, known, output};
use crate::numeric::element::Single;
use crate::numeric::rows::{affine, affine_pair, deviations, narrowed, products, widened};
use crate::numeric::scratch::with_scratch;
use crate::runtime::{enqueue, parallel};
use core::ffi::c_void;
use hip_provider::miopen::{BatchGradient, BatchNorms, Inference, Outcome, Training};
use miopen_sys::*;

type BatchNorm<'a> = hip_provider::miopen::BatchNorm<'a, Handle>;

/// The arguments that every call has.
#[derive(Clone, Copy)]
struct Norm {
    data: miopenDataType_t,
    x: *mut c_void,
    scale: *const c_void,
    epsilon: f64,
}

impl Norm {
    fn new(norm: &BatchNorm<'_>) -> Self {
        Self { data: norm.x.data, x: norm.x.at, scale: norm.scale, epsilon: norm.epsilon }
    }
}

/// A call as spatial batch norm. Per-activation norm is spatial norm with `C*H*W` channels of one
/// pixel.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    channels: usize,
    pixels: usize,
}

impl Shape {
    fn new(norm: &BatchNorm<'_>, others: &[&Operand<'_>]) -> Outcome<Shape> {
        packed(&[&norm.x])?;
        packed(others)?;
        norm.parameters.require_packed()?;
        let (batch, channels, pixels) = norm.x.planes()?;
        Ok(match norm.mode {
            miopenBNSpatial => Shape { batch, channels, pixels },
            _ => Shape { batch, channels: channels * pixels, pixels: 1 },
        })
    }

    fn len(&self) -> usize {
        self.batch * self.channels * self.pixels
    }

    /// The number of values of a channel.
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

    /// The ranges of a channel's planes.
    fn planes(self, channel: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
        (0..self.batch).map(move |image| {
            let first = (image * self.channels + channel) * self.pixels;
            first..first + self.pixels
        })
    }

    /// Mean and variance of a channel, in two passes: the mean, then the deviations from it.
    fn moments<T: Single>(self, x: &[T], channel: usize, room: &mut [f32]) -> (f32, f64) {
        let sum: f64 = self.planes(channel).map(|plane| deviations(widened(&x[plane], room), 0.0)[0]).sum();
        let mean = (sum / self.count()) as f32;
        // `mean` was rounded, so the mean of the deviations corrects the variance.
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

/// An optional output of `len` floats; null for none.
unsafe fn optional(pointer: *mut c_void, len: usize) -> Outcome<Option<Shared<f32>>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's buffer.
    let values: &mut [f32] = unsafe { output(pointer, len) }?;
    Ok(Some(Shared(values.as_mut_ptr())))
}

fn train<T: Single>(shape: Shape, norm: Norm, y: *mut c_void, call: &Training) -> Outcome {
    // SAFETY: the caller's buffers.
    let (x, y, scale, bias, running, saved) = unsafe {
        (
            input::<T>(norm.x, shape.len())?,
            Shared(output::<T>(y, shape.len())?.as_mut_ptr()),
            input::<f32>(norm.scale, shape.channels)?,
            input::<f32>(call.bias, shape.channels)?,
            (optional(call.running[0], shape.channels)?, optional(call.running[1], shape.channels)?),
            (optional(call.saved[0], shape.channels)?, optional(call.saved[1], shape.channels)?),
        )
    };
    let (epsilon, factor) = (norm.epsilon, call.factor);
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
            // The running variance is unbiased.
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

fn infer<T: Single>(shape: Shape, norm: Norm, y: *mut c_void, call: &Inference) -> Outcome {
    // SAFETY: the caller's buffers.
    let (x, y, scale, bias, mean, variance) = unsafe {
        (
            input::<T>(norm.x, shape.len())?,
            Shared(output::<T>(y, shape.len())?.as_mut_ptr()),
            input::<f32>(norm.scale, shape.channels)?,
            input::<f32>(call.bias, shape.channels)?,
            input::<f32>(call.mean, shape.channels)?,
            input::<f32>(call.variance, shape.channels)?,
        )
    };
    let epsilon = norm.epsilon;
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

fn backward<T: Single>(
    shape: Shape,
    norm: Norm,
    (dy, dx): (*mut c_void, *mut c_void),
    call: &BatchGradient,
) -> Outcome {
    // SAFETY: the caller's buffers.
    let (x, dy, dx, scale, scale_diff, bias_diff, saved) = unsafe {
        let saved = if call.saved[0].is_null() {
            None
        } else {
            Some((input::<f32>(call.saved[0], shape.channels)?, input::<f32>(call.saved[1], shape.channels)?))
        };
        (
            input::<T>(norm.x, shape.len())?,
            input::<T>(dy, shape.len())?,
            Shared(output::<T>(dx, shape.len())?.as_mut_ptr()),
            input::<f32>(norm.scale, shape.channels)?,
            Shared(output::<f32>(call.scale, shape.channels)?.as_mut_ptr()),
            Shared(output::<f32>(call.bias, shape.channels)?.as_mut_ptr()),
            saved,
        )
    };
    let epsilon = norm.epsilon;
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
            // dx = scale * inverse * (dy - sum/m - (x - mean) * inverse * scale_gradient / m), as
            // dy*a + (x - mean)*b + c.
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

impl BatchNorms for Handle {
    unsafe fn batch_norm_training(&self, norm: &BatchNorm<'_>, y: &Operand<'_>, call: &Training) -> Outcome {
        let shape = Shape::new(norm, &[y])?;
        let (norm, y, call) = (Norm::new(norm), y.at, *call);
        by_float!(norm.data, known())?;
        // SAFETY: it holds the addresses of the caller's buffers and plain values.
        unsafe { enqueue(move || by_float!(norm.data, train(shape, norm, y, &call))) }
    }

    unsafe fn batch_norm_inference(
        &self,
        norm: &BatchNorm<'_>,
        y: &Operand<'_>,
        call: &Inference,
    ) -> Outcome {
        let shape = Shape::new(norm, &[y])?;
        let (norm, y, call) = (Norm::new(norm), y.at, *call);
        by_float!(norm.data, known())?;
        // SAFETY: it holds the addresses of the caller's buffers and plain values.
        unsafe { enqueue(move || by_float!(norm.data, infer(shape, norm, y, &call))) }
    }

    unsafe fn batch_norm_backward(
        &self,
        norm: &BatchNorm<'_>,
        dy: &Operand<'_>,
        dx: &Operand<'_>,
        gradient: &BatchGradient,
    ) -> Outcome {
        let shape = Shape::new(norm, &[dy, dx])?;
        let (norm, gradients, call) = (Norm::new(norm), (dy.at, dx.at), *gradient);
        by_float!(norm.data, known())?;
        // SAFETY: as in `batch_norm_training`.
        unsafe { enqueue(move || by_float!(norm.data, backward(shape, norm, gradients, &call))) }
    }
}
