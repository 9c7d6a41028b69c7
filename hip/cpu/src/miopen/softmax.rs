//! Softmax.

use super::Shared;
use super::handle::{Handle, Operand, packed};
use super::status::{by_single, input, known, output};
use crate::numeric::element::Single;
use crate::numeric::scratch::with_scratch;
use crate::runtime::{enqueue, parallel};
use core::ffi::c_void;
use hip_provider::miopen::{Outcome, Softmax, Softmaxes, scalar};
use miopen_sys::*;

/// A call as `outer` x `count` x `inner`. Each column of `count` values, `inner` apart, sums to
/// one.
struct Shape {
    outer: usize,
    count: usize,
    inner: usize,
    algorithm: miopenSoftmaxAlgorithm_t,
    alpha: f32,
    beta: f32,
}

impl Shape {
    /// # Safety
    /// The scalars are readable.
    unsafe fn new(softmax: Softmax, x: &Operand<'_>) -> Outcome<Shape> {
        let (outer, channels, pixels) = x.planes()?;
        let (count, inner) = match softmax.mode {
            MIOPEN_SOFTMAX_MODE_CHANNEL => (channels, pixels),
            _ => (channels * pixels, 1),
        };
        // SAFETY: the caller vouches for them.
        let [alpha, beta] = softmax.scalars.map(|pointer| unsafe { scalar(pointer, x.data) });
        Ok(Shape {
            outer,
            count,
            inner,
            algorithm: softmax.algorithm,
            alpha: alpha? as f32,
            beta: beta? as f32,
        })
    }

    fn len(&self) -> usize {
        self.outer * self.count * self.inner
    }

    /// Runs `compute(first, values)` for the first element of every column. `values` is scratch
    /// memory for two columns.
    fn columns(&self, compute: impl Fn(usize, &mut [f32]) + Sync) {
        let columns = self.outer * self.inner;
        let each = (1usize << 12).div_ceil(self.count);
        parallel(columns.div_ceil(each), |task| {
            with_scratch(2 * self.count, |values| {
                for column in task * each..((task + 1) * each).min(columns) {
                    compute(column / self.inner * self.count * self.inner + column % self.inner, values);
                }
            });
        });
    }
}

/// Writes `alpha * value + beta * old`. If beta is 0, the old value is not read.
#[inline(always)]
unsafe fn blend<T: Single>(shape: &Shape, to: *mut T, value: f32) {
    let mut value = shape.alpha * value;
    // SAFETY: the caller vouches for the place.
    unsafe {
        if shape.beta != 0.0 {
            value += shape.beta * (*to).widen();
        }
        *to = T::narrow(value);
    }
}

fn forward<T: Single>(shape: &Shape, x: *const c_void, y: *mut c_void) -> Outcome {
    // SAFETY: the caller's buffers. They may be the same, because a column is read before it is
    // written.
    let (x, y) = unsafe {
        input::<T>(x, shape.len())?;
        output::<T>(y, shape.len())?;
        (Shared(x.cast_mut().cast::<T>()), Shared(y.cast::<T>()))
    };
    shape.columns(|first, values| {
        let values = &mut values[..shape.count];
        for (i, value) in values.iter_mut().enumerate() {
            // SAFETY: inside the tensor.
            *value = unsafe { *x.get().add(first + i * shape.inner) }.widen();
        }
        let largest = match shape.algorithm {
            // FAST does not subtract the maximum, so large values overflow.
            MIOPEN_SOFTMAX_FAST => 0.0,
            _ => {
                values.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a })
            }
        };
        if shape.algorithm == MIOPEN_SOFTMAX_LOG {
            let sum: f32 = values.iter().map(|value| (value - largest).exp()).sum();
            let shift = largest + sum.ln();
            values.iter_mut().for_each(|value| *value -= shift);
        } else {
            values.iter_mut().for_each(|value| *value = (*value - largest).exp());
            let sum: f32 = values.iter().sum();
            values.iter_mut().for_each(|value| *value /= sum);
        }
        for (i, value) in values.iter().enumerate() {
            // SAFETY: inside the tensor; each column is one task's alone.
            unsafe { blend(shape, y.get().add(first + i * shape.inner), *value) };
        }
    });
    Ok(())
}

fn backward<T: Single>(shape: &Shape, y: *const c_void, dy: *const c_void, dx: *mut c_void) -> Outcome {
    // SAFETY: the caller's buffers. dx may be dy, because a column is read before it is written.
    let (y, dy, dx) = unsafe {
        input::<T>(y, shape.len())?;
        input::<T>(dy, shape.len())?;
        output::<T>(dx, shape.len())?;
        (Shared(y.cast_mut().cast::<T>()), Shared(dy.cast_mut().cast::<T>()), Shared(dx.cast::<T>()))
    };
    shape.columns(|first, values| {
        let (ys, dys) = values.split_at_mut(shape.count);
        for i in 0..shape.count {
            // SAFETY: inside the tensors.
            unsafe {
                ys[i] = (*y.get().add(first + i * shape.inner)).widen();
                dys[i] = (*dy.get().add(first + i * shape.inner)).widen();
            }
        }
        let log = shape.algorithm == MIOPEN_SOFTMAX_LOG;
        let sum: f32 = if log { dys.iter().sum() } else { ys.iter().zip(&*dys).map(|(y, dy)| y * dy).sum() };
        for i in 0..shape.count {
            let value = if log { dys[i] - sum * ys[i].exp() } else { (dys[i] - sum) * ys[i] };
            // SAFETY: inside the tensor; each column is one task's alone.
            unsafe { blend(shape, dx.get().add(first + i * shape.inner), value) };
        }
    });
    Ok(())
}

impl Softmaxes for Handle {
    unsafe fn softmax_forward(&self, softmax: Softmax, x: &Operand<'_>, y: &Operand<'_>) -> Outcome {
        packed(&[x, y])?;
        // SAFETY: the C function has read the scalars.
        let shape = unsafe { Shape::new(softmax, x) }?;
        let (data, x, y) = (x.data, x.at, y.at);
        by_single!(data, known())?;
        // SAFETY: it holds the addresses of the caller's buffers and plain values.
        unsafe { enqueue(move || by_single!(data, forward(&shape, x, y))) }
    }

    unsafe fn softmax_backward(
        &self,
        softmax: Softmax,
        y: &Operand<'_>,
        dy: &Operand<'_>,
        dx: &Operand<'_>,
    ) -> Outcome {
        packed(&[y, dy, dx])?;
        // SAFETY: as above.
        let shape = unsafe { Shape::new(softmax, y) }?;
        let (data, y, dy, dx) = (y.data, y.at, dy.at, dx.at);
        by_single!(data, known())?;
        // SAFETY: as in `softmax_forward`.
        unsafe { enqueue(move || by_single!(data, backward(&shape, y, dy, dx))) }
    }
}
