//! Convolutions with few weights for each output channel, by the kernels for them, in every order of
//! operands.

use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

use crate::{Image, is_last, on};

/// Runs the test below with this project's kernels alone, on the device and on blocks of threads in
/// lockstep.
#[test]
fn by_own_kernels() {
    let own = ("BURN_ROCM_CONV", "own");
    for test in ["few::few_weights", "few::few_channels"] {
        for more in [None, Some("32"), Some("64")] {
            let wave = more.map(|wave| ("BURN_ROCM_CPU_WAVE", wave));
            let settings: Vec<_> = [own].into_iter().chain(wave).collect();
            let text = again(&[test, "--exact", "--ignored"], &settings);
            assert!(text.contains("1 passed"), "{text}");
        }
    }
}

/// Few input channels in larger windows with a stride of 2, on matrix cores where there are some.
#[test]
#[ignore = "run by the test above, with the setting in the environment"]
fn few_channels() {
    on();
    let random = Random::new();
    let device = hip::Device::get(0).unwrap();
    for (dtype, kernel_type) in [(DType::F16, hip::DType::F16), (DType::BF16, hip::DType::BF16)] {
        for round in 0..6 {
            let (from, to, window) = match round % 3 {
                0 => (3, 64, [7, 7]),
                1 => (4, 16 * (1 + random.below(4)), [1 + random.below(7), 8]),
                _ => (3, 48, [6, 5]),
            };
            let wide = if round == 5 { 280 } else { 9 + random.below(30) };
            let (n, size) = (1 + random.below(2), [7 + random.below(6), wide]);
            let (stride, padding) = ([1 + random.below(3), 2], [random.below(4), random.below(4)]);
            let options = || ConvOptions::<2>::new(stride, padding, [1, 1], 1);
            let x = Image::draw(&random, [n, from, size[0], size[1]], dtype);
            let w = float(&random, &[to, from, window[0], window[1]], dtype, View::Contiguous, -1.0, 1.0);
            let what = format!("{dtype:?}, {n} x {from} x {size:?}, {to} of {window:?}, {:?}", options());
            let terms = Terms::of(from * window[0] * window[1], dtype);
            sums!(what, terms, |B, device, [xs = &x.stored, ws = &w]| {
                B::conv2d(x.seen::<B>(xs), ws, None, options())
            });
            let (x, w) = (x.float::<R>(), w.float::<R>(&Default::default()));
            let (_, lines) = during(|| R::conv2d(x, w, None, options()));
            if device.info().matrix_cores(kernel_type, false).unwrap().is_some() {
                let kernel = lines.iter().any(|line| line.contains("kernel conv_few_matrix"));
                assert!(kernel, "{what}: {lines:#?}");
            }
        }
    }
}

#[test]
#[ignore = "run by the test above, with the setting in the environment"]
fn few_weights() {
    on();
    let random = Random::new();
    let is_gpu = hip::Device::get(0).unwrap().info().max_threads_per_block > 1;
    for dtype in FLOATS {
        for round in 0..8 {
            // Up to 9 weights for each output channel, or up to 27.
            let (from, window, to) = match round % 4 {
                0 => (1, [3, 3], 8 * (1 + random.below(5))),
                1 => (1 + random.below(4), [2, 1], 8 * (1 + random.below(12))),
                2 => (3, [3, 3], 2 * (1 + random.below(40))),
                _ => (1, [5, 5], 2 * (1 + random.below(6))),
            };
            let each = |low: usize, below: usize| [(); 2].map(|()| low + random.below(below - low));
            let (n, size) = (1 + random.below(5), each(7, 25));
            let (stride, padding, dilation) = (each(1, 4), each(0, 4), each(1, 3));
            let reach = [0, 1].map(|d| dilation[d] * (window[d] - 1) + 1);
            let out = [0, 1].map(|d| (size[d].max(reach[d]) + 2 * padding[d] - reach[d]) / stride[d] + 1);
            let size = [0, 1].map(|d| size[d].max(reach[d]));
            let options = || ConvOptions::<2>::new(stride, padding, dilation, 1);
            let x = Image::draw(&random, [n, from, size[0], size[1]], dtype);
            let w = float(&random, &[to, from, window[0], window[1]], dtype, View::Contiguous, -1.0, 1.0);
            let g = Image::draw(&random, [n, to, out[0], out[1]], dtype);
            let what = format!(
                "{dtype:?}, {n} x {from} x {size:?}, {to} of {window:?}, {:?}, last {:?}",
                options(),
                [x.last, g.last]
            );
            let terms = Terms::of(from * window[0] * window[1], dtype);
            sums!(what, terms, |B, device, [xs = &x.stored, ws = &w]| {
                B::conv2d(x.seen::<B>(xs), ws, None, options())
            });
            let terms = Terms::of(n * out[0] * out[1], dtype);
            sums!(what, terms, |B, device, [xs = &x.stored, ws = &w, gs = &g.stored]| {
                B::conv2d_weight_backward(x.seen::<B>(xs), ws, g.seen::<B>(gs), options())
            });
            let (x, w, g) = (x.float::<R>(), w.float::<R>(&Default::default()), g.float::<R>());
            let last = is_last(&g);
            let (y, lines) = during(|| R::conv2d(x.clone(), w.clone(), None, options()));
            if is_gpu && dtype != DType::F64 && to % 8 == 0 {
                let kernel = lines.iter().any(|line| line.contains("kernel conv_few_forward<"));
                assert!(kernel, "{what}: {lines:#?}");
                let one = out[0] * out[1] == 1; // both orders at once
                let expected = matches!(dtype, DType::F16 | DType::BF16) && !one;
                assert_eq!(is_last(&y), expected, "{what}: the result's order");
            }
            let (gradient, lines) = during(|| R::conv2d_weight_backward(x, w, g, options()));
            if is_gpu && dtype != DType::F64 {
                let kernel = lines.iter().any(|line| line.contains("kernel conv_few_weights<"));
                assert!(kernel, "{what}: {lines:#?}");
                assert!(!last || is_last(&gradient) || from == 1, "{what}: the gradient's order");
            }
        }
    }
}
