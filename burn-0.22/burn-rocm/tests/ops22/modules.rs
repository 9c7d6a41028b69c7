//! Ops of layers that Burn 0.22 added, or that have more options than in 0.21.

use burn_std::ops::{
    ConvOptions, GridSampleOptions, GridSamplePaddingMode, InterpolateMode, InterpolateOptions, UnfoldOptions,
};

use crate::again::again;
use crate::harness::*;
use crate::same;

/// Whole numbers. Sums of their products are exact, so every way to compute them gives the same
/// bits.
fn whole(random: &Random, shape: &[usize], dtype: DType) -> Input {
    Input::new(shape, dtype, view(random), || random.below(5) as f64 - 2.0)
}

/// Folding adds each element as often as it was cut.
#[test]
fn fold4d() {
    let random = Random::new();
    for (size, kernel, stride, padding, dilation) in [
        ([6, 7], [3, 2], [1, 1], [0, 0], [1, 1]),
        ([8, 5], [2, 2], [2, 3], [1, 0], [1, 1]),
        ([9, 9], [3, 3], [2, 2], [1, 2], [2, 1]),
        ([4, 4], [1, 1], [1, 1], [0, 0], [1, 1]),
    ] {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            for channels in [1, 3] {
                let blocks = |axis: usize| {
                    (size[axis] + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) / stride[axis]
                        + 1
                };
                let shape = [2, channels * kernel[0] * kernel[1], blocks(0) * blocks(1)];
                let x = whole(&random, &shape, dtype);
                let options = || UnfoldOptions::new(stride, padding, dilation);
                same!(
                    format!("fold4d {dtype:?} {size:?} {kernel:?} {stride:?} {padding:?} {dilation:?}"),
                    |B, device| {
                        vec![read_float::<B>(B::fold4d(x.float::<B>(&device), size, kernel, options()))]
                    }
                );
                let image = whole(&random, &[2, channels, size[0], size[1]], dtype);
                same!(format!("unfold4d {dtype:?} {size:?} {kernel:?}"), |B, device| {
                    vec![read_float::<B>(B::unfold4d(image.float::<B>(&device), kernel, options()))]
                });
            }
        }
    }
}

/// The convolution of `x` with `w`, and the gradients of both for a gradient of the output's signs,
/// summed term by term.
fn convolved(
    [x, w]: [(&[f64], &[usize]); 2],
    bias: &[f64],
    pads: &[(usize, usize)],
    [stride, dilation, groups]: [usize; 3],
) -> [Vec<f64>; 3] {
    let out: Vec<usize> = (0..pads.len())
        .map(|axis| {
            let (before, behind) = pads[axis];
            (x.1[axis + 2] + before + behind - dilation * (w.1[axis + 2] - 1) - 1) / stride + 1
        })
        .collect();
    let (batch, outputs, inputs) = (x.1[0], w.1[0], w.1[1]);
    let (places, taps): (usize, usize) = (out.iter().product(), w.1[2..].iter().product());
    // For each output, its index in `n * outputs * places`, and the indices of its terms in x and
    // w.
    let mut terms = Vec::new();
    for (n, o, place) in
        (0..batch * outputs * places).map(|i| (i / places / outputs, i / places % outputs, i % places))
    {
        for (c, tap) in (0..inputs * taps).map(|i| (i / taps, i % taps)) {
            let channel = o / (outputs / groups) * inputs + c;
            let (mut at, mut rest_place, mut rest_tap, mut step) = (Some(0), place, tap, 1);
            for axis in (0..pads.len()).rev() {
                let padded = rest_place % out[axis] * stride + rest_tap % w.1[axis + 2] * dilation;
                let inside = padded.checked_sub(pads[axis].0).filter(|inside| *inside < x.1[axis + 2]);
                at = at.zip(inside).map(|(at, inside)| at + inside * step);
                (rest_place, rest_tap, step) =
                    (rest_place / out[axis], rest_tap / w.1[axis + 2], step * x.1[axis + 2]);
            }
            if let Some(at) = at {
                let of_x = (n * x.1[1] + channel) * step + at;
                terms.push(((n * outputs + o) * places + place, of_x, (o * inputs + c) * taps + tap));
            }
        }
    }
    let mut y: Vec<f64> = (0..batch * outputs * places).map(|i| bias[i / places % outputs]).collect();
    for &(to, of_x, of_w) in &terms {
        y[to] += x.0[of_x] * w.0[of_w];
    }
    let sign = |y: f64| if y == 0.0 { 0.0 } else { y.signum() };
    let (mut dx, mut dw) = (vec![0.0; x.0.len()], vec![0.0; w.0.len()]);
    for &(to, of_x, of_w) in &terms {
        dx[of_x] += sign(y[to]) * w.0[of_w];
        dw[of_w] += sign(y[to]) * x.0[of_x];
    }
    [y, dx, dw]
}

/// A convolution of each rank with more padding before than after, and its gradients. Sums of whole
/// numbers are exact.
macro_rules! padded_conv {
    ($random:ident, $dtype:ident, $what:expr, $rank:literal, $x:expr, $w:expr, $pads:expr, $options:ident,
     $conv:ident, $x_backward:ident, $weight_backward:ident) => {{
        let (x, w, bias) =
            (whole(&$random, &$x, $dtype), whole(&$random, &$w, $dtype), whole(&$random, &$w[..1], $dtype));
        let [stride, dilation, groups] = $options;
        let options =
            || ConvOptions::<$rank>::new_with_padding([stride; $rank], $pads, [dilation; $rank], groups);
        let device = device();
        let [ours, weight] = [x.float::<R>(&device), w.float::<R>(&device)];
        let y = R::$conv(ours.clone(), weight.clone(), Some(bias.float::<R>(&device)), options());
        let grad = R::float_sign(y.clone());
        let found = [
            read_float::<R>(y),
            read_float::<R>(R::$x_backward(ours.clone(), weight.clone(), grad.clone(), options())),
            read_float::<R>(R::$weight_backward(ours, weight, grad, options())),
        ];
        let operands = [(&exact(&x)[..], &$x[..]), (&exact(&w)[..], &$w[..])];
        let expected = convolved(operands, &exact(&bias), &$pads, $options);
        for ((found, expected), name) in
            found.iter().zip(&expected).zip(["y", "x's gradient", "w's gradient"])
        {
            let what = format!("{} {}: {name}", stringify!($conv), $what);
            assert_within(&what, found, expected, &vec![0.0; expected.len()]);
        }
    }};
}

#[test]
fn asymmetric_padding() {
    let random = Random::new();
    for dtype in [DType::F32, DType::F64] {
        for (pads, stride, dilation, groups) in [
            ([(1, 0), (0, 2)], 1, 1, 1),
            ([(0, 3), (2, 1)], 2, 1, 2),
            ([(2, 2), (1, 3)], 1, 2, 1),
            ([(2, 0), (0, 0)], 3, 2, 2),
        ] {
            let what = format!("{dtype:?} {pads:?} stride {stride} dilation {dilation} groups {groups}");
            let (inputs, options) = (4 / groups, [stride, dilation, groups]);
            padded_conv!(
                random,
                dtype,
                what,
                1,
                [2usize, 4, 9],
                [6usize, inputs, 3],
                [pads[0]],
                options,
                conv1d,
                conv1d_x_backward,
                conv1d_weight_backward
            );
            padded_conv!(
                random,
                dtype,
                what,
                2,
                [2usize, 4, 9, 8],
                [6usize, inputs, 3, 2],
                pads,
                options,
                conv2d,
                conv2d_x_backward,
                conv2d_weight_backward
            );
            let three = [pads[0], (1, 2), pads[1]];
            padded_conv!(
                random,
                dtype,
                what,
                3,
                [1usize, 4, 6, 7, 5],
                [2usize, inputs, 2, 2, 2],
                three,
                options,
                conv3d,
                conv3d_x_backward,
                conv3d_weight_backward
            );
        }
    }
}

/// Ranks and paddings that no convolution has.
#[test]
fn asymmetric_padding_is_checked() {
    let ones = |shape: &[usize]| R::float_ones(Shape::from(shape.to_vec()), &device(), FloatDType::F32);
    let options = |padding| ConvOptions::<2>::new_with_padding([1, 1], padding, [1, 1], 1);
    for (x, padding) in
        [(&[3usize] as &[usize], [(1, 0), (0, 2)]), (&[1, 2, 5, 5], [(usize::MAX, 0), (0, 2)])]
    {
        let error = refused("an input's gradient", || {
            R::conv2d_x_backward(ones(x), ones(&[2, 2, 3, 3]), ones(&[1, 2, 4, 5]), options(padding))
        });
        assert!(matches!(error, RocmError::Invalid { op: "conv2d_x_backward", .. }), "{x:?}: {error:?}");
    }
}

/// Means of up to 27 * 2 elements, and the gradient that shares each out: 60 roundings of magnitudes up to 2.
#[test]
fn adaptive_avg_pool3d() {
    let random = Random::new();
    for dtype in FLOATS {
        for (size, to) in
            [([4, 6, 5], [2, 3, 5]), ([5, 7, 3], [3, 2, 2]), ([3, 3, 3], [1, 1, 1]), ([2, 3, 4], [4, 3, 2])]
        {
            let x = float(&random, &[2, 3, size[0], size[1], size[2]], dtype, view(&random), -2.0, 2.0);
            let grad = float(&random, &[2, 3, to[0], to[1], to[2]], dtype, view(&random), -2.0, 2.0);
            let what = format!("adaptive_avg_pool3d {dtype:?} {size:?} to {to:?}");
            let device = device();
            let found = read_float::<R>(R::adaptive_avg_pool3d(x.float::<R>(&device), to));
            let back = R::adaptive_avg_pool3d_backward(x.float::<R>(&device), grad.float::<R>(&device));
            let oracle = Default::default();
            let in_f64 = |input: &Input| O::float_cast(input.float::<O>(&oracle), FloatDType::F64);
            let expected = values(&read_float::<O>(O::adaptive_avg_pool3d(in_f64(&x), to)));
            let back_expected =
                values(&read_float::<O>(O::adaptive_avg_pool3d_backward(in_f64(&x), in_f64(&grad))));
            // The pools of two axes and of the third are two steps, of which the second is rounded to the dtype.
            let limit = |y: &f64| {
                let computed = 2.0 * 60.0 * 2.0 * unit(wide(dtype));
                computed + rounding(dtype) * (y.abs() + computed) + least(dtype)
            };
            assert_within(&what, &found, &expected, &expected.iter().map(limit).collect::<Vec<_>>());
            // An input is in at most 8 windows where the output is larger.
            let limit = |y: &f64| {
                let computed = 8.0 * 2.0 * 60.0 * 2.0 * unit(wide(dtype));
                computed + rounding(dtype) * (y.abs() + computed) + least(dtype)
            };
            assert_within(
                &what,
                &read_float::<R>(back),
                &back_expected,
                &back_expected.iter().map(limit).collect::<Vec<_>>(),
            );
        }
    }
}

/// 300 windows of 300 along the depth sum to more than f16 holds, before nine pixels share the sum.
#[test]
fn adaptive_avg_pool3d_sums_beyond_f16() {
    let ones = |shape: &[usize], value: f64| {
        let scalar = Scalar::Float(value);
        R::float_full(Shape::from(shape.to_vec()), scalar, &device(), FloatDType::F16)
    };
    let back = R::adaptive_avg_pool3d_backward(ones(&[1, 1, 1, 3, 3], 1.0), ones(&[1, 1, 300, 1, 1], 300.0));
    // 90,000 / 9.
    assert_eq!(values(&read_float::<R>(back)), [10_000.0; 9]);
    let error = refused("a gradient of another batch", || {
        R::adaptive_avg_pool3d_backward(ones(&[2, 3, 4, 4, 4], 1.0), ones(&[3, 2, 2, 2, 2], 1.0))
    });
    assert!(matches!(error, RocmError::Invalid { op: "adaptive_avg_pool3d_backward", .. }), "{error:?}");
}

/// The pixel that holds the output pixel's centre: copies and sums of whole numbers, so no
/// rounding. burn-flex has none.
#[test]
fn nearest_exact() {
    let random = Random::new();
    for dtype in FLOATS {
        // In the last two cases a centre lies on the border of two pixels.
        for (from, to) in [
            ([5, 7], [10, 14]),
            ([5, 7], [3, 4]),
            ([6, 6], [6, 6]),
            ([3, 4], [7, 5]),
            ([2, 26], [49, 23]),
            ([24, 18], [44, 33]),
        ] {
            let x = whole(&random, &[2, 3, from[0], from[1]], dtype);
            let grad = whole(&random, &[2, 3, to[0], to[1]], dtype);
            let options = || InterpolateOptions::new(InterpolateMode::NearestExact);
            let [input, sent] = [&x, &grad].map(|input| input.float::<R>(&device()));
            let found = read_float::<R>(R::interpolate(input.clone(), to, options()));
            let back = read_float::<R>(R::interpolate_backward(input, sent, to, options()));
            // The centre of output pixel i of n lies in input pixel `(i + 1/2) * m / n`.
            let nearest = |i: usize, m: usize, n: usize| (2 * i + 1) * m / (2 * n);
            let [image, sent] = [exact(&x), exact(&grad)];
            let (mut expected, mut sums) = (Vec::new(), vec![0.0; image.len()]);
            for (i, value) in sent.iter().enumerate() {
                let (plane, row, column) = (i / (to[0] * to[1]), i / to[1] % to[0], i % to[1]);
                let (row, column) = (nearest(row, from[0], to[0]), nearest(column, from[1], to[1]));
                let at = (plane * from[0] + row) * from[1] + column;
                expected.push(image[at]);
                sums[at] += value;
            }
            let what = format!("interpolate {dtype:?} {from:?} to {to:?}");
            assert_within(&what, &found, &expected, &vec![0.0; expected.len()]);
            assert_within(&what, &back, &sums, &vec![0.0; sums.len()]);
        }
        // burn-flex samples in `Nearest` alone. A sample's pixel is the one with the nearest centre
        // in both modes.
        let (x, grid) = (
            whole(&random, &[2, 3, 5, 6], dtype),
            float(&random, &[2, 4, 7, 2], dtype, view(&random), -1.2, 1.2),
        );
        let sample = |mode| {
            let [x, grid] = [x.float::<R>(&device()), grid.float::<R>(&device())];
            read_float::<R>(R::float_grid_sample_2d(x, grid, GridSampleOptions::new(mode)))
        };
        let found = [InterpolateMode::NearestExact, InterpolateMode::Nearest].map(sample);
        assert_same(&format!("grid sample {dtype:?}"), &found[..1], &found[1..]);
        assert!(values(&found[0]).iter().any(|value| *value != 0.0));
    }
}

/// Of two pixels with the same distance, the one with the even index is sampled.
#[test]
fn grid_sample_ties() {
    let random = Random::new();
    for (size, align) in [(2, false), (4, false), (8, false), (5, true), (9, true)] {
        // A step is half a pixel. Every dtype holds the coordinates exactly.
        let step = 1.0 / (size - usize::from(align)) as f64;
        let points = 2 * size + 3;
        for dtype in FLOATS {
            let x = whole(&random, &[1, 2, size, size], dtype);
            let mut at = (0..points).flat_map(|i| [(i as f64 - 1.0) * step - 1.0, 0.0]);
            let grid = Input::new(&[1, 1, points, 2], dtype, View::Contiguous, || at.next().unwrap());
            for padding in [
                GridSamplePaddingMode::Zeros,
                GridSamplePaddingMode::Border,
                GridSamplePaddingMode::Reflection,
            ] {
                same!(format!("grid sample {dtype:?} of {size}, {align}, {padding:?}"), |B, device| {
                    let options = GridSampleOptions::new(InterpolateMode::Nearest)
                        .with_padding_mode(padding)
                        .with_align_corners(align);
                    let (x, grid) = (x.float::<B>(&device), grid.float::<B>(&device));
                    vec![read_float::<B>(B::float_grid_sample_2d(x, grid, options))]
                });
            }
        }
    }
}

/// A NaN is its window's maximum. The last NaN of a window gives the index and gets the gradient.
/// This holds for channels-first and for channels-last memory.
#[test]
fn max_pool_of_nan() {
    const ORDER: &str = "BURN_ROCM_CHANNELS_LAST";
    if std::env::var_os(ORDER).is_none() {
        again(&["--exact", "modules::max_pool_of_nan"], &[(ORDER, "on")]);
    }
    let random = Random::new();
    for dtype in FLOATS {
        // Eight channels of a 16-bit type fill 16 bytes.
        for channels in [3, 8] {
            let stored = [2, 9, 11, channels];
            let image = Input::new(&stored, dtype, View::Contiguous, || match random.below(8) {
                0 => f64::NAN,
                1 => f64::NEG_INFINITY,
                other => other as f64,
            });
            for axes in [[0, 1, 2, 3], [0, 3, 1, 2]] {
                same!(format!("max_pool of NaN {dtype:?} {channels} {axes:?}"), |B, device| {
                    let x = B::float_permute(image.float::<B>(&device), &axes);
                    let (k, s, p, d) = ([3, 2], [2, 1], [1, 0], [1, 1]);
                    let found = B::max_pool2d_with_indices(x.clone(), k, s, p, d, false, IntDType::I64);
                    // Sums of ones are exact.
                    let grad = B::float_ones(found.output.shape(), &device, dtype.into());
                    let indices = found.indices.clone();
                    let back =
                        B::max_pool2d_with_indices_backward(x.clone(), k, s, p, d, false, grad, indices);
                    let plain = B::max_pool2d(x.clone(), [3, 3], [1, 1], [1, 1], [1, 2], false);
                    let [n, c, h, w] = axes.map(|axis| stored[axis]);
                    let line = B::float_reshape(x, Shape::from([n * c, h, w]));
                    vec![
                        read_float::<B>(found.output),
                        read_int::<B>(found.indices),
                        read_float::<B>(back.x_grad),
                        read_float::<B>(plain),
                        read_float::<B>(B::max_pool1d(line, 3, 2, 1, 1, false)),
                    ]
                });
            }
        }
    }
}

/// In ceil mode no window starts in the padding behind the input, and a window may be up to
/// `stride - 1` larger than the padded input. The divisors are powers of two, so the means are exact.
#[test]
fn pooling_in_ceil_mode() {
    let random = Random::new();
    for (size, window, stride, padding) in [
        // The last window would start in the padding, or beyond the input.
        (5, 2, 2, 1),
        (5, 1, 3, 0),
        (6, 2, 3, 0),
        (4, 2, 3, 1),
        // The window exceeds the padded input.
        (2, 3, 2, 0),
        (2, 5, 3, 1),
        // The last window is incomplete, and complete.
        (5, 2, 2, 0),
        (6, 2, 2, 0),
    ] {
        let (k, s, p) = ([window; 2], [stride; 2], [padding; 2]);
        for dtype in FLOATS {
            let x = whole(&random, &[2, 3, size, size], dtype);
            let what = format!("{dtype:?}: {window} by {stride} over {size} with {padding}");
            for include in [false, true] {
                same!(format!("avg_pool {what}, {include}"), |B, device| {
                    let x = x.float::<B>(&device);
                    let line = B::float_reshape(x.clone(), Shape::from([6, size, size]));
                    let mean = B::avg_pool2d(x.clone(), k, s, p, include, true);
                    let back = B::avg_pool2d_backward(x, mean.clone(), k, s, p, include, true);
                    let on_line = B::avg_pool1d(line, window, stride, padding, include, true);
                    [mean, back, on_line].map(read_float::<B>).into()
                });
            }
            same!(format!("max_pool {what}"), |B, device| {
                let x = x.float::<B>(&device);
                let found = B::max_pool2d_with_indices(x.clone(), k, s, p, [1, 1], true, IntDType::I64);
                let (grad, indices) = (found.output.clone(), found.indices.clone());
                let back =
                    B::max_pool2d_with_indices_backward(x.clone(), k, s, p, [1, 1], true, grad, indices);
                vec![
                    read_float::<B>(found.output),
                    read_int::<B>(found.indices),
                    read_float::<B>(back.x_grad),
                    read_float::<B>(B::max_pool2d(x, k, s, p, [1, 1], true)),
                ]
            });
        }
    }
    let ones = R::float_ones(Shape::from([1, 1, 2, 2]), &device(), FloatDType::F32);
    let error = refused("a larger window", || R::max_pool2d(ones, [4, 4], [2, 2], [0, 0], [1, 1], true));
    assert!(matches!(error, RocmError::Invalid { op: "max_pool2d", .. }), "{error:?}");
}

/// The indices of maxima have the requested type. No window has NaN or ties.
#[test]
fn max_pool_indices() {
    let random = Random::new();
    let mut order: Vec<f64> = (0..2 * 3 * 8 * 9).map(f64::from).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at + 1));
    }
    let mut next = order.into_iter();
    let x = Input::new(&[2, 3, 8, 9], DType::F32, View::Contiguous, || next.next().unwrap());
    for dtype in [IntDType::I32, IntDType::I64, IntDType::U32, IntDType::I16] {
        same!(format!("max_pool2d_with_indices {dtype:?}"), |B, device| {
            let x = x.float::<B>(&device);
            let out = B::max_pool2d_with_indices(x.clone(), [3, 2], [2, 1], [1, 0], [1, 2], true, dtype);
            let line = B::float_reshape(x, Shape::from([6, 8, 9]));
            let on_line = B::max_pool1d_with_indices(line, 3, 2, 1, 1, false, dtype);
            vec![
                read_float::<B>(out.output),
                read_int::<B>(out.indices),
                read_float::<B>(on_line.output),
                read_int::<B>(on_line.indices),
            ]
        });
    }
}

/// A query without visible keys gets 0 instead of NaN, with a mask alone and with a causal mask.
#[test]
fn attention_to_nothing() {
    let random = Random::new();
    for dtype in FLOATS {
        for is_causal in [false, true] {
            let shape = [2, 2, 5, 8];
            let [query, key, value] =
                [(); 3].map(|()| float(&random, &shape, dtype, view(&random), -1.0, 1.0));
            // In every head query 1 sees no key. Query 0 sees only masked keys if attention is
            // causal.
            let mut at = 0..;
            let mask = Input::new(&[2, 2, 5, 5], DType::Bool(BoolStore::Native), View::Contiguous, || {
                let i: usize = at.next().unwrap();
                let (row, column) = (i / 5 % 5, i % 5);
                f64::from(row == 1 || row == 0 && column == 0)
            });
            let device = device();
            let [query, key, value] = [query, key, value].map(|input| input.float::<R>(&device));
            let options = burn_std::ops::AttentionModuleOptions { is_causal, ..Default::default() };
            let out = R::attention(query, key, value, Some(mask.bool::<R>(&device)), None, options);
            for (i, value) in values(&read_float::<R>(out)).into_iter().enumerate() {
                let row = i / 8 % 5;
                let nothing = row == 1 || row == 0 && is_causal;
                assert!(
                    value.is_finite() && (value == 0.0) == nothing,
                    "{dtype:?} {is_causal} row {row}: {value}"
                );
            }
        }
    }
}
