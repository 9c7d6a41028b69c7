//! `BURN_ROCM_CHANNELS_LAST=on`: convolutions and what follows them with the channels innermost in
//! memory. Results against burn-flex and f64, and the copies of a training step.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Once;

use burn::backend::Autodiff;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::Backend as Tensors;
use burn::tensor::{Distribution, Tensor, activation::relu};
use burn_backend::tensor::FloatTensor;
use burn_rocm::fused::{
    Act, BatchNormed, Conv2dOptions, add_act, batch_norm_backward, batch_norm_infer, batch_norm_train,
    bias_act, bias_act_backward, conv_act,
};
use burn_rocm::{ChannelsLast, Config, RocmTensor};
use burn_rocm_nn::amp::Precision;
use burn_rocm_nn::optim::AdamConfig;
use burn_rocm_nn::{AddAct, BatchNorm, BatchNormConfig};
use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;
use serial_test::serial;

type A = Autodiff<R>;

/// The dtypes whose convolutions put channels last.
const LAST: [DType; 2] = [DType::F16, DType::BF16];

/// Turns the setting on for this process.
fn on() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        Config::from_env().unwrap().channels_last(ChannelsLast::On).install().expect("no device was used");
    });
}

/// Whether the channels of a tensor of rank 4 are innermost in memory.
fn is_last(tensor: &RocmTensor) -> bool {
    R::float_permute(tensor.clone(), &[0, 2, 3, 1]).is_contiguous() && !tensor.is_contiguous()
}

/// An input of shape `[batch, channels, height, width]`, which is stored with its channels last or
/// in one of the other layouts.
struct Image {
    stored: Input,
    last: bool,
}

impl Image {
    fn draw(random: &Random, [n, c, h, w]: [usize; 4], dtype: DType) -> Self {
        let last = random.below(2) == 0;
        let view = if last { View::Contiguous } else { View::ALL[random.below(4)] };
        let shape = if last { [n, h, w, c] } else { [n, c, h, w] };
        Self { stored: float(random, &shape, dtype, view, -1.0, 1.0), last }
    }

    fn seen<B: Backend>(&self, stored: FloatTensor<B>) -> FloatTensor<B> {
        if self.last { B::float_permute(stored, &[0, 3, 1, 2]) } else { stored }
    }

    fn float<B: Backend>(&self) -> FloatTensor<B> {
        self.seen::<B>(self.stored.float::<B>(&Default::default()))
    }
}

#[test]
fn convolutions_of_every_layout() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        for _ in 0..20 {
            let groups = 1 + random.below(3);
            // Half of the cases have a multiple of 8 channels in each group.
            let (unit, most) = [(1, 6), (8, 2)][random.below(2)];
            let [from, to] = [(); 2].map(|()| groups * unit * (1 + random.below(most)));
            let each = |low: usize, below: usize| [(); 2].map(|()| low + random.below(below - low));
            let (n, size, window) = (1 + random.below(3), each(3, 11), each(1, 4));
            let (stride, padding, dilation) = (each(1, 4), each(0, 3), each(1, 2));
            let out = [0, 1].map(|d| (size[d] + 2 * padding[d] - window[d]) / stride[d] + 1);
            let options = || ConvOptions::<2>::new(stride, padding, dilation, groups);
            let x = Image::draw(&random, [n, from, size[0], size[1]], dtype);
            let w = Image::draw(&random, [to, from / groups, window[0], window[1]], dtype);
            let g = Image::draw(&random, [n, to, out[0], out[1]], dtype);
            let b = float(&random, &[to], dtype, View::Contiguous, -1.0, 1.0);
            let what = format!(
                "{dtype:?}, {n} x {from} x {size:?}, {to} of {window:?}, {groups} groups, {:?}, last {:?}",
                options(),
                [x.last, w.last, g.last]
            );
            let taps = window[0] * window[1];
            let there = Terms { bias: true, ..Terms::of(from / groups * taps, dtype) };
            sums!(what, there, |B, device, [xs = &x.stored, ws = &w.stored, b = &b]| {
                B::conv2d(x.seen::<B>(xs), w.seen::<B>(ws), Some(b), options())
            });
            let by_input = Terms::in_parts(to / groups * taps, 1, dtype);
            sums!(what, by_input, |B, device, [xs = &x.stored, ws = &w.stored, gs = &g.stored]| {
                B::conv2d_x_backward(x.seen::<B>(xs), w.seen::<B>(ws), g.seen::<B>(gs), options())
            });
            let places = n * out[0] * out[1];
            let by_weight = Terms::in_parts(places, n, dtype);
            sums!(what, by_weight, |B, device, [xs = &x.stored, ws = &w.stored, gs = &g.stored]| {
                B::conv2d_weight_backward(x.seen::<B>(xs), w.seen::<B>(ws), g.seen::<B>(gs), options())
            });
            sums!(what, Terms::of(places, dtype), |B, device, [xs = &x.stored, b = &b, gs = &g.stored]| {
                B::conv2d_bias_backward(x.seen::<B>(xs), b, g.seen::<B>(gs))
            });
        }
    }
}

/// Whether the library has each convolution in both orders. That of the CPU device has; cuDNN and
/// MIOpen may lack one, which then runs row-major, and these tests print what they find.
fn takes_each_order() -> bool {
    hip::Device::get(0).unwrap().provider().kind() == hip::ProviderKind::Cpu
}

/// In f16 and bf16, all three directions leave their channels last if both sides have a multiple of
/// 8. With fewer channels in a group they do so only for an operand whose channels are last. f32 and
/// f64 are row-major whatever the operands' order.
#[test]
fn results_have_their_channels_last() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        // Input channels, output channels, groups, whether the result is NHWC for a row-major
        // operand and for one in NHWC.
        let cases = [
            (8, 16, 1, [true, true]),
            (3, 16, 1, [false, false]),
            (1, 8, 1, [false, false]),
            (16, 12, 1, [false, false]),
            (16, 32, 2, [true, true]),
            (16, 16, 4, [false, true]),
            (8, 8, 8, [false, true]),
        ];
        for (from, to, groups, expected) in cases {
            for (last, expected) in [false, true].into_iter().zip(expected) {
                let draw = |shape: [usize; 4]| {
                    let values = float(&random, &shape, dtype, View::Contiguous, -1.0, 1.0);
                    let values = values.float::<R>(&Default::default());
                    if last { in_last(&values) } else { values }
                };
                let (x, w) = (draw([2, from, 6, 6]), draw([to, from / groups, 3, 3]));
                let g = draw([2, to, 6, 6]);
                let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], groups);
                let expected = expected && LAST.contains(&dtype);
                let y = R::conv2d(x.clone(), w.clone(), None, options());
                let dx = R::conv2d_x_backward(x.clone(), w.clone(), g.clone(), options());
                let dw = R::conv2d_weight_backward(x, w, g, options());
                let found = [&y, &dx, &dw].map(is_last);
                let what = format!("{dtype:?}, {from} to {to} in {groups} groups, last {last}");
                // Weights of one channel lie in both orders at once.
                let of_weights = expected && from > groups;
                match takes_each_order() {
                    true => assert_eq!(found, [expected, expected, of_weights], "{what}"),
                    false if expected => println!("{what}: channels last in y, dx, dw: {found:?}"),
                    false => assert_eq!(found, [false; 3], "{what}"),
                }
                // What reads a shape only sees no difference.
                assert_eq!(y.dims(), [2, to, 6, 6]);
            }
        }
    }
}

/// f32 does not change its order: of operands in both orders an element-wise op makes no copy, and a
/// convolution copies only what is not row-major.
#[test]
fn f32_stays_row_major() {
    on();
    let of = |shape: [usize; 4]| R::float_ones(Shape::from(shape), &Default::default(), FloatDType::F32);
    let (x, w) = (of([2, 8, 6, 6]), of([8, 8, 3, 3]));
    let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    let (y, lines) = during(|| R::conv2d(x.clone(), w.clone(), None, options()));
    assert!(!is_last(&y));
    assert_eq!(copies(&lines), [""; 0]);
    let ((sum, pooled), lines) = during(|| {
        let last = || R::float_permute(of([2, 6, 6, 8]), &[0, 3, 1, 2]);
        let pooled = R::avg_pool2d(last(), [2, 2], [2, 2], [0, 0], true, false);
        (R::float_add(last(), y.clone()), pooled)
    });
    assert!(!is_last(&sum) && !is_last(&pooled));
    let copies = copies(&lines);
    assert!(copies.len() == 1 && copies[0].starts_with("avg_pool2d "), "{copies:?}");
}

/// Element-wise ops keep the order if their operands share it, without a copy.
#[test]
fn element_wise_ops_keep_the_order() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        let of = |shape: &[usize]| float(&random, shape, dtype, View::Contiguous, -1.0, 1.0);
        let (a, b, other) = (of(&[2, 5, 7, 6]), of(&[2, 5, 7, 6]), of(&[2, 6, 5, 7]));
        let channel = of(&[1, 6, 1, 1]);
        differential!(format!("{dtype:?}"), Tolerance::of(dtype), |B, device| {
            let last = |input: &Input| B::float_permute(input.float::<B>(&device), &[0, 3, 1, 2]);
            let (a, b, channel) = (last(&a), last(&b), channel.float::<B>(&device));
            let mask = B::float_greater(a.clone(), b.clone(), BoolStore::Native);
            vec![
                read_float::<B>(B::float_add(a.clone(), b.clone())),
                read_float::<B>(B::float_mul(a.clone(), channel.clone())),
                read_float::<B>(B::float_sub(channel, b.clone())),
                read_float::<B>(B::float_add(a.clone(), other.float::<B>(&device))),
                read_float::<B>(B::float_sub(other.float::<B>(&device), a.clone())),
                read_float::<B>(B::float_mask_where(a.clone(), mask.clone(), b.clone())),
                read_float::<B>(B::float_mask_fill(b.clone(), mask, 0.5f64.into())),
                read_float::<B>(B::relu(a.clone())),
                read_float::<B>(B::relu_backward(B::relu(a), b)),
            ]
        });
        let last = |input: &Input| R::float_permute(input.float::<R>(&Default::default()), &[0, 3, 1, 2]);
        let channel = channel.float::<R>(&Default::default());
        let (results, lines) = during(|| {
            let mask = R::float_greater_elem(last(&a), 0.0f64.into(), BoolStore::Native);
            [
                R::float_add(last(&a), last(&b)),
                R::float_mul(channel, last(&b)),
                R::float_mask_fill(last(&a), mask, 1.0f64.into()),
                R::relu(last(&a)),
                add_act(Act::Relu, last(&a), last(&b)).unwrap(),
                bias_act(Act::Relu, last(&a), None, 1).unwrap(),
            ]
        });
        assert!(results.iter().all(is_last), "{dtype:?}");
        assert_eq!(copies(&lines), [""; 0], "{dtype:?}");
    }
}

/// The traced lines of copies to another order.
fn copies(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).filter(|line| line.contains("kernel copy_")).collect()
}

#[test]
fn a_convolution_its_bias_and_relu() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        let (x, w) = (Image::draw(&random, [2, 8, 9, 8], dtype), Image::draw(&random, [16, 8, 3, 3], dtype));
        let b = float(&random, &[16], dtype, View::Contiguous, -1.0, 1.0);
        let options = Conv2dOptions { stride: [1, 1], padding: [1, 1], dilation: [1, 1], groups: 1 };
        let device = Default::default();
        let found = conv_act(Act::Relu, x.float::<R>(), w.float::<R>(), Some(b.float::<R>(&device)), options)
            .unwrap();
        // The same in two ops. Both round the convolution, then the sum.
        let options = ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
        let two = R::relu(R::conv2d(x.float::<R>(), w.float::<R>(), Some(b.float::<R>(&device)), options));
        let tolerance = Tolerance::of(dtype);
        assert_close(
            &format!("{dtype:?}"),
            &[read_float::<R>(found.clone())],
            &[read_float::<R>(two)],
            tolerance,
        );
        let g = Image::draw(&random, [2, 16, 9, 8], dtype);
        let sums = |last: bool| {
            let y = if last { in_last(&found) } else { packed(&found) };
            let (dx, db) = bias_act_backward(Act::Relu, y, None, g.float::<R>(), 1, true).unwrap();
            [read_float::<R>(dx), read_float::<R>(db.unwrap())]
        };
        let ([dx, db], [reference, expected]) = (sums(true), sums(false));
        assert_close(&format!("{dtype:?}"), &[dx], &[reference], Tolerance::EXACT);
        // Each sum has 144 terms of at most 1 in either order, rounded to the dtype.
        let bound = 2.0 * (limits::growth(144, limits::wide(dtype)) + limits::unit(dtype)) * 144.0;
        for (found, expected) in db.iter::<f64>().zip(expected.iter::<f64>()) {
            assert!((found - expected).abs() <= bound, "{dtype:?}: {found} instead of {expected}");
        }
    }
}

/// The same tensor with its channels last.
fn in_last(tensor: &RocmTensor) -> RocmTensor {
    R::float_permute(packed(&R::float_permute(tensor.clone(), &[0, 2, 3, 1])), &[0, 3, 1, 2])
}

/// The same tensor in row-major order.
fn packed(tensor: &RocmTensor) -> RocmTensor {
    R::float_from_data(read_float::<R>(tensor.clone()), &Default::default())
}

#[test]
fn pooling_in_both_orders() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        for _ in 0..12 {
            let each = |low: usize, below: usize| [(); 2].map(|()| low + random.below(below - low));
            let (window, stride) = (each(1, 4), each(1, 4));
            let padding = window.map(|size| random.below(size));
            let shape = [1 + random.below(3), 2 + random.below(7), 5 + random.below(6), 4 + random.below(6)];
            let [n, c, h, w] = shape;
            let out = [0, 1].map(|d| (shape[2 + d] + 2 * padding[d] - window[d]) / stride[d] + 1);
            let x = float(&random, &[n, h, w, c], dtype, View::Contiguous, -1.0, 1.0);
            let g = Image::draw(&random, [n, c, out[0], out[1]], dtype);
            let what = format!("{dtype:?} {shape:?}, {window:?} by {stride:?}, {padding:?}, g {}", g.last);
            differential!(what, Tolerance::EXACT, |B, device| {
                let x = || B::float_permute(x.float::<B>(&device), &[0, 3, 1, 2]);
                let plain = B::max_pool2d(x(), window, stride, padding, [1, 1], false);
                let found = B::max_pool2d_with_indices(x(), window, stride, padding, [1, 1], false);
                let indices = wait(B::int_into_data(found.indices)).convert::<i64>();
                vec![read_float::<B>(plain), read_float::<B>(found.output), indices]
            });
            let terms = Terms::of_max_pool(window[0] * window[1], dtype);
            sums!(what, terms, |B, device, [gs = &g.stored]| {
                let x = B::float_permute(x.float::<B>(&device), &[0, 3, 1, 2]);
                let found = B::max_pool2d_with_indices(x.clone(), window, stride, padding, [1, 1], false);
                let (x, g) = (B::float_cast(x, gs.dtype().into()), g.seen::<B>(gs));
                let indices = found.indices;
                B::max_pool2d_with_indices_backward(x, window, stride, padding, [1, 1], false, g, indices).x_grad
            });
            for include in [true, false] {
                let terms = Terms { roundings: 1, ..Terms::of(window[0] * window[1], dtype) };
                sums!(what, terms, |B, device, [xs = &x]| {
                    let x = B::float_permute(xs, &[0, 3, 1, 2]);
                    B::avg_pool2d(x, window, stride, padding, include, false)
                });
                let terms = Terms::in_parts(window[0] * window[1], 2, dtype);
                sums!(what, terms, |B, device, [xs = &x, gs = &g.stored]| {
                    let x = B::float_permute(xs, &[0, 3, 1, 2]);
                    B::avg_pool2d_backward(x, g.seen::<B>(gs), window, stride, padding, include, false)
                });
            }
            // Windows that divide the image, and windows that do not.
            for to in [[1, 1], [h, 1], [2, 3]] {
                let terms = Terms { roundings: 1, ..Terms::of(h * w, dtype) };
                sums!(what, terms, |B, device, [xs = &x]| {
                    B::adaptive_avg_pool2d(B::float_permute(xs, &[0, 3, 1, 2]), to)
                });
                let g = Image::draw(&random, [n, c, to[0], to[1]], dtype);
                let terms = Terms::in_parts(to[0] * to[1], 2, dtype);
                sums!(what, terms, |B, device, [xs = &x, gs = &g.stored]| {
                    B::adaptive_avg_pool2d_backward(B::float_permute(xs, &[0, 3, 1, 2]), g.seen::<B>(gs))
                });
            }
        }
    }
}

/// Pooling keeps the order in f16 and bf16. An average copies nothing.
#[test]
fn pooling_keeps_the_order() {
    on();
    for (dtype, expected) in [(FloatDType::F16, true), (FloatDType::BF16, true), (FloatDType::F32, false)] {
        let of = |shape: [usize; 4]| {
            let ones = R::float_ones(Shape::from(shape), &Default::default(), dtype);
            R::float_permute(ones, &[0, 3, 1, 2])
        };
        let (x, g) = (of([2, 6, 6, 8]), of([2, 3, 3, 8]));
        let max = R::max_pool2d_with_indices(x.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false);
        let (x2, g2) = (x.clone(), g.clone());
        let by_max =
            R::max_pool2d_with_indices_backward(x2, [2, 2], [2, 2], [0, 0], [1, 1], false, g2, max.indices);
        let (means, lines) = during(|| {
            [
                R::avg_pool2d(x.clone(), [2, 2], [2, 2], [0, 0], true, false),
                R::avg_pool2d_backward(x.clone(), g.clone(), [2, 2], [2, 2], [0, 0], true, false),
                R::adaptive_avg_pool2d(x.clone(), [3, 3]),
                R::adaptive_avg_pool2d_backward(x, g),
            ]
        });
        let all = means.iter().chain([&max.output, &by_max.x_grad]);
        assert!(all.map(is_last).all(|last| last == expected), "{dtype:?}");
        assert!(!expected || copies(&lines).is_empty(), "{lines:?}");
    }
}

/// An index that names no pixel is a fault in this order too.
#[test]
fn an_index_past_the_plane_is_a_fault() {
    on();
    let device = Default::default();
    let last = |shape: [usize; 4]| {
        let ones = R::float_ones(Shape::from(shape), &device, FloatDType::BF16);
        R::float_permute(ones, &[0, 3, 1, 2])
    };
    for index in [16i32, 17, i32::MAX, i32::MIN, -2] {
        let mut indices = vec![0; 2 * 2 * 3];
        indices[5] = index;
        let indices = R::int_from_data(TensorData::new(indices, [1, 3, 2, 2]), &device);
        let (x, g) = (last([1, 4, 4, 3]), last([1, 2, 2, 3]));
        let grad =
            R::max_pool2d_with_indices_backward(x, [2, 2], [2, 2], [0, 0], [1, 1], false, g, indices).x_grad;
        let read = burn_std::future::block_on(R::float_into_data(grad));
        assert!(read.is_err(), "{index}");
        let _ = burn_rocm::take_last_error();
    }
}

/// Statistics, outputs and gradients are those of the other order within the rounding bounds of
/// their sums.
#[test]
fn batch_norm_in_both_orders() {
    on();
    let random = Random::new();
    let device = Default::default();
    for dtype in FLOATS {
        for [n, c, h, w] in [[2, 3, 4, 5], [3, 40, 2, 2], [2, 7, 9, 8]] {
            let draw = |shape: &[usize]| float(&random, shape, dtype, View::Contiguous, -1.0, 1.0);
            let (x, g) = (draw(&[n, h, w, c]), draw(&[n, h, w, c]));
            let (gamma, beta) = (draw(&[c]), draw(&[c]));
            let run = |last: bool, as_f64: bool| {
                let of = |input: &Input| {
                    let tensor = input.float::<R>(&device);
                    if as_f64 { R::float_cast(tensor, FloatDType::F64) } else { tensor }
                };
                let image = |input: &Input| {
                    let image = R::float_permute(of(input), &[0, 3, 1, 2]);
                    if last { image } else { packed(&image) }
                };
                let (zeros, ones) = (of(&beta), of(&gamma));
                let BatchNormed { output, statistics, running } =
                    batch_norm_train(image(&x), of(&gamma), of(&beta), [zeros, ones], 0.5, 1e-2).unwrap();
                assert_eq!(is_last(&output), last && c > 1, "{dtype:?}");
                let [dx, dgamma, dbeta] =
                    batch_norm_backward(image(&x), of(&gamma), statistics, image(&g), 1e-2).unwrap();
                assert_eq!(is_last(&dx), last && c > 1, "{dtype:?}");
                let infer = batch_norm_infer(
                    image(&x),
                    of(&gamma),
                    of(&beta),
                    [of(&beta), R::float_abs(of(&gamma))],
                    1e-2,
                );
                let [mean, variance] = running;
                [output, dx, infer.unwrap(), dgamma, dbeta, mean, variance].map(read_float::<R>)
            };
            let (found, exact) = (run(true, false), run(false, true));
            let count = n * h * w;
            // With |x|, |dy|, |gamma|, |beta| <= 1 and 1 / sqrt(var + epsilon) <= 10: sums over
            // `count` elements are off by `growth` of their magnitudes, and a variance by twice
            // that. 1 / sqrt(var + epsilon) is then off by 10^3 / 2 times it, and the gradient's
            // product of three such factors by no more than 10^4 times. Each result is rounded once.
            let sum = limits::growth(count + 8, limits::wide(dtype));
            for (part, (found, exact)) in found.iter().zip(&exact).enumerate() {
                let terms = if matches!(part, 3 | 4) { count as f64 } else { 1.0 };
                for (found, exact) in found.iter::<f64>().zip(exact.iter::<f64>()) {
                    let bound =
                        1e4 * terms * sum + 2.0 * limits::unit(dtype) * exact.abs() + limits::least(dtype);
                    let what = format!("{dtype:?} {:?}, part {part}", [n, c, h, w]);
                    assert!((found - exact).abs() <= bound, "{what}: {found} instead of {exact}");
                }
            }
        }
    }
}

/// ResNet-18 (He et al. 2015) with an eighth of its channels and 10 classes.
#[derive(Module, Debug)]
struct ResNet18<B: Tensors> {
    stem: Conv2d<B>,
    norm: BatchNorm<B>,
    pool: MaxPool2d,
    blocks: Vec<Block<B>>,
    average: AdaptiveAvgPool2d,
    head: Linear<B>,
}

#[derive(Module, Debug)]
struct Block<B: Tensors> {
    convs: Vec<Conv2d<B>>,
    norms: Vec<BatchNorm<B>>,
    around: Option<Conv2d<B>>,
    around_norm: Option<BatchNorm<B>>,
}

fn conv<B: Tensors>(from: usize, to: usize, size: usize, stride: usize, device: &B::Device) -> Conv2d<B> {
    let pad = size / 2;
    Conv2dConfig::new([from, to], [size, size])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_bias(false)
        .init(device)
}

impl<B: Tensors> Block<B> {
    fn new(from: usize, to: usize, stride: usize, device: &B::Device) -> Self {
        let norm = || BatchNormConfig::new(to).init(device);
        let other = from != to;
        Self {
            convs: vec![conv(from, to, 3, stride, device), conv(to, to, 3, 1, device)],
            norms: vec![norm(), norm()],
            around: other.then(|| conv(from, to, 1, stride, device)),
            around_norm: other.then(norm),
        }
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let around = match (&self.around, &self.around_norm) {
            (Some(conv), Some(norm)) => norm.forward(conv.forward(x.clone())),
            _ => x.clone(),
        };
        let x = relu(self.norms[0].forward(self.convs[0].forward(x)));
        AddAct::new(burn_rocm_nn::Act::Relu).forward(self.norms[1].forward(self.convs[1].forward(x)), around)
    }
}

impl<B: Tensors> ResNet18<B> {
    fn new(device: &B::Device) -> Self {
        let channels = [8, 8, 16, 32, 64];
        let stages = channels.windows(2).enumerate();
        let blocks = stages.flat_map(|(stage, of)| {
            let stride = if stage == 0 { 1 } else { 2 };
            [Block::new(of[0], of[1], stride, device), Block::new(of[1], of[1], 1, device)]
        });
        Self {
            stem: conv(3, 8, 7, 2, device),
            norm: BatchNormConfig::new(8).init(device),
            pool: MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(),
            blocks: blocks.collect(),
            average: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            head: LinearConfig::new(64, 10).init(device),
        }
    }

    fn loss(&self, images: Tensor<B, 4>) -> Tensor<B, 1> {
        let x = self.pool.forward(relu(self.norm.forward(self.stem.forward(images))));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let logits: Tensor<B, 2> = self.head.forward(self.average.forward(x).flatten(1, 3));
        (logits.clone() * logits).mean()
    }
}

/// The losses of `steps` training steps in bf16, and what the last step traced. The weights are the
/// same in every call.
fn train(steps: usize) -> (Vec<f64>, Vec<String>) {
    let device = Default::default();
    A::seed(&device, 5);
    let mut model = ResNet18::<A>::new(&device);
    let images = Tensor::<A, 4>::random([2, 3, 64, 64], Distribution::Default, &device);
    let mut optimizer = AdamConfig::new().init();
    let (mut losses, mut last) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let step = || {
            let half = Precision::new(FloatDType::BF16).convert(&model);
            let loss = half.loss(images.clone().cast(FloatDType::BF16)).cast(FloatDType::F32);
            let grads = GradientsParams::from_grads(loss.backward(), &half);
            (loss, optimizer.step(1e-3, model.clone(), grads))
        };
        let ((loss, next), lines) = during(step);
        losses.push(loss.into_data().iter::<f64>().next().expect("a loss is one number"));
        (model, last) = (next, lines);
    }
    (losses, last)
}

/// Where a run of layers in NHWC starts and ends, a step copies; inside it, nothing: neither
/// activations nor weights nor their gradients. The images have 3 channels, so the first
/// convolution, its norm and the max pooling are row-major. The run starts with the first block's
/// input: copied for its convolution, for the sum around it, and for the gradient of its weights.
/// Its own gradient is copied for the pooling. The run ends with global pooling, whose flatten is a
/// view.
#[test]
#[serial(device)]
fn a_step_of_resnet_18_copies_only_at_the_first_block() {
    on();
    let (_, last) = train(3);
    let convolutions = last.iter().filter(|line| line.contains("miopenConvolution")).count();
    assert_eq!(convolutions, 20 + 19 + 20, "forward, by images and by weights: {last:#?}");
    let copies = copies(&last);
    if !takes_each_order() {
        return println!("{} copies: {copies:#?}", copies.len());
    }
    let ops: Vec<_> = copies.iter().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    let expected = ["conv2d", "nn_add_act", "conv2d_weight_backward", "max_pool2d_with_indices_backward"];
    assert_eq!(ops, expected, "{copies:#?}");
}

/// The losses of a training in bf16 are those of a process that keeps every tensor row-major. The
/// same sums in another order differ by f32's rounding, which turns few of bf16's roundings. All of
/// those together move the first loss by 7 % from f32's, so a part of them moves it by less than
/// 1/16.
#[test]
#[serial(device)]
fn losses_do_not_depend_on_the_order() {
    const CHILD: &str = "BURN_ROCM_TEST_CHANNELS_LAST_LOSSES";
    const STEPS: usize = 3;
    if std::env::var_os(CHILD).is_some() {
        let losses = train(STEPS).0;
        return losses.iter().for_each(|loss| println!("loss={loss}"));
    }
    on();
    let name = "losses_do_not_depend_on_the_order";
    let text = again(&[name, "--exact", "--nocapture"], &[(CHILD, "1"), ("BURN_ROCM_CHANNELS_LAST", "off")]);
    let expected: Vec<f64> =
        text.lines().filter_map(|line| line.split("loss=").nth(1)?.trim().parse().ok()).collect();
    assert_eq!(expected.len(), STEPS, "{text}");
    let found = train(STEPS).0;
    let near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= expected / 16.0;
    assert!(found.iter().zip(&expected).all(near), "{found:?} instead of {expected:?}");
}

/// The variable decides in a process that installs no `Config`. Without it, channels stay outside.
#[test]
fn the_variable_decides() {
    const VARIABLE: &str = "BURN_ROCM_CHANNELS_LAST";
    const CHILD: &str = "BURN_ROCM_TEST_CHANNELS_LAST_CHILD";
    if std::env::var_os(CHILD).is_none() {
        for value in ["on", "off", ""] {
            again(&["the_variable_decides", "--exact"], &[(VARIABLE, value), (CHILD, "1")]);
        }
        return;
    }
    let ones = |shape: [usize; 4]| R::float_ones(Shape::from(shape), &Default::default(), FloatDType::BF16);
    let options = ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 1);
    let y = R::conv2d(ones([1, 8, 4, 4]), ones([8, 8, 3, 3]), None, options);
    let is_on = std::env::var(VARIABLE).as_deref() == Ok("on");
    assert!(is_last(&y) == is_on || (is_on && !takes_each_order()));
}
