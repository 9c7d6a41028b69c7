//! MIOpen's convolutions through `hip::Dnn` against plain references, on whatever provider the
//! process has.
#![allow(clippy::unwrap_used)] // A test may.

mod common;

use std::sync::Arc;

use common::{close, device, output, random_tensor, read, tolerance};
use hip::{Activation, ConvDesc, DType, Device, Error, ProviderKind, TensorArg};

struct Case {
    name: &'static str,
    dtype: DType,
    x: &'static [usize],
    w: &'static [usize],
    stride: &'static [usize],
    padding: &'static [usize],
    dilation: &'static [usize],
    groups: usize,
}

const PLAIN: Case = Case {
    name: "",
    dtype: DType::F32,
    x: &[],
    w: &[],
    stride: &[1, 1],
    padding: &[0, 0],
    dilation: &[1, 1],
    groups: 1,
};

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "3x3", x: &[2, 5, 9, 7], w: &[6, 5, 3, 3], padding: &[1, 1], ..PLAIN },
    Case { name: "1x1", x: &[3, 16, 8, 8], w: &[17, 16, 1, 1], ..PLAIN },
    Case { name: "1x1 stride 2", x: &[2, 8, 9, 9], w: &[8, 8, 1, 1], stride: &[2, 2], ..PLAIN },
    Case { name: "5x3, all different", x: &[2, 4, 17, 15], w: &[6, 4, 5, 3],
        stride: &[2, 3], padding: &[2, 3], dilation: &[2, 1], ..PLAIN },
    Case { name: "dilation", x: &[2, 3, 11, 12], w: &[4, 3, 3, 3], padding: &[2, 2], dilation: &[2, 2], ..PLAIN },
    Case { name: "groups", x: &[2, 8, 10, 11], w: &[12, 4, 3, 3],
        stride: &[2, 1], padding: &[1, 1], groups: 2, ..PLAIN },
    Case { name: "depthwise", x: &[2, 8, 12, 12], w: &[8, 1, 3, 3], padding: &[1, 1], groups: 8, ..PLAIN },
    Case { name: "depthwise, two each", x: &[2, 4, 7, 6], w: &[8, 1, 3, 3], groups: 4, ..PLAIN },
    Case { name: "first layer of the example", x: &[4, 1, 28, 28], w: &[8, 1, 3, 3], padding: &[1, 1], ..PLAIN },
    Case { name: "as tall as 1", x: &[2, 3, 1, 20], w: &[4, 3, 1, 5], padding: &[0, 2], ..PLAIN },
    Case { name: "batch of 1", x: &[1, 3, 33, 33], w: &[16, 3, 7, 7], stride: &[2, 2], padding: &[3, 3], ..PLAIN },
    Case { name: "32 channels", x: &[2, 32, 14, 14], w: &[32, 32, 3, 3], padding: &[1, 1], ..PLAIN },
    Case { name: "f16", dtype: DType::F16, x: &[2, 16, 9, 9], w: &[16, 16, 3, 3], padding: &[1, 1], ..PLAIN },
    Case { name: "f16 1x1", dtype: DType::F16, x: &[2, 32, 8, 8], w: &[32, 32, 1, 1], ..PLAIN },
    Case { name: "f16 groups", dtype: DType::F16, x: &[1, 8, 9, 9], w: &[8, 4, 3, 3],
        stride: &[2, 2], padding: &[1, 1], groups: 2, ..PLAIN },
    Case { name: "bf16", dtype: DType::BF16, x: &[2, 16, 9, 9], w: &[16, 16, 3, 3], padding: &[1, 1], ..PLAIN },
    Case { name: "3-D", x: &[2, 3, 5, 7, 6], w: &[4, 3, 3, 3, 2],
        stride: &[1, 2, 1], padding: &[1, 1, 0], dilation: &[1, 1, 2], ..PLAIN },
    Case { name: "3-D groups", x: &[1, 4, 4, 6, 6], w: &[6, 2, 2, 3, 3],
        stride: &[1, 1, 2], padding: &[0, 1, 1], dilation: &[1, 1, 1], groups: 2, ..PLAIN },
];

impl Case {
    fn desc(&self) -> ConvDesc {
        ConvDesc::new(self.dtype, self.x, self.w, self.stride, self.padding, self.dilation, self.groups)
            .expect("a convolution")
    }
}

/// Calls `each(x, w, y)` with the indices of every product of the convolution.
fn walk(desc: &ConvDesc, mut each: impl FnMut(usize, usize, usize)) {
    // 2-D as 3-D with a depth of 1.
    let three = |list: &[usize], fill: usize| match list {
        [h, w] => [fill, *h, *w],
        [d, h, w] => [*d, *h, *w],
        other => panic!("{other:?}"),
    };
    let (xs, ws, ys) = (three(&desc.x[2..], 1), three(&desc.w[2..], 1), three(&desc.y[2..], 1));
    let (stride, padding, dilation) =
        (three(&desc.stride, 1), three(&desc.padding, 0), three(&desc.dilation, 1));
    let (channels, outs, per_group) = (desc.x[1], desc.y[1], desc.w[1]);
    let outs_per_group = outs / desc.groups;
    let volume = |s: [usize; 3]| s[0] * s[1] * s[2];
    let flat = |i: [usize; 3], s: [usize; 3]| (i[0] * s[1] + i[1]) * s[2] + i[2];
    let unflat = |i: usize, s: [usize; 3]| [i / (s[1] * s[2]), i / s[2] % s[1], i % s[2]];
    for n in 0..desc.x[0] {
        for k in 0..outs {
            for c in 0..per_group {
                let channel = k / outs_per_group * per_group + c;
                for out in 0..volume(ys) {
                    for tap in 0..volume(ws) {
                        let (o, t) = (unflat(out, ys), unflat(tap, ws));
                        let at: Option<Vec<usize>> = (0..3)
                            .map(|i| {
                                (o[i] * stride[i] + t[i] * dilation[i])
                                    .checked_sub(padding[i])
                                    .filter(|&p| p < xs[i])
                            })
                            .collect();
                        if let Some(at) = at {
                            each(
                                (n * channels + channel) * volume(xs) + flat([at[0], at[1], at[2]], xs),
                                (k * per_group + c) * volume(ws) + tap,
                                (n * outs + k) * volume(ys) + out,
                            );
                        }
                    }
                }
            }
        }
    }
}

fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The place in memory of element `i` in row-major order, in a 2-D tensor of this shape.
fn stored(shape: &[usize], channels_last: bool, i: usize) -> usize {
    match (shape, channels_last) {
        (&[_, channels, height, width], true) => {
            let (plane, pixel) = (i / (height * width), i % (height * width));
            (plane / channels * height * width + pixel) * channels + plane % channels
        }
        _ => i,
    }
}

fn all_directions(device: &Arc<Device>, case: &Case, channels_last: bool) {
    let desc = ConvDesc { channels_last, ..case.desc() };
    let dtype = desc.dtype;
    let (nx, nw, ny) = (count(&desc.x), count(&desc.w), count(&desc.y));
    let x = random_tensor(device, 1, dtype, nx);
    let w = random_tensor(device, 2, dtype, nw);
    let y = random_tensor(device, 3, dtype, ny);
    let (mut want_y, mut want_x, mut want_w) = (vec![0.0; ny], vec![0.0; nx], vec![0.0; nw]);
    walk(&desc, |i, j, k| {
        let [i, j, k] =
            [(&desc.x, i), (&desc.w, j), (&desc.y, k)].map(|(shape, at)| stored(shape, channels_last, at));
        want_y[k] += x.values[i] * w.values[j];
        want_x[i] += y.values[k] * w.values[j];
        want_w[j] += x.values[i] * y.values[k];
    });
    let dnn = device.dnn().expect("MIOpen");
    let (xa, wa, ya) = (TensorArg::new(&x.buffer), TensorArg::new(&w.buffer), TensorArg::new(&y.buffer));
    // A library may lack this order for a shape.
    let lacks = |done: &hip::Result<()>| {
        let refused = matches!(done, Err(Error::Miopen { refused: true, .. } | Error::Unsupported { .. }));
        channels_last && refused && device.provider().kind() != ProviderKind::Cpu
    };
    // The second call uses the cache.
    for _ in 0..2 {
        let out = output(device, dtype, ny);
        let done = dnn.conv_forward(&desc, xa, wa, TensorArg::new(&out));
        if lacks(&done) {
            continue;
        }
        done.expect(case.name);
        close(&format!("{} forward", case.name), &read(device, &out, dtype, ny), &want_y, tolerance(dtype));
        let out = output(device, dtype, nx);
        let done = dnn.conv_backward_data(&desc, ya, wa, TensorArg::new(&out));
        // cuDNN does not compute these if stride and dilation have a common divisor: docs/h200.md.
        let meet =
            desc.stride.iter().zip(&desc.dilation).any(|(&s, &d)| s.is_multiple_of(2) && d.is_multiple_of(2));
        match done {
            Err(Error::Miopen { refused: true, .. })
                if meet && device.provider().kind() == hip::ProviderKind::Cuda => {}
            done if lacks(&done) => {}
            done => {
                done.expect(case.name);
                close(
                    &format!("{} data", case.name),
                    &read(device, &out, dtype, nx),
                    &want_x,
                    tolerance(dtype),
                );
            }
        }
        let out = output(device, dtype, nw);
        let done = dnn.conv_backward_weights(&desc, ya, xa, TensorArg::new(&out));
        if lacks(&done) {
            continue;
        }
        done.expect(case.name);
        close(&format!("{} weights", case.name), &read(device, &out, dtype, nw), &want_w, tolerance(dtype));
    }
}

#[test]
fn convolutions() {
    let device = device();
    for case in CASES {
        all_directions(&device, case, false);
    }
}

/// The 2-D cases with the channels innermost in all three tensors. The CPU device takes each; it
/// refuses none that it takes in the other order.
#[test]
fn convolutions_with_channels_last() {
    let device = device();
    for case in CASES.iter().filter(|case| case.x.len() == 4) {
        all_directions(&device, case, true);
        let desc = ConvDesc { channels_last: true, ..case.desc() };
        let on_cpu = device.provider().kind() == ProviderKind::Cpu;
        assert!(!(on_cpu && device.dnn().unwrap().conv_refuses(&desc)), "{}", case.name);
    }
}

/// 3-D convolutions have no such order here.
#[test]
fn channels_last_in_3d_is_refused() {
    let device = device();
    let case = CASES.iter().find(|case| case.x.len() == 5).expect("a 3-D case");
    let desc = ConvDesc { channels_last: true, ..case.desc() };
    let of = |shape: &[usize]| output(&device, case.dtype, count(shape));
    let (x, w, y) = (of(&desc.x), of(&desc.w), of(&desc.y));
    let dnn = device.dnn().unwrap();
    let done = dnn.conv_forward(&desc, TensorArg::new(&x), TensorArg::new(&w), TensorArg::new(&y));
    assert!(matches!(done, Err(Error::Invalid { op: "convolution", .. })), "{done:?}");
}

/// If MIOpen has a fusion plan for a case, the plan computes it. If not, every call returns the
/// refusal. The CPU device has plans for f32 in 2-D.
#[test]
fn fused_with_bias_and_activation() {
    let device = device();
    let dnn = device.dnn().unwrap();
    let (mut served, mut wrong) = (0, Vec::new());
    for (case, biased) in CASES.iter().flat_map(|case| [true, false].map(|biased| (case, biased))) {
        let desc = case.desc();
        let (dtype, ny) = (desc.dtype, count(&desc.y));
        let x = random_tensor(&device, 1, dtype, count(&desc.x));
        let w = random_tensor(&device, 2, dtype, count(&desc.w));
        let bias = random_tensor(&device, 3, dtype, desc.y[1]);
        let plane = count(&desc.y[2..]);
        let channel = |k: usize| k / plane % desc.y[1];
        let mut sums: Vec<f64> =
            (0..ny).map(|k| if biased { bias.values[channel(k)] } else { 0.0 }).collect();
        walk(&desc, |i, j, k| sums[k] += x.values[i] * w.values[j]);
        for (activation, of) in [
            (Activation::Relu, (|v| v.max(0.0)) as fn(f64) -> f64),
            (Activation::Elu(0.5), |v: f64| if v > 0.0 { v } else { 0.5 * v.exp_m1() }),
        ] {
            let want: Vec<f64> = sums.iter().map(|&sum| of(sum)).collect();
            let (xa, wa) = (TensorArg::new(&x.buffer), TensorArg::new(&w.buffer));
            let add = biased.then_some(TensorArg::new(&bias.buffer));
            // The second call uses the cache.
            for _ in 0..2 {
                let out = output(&device, dtype, ny);
                match dnn.conv_bias_activation(&desc, activation, xa, wa, add, TensorArg::new(&out)) {
                    Ok(()) => {
                        let (got, largest) = (
                            read(&device, &out, dtype, ny),
                            want.iter().fold(1e-3f64, |most, value| most.max(value.abs())),
                        );
                        let error =
                            got.iter().zip(&want).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
                        if error / largest >= tolerance(dtype) || got.iter().any(|value| value.is_nan()) {
                            wrong.push(format!("{}, bias {biased}, {activation:?}: {error:.2e}", case.name));
                        }
                        served += 1;
                    }
                    // MIOpen's plans are wrong for groups.
                    Err(Error::Unsupported { .. }) if desc.groups > 1 => {}
                    Err(Error::Miopen { .. }) if device.provider().kind() != ProviderKind::Cpu => {}
                    Err(Error::Miopen { call, .. }) => {
                        assert_eq!(call, "miopenCompileFusionPlan");
                        assert!(dtype != DType::F32 || desc.x.len() != 4, "{}", case.name);
                    }
                    Err(error) => panic!("{}: {error}", case.name),
                }
            }
        }
    }
    println!("{served} of {} calls by a fusion plan", 8 * CASES.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn fused_calls_refuse_what_does_not_fit() {
    let device = device();
    let dnn = device.dnn().unwrap();
    let desc = CASES[0].desc();
    let (x, w) = (
        random_tensor(&device, 1, DType::F32, count(&desc.x)),
        random_tensor(&device, 2, DType::F32, count(&desc.w)),
    );
    let (y, small) = (output(&device, DType::F32, count(&desc.y)), output(&device, DType::F32, 5));
    let (x, w, y, small) =
        (TensorArg::new(&x.buffer), TensorArg::new(&w.buffer), TensorArg::new(&y), TensorArg::new(&small));
    let call =
        |desc: &ConvDesc, x, w, bias, y| dnn.conv_bias_activation(desc, Activation::Relu, x, w, bias, y);
    let wrong = ConvDesc { y: vec![2, 6, 9, 8], ..desc.clone() };
    assert!(matches!(call(&wrong, x, w, None, y), Err(Error::Invalid { .. })));
    assert!(matches!(call(&desc, x, w, Some(small), y), Err(Error::Invalid { .. })), "6 channels");
    assert!(matches!(call(&desc, x, w, None, small), Err(Error::Invalid { .. })));
    assert!(matches!(call(&desc, x, w, None, x), Err(Error::Invalid { .. })), "overlaps");
    let double =
        ConvDesc { dtype: DType::F64, x: vec![1, 1, 3, 3], w: vec![1, 1, 3, 3], y: vec![1; 4], ..desc };
    let double = ConvDesc { padding: vec![0; 2], ..double };
    assert!(matches!(call(&double, x, w, None, y), Err(Error::Unsupported { .. })));
}

#[test]
fn offsets_count_in_bytes() {
    let device = device();
    let desc = CASES[0].desc();
    let (nx, nw, ny) = (count(&desc.x), count(&desc.w), count(&desc.y));
    let x = random_tensor(&device, 1, DType::F32, nx + 64);
    let w = random_tensor(&device, 2, DType::F32, nw + 64);
    let y = output(&device, DType::F32, ny + 64);
    let at = |buffer| TensorArg { buffer, offset: 256 };
    device.dnn().unwrap().conv_forward(&desc, at(&x.buffer), at(&w.buffer), at(&y)).unwrap();
    let mut want = vec![0.0; ny];
    walk(&desc, |i, j, k| want[k] += x.values[64 + i] * w.values[64 + j]);
    let got = read(&device, &y, DType::F32, ny + 64);
    assert!(got[..64].iter().all(|v| v.is_nan()));
    close("offset", &got[64..], &want, tolerance(DType::F32));
}

#[test]
fn nothing_to_sum_is_zero() {
    let device = device();
    let desc = ConvDesc::new(DType::F32, &[0, 3, 4, 4], &[2, 3, 3, 3], &[1, 1], &[0, 0], &[1, 1], 1).unwrap();
    let (none, w) = (device.alloc(0).unwrap(), output(&device, DType::F32, 54));
    let dnn = device.dnn().unwrap();
    let none = TensorArg::new(&none);
    dnn.conv_forward(&desc, none, TensorArg::new(&w), none).unwrap();
    dnn.conv_backward_data(&desc, none, TensorArg::new(&w), none).unwrap();
    dnn.conv_backward_weights(&desc, none, none, TensorArg::new(&w)).unwrap();
    assert_eq!(read(&device, &w, DType::F32, 54), [0.0; 54]);
}

#[test]
fn bad_input_is_refused_and_the_next_convolution_works() {
    let device = device();
    let dnn = device.dnn().unwrap();
    let desc = CASES[0].desc();
    let (x, w) = (
        random_tensor(&device, 1, DType::F32, count(&desc.x)),
        random_tensor(&device, 2, DType::F32, count(&desc.w)),
    );
    let (y, small) = (output(&device, DType::F32, count(&desc.y)), output(&device, DType::F32, 7));
    let (x, w, y) = (TensorArg::new(&x.buffer), TensorArg::new(&w.buffer), TensorArg::new(&y));
    let wrong = ConvDesc { y: vec![2, 6, 9, 8], ..desc.clone() };
    let double = ConvDesc { dtype: DType::F64, x: vec![1, 5, 9, 7], y: vec![1, 6, 9, 7], ..desc.clone() };
    let half = ConvDesc {
        dtype: DType::F64,
        x: vec![1, 1, 3, 3],
        w: vec![1, 1, 3, 3],
        y: vec![1, 1, 3, 3],
        ..desc.clone()
    };
    assert!(matches!(dnn.conv_forward(&wrong, x, w, y), Err(Error::Invalid { .. })));
    assert!(matches!(dnn.conv_forward(&desc, x, w, TensorArg::new(&small)), Err(Error::Invalid { .. })));
    assert!(matches!(dnn.conv_forward(&desc, x, w, x), Err(Error::Invalid { .. })));
    assert!(dnn.conv_forward(&double, x, w, y).is_err());
    assert!(matches!(dnn.conv_forward(&half, x, w, y), Err(Error::Unsupported { .. })));
    all_directions(&device, &CASES[0], false);
}
