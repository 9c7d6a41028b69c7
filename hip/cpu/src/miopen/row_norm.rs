//! Layer norm, T5 layer norm and group norm.

use super::Shared;
use super::handle::{Handle, Operand};
use super::status::{by_float, input, output};
use crate::numeric::element::Single;
use crate::numeric::rows::{Normalise, affine, moments, narrowed, normalise, widened};
use crate::numeric::scratch::with_scratch;
use crate::runtime::parallel;
use core::ffi::c_void;
use hip_provider::miopen::{Normalised, Outcome, RowGradient, RowNorms, Rows};
use miopen_sys::*;

fn forward<T: Single>(rows: &Rows<'_, Handle>, to: &Normalised<'_, Handle>) -> Outcome {
    let Rows { rows: count, length: len, groups, share, epsilon, ref x } = *rows;
    let weights = groups * len / share;
    // SAFETY: the caller's buffers.
    let (x, y, mean, rstd, parameters) = unsafe {
        (
            input::<T>(x.at, count * len)?,
            Shared(output::<T>(to.y.at, count * len)?.as_mut_ptr()),
            Shared(output::<T>(to.mean.at, count)?.as_mut_ptr()),
            Shared(output::<T>(to.rstd.at, count)?.as_mut_ptr()),
            match &to.parameters {
                Some([weight, bias]) => {
                    Some((input::<T>(weight.at, weights)?, input::<T>(bias.at, weights)?))
                }
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

fn backward<T: Single>(rows: &Rows<'_, Handle>, call: &RowGradient<'_, Handle>) -> Outcome {
    let Rows { rows, length: len, ref x, .. } = *rows;
    // SAFETY: the caller's buffers.
    let (dy, x, mean, rstd, dx, weight) = unsafe {
        (
            input::<T>(call.dy.at, rows * len)?,
            input::<T>(x.at, rows * len)?,
            input::<T>(call.mean.at, rows)?,
            input::<T>(call.rstd.at, rows)?,
            Shared(output::<T>(call.dx.at, rows * len)?.as_mut_ptr()),
            call.weight.as_ref().map(|weight| input::<T>(weight.at, len)).transpose()?,
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
    let Some([dw, db]) = &call.parameters else { return Ok(()) };
    // SAFETY: the caller's buffers.
    let (dw, db) = unsafe { (output::<T>(dw.at, len)?, output::<T>(db.at, len)?) };
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
    rows: &Rows<'_, Handle>,
    weight: *const c_void,
    y: *mut c_void,
    rstd: Option<&Operand<'_>>,
) -> Outcome {
    let Rows { rows, length: len, epsilon, ref x, .. } = *rows;
    // SAFETY: the caller's buffers.
    let (x, weight, y, rstd) = unsafe {
        (
            input::<T>(x.at, rows * len)?,
            input::<T>(weight, len)?,
            Shared(output::<T>(y, rows * len)?.as_mut_ptr()),
            match rstd {
                None => None,
                Some(rstd) => Some(Shared(output::<T>(rstd.at, rows)?.as_mut_ptr())),
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
        by_float!(rows.x.data, forward(rows, to))
    }

    unsafe fn t5_norm(
        &self,
        rows: &Rows<'_, Self>,
        weight: &Operand<'_>,
        y: &Operand<'_>,
        rstd: Option<&Operand<'_>>,
    ) -> Outcome {
        by_float!(rows.x.data, t5(rows, weight.at, y.at, rstd))
    }

    unsafe fn layer_norm_backward(&self, rows: &Rows<'_, Self>, call: &RowGradient<'_, Self>) -> Outcome {
        by_float!(rows.x.data, backward(rows, call))
    }
}
