//! Compares layers that end in an activation, sums, products and softmax with Burn's ops, and their
//! records with those of Burn's layers.

use burn::module::{AutodiffModule, Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNormConfig, Linear, LinearConfig, LinearLayout, PaddingConfig2d};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, NamedMpkBytesRecorder, Recorder, RecorderError};
use burn::tensor::activation::{self, gelu, relu, silu};
use burn::tensor::backend::Backend;
use burn_rocm_nn::activation::{log_softmax, softmax};
use burn_rocm_nn::{
    Act, AddAct, ConvAct, ConvActConfig, LinearAct, LinearActConfig, MulAdd, SwiGlu, SwiGluConfig,
};
use burn_rocm_tests::limits::{self, growth, unit, wide};
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FLOATS, SHAPES};

use crate::bounded::{assert_narrow, bounded};
use crate::conv_act::normed_magnitudes;
use crate::dtypes::Rounded;
use crate::support::*;

pub(crate) const ACTS: [Act; 3] = [Act::Relu, Act::Gelu, Act::Silu];

pub(crate) fn by_burn<B: Backend, const D: usize>(act: Act, x: Tensor<B, D>) -> Tensor<B, D> {
    match act {
        Act::Relu => relu(x),
        Act::Gelu => gelu(x),
        Act::Silu => silu(x),
    }
}

/// The output of an op of tensors of one shape, and the gradients of the sum of its products with
/// fixed numbers. Another op comes before and after.
macro_rules! gradients {
    ($B:ident, $D:literal, $data:expr, $dtype:expr, |$x:ident| $out:expr) => {{
        let leaves: Vec<Tensor<$B, $D>> =
            $data.iter().map(|data| tensor::<$B, $D>(data, $dtype).require_grad()).collect();
        let $x: Vec<Tensor<$B, $D>> = leaves.iter().map(|leaf| leaf.clone().tanh() * 2.0).collect();
        let out = $out;
        let grads = (out.clone().tanh() * out.clone()).sum().backward();
        let mut all = vec![out.into_data()];
        all.extend(leaves.iter().map(|leaf| leaf.grad(&grads).unwrap().into_data()));
        all
    }};
}

/// The output of an op of tensors of one shape, and the gradients of its sum of products with
/// `weights`, which is the gradient that the op gets. The ops before it are exact.
macro_rules! joined {
    ($B:ident, $data:expr, $weights:expr, $dtype:expr, |$x:ident| $out:expr) => {{
        let leaves: Vec<Tensor<$B, 2>> =
            $data.iter().map(|data| tensor::<$B, 2>(data, $dtype).require_grad()).collect();
        let $x: Vec<Tensor<$B, 2>> = leaves.iter().map(|leaf| leaf.clone() * 1.0).collect();
        let out = $out;
        let grads = (out.clone() * tensor::<$B, 2>($weights, $dtype)).sum().backward();
        let mut all = vec![out.into_data()];
        all.extend(leaves.iter().map(|leaf| leaf.grad(&grads).unwrap().into_data()));
        all
    }};
}

/// The error allowed to the results of [`joined`] of numbers from -2 to 2, as a share of their
/// magnitudes: those of the sum without its activation, or of the product and the sum. With `u` for
/// the unit of `dtype` and `r` for that of the type it is computed in, to first order:
/// - A product and a sum has two roundings in the wide type, its gradients have one: `2 r + u`.
/// - An activation's argument, at most 4, is rounded. The activation has a slope of at most 1.13
///   (gelu's) and is off by `8 r` of it, by `8 r` for a function of magnitude 1 on the way, and by
///   `n` ([`of_gelu`]). The result is rounded: `18 r + u + n`.
/// - Its slope is off by `0.8 * 4 r` by the argument (gelu's second derivative is at most 0.8), and
///   by `8 r` for each of two functions, one times an argument of at most 4. It is multiplied with
///   the gradient and rounded: `45 r + 1.13 u + n`.
fn joined_share(dtype: DType) -> f64 {
    1.01 * sides(dtype) * (48.0 * unit(wide(dtype)) + 1.13 * unit(dtype) + of_gelu(dtype))
}

fn several(random: &Random, shape: &[usize], count: usize) -> Vec<TensorData> {
    (0..count).map(|_| uniform(random, shape)).collect()
}

fn shapes() -> impl Iterator<Item = &'static [usize]> {
    SHAPES.iter().copied().filter(|shape| shape.len() == 2)
}

#[test]
fn sums_and_products() {
    let random = Random::new();
    let mut checked = 0;
    for (shape, dtype) in shapes().flat_map(|shape| FLOATS.map(|dtype| (shape, dtype))) {
        let share = joined_share(dtype);
        let drawn = |count: usize| -> Vec<TensorData> {
            several(&random, shape, count).into_iter().map(|data| data.convert_dtype(dtype)).collect()
        };
        let signless = |data: &[TensorData]| data.iter().map(magnitudes).collect::<Vec<TensorData>>();
        for act in ACTS {
            let (data, weights) = (drawn(2), drawn(1));
            let reference = joined!(Oracle, data, &weights[0], DType::F64, |x| {
                by_burn(act, x[0].clone() + x[1].clone())
            });
            let (alone, by) = (signless(&data), signless(&weights));
            let magnitude = joined!(Oracle, alone, &by[0], DType::F64, |x| x[0].clone() + x[1].clone());
            let expected = limited(reference, &magnitude, share, dtype);
            let what = format!("{act:?} of a sum, {shape:?} {dtype:?}");
            within_limits!(what, dtype, expected.clone(), |B| {
                joined!(B, data, &weights[0], dtype, |x| {
                    AddAct::new(act).forward(x[0].clone(), x[1].clone())
                })
            });
            let found = joined!(Ours, data, &weights[0], dtype, |x| {
                AddAct::new(act).forward(x[0].clone(), x[1].clone())
            });
            checked += assert_narrow(&what, &found, &bounded(&expected));
        }
        let (data, weights) = (drawn(3), drawn(1));
        let reference = joined!(Oracle, data, &weights[0], DType::F64, |x| {
            x[0].clone() * x[1].clone() + x[2].clone()
        });
        let (alone, by) = (signless(&data), signless(&weights));
        let magnitude =
            joined!(Oracle, alone, &by[0], DType::F64, |x| { x[0].clone() * x[1].clone() + x[2].clone() });
        let expected = limited(reference, &magnitude, share, dtype);
        let what = format!("a product and a sum, {shape:?} {dtype:?}");
        within_limits!(what, dtype, expected.clone(), |B| {
            joined!(B, data, &weights[0], dtype, |x| {
                MulAdd::new().forward(x[0].clone(), x[1].clone(), x[2].clone())
            })
        });
        let found = joined!(Ours, data, &weights[0], dtype, |x| {
            MulAdd::new().forward(x[0].clone(), x[1].clone(), x[2].clone())
        });
        checked += assert_narrow(&what, &found, &bounded(&expected));
    }
    assert!(checked > 20, "{checked} results with enough different elements");
}

#[test]
fn shapes_that_broadcast_are_composed() {
    let random = Random::new();
    let data = [uniform(&random, &[4, 6]), uniform(&random, &[1, 6]), uniform(&random, &[4, 1])];
    let tolerance = Tolerance::of(DType::F32).times(50.0);
    against_burn!("a product and a sum", tolerance, |B|
        theirs gradients!(B, 2, data, DType::F32, |x| x[0].clone() * x[1].clone() + x[2].clone()),
        ours gradients!(B, 2, data, DType::F32, |x| {
            MulAdd::new().forward(x[0].clone(), x[1].clone(), x[2].clone())
        })
    );
    against_burn!("an activation of a sum", tolerance, |B|
        theirs gradients!(B, 2, data[..2], DType::F32, |x| silu(x[0].clone() + x[1].clone())),
        ours gradients!(B, 2, data[..2], DType::F32, |x| {
            AddAct::new(Act::Silu).forward(x[0].clone(), x[1].clone())
        })
    );
}

/// The output of an op of the negated input, and the gradient of its products with fixed weights.
/// The negation is exact, and the weights are the gradient that the op gets.
macro_rules! weighted {
    ($B:ident, $data:expr, $weights:expr, $dtype:expr, |$x:ident| $out:expr) => {{
        let leaf = tensor::<$B, 3>($data, $dtype).require_grad();
        let $x = leaf.clone().neg();
        let out = $out;
        let grads = (out.clone() * tensor::<$B, 3>($weights, $dtype)).sum().backward();
        vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()]
    }};
}

/// The limits for a softmax `y` along `dim` of numbers from -2 to 2, or for its logarithm, and for
/// the gradient. The gradient is computed from the stored `y`: `y (g - sum(y g))`, or
/// `g - exp(y) sum(g)` for the logarithm.
///
/// `growth(n)` is the error of a sum over `n` elements, `u` the unit of `dtype`, and `r` that of
/// the type it is computed in. A sum of exponentials is off by four times `growth(n)`: kernels
/// scale it for each new maximum. Each function is off by less than `8 r`. To first order:
/// - `y` is off by a share of `4 growth(n) + 16 r`, and is stored.
/// - Its gradient has `y`'s error and the sum's: a share of `5 growth(n) + 17 r + 2 u` of
///   `y (|g| + 2 sum(y |g|))`.
/// - The logarithm has the sum's share as its error, and 3 roundings of numbers of at most
///   `4 + ln(n) < 13`.
/// - The exponential in its gradient has the logarithm's error as its share.
fn softmax_limits(
    reference: Vec<TensorData>,
    weights: &TensorData,
    dim: usize,
    dtype: DType,
    log: bool,
) -> Vec<[TensorData; 2]> {
    let (u, r) = (unit(dtype), unit(wide(dtype)));
    let n = weights.shape[dim];
    let growth = growth(n, wide(dtype));
    let [y, g] = [&reference[0], weights].map(|data| tensor::<Oracle, 3>(data, DType::F64));
    let g = g.abs();
    let [of_y, of_gradient] = if log {
        let off = y.clone().abs() * (1.01 * u) + (4.0 * growth + 64.0 * r);
        let sum = y.exp() * g.clone().sum_dim(dim);
        let gradient =
            sum.clone() * (off.clone() * 1.05 + (growth + 8.0 * r)) + (g + sum) * (1.01 * u + 2.0 * r);
        [off, gradient]
    } else {
        let sum = (y.clone() * g.clone()).sum_dim(dim);
        let gradient = y.clone() * (g + sum * 2.0) * (5.0 * growth + 20.0 * r + 2.02 * u);
        [y * (4.0 * growth + 16.0 * r + 1.01 * u), gradient]
    };
    // The gradient multiplies the error of a result that underflows by at most 8.
    let least = 8.0 * limits::least(dtype);
    let limits = [of_y, of_gradient].map(|limits| (limits * sides(dtype) + least).into_data());
    reference.into_iter().zip(limits).map(|(reference, limits)| [reference, limits]).collect()
}

#[test]
fn softmax_and_its_logarithm() {
    let random = Random::new();
    for shape in [[3, 4, 5], [2, 1, 700], [7, 33, 1], [2, 5000, 3]] {
        for dim in 0..3 {
            // Long shapes take long in lockstep.
            let long = shape.iter().product::<usize>() > 3000;
            let dtypes = FLOATS.into_iter().filter(|&dtype| !long || dtype == DType::F32);
            for dtype in fewer(dtypes, if long { 1 } else { 2 }, &random) {
                let [data, weights] = [0, 1].map(|_| uniform(&random, &shape).convert_dtype(dtype));
                let what = format!("{shape:?} dim {dim} {dtype:?}");
                let there = weighted!(Oracle, &data, &weights, DType::F64, |x| activation::softmax(x, dim));
                let expected = softmax_limits(there, &weights, dim, dtype, false);
                within_limits!(format!("softmax {what}"), dtype, expected, |B| {
                    weighted!(B, &data, &weights, dtype, |x| softmax(x, dim))
                });
                let there =
                    weighted!(Oracle, &data, &weights, DType::F64, |x| activation::log_softmax(x, dim));
                let expected = softmax_limits(there, &weights, dim, dtype, true);
                within_limits!(format!("log_softmax {what}"), dtype, expected, |B| {
                    weighted!(B, &data, &weights, dtype, |x| log_softmax(x, dim))
                });
            }
        }
    }
}

/// The oracle refuses these.
#[test]
fn softmax_of_nothing() {
    for shape in [[0, 4], [4, 0]] {
        for dim in [0, 1] {
            let leaf = Tensor::<Ours, 2>::zeros(shape, &Default::default()).require_grad();
            let grads = softmax(leaf.clone(), dim).sum().backward();
            assert_eq!(leaf.grad(&grads).unwrap().dims(), shape);
        }
    }
}

#[test]
fn softmax_of_a_transposed_view() {
    let data = several(&Random::new(), &[12, 40], 1);
    for dim in [0, 1] {
        against_burn!(format!("dim {dim}"), Tolerance::of(DType::F32).times(50.0), |B|
            theirs gradients!(B, 2, data, DType::F32, |x| activation::softmax(x[0].clone().transpose(), dim)),
            ours gradients!(B, 2, data, DType::F32, |x| softmax(x[0].clone().transpose(), dim))
        );
    }
}

/// A parameter with fixed values.
fn param<B: burn::tensor::backend::AutodiffBackend, const D: usize>(
    data: &TensorData,
    dtype: DType,
) -> Param<Tensor<B, D>> {
    Param::from_tensor(tensor::<B, D>(data, dtype))
}

/// A layer's output, and the gradients with respect to its input, weight and bias.
macro_rules! layer_gradients {
    ($B:ident, $input:expr, $layer:expr, |$x:ident| $forward:expr) => {{
        let leaf = $input.require_grad();
        let layer = $layer;
        let $x = leaf.clone() * 1.0;
        let out = $forward(&layer, $x);
        let grads = (out.clone() * out.clone()).sum().backward();
        let mut all = vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()];
        all.push(layer.weight.val().grad(&grads).unwrap().into_data());
        all.extend(layer.bias.as_ref().map(|bias| bias.val().grad(&grads).unwrap().into_data()));
        all
    }};
}

#[test]
fn linear_and_activation() {
    let random = Random::new();
    for (rows, d_input, d_output) in [(1, 1, 1), (5, 7, 3), (300, 4, 65), (600, 3, 2)] {
        for (act, dtype) in ACTS.iter().flat_map(|&act| FLOATS.map(|dtype| (act, dtype))) {
            for biased in [true, false] {
                let data = [
                    uniform(&random, &[rows, d_input]),
                    uniform(&random, &[d_input, d_output]),
                    uniform(&random, &[d_output]),
                ];
                let data = data.map(|data| data.convert_dtype(dtype));
                let what = format!("{rows} x {d_input} x {d_output} {act:?} {dtype:?} bias {biased}");
                macro_rules! burns {
                    ($data:expr, |$out:ident| $act:expr) => {{
                        let [x, weight, bias] = $data;
                        let layer = Linear::<Oracle> {
                            weight: param(weight, DType::F64),
                            bias: biased.then(|| param(bias, DType::F64)),
                        };
                        layer_gradients!(Oracle, tensor::<Oracle, 2>(x, DType::F64), layer, |x| {
                            |layer: &Linear<Oracle>, x| {
                                let $out = layer.forward(x);
                                $act
                            }
                        })
                    }};
                }
                let reference = burns!(&data, |out| by_burn(act, out));
                let signless = data.each_ref().map(magnitudes);
                let magnitude = burns!(&signless, |out| out);
                let share = layer_share(rows.max(d_input).max(d_output), dtype);
                let expected = limited(reference, &magnitude, share, dtype);
                let [x, weight, bias] = &data;
                within_limits!(what, dtype, expected, |B| {
                    layer_gradients!(
                        B,
                        tensor::<B, 2>(x, dtype),
                        LinearAct::<B> {
                            weight: param(weight, dtype),
                            bias: biased.then(|| param(bias, dtype)),
                            activation: act,
                        },
                        |x| |layer: &LinearAct<B>, x| layer.forward(x)
                    )
                });
            }
        }
    }
}

#[test]
fn convolution_and_activation() {
    let random = Random::new();
    for (act, dtype) in ACTS.iter().flat_map(|&act| [DType::F32, DType::F64].map(|dtype| (act, dtype))) {
        for (size, padding) in [([9, 7], PaddingConfig2d::Same), ([5, 40], PaddingConfig2d::Valid)] {
            for biased in [true, false] {
                let data = [
                    uniform(&random, &[3, 4, size[0], size[1]]),
                    uniform(&random, &[6, 2, 3, 3]),
                    uniform(&random, &[6]),
                ];
                let data = data.map(|data| data.convert_dtype(dtype));
                macro_rules! conv {
                    ($B:ident, $data:expr, $dtype:expr) => {
                        Conv2d::<$B> {
                            weight: param(&$data[1], $dtype),
                            bias: biased.then(|| param(&$data[2], $dtype)),
                            stride: [1, 2],
                            kernel_size: [3, 3],
                            dilation: [1, 1],
                            groups: 2,
                            padding: padding.clone(),
                        }
                    };
                }
                let what = format!("{size:?} {act:?} {dtype:?} bias {biased}");
                macro_rules! burns {
                    ($data:expr, |$out:ident| $act:expr) => {{
                        let input = tensor::<Oracle, 4>(&$data[0], DType::F64);
                        layer_gradients!(Oracle, input, conv!(Oracle, $data, DType::F64), |x| {
                            |layer: &Conv2d<Oracle>, x| {
                                let $out = layer.forward(x);
                                $act
                            }
                        })
                    }};
                }
                let reference = burns!(data, |out| by_burn(act, out));
                let signless = data.each_ref().map(magnitudes);
                let magnitude = burns!(signless, |out| out);
                // The longest sum is that of a weight's gradient, over the positions of three
                // images, which are no more than the pixels.
                let share = layer_share(3 * size[0] * size[1], dtype);
                let expected = limited(reference, &magnitude, share, dtype);
                within_limits!(what, dtype, expected, |B| {
                    let (input, layer) =
                        (tensor::<B, 4>(&data[0], dtype), ConvAct::from_burn(conv!(B, data, dtype), act));
                    layer_gradients!(B, input, layer, |x| |layer: &ConvAct<B>, x| layer.forward(x))
                });
            }
        }
    }
}

#[test]
fn a_batch_norm_folds_into_the_convolution_before_it() {
    let random = Random::new();
    let device = Default::default();
    for bias in [true, false] {
        let conv = Conv2dConfig::new([3, 5], [3, 3]).with_bias(bias).init::<Ours>(&device);
        let norm = BatchNormConfig::new(5).init::<Ours>(&device);
        // Training changes the statistics from 0 and 1.
        let train = tensor::<Ours, 4>(&uniform(&random, &[4, 3, 8, 8]), DType::F32);
        norm.forward(conv.forward(train) * 3.0 + 0.5);
        let (conv, mut norm) = (conv.valid(), norm.valid());
        norm.gamma = Param::from_tensor(tensor::<Ours, 1>(&uniform(&random, &[5]), DType::F32).inner());
        norm.beta = Param::from_tensor(tensor::<Ours, 1>(&uniform(&random, &[5]), DType::F32).inner());
        let x = tensor::<Ours, 4>(&uniform(&random, &[2, 3, 9, 6]), DType::F32).inner();
        let theirs = relu(norm.forward(conv.forward(x.clone()))).into_data();
        let of = [norm.gamma.val(), norm.beta.val(), norm.running_mean.value(), norm.running_var.value()];
        let mut plain = Conv2dConfig::new([3, 5], [3, 3]).with_bias(bias).init::<Oracle>(&Default::default());
        let signless = |data: TensorData| magnitudes(&data);
        plain.weight = param(&signless(conv.weight.val().into_data()), DType::F64);
        plain.bias = conv.bias.as_ref().map(|bias| param(&signless(bias.val().into_data()), DType::F64));
        let sum = plain.forward(tensor(&signless(x.clone().into_data()), DType::F64));
        let data = of.each_ref().map(|tensor| tensor.clone().into_data());
        let magnitude = normed_magnitudes(sum, &data, norm.epsilon);
        let folded = ConvAct::folded(conv, of, norm.epsilon, Act::Relu);
        let (ours, lines) = during(|| folded.forward(x));
        // Both sides sum 27 products and have at most 10 roundings more, of the norm.
        let limits = limits::shares(&magnitude, 2.0 * growth(27 + 10, DType::F32), DType::F32);
        limits::assert_within(&"folded", &ours.into_data(), &theirs, &limits);
        // One call if MIOpen has a fusion plan, else a kernel after the convolution.
        let last = ["kernel bias_act<Relu, f32>", "miopenExecuteFusionPlan"];
        let found = lines.iter().filter(|line| last.iter().any(|last| line.contains(last))).count();
        assert_eq!(found, 1, "{lines:#?}");
    }
}

#[test]
fn swiglu() {
    let random = Random::new();
    let config = burn::nn::SwiGluConfig::new(6, 9).with_bias(true);
    let theirs = config.init::<Oracle>(&Default::default());
    theirs.num_params(); // initialises: a clone of an uninitialised module would draw other numbers
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let bytes = recorder.record(theirs.clone().into_record(), ()).unwrap();
    let x = uniform(&random, &[4, 5, 6]);
    for dtype in FLOATS {
        let x = x.clone().convert_dtype(dtype);
        // The definition in f64. The magnitudes are computed without signs and without the
        // activation.
        let [reference, magnitude] = [false, true].map(|signless| {
            let of = |data: TensorData| {
                let data = data.convert_dtype(dtype);
                if signless { magnitudes(&data) } else { data }
            };
            let wide = |layer: &Linear<Oracle>| Linear::<Oracle> {
                weight: param(&of(layer.weight.val().into_data()), DType::F64),
                bias: layer.bias.as_ref().map(|bias| param(&of(bias.val().into_data()), DType::F64)),
            };
            let layers = [&theirs.linear_inner, &theirs.linear_outer].map(wide);
            let leaf = tensor::<Oracle, 3>(&of(x.clone()), DType::F64).require_grad();
            let gate = layers[0].forward(leaf.clone());
            let out = if signless { gate } else { silu(gate) } * layers[1].forward(leaf.clone());
            let grads = (out.clone() * out.clone()).sum().backward();
            let mut all = vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()];
            layers.iter().for_each(|layer| all.extend(gradients_of(layer, &grads)));
            all
        });
        // Each of the two factors adds less than a layer's share. The longest sum is over the 20
        // rows.
        let expected = limited(reference, &magnitude, 2.0 * layer_share(20, dtype), dtype);
        within_limits!(format!("swiglu {dtype:?}"), dtype, expected, |B| {
            let ours: SwiGlu<B> = SwiGluConfig::new(6, 9).with_bias(true).init(&Default::default());
            let ours = ours.load_record(recorder.load(bytes.clone(), &Default::default()).unwrap());
            let ours = ours.map(&mut Rounded { by: dtype, dtype });
            let leaf = tensor::<B, 3>(&x, dtype).require_grad();
            let out = ours.forward(leaf.clone());
            let grads = (out.clone() * out.clone()).sum().backward();
            let mut all = vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()];
            all.extend(gradients_of(&ours, &grads));
            all
        });
    }
    let ours: SwiGlu<Ours> = SwiGluConfig::new(6, 9).with_bias(true).init(&Default::default());
    let ours = ours.load_record(recorder.load(bytes.clone(), &Default::default()).unwrap());
    assert_eq!(recorder.record(ours.into_record(), ()).unwrap(), bytes, "the record is Burn's");
    let nested = SwiGluConfig::new(6, 9).init::<Oracle>(&Default::default());
    nested.num_params();
    let plain = burn::nn::SwiGlu {
        linear_inner: nested.linear_inner.clone(),
        linear_outer: nested.linear_outer.clone(),
    };
    let x = tensor::<Oracle, 3>(&x, DType::F32);
    let (ours, theirs) = (nested.forward(x.clone()).into_data(), plain.forward(x).into_data());
    burn_rocm_tests::assert_close(&"composed", &[ours], &[theirs], Tolerance::EXACT);
}

/// Without autodiff, with which Burn's own `Linear` of column layout can't be loaded.
type Inference = burn_rocm::Rocm;

/// A record's bytes, from a recorder with field names and from one without.
fn both_records<M: Module<Inference>>(module: M) -> [Vec<u8>; 2] {
    [
        NamedMpkBytesRecorder::<FullPrecisionSettings>::default()
            .record(module.clone().into_record(), ())
            .unwrap(),
        BinBytesRecorder::<FullPrecisionSettings>::default().record(module.into_record(), ()).unwrap(),
    ]
}

fn loaded<M: Module<Inference>>(module: M, [named, binary]: [Vec<u8>; 2]) -> Result<[M; 2], RecorderError> {
    let device = Default::default();
    Ok([
        module
            .clone()
            .load_record(NamedMpkBytesRecorder::<FullPrecisionSettings>::default().load(named, &device)?),
        module.load_record(BinBytesRecorder::<FullPrecisionSettings>::default().load(binary, &device)?),
    ])
}

#[test]
fn records_are_those_of_burns_layers() {
    let device = Default::default();
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let theirs = LinearConfig::new(3, 4).with_layout(layout).init::<Inference>(&device);
        theirs.num_params(); // initialises: a clone of an uninitialised module would draw other numbers
        let config = LinearActConfig::new(3, 4, Act::Gelu).with_layout(layout);
        let records = both_records(theirs.clone());
        for ours in loaded(config.init(&device), records.clone()).unwrap() {
            assert_eq!(ours.weight.val().into_data(), theirs.weight.val().into_data());
            assert_eq!(ours.activation, Act::Gelu);
            assert_eq!(both_records(ours.clone()), records);
            assert_eq!((ours.num_params(), ours.weight.id), (16, theirs.weight.id));
            let fresh = LinearConfig::new(3, 4).with_layout(layout).init::<Inference>(&device);
            for back in loaded(fresh, both_records(ours)).unwrap() {
                assert_eq!(back.weight.val().into_data(), theirs.weight.val().into_data());
            }
        }
    }
    let theirs = Conv2dConfig::new([2, 4], [3, 3]).init::<Inference>(&device);
    theirs.num_params();
    let records = both_records(theirs.clone());
    for ours in loaded(ConvActConfig::new([2, 4], [3, 3], Act::Relu).init(&device), records.clone()).unwrap()
    {
        assert_eq!(ours.weight.val().into_data(), theirs.weight.val().into_data());
        assert_eq!(both_records(ours), records);
    }
}

#[test]
fn parameters_are_initialised_once() {
    let device = Default::default();
    let x = tensor::<Ours, 4>(&uniform(&Random::new(), &[1, 2, 5, 5]), DType::F32);
    let layer = ConvActConfig::new([2, 3], [3, 3], Act::Gelu).init::<Ours>(&device);
    let first = layer.forward(x.clone()).into_data();
    burn_rocm_tests::assert_close(&"again", &[layer.forward(x).into_data()], &[first], Tolerance::EXACT);
    let layer = LinearActConfig::new(2, 3, Act::Gelu).init::<Ours>(&device);
    let valid = layer.valid();
    assert_eq!(valid.weight.val().into_data(), layer.weight.val().into_data());
}

#[test]
fn layers_move_between_training_and_inference() {
    let layer = LinearActConfig::new(3, 2, Act::Silu).init::<Ours>(&Default::default());
    let inference = layer.valid();
    let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[5, 3]), DType::F32);
    let expected = layer.forward(x.clone()).into_data();
    burn_rocm_tests::assert_close(
        &"valid",
        &[inference.forward(x.clone().inner()).into_data()],
        std::slice::from_ref(&expected),
        Tolerance::EXACT,
    );
    let back: LinearAct<Ours> = inference.train();
    burn_rocm_tests::assert_close(&"train", &[back.forward(x).into_data()], &[expected], Tolerance::EXACT);
    let text = format!("{layer}");
    assert!(text.contains("d_input: 3") && text.contains("Silu") && text.contains("LinearAct"), "{text}");
}

#[test]
fn the_trace_names_the_fused_ops() {
    let random = Random::new();
    let layer = LinearActConfig::new(8, 16, Act::Relu).init::<Ours>(&Default::default());
    let x = tensor::<Ours, 2>(&uniform(&random, &[4, 8]), DType::F32);
    let (_, lines) = during(|| softmax(layer.forward(x), 1).sum().backward());
    // Blocks of one thread have one kernel for rows of any length.
    let one_thread = hip::Device::get(0).unwrap().block_threads() == 1;
    let softmax_by = match one_thread {
        true => "nn_softmax f32: kernel softmax_rows<f32>",
        false => "nn_softmax f32: kernel softmax_short_rows<f32>",
    };
    for op in [
        "nn_bias_act f32: kernel bias_act<Relu, f32>",
        "nn_bias_act_backward f32: kernel bias_act_columns_backward<Relu, f32>",
        softmax_by,
        "nn_softmax_backward f32: kernel softmax_rows_backward<f32>",
    ] {
        assert_eq!(lines.iter().filter(|line| *line == op).count(), 1, "{op} in {lines:#?}");
    }
}
