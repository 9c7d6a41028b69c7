//! MIOpen's batch, layer and group norm, against references in `f64`.
#![allow(clippy::unwrap_used)]

mod library;

use core::ffi::c_void;
use half::{bf16, f16};
use library::dnn::{Dnn, Typed};
use library::{Device, Random, close, wide};
use miopen_sys::*;

/// Mean, reciprocal deviation and variance of some elements.
fn moments(x: &[f64], group: &[usize], epsilon: f64) -> (f64, f64, f64) {
    let count = group.len() as f64;
    let mean = group.iter().map(|&i| x[i]).sum::<f64>() / count;
    let variance = group.iter().map(|&i| (x[i] - mean).powi(2)).sum::<f64>() / count;
    (mean, 1.0 / (variance + epsilon).sqrt(), variance)
}

fn batch_norm<T: Typed>(random: &mut Random) {
    let dnn = Dnn::new();
    let t = &dnn.table;
    let mode = random.pick(&[miopenBNSpatial, miopenBNSpatial, miopenBNPerActivation]);
    let dims = [3 + random.below(6), 1 + random.below(7), 1 + random.below(9), 1 + random.below(40)];
    let (n, c, pixels) = (dims[0], dims[1], dims[2] * dims[3]);
    let (channels, own) =
        if mode == miopenBNSpatial { (c, [1, c, 1, 1]) } else { (c * pixels, [1, c, dims[2], dims[3]]) };
    let group = |channel: usize| -> Vec<usize> {
        let each = c * pixels / channels;
        (0..n).flat_map(|image| (0..each).map(move |i| (image * channels + channel) * each + i)).collect()
    };
    let (x, dy) = (random.values::<T>(n * c * pixels), random.values::<T>(n * c * pixels));
    // Moves the images apart. Three values that happen to be close have almost no variance, and
    // dividing by it magnifies rounding errors.
    let apart = |(i, value): (usize, &T)| T::of(value.f64() + 2.0 * (i / (c * pixels)) as f64);
    let x: Vec<T> = x.iter().enumerate().map(apart).collect();
    let (fx, fdy) = (wide(&x), wide(&dy));
    let [scale, bias, mean, variance] = [0, 1, 2, 3].map(|_| random.values::<f32>(channels));
    let variance: Vec<f32> = variance.iter().map(|value| value.abs() + 0.1).collect();
    let (epsilon, factor) = (1e-5, 0.3);
    let (mut y, mut dx, mut inferred) = (vec![0.0; fx.len()], vec![0.0; fx.len()], vec![0.0; fx.len()]);
    let mut statistics: [Vec<f64>; 6] = Default::default(); // mean, 1/deviation, running mean and variance, gradients
    for channel in 0..channels {
        let group = group(channel);
        let count = group.len() as f64;
        let (own_mean, inverse, own_variance) = moments(&fx, &group, epsilon);
        let (scale, bias) = (f64::from(scale[channel]), f64::from(bias[channel]));
        let normal = |i: usize| (fx[i] - own_mean) * inverse;
        let sum: f64 = group.iter().map(|&i| fdy[i]).sum();
        let moment: f64 = group.iter().map(|&i| fdy[i] * normal(i)).sum();
        for &i in &group {
            y[i] = normal(i) * scale + bias;
            dx[i] = scale * inverse * (fdy[i] - sum / count - normal(i) * moment / count);
            let deviation = (f64::from(variance[channel]) + epsilon).sqrt();
            inferred[i] = (fx[i] - f64::from(mean[channel])) / deviation * scale + bias;
        }
        let blend = |old: f32, new: f64| (1.0 - factor) * f64::from(old) + factor * new;
        let row = [
            own_mean,
            inverse,
            blend(mean[channel], own_mean),
            blend(variance[channel], own_variance * count / (count - 1.0)),
            moment,
            sum,
        ];
        statistics.iter_mut().zip(row).for_each(|(all, value)| all.push(value));
    }
    let (d, p) = (dnn.tensor(T::DATA, &dims), dnn.tensor(miopenFloat, &own));
    let nan = || Device::new(&vec![T::of(f64::NAN); x.len()]);
    let small = || Device::new(&vec![f32::NAN; channels]);
    let (bx, bdy, by, bdx, bi) = (Device::new(&x), Device::new(&dy), nan(), nan(), nan());
    let (bscale, bbias) = (Device::new(&scale), Device::new(&bias));
    let (bmean, bvariance) = (Device::new(&mean), Device::new(&variance));
    let (saved, inverse, dscale, dbias) = (small(), small(), small(), small());
    let (mut one, mut zero) = (1.0f32, 0.0f32);
    let mut scalar = [core::ptr::from_mut(&mut one).cast::<c_void>(), core::ptr::from_mut(&mut zero).cast()];
    let [one, zero] = &mut scalar;
    let (d, p) = (d.get(), p.get());
    // SAFETY: live descriptors, buffers of their sizes.
    unsafe {
        let status = (t.miopenBatchNormalizationForwardInference)(
            dnn.handle,
            mode,
            *one,
            *zero,
            d,
            bx.void(),
            d,
            bi.void(),
            p,
            bscale.void(),
            bbias.void(),
            bmean.void(),
            bvariance.void(),
            epsilon,
        );
        assert_eq!(status, miopenStatusSuccess);
        close("inference", &bi.get(), &inferred, 1.0);
        let status = (t.miopenBatchNormalizationForwardTraining)(
            dnn.handle,
            mode,
            *one,
            *zero,
            d,
            bx.void(),
            d,
            by.void(),
            p,
            bscale.void(),
            bbias.void(),
            factor,
            bmean.void(),
            bvariance.void(),
            epsilon,
            saved.void(),
            inverse.void(),
        );
        assert_eq!(status, miopenStatusSuccess);
        // Small deviations magnify rounding errors. So the errors are measured relative to the
        // normalised values.
        close("training", &by.get(), &y, 10.0);
        for (found, expected) in [(&saved, 0), (&inverse, 1), (&bmean, 2), (&bvariance, 3)] {
            close(&format!("statistic {expected}"), &found.get(), &statistics[expected], 1.0);
        }
        // With the saved statistics, and without them. In the latter case MIOpen computes them
        // again.
        for (mean, deviation) in
            [(saved.void(), inverse.void()), (core::ptr::null_mut(), core::ptr::null_mut())]
        {
            let status = (t.miopenBatchNormalizationBackward)(
                dnn.handle,
                mode,
                *one,
                *zero,
                *one,
                *zero,
                d,
                bx.void(),
                d,
                bdy.void(),
                d,
                bdx.void(),
                p,
                bscale.void(),
                dscale.void(),
                dbias.void(),
                epsilon,
                mean,
                deviation,
            );
            assert_eq!(status, miopenStatusSuccess);
            close("gradient", &bdx.get(), &dx, 30.0);
            close("scale gradient", &dscale.get(), &statistics[4], 3.0);
            close("bias gradient", &dbias.get(), &statistics[5], 3.0);
        }
        // Parameters of another shape: hip-provider's check, whose tests hold the rules.
        let status = (t.miopenBatchNormalizationForwardInference)(
            dnn.handle,
            mode,
            *one,
            *zero,
            d,
            bx.void(),
            d,
            bi.void(),
            d,
            bscale.void(),
            bbias.void(),
            bmean.void(),
            bvariance.void(),
            epsilon,
        );
        assert_eq!(status, miopenStatusBadParm);
    }
}

#[test]
fn batch_norm_of_every_type() {
    let mut random = Random::new("batch norm");
    for _ in 0..30 {
        batch_norm::<f32>(&mut random);
        batch_norm::<f16>(&mut random);
        batch_norm::<bf16>(&mut random);
    }
}

fn layer_norm<T: Typed>(random: &mut Random) {
    let dnn = Dnn::new();
    let t = &dnn.table;
    let dims = [1 + random.below(5), 1 + random.below(9), 2 + random.below(90)];
    let axis = 1 + random.below(2);
    let (rows, len) = (dims[..axis].iter().product::<usize>(), dims[axis..].iter().product::<usize>());
    let mode = random.pick(&[MIOPEN_ELEMENTWISE_AFFINE, MIOPEN_WEIGHT_BIAS]);
    let (x, dy) = (random.values::<T>(rows * len), random.values::<T>(rows * len));
    let (weight, bias) = (random.values::<T>(len), random.values::<T>(len));
    let (fx, fdy, fw, fb) = (wide(&x), wide(&dy), wide(&weight), wide(&bias));
    let plain = mode == MIOPEN_ELEMENTWISE_AFFINE;
    let (mut y, mut dx) = (vec![0.0; fx.len()], vec![0.0; fx.len()]);
    let (mut means, mut inverses, mut dw, mut db) = (vec![], vec![], vec![0.0; len], vec![0.0; len]);
    let epsilon = 1e-3f32;
    for row in 0..rows {
        let group: Vec<usize> = (row * len..(row + 1) * len).collect();
        let (mean, inverse, _) = moments(&fx, &group, f64::from(epsilon));
        // The gradient uses the statistics as they were stored, rounded.
        let stored = (T::of(mean).f64(), T::of(inverse).f64());
        means.push(mean);
        inverses.push(inverse);
        let own = |i: usize| if plain { (1.0, 0.0) } else { (fw[i % len], fb[i % len]) };
        let normal = |i: usize| (fx[i] - stored.0) * stored.1;
        let sum = group.iter().map(|&i| fdy[i] * own(i).0).sum::<f64>() / len as f64;
        let moment = group.iter().map(|&i| fdy[i] * own(i).0 * normal(i)).sum::<f64>() / len as f64;
        for &i in &group {
            y[i] = (fx[i] - mean) * inverse * own(i).0 + own(i).1;
            dx[i] = stored.1 * (fdy[i] * own(i).0 - sum - normal(i) * moment);
            dw[i % len] += fdy[i] * normal(i);
            db[i % len] += fdy[i];
        }
    }
    let (d, p, s) =
        (dnn.tensor(T::DATA, &dims), dnn.tensor(T::DATA, &dims[axis..]), dnn.tensor(T::DATA, &dims[..axis]));
    let (d, p, s) = (d.get(), p.get(), s.get());
    let nan = |len: usize| Device::new(&vec![T::of(f64::NAN); len]);
    let (bx, bdy, bw, bb) = (Device::new(&x), Device::new(&dy), Device::new(&weight), Device::new(&bias));
    let (by, bdx, bdw, bdb, bm, br) = (nan(x.len()), nan(x.len()), nan(len), nan(len), nan(rows), nan(rows));
    let forward = t.miopenLayerNormForward.unwrap();
    let backward = t.miopenLayerNormBackward.unwrap();
    // SAFETY: live descriptors, buffers of their sizes.
    unsafe {
        let status = forward(
            dnn.handle,
            mode,
            d,
            bx.void(),
            p,
            bw.void(),
            p,
            bb.void(),
            epsilon,
            axis as i32,
            d,
            by.void(),
            s,
            bm.void(),
            s,
            br.void(),
        );
        assert_eq!(status, miopenStatusSuccess);
        close("layer norm", &by.get(), &y, 3.0);
        close("layer norm mean", &bm.get(), &means, 1.0);
        close("layer norm 1/deviation", &br.get(), &inverses, 1.0);
        let mut size = 1usize;
        let status = t.miopenGetLayerNormBackwardWorkspaceSize.unwrap()(
            dnn.handle,
            mode,
            d,
            d,
            p,
            s,
            s,
            axis as i32,
            d,
            p,
            p,
            &mut size,
        );
        assert_eq!(status, miopenStatusSuccess);
        let space = Device::new(&vec![0u8; size]);
        let status = backward(
            dnn.handle,
            mode,
            space.void(),
            size,
            d,
            bdy.void(),
            d,
            bx.void(),
            p,
            bw.void(),
            s,
            bm.void(),
            s,
            br.void(),
            axis as i32,
            d,
            bdx.void(),
            p,
            bdw.void(),
            p,
            bdb.void(),
        );
        assert_eq!(status, miopenStatusSuccess);
        close("layer norm gradient", &bdx.get(), &dx, 30.0);
        close("layer norm weight gradient", &bdw.get(), &dw, 3.0);
        close("layer norm bias gradient", &bdb.get(), &db, 3.0);
    }
}

#[test]
fn layer_norm_of_every_type() {
    let mut random = Random::new("layer norm");
    for _ in 0..30 {
        layer_norm::<f32>(&mut random);
        layer_norm::<f16>(&mut random);
        layer_norm::<bf16>(&mut random);
    }
}

#[test]
fn group_norm() {
    let mut random = Random::new("group norm");
    let dnn = Dnn::new();
    let forward = dnn.table.miopenGroupNormForward.unwrap();
    for _ in 0..30 {
        let (n, groups, each) = (1 + random.below(4), 1 + random.below(4), 1 + random.below(4));
        let (c, pixels) = (groups * each, 1 + random.below(30));
        let mode = random.pick(&[MIOPEN_ELEMENTWISE_AFFINE, MIOPEN_WEIGHT_BIAS]);
        let (x, weight, bias) =
            (random.values::<f32>(n * c * pixels), random.values::<f32>(c), random.values::<f32>(c));
        let fx = wide(&x);
        let (mut y, mut means, mut inverses) = (vec![0.0; fx.len()], vec![], vec![]);
        for row in 0..n * groups {
            let group: Vec<usize> = (row * each * pixels..(row + 1) * each * pixels).collect();
            let (mean, inverse, _) = moments(&fx, &group, 1e-3);
            means.push(mean);
            inverses.push(inverse);
            for &i in &group {
                let channel = i / pixels % c;
                let own =
                    if mode == MIOPEN_WEIGHT_BIAS { (weight[channel], bias[channel]) } else { (1.0, 0.0) };
                y[i] = (fx[i] - mean) * inverse * f64::from(own.0) + f64::from(own.1);
            }
        }
        let (d, p, s) = (
            dnn.tensor(miopenFloat, &[n, c, pixels, 1]),
            dnn.tensor(miopenFloat, &[c]),
            dnn.tensor(miopenFloat, &[n, groups]),
        );
        let (d, p, s) = (d.get(), p.get(), s.get());
        let (bx, bw, bb) = (Device::new(&x), Device::new(&weight), Device::new(&bias));
        let nan = |len: usize| Device::new(&vec![f32::NAN; len]);
        let (by, bm, br) = (nan(x.len()), nan(n * groups), nan(n * groups));
        let run = |groups: usize| {
            // SAFETY: live descriptors, buffers of their sizes.
            unsafe {
                forward(
                    dnn.handle,
                    mode,
                    d,
                    bx.void(),
                    p,
                    bw.void(),
                    p,
                    bb.void(),
                    groups as u64,
                    1e-3,
                    d,
                    by.void(),
                    s,
                    bm.void(),
                    s,
                    br.void(),
                )
            }
        };
        assert_eq!(run(groups), miopenStatusSuccess);
        close("group norm", &by.get(), &y, 3.0);
        close("group norm mean", &bm.get(), &means, 1.0);
        close("group norm 1/deviation", &br.get(), &inverses, 1.0);
        assert_eq!(run(c + 1), miopenStatusBadParm);
    }
}
