//! Layer norm, T5 layer norm and group norm.

use super::Shared;
use super::handle::{Handle, Operand};
use super::status::{by_float, input, known, output};
use crate::numeric::element::Single;
use crate::numeric::rows::{Normalise, affine, moments, narrowed, normalise, widened};
use crate::numeric::scratch::with_scratch;
use crate::runtime::{enqueue, parallel};
use core::ffi::c_void;
use hip_provider::miopen::{Normalised, Outcome, RowGradient, RowNorms, Rows};
use miopen_sys::*;

/// The shape of the rows, from `Rows` of a call.
#[derive(Clone, Copy)]
struct Shape {
    data: miopenDataType_t,
    rows: usize,
    length: usize,
    groups: usize,
    share: usize,
    epsilon: f32,
}

impl Shape {
    fn new(rows: &Rows<'_, Handle>) -> Self {
        let Rows { rows, length, groups, share, epsilon, ref x } = *rows;
        Self { data: x.data, rows, length, groups, share, epsilon }
    }
}

/// The addresses of a forward call.
#[derive(Clone, Copy)]
struct Forward {
    x: *mut c_void,
    y: *mut c_void,
    mean: *mut c_void,
    rstd: *mut c_void,
    parameters: Option<[*mut c_void; 2]>,
}

/// The addresses of a gradient's call.
#[derive(Clone, Copy)]
struct Backward {
    x: *mut c_void,
    dy: *mut c_void,
    mean: *mut c_void,
    rstd: *mut c_void,
    dx: *mut c_void,
    weight: Option<*mut c_void>,
    parameters: Option<[*mut c_void; 2]>,
}

fn forward<T: Single>(shape: Shape, at: Forward) -> Outcome {
    let Shape { rows: count, length: len, groups, share, epsilon, .. } = shape;
    let weights = groups * len / share;
    // SAFETY: the caller's buffers.
    let (x, y, mean, rstd, parameters) = unsafe {
        (
            input::<T>(at.x, count * len)?,
            Shared(output::<T>(at.y, count * len)?.as_mut_ptr()),
            Shared(output::<T>(at.mean, count)?.as_mut_ptr()),
            Shared(output::<T>(at.rstd, count)?.as_mut_ptr()),
            match at.parameters {
                Some([weight, bias]) => Some((input::<T>(weight, weights)?, input::<T>(bias, weights)?)),
                None => None,
            },
        )
    };
    let each = (1usize << 15).div_ceil(len);
    parallel(count.div_ceil(each), |task| {
        let rows = task * each..((task + 1) * each).min(count);
        let at = rows.start * len..rows.end * len;
        let x = &x[at.clone()];
        // SAFETY: each row is one task's alone.
        let (y, mean, rstd) = unsafe {
            (
                core::slice::from_raw_parts_mut(y.get().add(at.start), at.len()),
                core::slice::from_raw_parts_mut(mean.get().add(rows.start), rows.len()),
                core::slice::from_raw_parts_mut(rstd.get().add(rows.start), rows.len()),
            )
        };
        if share == 1 && groups == 1 {
            return normalised(len, epsilon, x, parameters, y, mean, rstd);
        }
        with_scratch(2 * len, |room| {
            let (wide_x, wide_y) = room.split_at_mut(len);
            for (index, row) in rows.enumerate() {
                let at = index * len..(index + 1) * len;
                let x = widened(&x[at.clone()], wide_x);
                let (own_mean, variance) = moments(x);
                let own_rstd = 1.0 / ((variance + f64::from(epsilon)) as f32).sqrt();
                (mean[index], rstd[index]) = (T::narrow(own_mean), T::narrow(own_rstd));
                let first = row % groups * (len / share);
                narrowed(&mut y[at], wide_y, |y| {
                    for (part, (x, y)) in x.chunks(share).zip(y.chunks_mut(share)).enumerate() {
                        let (weight, bias) = match parameters {
                            Some((weight, bias)) => {
                                (weight[first + part].widen(), bias[first + part].widen())
                            }
                            None => (1.0, 0.0),
                        };
                        affine(x, own_mean, own_rstd * weight, bias, y);
                    }
                });
            }
        });
    });
    Ok(())
}

/// Normalises rows of `len` elements, with a weight and a bias for each place.
fn normalised<T: Single>(
    len: usize,
    epsilon: f32,
    x: &[T],
    parameters: Option<(&[T], &[T])>,
    y: &mut [T],
    mean: &mut [T],
    rstd: &mut [T],
) {
    let one_row = if T::IS_F32 { 0 } else { len };
    with_scratch(2 * len + 2 * one_row, |room| {
        let (weight_room, rest) = room.split_at_mut(len);
        let (bias_room, rest) = rest.split_at_mut(len);
        let (wide_x, wide_y) = rest.split_at_mut(one_row);
        let (weight, bias): (&[f32], &[f32]) = match parameters {
            Some((weight, bias)) => (widened(weight, weight_room), widened(bias, bias_room)),
            None => {
                weight_room.fill(1.0);
                bias_room.fill(0.0);
                (weight_room, bias_room)
            }
        };
        // f32 takes one call for all rows. Other types are widened row by row.
        let rows = if T::IS_F32 { mean.len() } else { 1 };
        let rows = (x.chunks(rows * len).zip(y.chunks_mut(rows * len)))
            .zip(mean.chunks_mut(rows).zip(rstd.chunks_mut(rows)));
        for ((x, y), (mean, rstd)) in rows {
            let x = widened(x, wide_x);
            let (mut one_mean, mut one_rstd) = ([0.0f32], [0.0f32]);
            narrowed(y, wide_y, |y| {
                narrowed(mean, &mut one_mean, |mean| {
                    narrowed(rstd, &mut one_rstd, |rstd| {
                        let (y, mean, rstd) = (y.as_mut_ptr(), mean.as_mut_ptr(), rstd.as_mut_ptr());
                        // SAFETY: `y` is as long as `x`; `mean` and `rstd` have a value for each of
                        // its rows.
                        unsafe { normalise(Normalise { x, len, weight, bias, epsilon, y, mean, rstd }) }
                    });
                });
            });
        }
    });
}

fn backward<T: Single>(shape: Shape, at: Backward) -> Outcome {
    let Shape { rows, length: len, .. } = shape;
    // SAFETY: the caller's buffers.
    let (dy, x, mean, rstd, dx, weight) = unsafe {
        (
            input::<T>(at.dy, rows * len)?,
            input::<T>(at.x, rows * len)?,
            input::<T>(at.mean, rows)?,
            input::<T>(at.rstd, rows)?,
            Shared(output::<T>(at.dx, rows * len)?.as_mut_ptr()),
            at.weight.map(|weight| input::<T>(weight, len)).transpose()?,
        )
    };
    let each = (1usize << 12).div_ceil(len);
    parallel(rows.div_ceil(each), |task| {
        for row in task * each..((task + 1) * each).min(rows) {
            let at = row * len..(row + 1) * len;
            let (mean, rstd) = (mean[row].widen(), rstd[row].widen());
            let gradient = |i: usize, dy: &T| dy.widen() * weight.map_or(1.0, |weight| weight[i].widen());
            let (mut sum, mut moment) = (0.0f64, 0.0f64);
            for (i, (dy, x)) in dy[at.clone()].iter().zip(&x[at.clone()]).enumerate() {
                let value = gradient(i, dy);
                sum += f64::from(value);
                moment += f64::from(value * (x.widen() - mean) * rstd);
            }
            let (sum, moment) = ((sum / len as f64) as f32, (moment / len as f64) as f32);
            for (i, (dy, x)) in dy[at.clone()].iter().zip(&x[at.clone()]).enumerate() {
                let normal = (x.widen() - mean) * rstd;
                // SAFETY: each row is one task's alone.
                unsafe {
                    *dx.get().add(at.start + i) = T::narrow(rstd * (gradient(i, dy) - sum - normal * moment))
                };
            }
        }
    });
    let Some([dw, db]) = at.parameters else { return Ok(()) };
    // SAFETY: the caller's buffers.
    let (dw, db) = unsafe { (output::<T>(dw, len)?, output::<T>(db, len)?) };
    let (dw, db) = (Shared(dw.as_mut_ptr()), Shared(db.as_mut_ptr()));
    // A task computes neighbouring columns, so that it reads whole cache lines.
    const COLUMNS: usize = 64;
    parallel(len.div_ceil(COLUMNS), |task| {
        let first = task * COLUMNS;
        let count = COLUMNS.min(len - first);
        let mut sums = [[0.0f64; COLUMNS]; 2];
        for row in 0..rows {
            let (mean, rstd) = (mean[row].widen(), rstd[row].widen());
            let at = row * len + first..row * len + first + count;
            let [weights, biases] = &mut sums;
            for ((dy, x), (weight, bias)) in
                dy[at.clone()].iter().zip(&x[at]).zip(weights.iter_mut().zip(biases))
            {
                let dy = dy.widen();
                *weight += f64::from(dy * (x.widen() - mean) * rstd);
                *bias += f64::from(dy);
            }
        }
        for (i, (weight, bias)) in sums[0].iter().zip(&sums[1]).take(count).enumerate() {
            // SAFETY: each column is one task's alone.
            unsafe {
                *dw.get().add(first + i) = T::narrow(*weight as f32);
                *db.get().add(first + i) = T::narrow(*bias as f32);
            }
        }
    });
    Ok(())
}

/// T5 layer norm (RMS norm).
fn t5<T: Single>(
    shape: Shape,
    x: *const c_void,
    weight: *const c_void,
    y: *mut c_void,
    rstd: Option<*mut c_void>,
) -> Outcome {
    let Shape { rows, length: len, epsilon, .. } = shape;
    // SAFETY: the caller's buffers.
    let (x, weight, y, rstd) = unsafe {
        (
            input::<T>(x, rows * len)?,
            input::<T>(weight, len)?,
            Shared(output::<T>(y, rows * len)?.as_mut_ptr()),
            match rstd {
                None => None,
                Some(rstd) => Some(Shared(output::<T>(rstd, rows)?.as_mut_ptr())),
            },
        )
    };
    let each = (1usize << 14).div_ceil(len);
    parallel(rows.div_ceil(each), |task| {
        for row in task * each..((task + 1) * each).min(rows) {
            let x = &x[row * len..(row + 1) * len];
            // SAFETY: each row is one task's alone.
            let y = unsafe { core::slice::from_raw_parts_mut(y.get().add(row * len), len) };
            let squares: f64 = x.iter().map(|x| f64::from(x.widen()).powi(2)).sum();
            let own = 1.0 / ((squares / len as f64) as f32 + epsilon).sqrt();
            if let Some(rstd) = &rstd {
                // SAFETY: as above.
                unsafe { *rstd.get().add(row) = T::narrow(own) };
            }
            for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
                *y = T::narrow(x.widen() * own * weight.widen());
            }
        }
    });
    Ok(())
}

impl RowNorms for Handle {
    unsafe fn norm_forward(&self, rows: &Rows<'_, Self>, to: &Normalised<'_, Self>) -> Outcome {
        let shape = Shape::new(rows);
        by_float!(shape.data, known())?;
        let at = Forward {
            x: rows.x.at,
            y: to.y.at,
            mean: to.mean.at,
            rstd: to.rstd.at,
            parameters: to.parameters.as_ref().map(|[weight, bias]| [weight.at, bias.at]),
        };
        // SAFETY: it holds the addresses of the caller's buffers and plain values.
        unsafe { enqueue(move || by_float!(shape.data, forward(shape, at))) }
    }

    unsafe fn t5_norm(
        &self,
        rows: &Rows<'_, Self>,
        weight: &Operand<'_>,
        y: &Operand<'_>,
        rstd: Option<&Operand<'_>>,
    ) -> Outcome {
        let shape = Shape::new(rows);
        by_float!(shape.data, known())?;
        let (x, weight, y, rstd) = (rows.x.at, weight.at, y.at, rstd.map(|rstd| rstd.at));
        // SAFETY: as in `norm_forward`.
        unsafe { enqueue(move || by_float!(shape.data, t5(shape, x, weight, y, rstd))) }
    }

    unsafe fn layer_norm_backward(&self, rows: &Rows<'_, Self>, call: &RowGradient<'_, Self>) -> Outcome {
        let shape = Shape::new(rows);
        by_float!(shape.data, known())?;
        let at = Backward {
            x: rows.x.at,
            dy: call.dy.at,
            mean: call.mean.at,
            rstd: call.rstd.at,
            dx: call.dx.at,
            weight: call.weight.as_ref().map(|weight| weight.at),
            parameters: call.parameters.as_ref().map(|[weight, bias]| [weight.at, bias.at]),
        };
        // SAFETY: as in `norm_forward`.
        unsafe { enqueue(move || by_float!(shape.data, backward(shape, at))) }
    }
}
