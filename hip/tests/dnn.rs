//! MIOpen's other ops through `hip::Dnn` against plain references, on whatever provider the process
//! has.
#![allow(clippy::unwrap_used)] // A test may.

mod common;

use std::sync::Arc;

use common::{close, device, output, random, random_tensor, read, tensor, tolerance};
use hip::{
    Activation, BatchNormDesc, DType, Device, Error, GroupNormDesc, LayerNormDesc, ReduceDesc, Reduction,
    SoftmaxDesc, TensorArg,
};

/// MIOpen's softmax and activations have no bf16.
const FLOATS: [DType; 2] = [DType::F32, DType::F16];

fn softmax(device: &Arc<Device>, desc: SoftmaxDesc) {
    let SoftmaxDesc { dtype, outer, len, inner, log } = desc;
    let n = outer * len * inner;
    let values: Vec<f64> = random(1, n, dtype).iter().map(|v| v * 4.0).collect();
    let x = tensor(device, dtype, &values);
    let dy = random_tensor(device, 2, dtype, n);
    let at = |row: usize, i: usize| (row / inner * len + i) * inner + row % inner;
    let dnn = device.dnn().expect("MIOpen");
    let (y, dx) = (output(device, dtype, n), output(device, dtype, n));
    dnn.softmax_forward(&desc, TensorArg::new(&x.buffer), TensorArg::new(&y)).expect("softmax");
    let got = read(device, &y, dtype, n);
    let (mut want, mut want_dx) = (vec![0.0; n], vec![0.0; n]);
    for row in 0..outer * inner {
        let v = |i| x.values[at(row, i)];
        let max = (0..len).map(v).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..len).map(|i| (v(i) - max).exp()).sum();
        for i in 0..len {
            want[at(row, i)] = if log { v(i) - max - sum.ln() } else { (v(i) - max).exp() / sum };
        }
        // Computed from the device's y, as the device does.
        let (y, g) = (|i| got[at(row, i)], |i| dy.values[at(row, i)]);
        let s: f64 = (0..len).map(|i| if log { g(i) } else { g(i) * y(i) }).sum();
        for i in 0..len {
            want_dx[at(row, i)] = if log { g(i) - s * f64::exp(y(i)) } else { y(i) * (g(i) - s) };
        }
    }
    close(&format!("{desc:?}"), &got, &want, tolerance(dtype));
    dnn.softmax_backward(&desc, TensorArg::new(&y), TensorArg::new(&dy.buffer), TensorArg::new(&dx))
        .expect("softmax");
    close(&format!("{desc:?} backward"), &read(device, &dx, dtype, n), &want_dx, 3.0 * tolerance(dtype));
}

#[test]
fn softmaxes() {
    let device = device();
    for dtype in FLOATS {
        for log in [false, true] {
            for (outer, len, inner) in
                [(3, 10, 1), (2, 7, 15), (2, 300, 2), (5, 1, 3), (64, 33, 1), (1, 1000, 1)]
            {
                softmax(&device, SoftmaxDesc { dtype, outer, len, inner, log });
            }
        }
    }
}

fn batch_norm(device: &Arc<Device>, desc: BatchNormDesc) {
    let BatchNormDesc { dtype, batch, channels, spatial } = desc;
    let (n, per) = (batch * channels * spatial, batch * spatial);
    let (epsilon, momentum) = (1e-5, 0.1);
    let x = random_tensor(device, 1, dtype, n);
    let dy = random_tensor(device, 2, dtype, n);
    let channel = |seed| random_tensor(device, seed, DType::F32, channels);
    let (scale, bias, running_mean) = (channel(3), channel(4), channel(5));
    let positive: Vec<f64> = random(6, channels, DType::F32).iter().map(|v| v * v + 0.5).collect();
    let running_var = tensor(device, DType::F32, &positive);
    let at = |c: usize, i: usize| (i / spatial * channels + c) * spatial + i % spatial;
    let (mut y, mut infer, mut dx) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    let (mut new_mean, mut new_var, mut mean, mut inv) = (vec![], vec![], vec![], vec![]);
    let (mut dscale, mut dbias) = (vec![], vec![]);
    for c in 0..channels {
        let v = |i: usize| x.values[at(c, i)];
        let g = |i: usize| dy.values[at(c, i)];
        let m = (0..per).map(v).sum::<f64>() / per as f64;
        let var = (0..per).map(|i| (v(i) - m).powi(2)).sum::<f64>() / per as f64;
        let s = 1.0 / (var + epsilon).sqrt();
        let hat = |i: usize| (v(i) - m) * s;
        let (ds, db) = ((0..per).map(|i| g(i) * hat(i)).sum::<f64>(), (0..per).map(g).sum::<f64>());
        for i in 0..per {
            y[at(c, i)] = hat(i) * scale.values[c] + bias.values[c];
            infer[at(c, i)] = (v(i) - running_mean.values[c]) / (running_var.values[c] + epsilon).sqrt()
                * scale.values[c]
                + bias.values[c];
            dx[at(c, i)] = scale.values[c] * s / per as f64 * (per as f64 * g(i) - db - hat(i) * ds);
        }
        new_mean.push((1.0 - momentum) * running_mean.values[c] + momentum * m);
        let unbiased = var * per as f64 / (per as f64 - 1.0);
        new_var.push((1.0 - momentum) * running_var.values[c] + momentum * unbiased);
        mean.push(m);
        inv.push(s);
        dscale.push(ds);
        dbias.push(db);
    }
    let name = format!("{desc:?}");
    let dnn = device.dnn().expect("MIOpen");
    let arg = TensorArg::new;
    let out = output(device, dtype, n);
    dnn.batch_norm_infer(
        &desc,
        arg(&x.buffer),
        arg(&out),
        arg(&scale.buffer),
        arg(&bias.buffer),
        arg(&running_mean.buffer),
        arg(&running_var.buffer),
        epsilon,
    )
    .expect(&name);
    close(&format!("{name} inference"), &read(device, &out, dtype, n), &infer, tolerance(dtype));

    let out = output(device, dtype, n);
    let [saved_mean, saved_inv, got_dscale, got_dbias] =
        std::array::from_fn(|_| output(device, DType::F32, channels));
    let saved = [arg(&saved_mean), arg(&saved_inv)];
    dnn.batch_norm_train(
        &desc,
        arg(&x.buffer),
        arg(&out),
        arg(&scale.buffer),
        arg(&bias.buffer),
        Some([arg(&running_mean.buffer), arg(&running_var.buffer)]),
        momentum,
        epsilon,
        Some(saved),
    )
    .expect(&name);
    let per_channel = |buffer| read(device, buffer, DType::F32, channels);
    close(&format!("{name} training"), &read(device, &out, dtype, n), &y, 3.0 * tolerance(dtype));
    close(&format!("{name} running mean"), &per_channel(&running_mean.buffer), &new_mean, 1e-5);
    close(&format!("{name} running variance"), &per_channel(&running_var.buffer), &new_var, 1e-5);
    close(&format!("{name} mean"), &per_channel(&saved_mean), &mean, 1e-4);
    close(&format!("{name} 1/std"), &per_channel(&saved_inv), &inv, 1e-5);

    let (x_arg, scale_arg, bias_arg) = (arg(&x.buffer), arg(&scale.buffer), arg(&bias.buffer));
    for (running, saved) in [
        (None, Some([arg(&saved_mean); 2])),
        (Some([arg(&running_mean.buffer); 2]), None),
        (Some([arg(&running_mean.buffer), arg(&saved_mean)]), Some(saved)),
        (Some([scale_arg, arg(&running_var.buffer)]), None),
    ] {
        let y = arg(&out);
        let done =
            dnn.batch_norm_train(&desc, x_arg, y, scale_arg, bias_arg, running, momentum, epsilon, saved);
        assert!(matches!(done, Err(Error::Invalid { .. })), "{name}: {done:?}");
    }

    let out = output(device, dtype, n);
    dnn.batch_norm_backward(
        &desc,
        arg(&x.buffer),
        arg(&dy.buffer),
        arg(&out),
        arg(&scale.buffer),
        arg(&got_dscale),
        arg(&got_dbias),
        epsilon,
        saved,
    )
    .expect(&name);
    close(&format!("{name} dx"), &read(device, &out, dtype, n), &dx, 3.0 * tolerance(dtype));
    close(&format!("{name} dscale"), &per_channel(&got_dscale), &dscale, 2e-5);
    close(&format!("{name} dbias"), &per_channel(&got_dbias), &dbias, 2e-5);
}

#[test]
fn batch_norms() {
    let device = device();
    for (batch, channels, spatial) in [(4, 5, 42), (16, 3, 1), (2, 4, 1320), (64, 8, 196)] {
        batch_norm(&device, BatchNormDesc { dtype: DType::F32, batch, channels, spatial });
    }
    batch_norm(&device, BatchNormDesc { dtype: DType::F16, batch: 4, channels: 6, spatial: 64 });
}

/// MIOpen's norms truncate bf16 instead of rounding, so they are not called for bf16.
#[test]
fn norms_of_bf16_are_refused() {
    let device = device();
    let dnn = device.dnn().unwrap();
    let dtype = DType::BF16;
    let refused = |done: hip::Result<()>| assert!(matches!(done, Err(Error::Unsupported { .. })), "{done:?}");
    refused(dnn.has_layer_norm(dtype));
    refused(dnn.has_rms_norm(dtype));
    let (x, y, row) = (output(&device, dtype, 64), output(&device, dtype, 64), output(&device, dtype, 64));
    let [x, y, row] = [&x, &y, &row].map(TensorArg::new);
    let desc = LayerNormDesc { dtype, rows: 2, len: 32 };
    refused(dnn.layer_norm_forward(&desc, x, row, row, 1e-5, y, row, row));
    refused(dnn.rms_norm_forward(&desc, x, row, 1e-5, y, row));
    let desc = GroupNormDesc { dtype, batch: 1, channels: 32, spatial: 2, groups: 32 };
    refused(dnn.group_norm_forward(&desc, x, row, row, 1e-5, y, row, row));
}

#[test]
fn batch_norm_without_statistics() {
    let device = device();
    let desc = BatchNormDesc { dtype: DType::F32, batch: 2, channels: 1, spatial: 2 };
    let x = tensor(&device, DType::F32, &[1.0, 2.0, 3.0, 4.0]);
    let (y, one, zero) = (
        output(&device, DType::F32, 4),
        tensor(&device, DType::F32, &[1.0]),
        tensor(&device, DType::F32, &[0.0]),
    );
    let arg = TensorArg::new;
    device
        .dnn()
        .unwrap()
        .batch_norm_train(
            &desc,
            arg(&x.buffer),
            arg(&y),
            arg(&one.buffer),
            arg(&zero.buffer),
            None,
            0.1,
            0.0,
            None,
        )
        .unwrap();
    let s = 1.25f64.sqrt();
    close("y", &read(&device, &y, DType::F32, 4), &[-1.5 / s, -0.5 / s, 0.5 / s, 1.5 / s], 1e-5);
}

/// The reference of layer and group norm for `rows` of `len` elements. The weight of an element is
/// at `weight_of(element)`.
fn normalised(
    x: &[f64],
    rows: usize,
    weights: (&[f64], &[f64]),
    weight_of: impl Fn(usize) -> usize,
) -> [Vec<f64>; 3] {
    let len = x.len() / rows;
    let (mut y, mut means, mut rstds) = (vec![0.0; x.len()], vec![], vec![]);
    for row in 0..rows {
        let v = &x[row * len..][..len];
        let mean = v.iter().sum::<f64>() / len as f64;
        let rstd = 1.0 / (v.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / len as f64 + 1e-5).sqrt();
        for (i, v) in v.iter().enumerate() {
            let k = weight_of(row * len + i);
            y[row * len + i] = (v - mean) * rstd * weights.0[k] + weights.1[k];
        }
        means.push(mean);
        rstds.push(rstd);
    }
    [y, means, rstds]
}

#[test]
fn layer_norms() {
    let device = device();
    // The MIOpen of ROCm 5.7 and the CUDA provider lack this function and say so.
    let has = device.dnn().unwrap().has_layer_norm(DType::F32).is_ok();
    for (dtype, rows, len) in [
        (DType::F32, 4, 90),
        (DType::F32, 3, 64),
        (DType::F16, 4, 128),
        (DType::F16, 5, 33),
        (DType::F32, 1, 2),
    ] {
        let desc = LayerNormDesc { dtype, rows, len };
        let x = random_tensor(&device, 1, dtype, rows * len);
        let (weight, bias) = (random_tensor(&device, 2, dtype, len), random_tensor(&device, 3, dtype, len));
        let [want, mean, rstd] = normalised(&x.values, rows, (&weight.values, &bias.values), |i| i % len);
        let (y, m, r) =
            (output(&device, dtype, rows * len), output(&device, dtype, rows), output(&device, dtype, rows));
        let arg = TensorArg::new;
        let done = device.dnn().unwrap().layer_norm_forward(
            &desc,
            arg(&x.buffer),
            arg(&weight.buffer),
            arg(&bias.buffer),
            1e-5,
            arg(&y),
            arg(&m),
            arg(&r),
        );
        if !has {
            assert!(matches!(done, Err(Error::Unsupported { .. })), "{desc:?}: {done:?}");
            continue;
        }
        done.unwrap();
        close(&format!("{desc:?}"), &read(&device, &y, dtype, rows * len), &want, 3.0 * tolerance(dtype));
        close(&format!("{desc:?} mean"), &read(&device, &m, dtype, rows), &mean, 20.0 * tolerance(dtype));
        close(&format!("{desc:?} 1/std"), &read(&device, &r, dtype, rows), &rstd, 3.0 * tolerance(dtype));
        let [x, weight, bias, y, m] = [&x.buffer, &weight.buffer, &bias.buffer, &y, &m].map(arg);
        let dnn = device.dnn().unwrap();
        for out in [[y, m, m], [y, y, m], [y, m, x]] {
            let [y, m, r] = out;
            let overlapping = dnn.layer_norm_forward(&desc, x, weight, bias, 1e-5, y, m, r);
            assert!(matches!(overlapping, Err(Error::Invalid { .. })), "{desc:?}: {overlapping:?}");
        }
    }
}

#[test]
fn rms_norms() {
    let device = device();
    let dnn = device.dnn().unwrap();
    let has = dnn.has_rms_norm(DType::F32).is_ok();
    for (dtype, rows, len) in [
        (DType::F32, 4, 90),
        (DType::F32, 3, 1000),
        (DType::F16, 4, 128),
        (DType::F16, 5, 33),
        (DType::F32, 1, 1),
    ] {
        let desc = LayerNormDesc { dtype, rows, len };
        let x = random_tensor(&device, 1, dtype, rows * len);
        let weight = random_tensor(&device, 2, dtype, len);
        let rstd: Vec<f64> = (x.values.chunks(len))
            .map(|row| 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / len as f64 + 0.25).sqrt())
            .collect();
        let want: Vec<f64> =
            (0..rows * len).map(|i| x.values[i] * rstd[i / len] * weight.values[i % len]).collect();
        let (y, r) = (output(&device, dtype, rows * len), output(&device, dtype, rows));
        let arg = TensorArg::new;
        let done = dnn.rms_norm_forward(&desc, arg(&x.buffer), arg(&weight.buffer), 0.25, arg(&y), arg(&r));
        if !has {
            assert!(matches!(done, Err(Error::Unsupported { .. })), "{desc:?}: {done:?}");
            continue;
        }
        done.unwrap();
        close(&format!("{desc:?}"), &read(&device, &y, dtype, rows * len), &want, 3.0 * tolerance(dtype));
        close(&format!("{desc:?} 1/rms"), &read(&device, &r, dtype, rows), &rstd, 3.0 * tolerance(dtype));
        let overlapping = dnn.rms_norm_forward(&desc, arg(&y), arg(&weight.buffer), 0.25, arg(&y), arg(&r));
        assert!(matches!(overlapping, Err(Error::Invalid { .. })));
    }
}

#[test]
fn group_norms() {
    let device = device();
    // The last case has one pixel per image, so each element of a group has its own weight.
    for (dtype, batch, channels, spatial, groups) in
        [(DType::F32, 3, 64, 64, 32), (DType::F16, 2, 64, 64, 32), (DType::F32, 3, 256, 1, 32)]
    {
        let desc = GroupNormDesc { dtype, batch, channels, spatial, groups };
        let (n, rows) = (batch * channels * spatial, batch * groups);
        let x = random_tensor(&device, 1, dtype, n);
        let (weight, bias) =
            (random_tensor(&device, 2, dtype, channels), random_tensor(&device, 3, dtype, channels));
        let [want, mean, rstd] =
            normalised(&x.values, rows, (&weight.values, &bias.values), |i| i / spatial % channels);
        let (y, m, r) =
            (output(&device, dtype, n), output(&device, dtype, rows), output(&device, dtype, rows));
        let arg = TensorArg::new;
        device
            .dnn()
            .unwrap()
            .group_norm_forward(
                &desc,
                arg(&x.buffer),
                arg(&weight.buffer),
                arg(&bias.buffer),
                1e-5,
                arg(&y),
                arg(&m),
                arg(&r),
            )
            .unwrap();
        close(&format!("{desc:?}"), &read(&device, &y, dtype, n), &want, 3.0 * tolerance(dtype));
        close(&format!("{desc:?} mean"), &read(&device, &m, dtype, rows), &mean, 20.0 * tolerance(dtype));
        close(&format!("{desc:?} 1/std"), &read(&device, &r, dtype, rows), &rstd, 3.0 * tolerance(dtype));
        let [x, weight, bias, y, m] = [&x.buffer, &weight.buffer, &bias.buffer, &y, &m].map(arg);
        let overlapping = device.dnn().unwrap().group_norm_forward(&desc, x, weight, bias, 1e-5, y, m, m);
        assert!(matches!(overlapping, Err(Error::Invalid { .. })), "{desc:?}: {overlapping:?}");
    }
}

#[test]
fn activations() {
    let device = device();
    type Function = fn(f64) -> f64;
    type Derivative = fn(f64, f64) -> f64;
    let sigmoid: Function = |v| 1.0 / (1.0 + (-v).exp());
    // The function, and its derivative from x and y.
    let cases: [(Activation, Function, Derivative); 8] = [
        (Activation::Sigmoid, sigmoid, |_, y| y * (1.0 - y)),
        (Activation::Tanh, f64::tanh, |_, y| 1.0 - y * y),
        (Activation::Relu, |v| v.max(0.0), |x, _| f64::from(x > 0.0)),
        (Activation::Softplus, |v| v.exp().ln_1p(), |x, _| 1.0 / (1.0 + (-x).exp())),
        (Activation::Abs, f64::abs, |x, _| f64::from(x > 0.0) - f64::from(x < 0.0)),
        (Activation::ClippedRelu(2.0), |v| v.clamp(0.0, 2.0), |x, _| f64::from(x > 0.0 && x <= 2.0)),
        (
            Activation::LeakyRelu(0.125),
            |v| if v > 0.0 { v } else { v / 8.0 },
            |x, _| if x > 0.0 { 1.0 } else { 0.125 },
        ),
        (
            Activation::Elu(1.0),
            |v| if v > 0.0 { v } else { v.exp_m1() },
            |x, y| if x > 0.0 { 1.0 } else { y + 1.0 },
        ),
    ];
    for dtype in FLOATS {
        for len in [1, 210, 4096] {
            for (activation, function, derivative) in cases {
                let values: Vec<f64> = random(1, len, dtype).iter().map(|v| v * 5.0 + 1.0 / 128.0).collect();
                let x = tensor(&device, dtype, &values);
                let dy = random_tensor(&device, 2, dtype, len);
                let (y, dx) = (output(&device, dtype, len), output(&device, dtype, len));
                let dnn = device.dnn().unwrap();
                let arg = TensorArg::new;
                dnn.activation_forward(activation, dtype, len, arg(&x.buffer), arg(&y)).unwrap();
                let got = read(&device, &y, dtype, len);
                let want: Vec<f64> = x.values.iter().map(|&v| function(v)).collect();
                let name = format!("{activation:?} {dtype:?} {len}");
                // MIOpen adds 1 before it takes the logarithm, so the error is that of a value of
                // 1.
                let largest = want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
                close(&name, &got, &want, 2.0 * tolerance(dtype) / largest.min(1.0));
                dnn.activation_backward(
                    activation,
                    dtype,
                    len,
                    arg(&y),
                    arg(&dy.buffer),
                    arg(&x.buffer),
                    arg(&dx),
                )
                .unwrap();
                let want: Vec<f64> =
                    (0..len).map(|i| dy.values[i] * derivative(x.values[i], got[i])).collect();
                close(
                    &format!("{name} backward"),
                    &read(&device, &dx, dtype, len),
                    &want,
                    2.0 * tolerance(dtype),
                );
            }
        }
    }
}

fn reduce(device: &Arc<Device>, desc: &ReduceDesc, indices: bool) {
    let dtype = desc.dtype;
    let (nx, ny) = (desc.x.iter().product::<usize>(), desc.y.iter().product::<usize>());
    let mut values = random(1, nx, dtype);
    if desc.op == Reduction::Product {
        values.iter_mut().for_each(|v| *v = 1.0 + *v / 64.0);
    }
    let x = tensor(device, dtype, &values);
    let mut groups: Vec<Vec<(usize, f64)>> = vec![Vec::new(); ny];
    for (i, &v) in x.values.iter().enumerate() {
        let (mut rest, mut out, mut place, mut out_size, mut place_size) = (i, 0, 0, 1, 1);
        for d in (0..desc.x.len()).rev() {
            let (at, size) = (rest % desc.x[d], desc.x[d]);
            rest /= size;
            if desc.y[d] == size {
                out += at * out_size;
                out_size *= size;
            } else {
                place += at * place_size;
                place_size *= size;
            }
        }
        groups[out].push((place, v));
    }
    let best = |group: &[(usize, f64)], better: fn(f64, f64) -> bool, key: fn(f64) -> f64| {
        group[1..].iter().fold((group[0].0, key(group[0].1)), |best, &(i, v)| {
            if better(key(v), best.1) { (i, key(v)) } else { best }
        })
    };
    let want: Vec<(usize, f64)> = groups
        .iter()
        .map(|group| {
            let sum = |f: fn(f64) -> f64| group.iter().map(|(_, v)| f(*v)).sum::<f64>();
            match desc.op {
                Reduction::Sum => (0, sum(|v| v)),
                Reduction::Product => (0, group.iter().map(|(_, v)| v).product()),
                Reduction::Mean => (0, sum(|v| v) / group.len() as f64),
                Reduction::Norm1 => (0, sum(f64::abs)),
                Reduction::Norm2 => (0, sum(|v| v * v).sqrt()),
                Reduction::Min => best(group, |a, b| a < b, |v| v),
                Reduction::Max => best(group, |a, b| a > b, |v| v),
                Reduction::AbsMax => best(group, |a, b| a > b, f64::abs),
            }
        })
        .collect();
    let y = output(device, dtype, ny);
    let kept = device.upload(&vec![0xff; ny * 4]).unwrap();
    let name = format!("{desc:?}");
    device
        .dnn()
        .unwrap()
        .reduce(desc, TensorArg::new(&x.buffer), TensorArg::new(&y), indices.then_some(TensorArg::new(&kept)))
        .expect(&name);
    let values: Vec<f64> = want.iter().map(|w| w.1).collect();
    close(&name, &read(device, &y, dtype, ny), &values, 5.0 * tolerance(dtype));
    if indices {
        // Equal elements may be found in any order, so the test compares the element at the index.
        for (o, place) in read(device, &kept, DType::U32, ny).into_iter().enumerate() {
            let found = groups[o]
                .iter()
                .find(|(i, _)| *i as f64 == place)
                .unwrap_or_else(|| panic!("{name}: {place}"));
            let v = if desc.op == Reduction::AbsMax { found.1.abs() } else { found.1 };
            assert_eq!(v, want[o].1, "{name}: element {o}");
        }
    }
}

#[test]
fn reductions() {
    let device = device();
    let all = [
        Reduction::Sum,
        Reduction::Product,
        Reduction::Min,
        Reduction::Max,
        Reduction::AbsMax,
        Reduction::Mean,
        Reduction::Norm1,
        Reduction::Norm2,
    ];
    let x = [4, 6, 9, 7];
    for y in [[1, 6, 1, 1], [4, 1, 1, 1], [1, 1, 1, 1], [4, 6, 1, 1], [4, 6, 9, 1]] {
        for op in all {
            let desc = ReduceDesc { dtype: DType::F32, x: x.to_vec(), y: y.to_vec(), op };
            reduce(&device, &desc, false);
            if matches!(op, Reduction::Min | Reduction::Max) {
                reduce(&device, &desc, true);
            }
        }
        for op in [Reduction::Sum, Reduction::Max] {
            reduce(&device, &ReduceDesc { dtype: DType::F16, x: x.to_vec(), y: y.to_vec(), op }, false);
        }
    }
    for (x, y) in
        [(vec![2000], vec![1]), (vec![33, 5], vec![1, 5]), (vec![3, 4, 5, 6, 7], vec![3, 1, 5, 1, 7])]
    {
        reduce(&device, &ReduceDesc { dtype: DType::F32, x, y, op: Reduction::Sum }, false);
    }
}
