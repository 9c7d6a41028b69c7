//! Compares modules in every float type with the formulas in f64: values and all gradients.

use burn::module::{ModuleMapper, Param};
use burn::nn::Linear;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Bool, Int};
use burn_rocm::fused::AttentionOptions;
use burn_rocm_nn::{attention, loss, transformer};
use burn_rocm_tests::FLOATS;

use crate::attention::bools;
use crate::attention_formulas::{Layer, SelfAttention};
use crate::bounded::{Bounded, assert_bounded, assert_narrow, assert_wrong_fails, exact};
use crate::encoder_formulas::EncoderLayer;
use crate::support::*;

/// Gives all parameters their values in `by`, converted to `dtype`.
pub(crate) struct Rounded {
    pub(crate) by: DType,
    pub(crate) dtype: DType,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Rounded {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let tensor = Tensor::from_inner(tensor.inner().cast(self.by).cast(self.dtype)).require_grad();
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Weight and bias of a linear layer.
type Parameters = [TensorData; 2];

fn exact_layer([weight, bias]: &Parameters) -> Layer {
    Layer { weight: exact(weight.iter::<f64>()), bias: exact(bias.iter::<f64>()) }
}

fn set<B: AutodiffBackend>(layer: &mut Linear<B>, [weight, bias]: &Parameters, dtype: DType) {
    layer.weight = Param::from_tensor(tensor(weight, dtype));
    layer.bias = Some(Param::from_tensor(tensor(bias, dtype)));
}

/// Self-attention with padding and with these weights and biases: the output, and the gradients of
/// the input and of all parameters.
fn attended<B: AutodiffBackend>(
    config: &attention::MultiHeadAttentionConfig,
    parameters: &[Parameters; 4],
    dtype: DType,
    [x, grad, pad]: [&TensorData; 3],
) -> Vec<TensorData> {
    let mut module = config.init::<B>(&Default::default());
    let layers = [&mut module.query, &mut module.key, &mut module.value, &mut module.output];
    layers.into_iter().zip(parameters).for_each(|(layer, parameters)| set(layer, parameters, dtype));
    let leaf = tensor::<B, 3>(x, dtype).require_grad();
    let mask: Tensor<B, 2, Bool> = bools(pad);
    let out = module.forward(attention::MhaInput::self_attn(leaf.clone()).mask_pad(mask)).context;
    let grads = (out.clone() * tensor::<B, 3>(grad, dtype)).sum().backward();
    let mut all = vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()];
    all.extend(gradients_of(&module, &grads));
    assert!(all.iter().all(|data| data.dtype == dtype), "{dtype:?}");
    all
}

/// Against the formulas, within rounding bounds. Every type has most of the queries, keys, values
/// and scores that these operands make, so the bounds stay narrow: zeros, another order and doubled
/// values are outside.
#[test]
fn multi_head_attention() {
    let random = Random::new();
    // Enough rows for one product of queries, keys and values, and fewer rows.
    for ([batch, sequence, d_model, heads], quiet) in
        [([2, 5, 8, 2], false), ([2, 5, 8, 2], true), ([5, 9, 8, 2], false), ([2, 34, 12, 3], true)]
    {
        let config = attention::MultiHeadAttentionConfig::new(d_model, heads)
            .with_dropout(0.0)
            .with_quiet_softmax(quiet);
        let options = AttentionOptions { fill: config.min_float, quiet, ..Default::default() };
        let [x, grad] = [(); 2].map(|()| multiples(&random, &[batch, sequence, d_model], 2, 1.0));
        let parameters = [(); 4].map(|()| {
            [vec![d_model, d_model], vec![d_model]].map(|shape| multiples(&random, &shape, 1, 0.25))
        });
        let layers = parameters.each_ref().map(exact_layer);
        // The last key, the last two or the last three.
        let hidden: Vec<bool> =
            (0..batch * sequence).map(|at| at % sequence + 1 + at / sequence % 3 >= sequence).collect();
        let pad = TensorData::new(hidden.clone(), [batch, sequence]);
        let [query, key, value, output] = &layers;
        let given = SelfAttention {
            x: &exact(x.iter::<f64>()),
            batch,
            heads,
            layers: [query, key, value],
            output: Some(output),
            grad: &exact(grad.iter::<f64>()),
            hidden: &hidden,
            options: &options,
        };
        for dtype in FLOATS {
            let expected = given.expected(dtype);
            let what = format!("attention, {batch} of {sequence}, quiet {quiet}, {dtype:?}");
            let found = attended::<Ours>(&config, &parameters, dtype, [&x, &grad, &pad]);
            assert_bounded(&what, &found, &expected);
            let again = attended::<Balanced>(&config, &parameters, dtype, [&x, &grad, &pad]);
            assert_bounded(&format!("{what}, recomputed"), &again, &expected);
            for (result, (found, expected)) in found.iter().zip(&expected).enumerate() {
                if result != KEY_BIAS {
                    assert_wrong_fails(&format!("{what}, result {result}"), found, expected);
                }
            }
        }
    }
}

/// The index of the gradient of the key's bias, after the output and four gradients. This gradient
/// is 0 or small, because a softmax does not depend on a term that all its scores share.
const KEY_BIAS: usize = 5;

/// A layer of an encoder: weights and biases of queries, keys, values, the attention's output and
/// the position-wise layers, gamma and beta of both norms, the input and the gradient of the
/// output.
struct EncoderCase {
    config: transformer::TransformerEncoderConfig,
    linear: [Parameters; 6],
    norms: [[TensorData; 2]; 2],
    x: TensorData,
    grad: TensorData,
}

impl EncoderCase {
    /// The output, and the gradients of the input and of all parameters.
    fn run<B: AutodiffBackend>(&self, dtype: DType) -> Vec<TensorData> {
        let mut module = self.config.init::<B>(&Default::default());
        let layer = &mut module.layers[0];
        let (mha, pwff) = (&mut layer.mha, &mut layer.pwff);
        let linear = [&mut mha.query, &mut mha.key, &mut mha.value, &mut mha.output];
        let all = linear.into_iter().chain([&mut pwff.linear_inner, &mut pwff.linear_outer]);
        all.zip(&self.linear).for_each(|(layer, parameters)| set(layer, parameters, dtype));
        for (norm, [gamma, beta]) in [&mut layer.norm_1, &mut layer.norm_2].into_iter().zip(&self.norms) {
            norm.gamma = Param::from_tensor(tensor(gamma, dtype));
            norm.beta = Some(Param::from_tensor(tensor(beta, dtype)));
        }
        let leaf = tensor::<B, 3>(&self.x, dtype).require_grad();
        let out = module.forward(transformer::TransformerEncoderInput::new(leaf.clone()));
        let grads = (out.clone() * tensor::<B, 3>(&self.grad, dtype)).sum().backward();
        let mut all = vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()];
        all.extend(gradients_of(&module, &grads));
        assert!(all.iter().all(|data| data.dtype == dtype), "{dtype:?}");
        all
    }

    fn expected(&self, batch: usize) -> Vec<Vec<Vec<Bounded>>> {
        let [query, key, value, output, inner, outer] = self.linear.each_ref().map(exact_layer);
        let layer = EncoderLayer {
            x: exact(self.x.iter::<f64>()),
            batch,
            heads: self.config.n_heads,
            attention: [query, key, value, output],
            linear: [inner, outer],
            norms: self.norms.each_ref().map(|norm| norm.each_ref().map(|data| exact(data.iter::<f64>()))),
            epsilon: self.config.layer_norm_eps,
            norm_first: self.config.norm_first,
            grad: exact(self.grad.iter::<f64>()),
        };
        layer.expected(&FLOATS)
    }
}

/// Indices of results: the output, the gradient of the input, and the gradients of the weights of
/// values, of the attention's output and of the position-wise layers.
const OUTPUT: usize = 0;
const BY_X: usize = 1;
const BY_WEIGHTS: [usize; 4] = [6, 8, 10, 12];

/// Against the formulas, within rounding bounds: they reject zeros, another order and doubled
/// values, and where less errors add up also values 1 % off. In 16 bits the errors of a whole layer
/// are large beside gradients that are far back or small: the bounds reject fewer of them.
#[test]
fn transformer_encoder() {
    let random = Random::new();
    let mut checked = 0;
    // Too few rows for one product of queries, keys and values, and enough rows.
    for (batch, sequence, norm_first) in [(2, 4, false), (2, 4, true), (3, 6, false), (3, 6, true)] {
        let (d_model, d_ff) = (4, 6);
        let small = |shape: &[usize]| multiples(&random, shape, 1, 0.25);
        let linear = |from: usize, to: usize| [small(&[from, to]), small(&[to])];
        let square = || linear(d_model, d_model);
        let norm = || {
            let gamma = small(&[d_model]).iter::<f64>().map(|x| 1.0 + x).collect::<Vec<_>>();
            [TensorData::new(gamma, [d_model]), multiples(&random, &[d_model], 2, 0.25)]
        };
        let shape = [batch, sequence, d_model];
        // Avoids rows of nearly equal elements, whose norm would magnify every error.
        let apart = |(at, x): (usize, f64)| if at % 2 == 0 { x + 1.5 } else { x - 1.5 };
        let x = multiples(&random, &shape, 2, 0.5).iter::<f64>().enumerate().map(apart).collect::<Vec<_>>();
        let case = EncoderCase {
            config: transformer::TransformerEncoderConfig::new(d_model, d_ff, 2, 1)
                .with_dropout(0.0)
                .with_norm_first(norm_first),
            linear: [square(), square(), square(), square(), linear(d_model, d_ff), linear(d_ff, d_model)],
            norms: [norm(), norm()],
            x: TensorData::new(x, shape),
            grad: multiples(&random, &shape, 2, 1.0),
        };
        for (dtype, expected) in FLOATS.into_iter().zip(case.expected(batch)) {
            let what = format!("encoder of {shape:?}, norm first {norm_first}, {dtype:?}");
            let found = case.run::<Ours>(dtype);
            assert_bounded(&what, &found, &expected);
            assert_bounded(&format!("{what}, recomputed"), &case.run::<Balanced>(dtype), &expected);
            let told: Vec<usize> = match dtype {
                DType::BF16 => vec![OUTPUT, BY_X],
                DType::F16 => [&[OUTPUT, BY_X][..], &BY_WEIGHTS].concat(),
                _ => (0..found.len()).filter(|&result| found[result].num_elements() >= 16).collect(),
            };
            let narrow = match dtype {
                DType::BF16 => 0,
                DType::F16 => 1,
                _ => 2,
            };
            checked += assert_narrow(&what, &found[..narrow], &expected[..narrow]);
            for result in told {
                assert_wrong_fails(&format!("{what}, result {result}"), &found[result], &expected[result]);
            }
        }
    }
    assert!(checked > 0, "no result shows that the limits are narrow");
}

/// Sums and means of more elements than a block's, in every float type: the oracle's own sums of
/// 16-bit floats lose bits.
#[test]
fn losses_of_many_differences() {
    let random = Random::new();
    let count = 5_003;
    let huber = loss::HuberLossConfig::new(0.7).init();
    let [delta, lin_bias] = [huber.delta, huber.lin_bias].map(f64::from);
    for dtype in FLOATS {
        let data = [0, 1].map(|_| {
            let values: Vec<f64> = (0..count).map(|_| random.uniform(-1.0, 1.0)).collect();
            TensorData::new(values, [count]).convert_dtype(dtype)
        });
        let residuals: Vec<f64> =
            data[0].iter::<f64>().zip(data[1].iter::<f64>()).map(|(a, b)| a - b).collect();
        for (reduction, divisor) in [(loss::Reduction::Sum, 1.0), (loss::Reduction::Mean, count as f64)] {
            for squared in [true, false] {
                let each = |r: f64| match squared {
                    true => (r * r, 2.0 * r),
                    false if r.abs() <= delta => (r * r / 2.0, r),
                    false => (delta * r.abs() - lin_bias, delta * r.signum()),
                };
                let sum_of = |residuals: &[f64]| residuals.iter().map(|&r| each(r).0).sum::<f64>();
                let sum = sum_of(&residuals);
                let slopes: Vec<f64> = residuals.iter().map(|&r| each(r).1 / divisor).collect();
                let expected = [
                    (TensorData::new(vec![sum / divisor], [1]), count),
                    (TensorData::new(slopes.clone(), [count]), 0),
                    (TensorData::new(slopes.iter().map(|slope| -slope).collect::<Vec<_>>(), [count]), 0),
                ]
                .map(|(data, terms)| rounded_once(data.clone(), &magnitudes(&data), terms, dtype));
                let [a, b] = [0, 1].map(|k: usize| tensor::<Ours, 1>(&data[k], dtype).require_grad());
                let out = match squared {
                    true => loss::MseLoss::new().forward(a.clone(), b.clone(), reduction.clone()),
                    false => huber.forward(a.clone(), b.clone(), reduction.clone()),
                };
                let grads = out.backward();
                let found = [out.into_data()]
                    .into_iter()
                    .chain([a, b].map(|leaf| leaf.grad(&grads).unwrap().into_data()))
                    .collect::<Vec<_>>();
                let what = format!("squared {squared} {reduction:?} {dtype:?}");
                let lost = sum_of(&residuals[count - count % 256..]) / divisor;
                let limit = expected[0][1].iter::<f64>().next().unwrap();
                assert!(limit < lost, "{what}: a lost tail passes");
                assert_limits(&what, dtype, &found, &expected);
            }
        }
    }
}

/// With and without weights and smoothing, of one axis and of several, against the formula in f64.
#[test]
fn binary_cross_entropy() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in [vec![37], vec![11, 4]] {
            for (logits, smoothing, weighted) in
                [(true, None, true), (false, None, true), (true, Some(0.25f32), true), (false, None, false)]
            {
                let count: usize = shape.iter().product();
                let (low, high) = if logits { (-5.0, 5.0) } else { (0.1, 0.9) };
                let x: Vec<f64> = (0..count).map(|_| random.uniform(low, high)).collect();
                let x = TensorData::new(x, [count]).convert_dtype(dtype);
                let labels: Vec<i64> = (0..count).map(|_| random.below(2) as i64).collect();
                let columns = if shape.len() > 1 { shape[1] } else { 2 };
                let weights: Vec<f32> = (0..columns).map(|k| 0.5 + k as f32 / 2.0).collect();
                let leaf = tensor::<Ours, 1>(&x, dtype).require_grad();
                let targets = Tensor::<Ours, 1, Int>::from_data(labels.as_slice(), &Default::default());
                let of = loss::BinaryCrossEntropyLossConfig::new()
                    .with_logits(logits)
                    .with_smoothing(smoothing)
                    .with_weights(weighted.then(|| weights.clone()))
                    .init::<Ours>(&Default::default());
                let out = match shape.len() {
                    1 => of.forward(leaf.clone(), targets),
                    _ => {
                        let shape = [shape[0], shape[1]];
                        of.forward(leaf.clone().reshape(shape), targets.reshape(shape))
                    }
                };
                let grads = out.backward();
                let found = [out.into_data(), leaf.grad(&grads).unwrap().into_data()];
                let (mut sum, mut slopes) = (0.0, Vec::new());
                let (mut sum_magnitude, mut slope_magnitudes) = (0.0, Vec::new());
                for (i, (x, &label)) in x.iter::<f64>().zip(&labels).enumerate() {
                    let a = smoothing.map_or(0.0, f64::from);
                    let y = label as f64 * (1.0 - a) + a / columns as f64;
                    let at = if shape.len() > 1 { i % columns } else { label as usize };
                    let weight = if weighted { f64::from(weights[at]) } else { 1.0 } / count as f64;
                    // log(1 + exp(z))
                    let softplus = |z: f64| z.max(0.0) + (-z.abs()).exp().ln_1p();
                    let (loss, slope) = if logits {
                        (y * softplus(-x) + (1.0 - y) * softplus(x), 1.0 / (1.0 + (-x).exp()) - y)
                    } else {
                        (-y * x.ln() - (1.0 - y) * (-x).ln_1p(), (1.0 - y) / (1.0 - x) - y / x)
                    };
                    sum += weight * loss;
                    slopes.push(weight * slope);
                    // Smoothed targets and sigmoids, of at most 1, are rounded before they are
                    // subtracted or multiplied by a logit.
                    sum_magnitude += weight * if logits { 1.0 + x.abs() } else { loss };
                    slope_magnitudes.push(weight * if logits { 1.0 } else { slope.abs() });
                }
                let all = |values: Vec<f64>| TensorData::new(values, [count]);
                let one = |value: f64| TensorData::new(vec![value], [1]);
                let expected = [
                    rounded_once(one(sum), &one(sum_magnitude), count, dtype),
                    rounded_once(all(slopes), &all(slope_magnitudes), 0, dtype),
                ];
                let what = format!("{shape:?} {dtype:?} logits {logits} {smoothing:?} weighted {weighted}");
                assert_limits(&what, dtype, &found, &expected);
            }
        }
    }
}
