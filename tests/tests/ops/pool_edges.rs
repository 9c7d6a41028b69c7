//! Pooling where libraries differ: infinities, NaN, large planes, outputs rounded up, dilation and
//! lines. Also patches of images.

use burn_rocm::RocmTensor;
use burn_rocm::fused::{Pool3d, avg_pool3d, avg_pool3d_backward};
use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::*;

/// A pooling window: size, stride, padding, dilation.
type Window = [[usize; 2]; 4];

const WINDOWS: &[Window] = &[
    [[2, 2], [2, 2], [0, 0], [1, 1]],
    [[3, 3], [2, 2], [1, 1], [1, 1]],
    [[3, 2], [1, 3], [1, 0], [1, 1]],
    [[2, 3], [2, 1], [1, 1], [2, 1]],
    [[3, 3], [4, 2], [1, 1], [2, 3]],
    [[1, 1], [3, 2], [0, 0], [1, 1]],
];

fn pooled(size: usize, [window, stride, padding, dilation]: [usize; 4], ceil: bool) -> usize {
    let steps = size + 2 * padding - dilation * (window - 1) - 1;
    if ceil { steps.div_ceil(stride) + 1 } else { steps / stride + 1 }
}

fn axis(window: &Window, d: usize) -> [usize; 4] {
    window.map(|pair| pair[d])
}

/// Compares the maxima of `x` and their indices, by every op of Burn that finds them, and checks
/// the gradient within its rounding bound.
fn against_the_oracle(what: &str, x: &Input, g: &Input, w: &Window, ceil: bool) {
    let &[size, stride, padding, dilation] = w;
    differential!(what, Tolerance::EXACT, |B, device| {
        let x = || x.float::<B>(&device);
        let found = B::max_pool2d_with_indices(x(), size, stride, padding, dilation, ceil);
        vec![
            read_float::<B>(B::max_pool2d(x(), size, stride, padding, dilation, ceil)),
            read_float::<B>(found.output),
            read_index::<B>(found.indices),
        ]
    });
    let dtype = g.float::<R>(&Default::default()).dtype();
    sums!(what, Terms::of_max_pool(size[0] * size[1], dtype), |B, device, [g = g]| {
        let x = x.float::<B>(&device);
        let at = B::max_pool2d_with_indices(x.clone(), size, stride, padding, dilation, ceil).indices;
        let x = B::float_cast(x, g.dtype().into());
        B::max_pool2d_with_indices_backward(x, size, stride, padding, dilation, ceil, g, at).x_grad
    });
}

#[test]
fn max_with_dilation_and_rounded_up() {
    let random = Random::new();
    for dtype in FLOATS {
        for w in WINDOWS {
            for ceil in [false, true] {
                let shape = [2, 3, 5 + random.below(6), 5 + random.below(80)];
                let x = float(&random, &shape, dtype, View::ALL[random.below(4)], -1.0, 1.0);
                let out = [0, 1].map(|d| pooled(shape[d + 2], axis(w, d), ceil));
                let g = float(&random, &[2, 3, out[0], out[1]], dtype, View::ALL[random.below(4)], -1.0, 1.0);
                let name = format!("max pool {dtype:?} {shape:?} {w:?} ceil {ceil}");
                against_the_oracle(&name, &x, &g, w, ceil);
            }
        }
    }
}

/// If a window holds nothing but -inf, its maximum is -inf at the window's first element. A NaN is
/// the maximum if the window begins with it, and is ignored elsewhere. MIOpen differs: it gives the
/// lowest finite number and index 0 for a window of -inf, and ignores every NaN.
#[test]
fn max_of_infinities_and_nan() {
    let random = Random::new();
    for dtype in FLOATS {
        for w in WINDOWS {
            let shape = [2, 2, 9, 11];
            let special = [f64::NEG_INFINITY, f64::NAN, f64::INFINITY, -1.0];
            // Mostly -inf, so that some windows hold nothing else.
            let draw = |below: usize| special[random.below(below).saturating_sub(below - 4)];
            for mut values in [
                vec![f64::NEG_INFINITY; 396],
                (0..396).map(|_| draw(12)).collect::<Vec<f64>>(),
                vec![f64::NAN; 396],
            ] {
                let x = Input::new(&shape, dtype, View::Contiguous, || {
                    values.pop().expect("as many as elements")
                });
                let out = [0, 1].map(|d| pooled(shape[d + 2], axis(w, d), false));
                let g = float(&random, &[2, 2, out[0], out[1]], dtype, View::Contiguous, -1.0, 1.0);
                let name = format!("max pool {dtype:?} {w:?}");
                against_the_oracle(&name, &x, &g, w, false);
            }
        }
    }
}

/// Planes with more than 2^16 pixels, whose maxima have larger indices than that.
#[test]
fn max_in_large_planes() {
    let random = Random::new();
    for dtype in [DType::F32, DType::F16, DType::F64] {
        let shape = [1, 2, 270, 257];
        let mut at = 0;
        let x = Input::new(&shape, dtype, View::Contiguous, || {
            at += 1;
            f64::from(at % 1999) + if at > 66_000 { 1.0 } else { 0.0 }
        });
        for w in [[[9, 5], [9, 5], [0, 0], [1, 1]], [[30, 200], [40, 30], [7, 9], [1, 1]]] {
            let out = [0, 1].map(|d| pooled(shape[d + 2], axis(&w, d), false));
            let g = float(&random, &[1, 2, out[0], out[1]], dtype, View::Contiguous, -1.0, 1.0);
            let name = format!("max pool {dtype:?} {w:?}");
            against_the_oracle(&name, &x, &g, &w, false);
        }
    }
}

/// Checks averages against their definition in f64, and the gradient: each element of a window gets
/// the window's gradient divided by the same number as the average.
///
/// If outputs are rounded up, windows that reach past the padded input are divided by the size of
/// their part within it, as in PyTorch and in Burn's own test of `avg_pool2d` with `ceil_mode` and
/// `count_include_pad`. The gradient follows from that. burn-flex divides the gradient by the whole
/// window instead, so it can't be the oracle.
fn averages(
    x: &[f64],
    g: &[f64],
    shape: [usize; 4],
    out: [usize; 2],
    w: &Window,
    include: bool,
) -> [Vec<f64>; 2] {
    let [_, _, height, width] = shape;
    let planes = shape[0] * shape[1];
    let mut y = Vec::new();
    let mut dx = vec![0.0; x.len()];
    for plane in 0..planes {
        for oy in 0..out[0] {
            for ox in 0..out[1] {
                let (mut sum, mut inside, mut padded) = (0.0, Vec::new(), 0);
                for ky in 0..w[0][0] {
                    for kx in 0..w[0][1] {
                        let (py, px) = (oy * w[1][0] + ky, ox * w[1][1] + kx);
                        if py >= height + 2 * w[2][0] || px >= width + 2 * w[2][1] {
                            continue;
                        }
                        padded += 1;
                        let (Some(iy), Some(ix)) = (py.checked_sub(w[2][0]), px.checked_sub(w[2][1])) else {
                            continue;
                        };
                        if iy < height && ix < width {
                            let at = (plane * height + iy) * width + ix;
                            sum += x[at];
                            inside.push(at);
                        }
                    }
                }
                let divisor = (if include { padded } else { inside.len() }).max(1) as f64;
                let share = g[y.len()] / divisor;
                y.push(sum / divisor);
                inside.into_iter().for_each(|at| dx[at] += share);
            }
        }
    }
    [y, dx]
}

#[test]
fn averages_with_every_divisor() {
    let random = Random::new();
    for dtype in FLOATS {
        for w in WINDOWS.iter().filter(|w| w[3] == [1, 1]) {
            for (ceil, include) in [(false, false), (false, true), (true, false), (true, true)] {
                let shape = [2, 2, 4 + random.below(5), 4 + random.below(30)];
                let x = float(&random, &shape, dtype, View::Contiguous, -1.0, 1.0);
                let out = [0, 1].map(|d| pooled(shape[d + 2], axis(w, d), ceil));
                let g = float(&random, &[2, 2, out[0], out[1]], dtype, View::Contiguous, -1.0, 1.0);
                let device = Default::default();
                let (xt, gt) = (x.float::<R>(&device), g.float::<R>(&device));
                let read = |tensor| read_float::<R>(tensor).iter::<f64>().collect::<Vec<_>>();
                let expected = averages(&read(xt.clone()), &read(gt.clone()), shape, out, w, include);
                let there = R::avg_pool2d(xt.clone(), w[0], w[1], w[2], include, ceil);
                let back = R::avg_pool2d_backward(xt.clone(), gt.clone(), w[0], w[1], w[2], include, ceil);
                let name = format!("avg pool {dtype:?} {shape:?} {w:?} include {include} ceil {ceil}");
                let magnitudes = [read(R::float_abs(xt.clone())), read(R::float_abs(gt.clone()))];
                let magnitudes = averages(&magnitudes[0], &magnitudes[1], shape, out, w, include);
                let terms = Terms::of(w[0][0] * w[0][1], dtype);
                for (found, (expected, magnitude)) in
                    [there, back].into_iter().zip(expected.into_iter().zip(magnitudes))
                {
                    let found = read_float::<R>(found);
                    assert_eq!(found.dtype, dtype, "{name}");
                    let [reference, magnitude] =
                        [expected, magnitude].map(|values| TensorData::new(values, found.shape.clone()));
                    let limits = limits::sums(&reference, &magnitude, terms);
                    limits::assert_within(&name, &found, &reference, &limits);
                }
            }
        }
    }
}

/// Windows with padding, of more elements than 31 bits count. The oracle would visit all of them, so
/// the definition gives the expected results.
#[test]
fn averages_of_windows_beyond_31_bits() {
    let device = Default::default();
    for dtype in FLOATS {
        // All types have this number, and quotients that do not underflow.
        let value = 61_440.0;
        let full = |rank: usize| {
            R::float_full(Shape::from(vec![1; rank]), Scalar::Float(value), &device, float_dtype(dtype))
        };
        let check = |what: &str, found: RocmTensor, elements: f64| {
            let found = read_float::<R>(found);
            let reference = TensorData::new(vec![value / elements], found.shape.clone());
            let limits = limits::sums(&reference, &reference, Terms::of(1, dtype));
            limits::assert_within(&format!("{what} {dtype:?}"), &found, &reference, &limits);
        };
        let (window, stride, padding) = ([50_000; 2], [60_000; 2], [30_000; 2]);
        let there = R::avg_pool2d(full(4), window, stride, padding, true, false);
        check("avg_pool2d", there, 2.5e9);
        let back = R::avg_pool2d_backward(full(4), full(4), window, stride, padding, true, false);
        check("avg_pool2d_backward", back, 2.5e9);
        let pool = Pool3d {
            kernel_size: [2000, 1500, 1000],
            stride: [3000; 3],
            padding: [1000, 750, 500],
            dilation: [1; 3],
            ceil_mode: false,
        };
        check("avg_pool3d", avg_pool3d(full(5), pool, true).unwrap(), 3e9);
        check("avg_pool3d_backward", avg_pool3d_backward([1; 5], full(5), pool, true).unwrap(), 3e9);
    }
}

/// An infinity or a NaN reaches the windows that hold it, and no others.
#[test]
fn averages_of_infinities_and_nan() {
    let random = Random::new();
    for dtype in FLOATS {
        for w in WINDOWS.iter().filter(|w| w[3] == [1, 1]) {
            let shape = [1, 2, 7, 9];
            let special = [0.5, f64::NEG_INFINITY, f64::NAN, f64::INFINITY];
            let draw = || special[random.below(30).saturating_sub(26)];
            let x = Input::new(&shape, dtype, View::Contiguous, draw);
            let out = [0, 1].map(|d| pooled(shape[d + 2], axis(w, d), false));
            let g = Input::new(&[1, 2, out[0], out[1]], dtype, View::Contiguous, draw);
            let what = format!("avg pool {dtype:?} {w:?}");
            let terms = Terms::of(w[0][0] * w[0][1], dtype);
            for include in [true, false] {
                sums!(what, terms, |B, device, [x = &x]| B::avg_pool2d(x, w[0], w[1], w[2], include, false));
            }
            sums!(what, terms, |B, device, [x = &x, g = &g]| {
                B::avg_pool2d_backward(x, g, w[0], w[1], w[2], false, false)
            });
        }
    }
}

#[test]
fn lines() {
    let random = Random::new();
    for dtype in FLOATS {
        for w @ [size, stride, padding, dilation] in
            [[2, 2, 0, 1], [3, 2, 1, 1], [3, 1, 1, 2], [4, 5, 2, 1], [1, 1, 0, 1]]
        {
            for ceil in [false, true] {
                let length = 9 + random.below(90);
                let view = View::ALL[random.below(5)];
                let x = float(&random, &[2, 3, length], dtype, view, -1.0, 1.0);
                let line =
                    |length: usize| float(&random, &[2, 3, length], dtype, View::Contiguous, -1.0, 1.0);
                let g = line(pooled(length, w, ceil));
                let plain = [size, stride, padding, 1];
                let (ga, gt) = (line(pooled(length, plain, ceil)), line(length));
                let target = 1 + random.below(12);
                let gs = line(target);
                let name = format!("lines {dtype:?} {length} {w:?} {view:?} ceil {ceil} to {target}");
                differential!(name, Tolerance::EXACT, |B, device| {
                    let x = || x.float::<B>(&device);
                    let found = B::max_pool1d_with_indices(x(), size, stride, padding, dilation, ceil);
                    vec![
                        read_float::<B>(B::max_pool1d(x(), size, stride, padding, dilation, ceil)),
                        read_float::<B>(found.output),
                        read_index::<B>(found.indices),
                    ]
                });
                let terms = Terms::of(size, dtype);
                sums!(name, terms, |B, device, [g = &g]| {
                    let x = x.float::<B>(&device);
                    let at = B::max_pool1d_with_indices(x.clone(), size, stride, padding, dilation, ceil).indices;
                    let x = B::float_cast(x, g.dtype().into());
                    B::max_pool1d_with_indices_backward(x, size, stride, padding, dilation, ceil, g, at).x_grad
                });
                for include in [true, false] {
                    sums!(name, terms, |B, device, [x = &x]| {
                        B::avg_pool1d(x, size, stride, padding, include, ceil)
                    });
                }
                sums!(name, terms, |B, device, [x = &x, g = &ga]| {
                    B::avg_pool1d_backward(x, g, size, stride, padding, false, ceil)
                });
                let [there, back] = [length / target + 2, target / length + 2].map(|n| Terms::of(n, dtype));
                sums!(name, there, |B, device, [x = &x]| B::adaptive_avg_pool1d(x, target));
                for g in [&gs, &gt] {
                    sums!(name, back, |B, device, [x = &x, g = g]| B::adaptive_avg_pool1d_backward(x, g));
                }
            }
        }
    }
}

#[test]
fn patches() {
    let random = Random::new();
    for dtype in FLOATS {
        for w @ [size, stride, padding, dilation] in WINDOWS {
            let shape = [2, 3, 6 + random.below(5), 7 + random.below(90)];
            let view = View::ALL[random.below(5)];
            let x = float(&random, &shape, dtype, view, -1.0, 1.0);
            differential!(
                format!("unfold4d {dtype:?} {shape:?} {view:?} {w:?}"),
                Tolerance::EXACT,
                |B, device| {
                    let options = UnfoldOptions::new(*stride, *padding, *dilation);
                    vec![read_float::<B>(B::unfold4d(x.float::<B>(&device), *size, options))]
                }
            );
        }
    }
    let none = R::float_zeros(Shape::new([0, 3, 5, 5]), &Default::default(), FloatDType::F32);
    let out = R::unfold4d(none, [2, 2], UnfoldOptions::new([1, 1], [0, 0], [1, 1]));
    assert_eq!(out.dims(), [0, 12, 16]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let zeros =
        |shape: &[usize]| R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F32);
    let refused = |op: &str, call: &(dyn Fn() + std::panic::RefUnwindSafe)| {
        assert!(std::panic::catch_unwind(call).is_err(), "{op}");
        match burn_rocm::take_last_error() {
            Some(burn_rocm::RocmError::Invalid { op: found, .. }) => assert_eq!(found, op),
            other => panic!("{op}: {other:?}"),
        }
    };
    refused("max_pool2d", &|| {
        drop(R::max_pool2d(zeros(&[1, 1, 2, 2]), [3, 3], [1, 1], [0, 0], [1, 1], false))
    });
    refused("max_pool2d", &|| {
        drop(R::max_pool2d(zeros(&[1, 1, 9, 9]), [2, 2], [0, 1], [0, 0], [1, 1], false))
    });
    refused("max_pool1d", &|| drop(R::max_pool1d(zeros(&[1, 1, 4]), 3, 1, 0, 2, false)));
    refused("max_pool1d", &|| drop(R::max_pool1d(zeros(&[1, 1, 4, 1]), 2, 1, 0, 1, false)));
    refused("avg_pool2d", &|| {
        drop(R::avg_pool2d(zeros(&[1, 1, 2, 2]), [1, 1], [1, 1], [usize::MAX, 0], true, false))
    });
    refused("avg_pool1d", &|| drop(R::avg_pool1d(zeros(&[1, 1, 2]), 3, 1, 0, true, true)));
    refused("avg_pool2d_backward", &|| {
        drop(R::avg_pool2d_backward(
            zeros(&[1, 1, 4, 4]),
            zeros(&[1, 1, 3, 2]),
            [2, 2],
            [2, 2],
            [0, 0],
            true,
            false,
        ));
    });
    refused("adaptive_avg_pool2d", &|| {
        drop(R::adaptive_avg_pool2d(zeros(&[1, 1, 4, 4]), [1 << 16, 1 << 16]))
    });
    refused("unfold4d", &|| {
        drop(R::unfold4d(zeros(&[1, 1, 2, 2]), [3, 3], UnfoldOptions::new([1, 1], [0, 0], [1, 1])));
    });
    // The sizes of a patch multiply to 2^64.
    let far = UnfoldOptions::new([1, 1], [1 << 28, 1 << 28], [1, 1]);
    refused("unfold4d", &|| drop(R::unfold4d(zeros(&[1, 64, 1, 1]), [1 << 29, 1 << 29], far.clone())));
    // The device still works.
    let out = R::max_pool2d(zeros(&[1, 1, 4, 4]), [2, 2], [2, 2], [0, 0], [1, 1], false);
    assert_eq!(read_float::<R>(out).iter::<f64>().sum::<f64>(), 0.0);
}
