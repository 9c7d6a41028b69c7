//! Modules in every float type against Burn's in f64 with the same parameters: values and all gradients.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Bool, Int};
use burn_rocm::fused::AttentionOptions;
use burn_rocm_nn::{attention, loss, transformer};
use burn_rocm_tests::{FLOATS, assert_close};

use crate::attention::{bools, loaded, made, saved};
use crate::attention_formulas::{Layer, SelfAttention};
use crate::bounded::{assert_bounded, assert_wrong_fails, exact};
use crate::support::*;

/// Gives all parameters the values that they have in `by`, in `dtype`.
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

/// Burn's module in f64 against this crate's in `$dtype`, from one record: output, the input's gradient and those
/// of all parameters.
macro_rules! compare {
    ($what:expr, $x:expr, $config:ident($($size:expr),*) $(.$with:ident($value:expr))*, [$theirs:path, $ours:path],
     |$B:ident, $api:ident, $module:ident, $input:ident| $forward:expr) => {{
        burn_rocm_tests::trace::to_file();
        let record = {
            use $theirs as api;
            saved(made(api::$config::new($($size),*)$(.$with($value))*.init::<Oracle>(&Default::default())))
        };
        for dtype in FLOATS {
            macro_rules! run {
                ($backend:ty, $path:path, $of:expr) => {{
                    type $B = $backend;
                    use $path as $api;
                    let module = $api::$config::new($($size),*)$(.$with($value))*.init::<$B>(&Default::default());
                    let $module = loaded(module, &record).map(&mut Rounded { by: dtype, dtype: $of });
                    let leaf = tensor::<$B, 3>(&$x.clone().convert_dtype(dtype), $of).require_grad();
                    let $input = leaf.clone();
                    let out = $forward;
                    let grads = (out.clone() * out.clone()).sum().backward();
                    let mut all = vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()];
                    all.extend(gradients_of(&$module, &grads));
                    all
                }};
            }
            let expected = run!(Oracle, $theirs, DType::F64);
            let expected: Vec<_> = expected.into_iter().map(|data| data.convert_dtype(dtype)).collect();
            // Intermediate results are rounded; of f64 the oracle takes some constants in f32.
            let times = match dtype {
                DType::F64 => 1e9,
                DType::F32 => 300.0,
                _ => 60.0,
            };
            let tolerance = Tolerance::of(dtype).times(times);
            let what = format!("{} in {dtype:?}", $what);
            assert_close(&what, &run!(Ours, $ours, dtype), &expected, tolerance);
            assert_close(&format!("{what}, recomputed"), &run!(Balanced, $ours, dtype), &expected, tolerance);
        }
    }};
}

/// Self-attention with padding, its layers with these weights and biases: the output and the
/// gradients of the input and of all parameters.
fn attended<B: AutodiffBackend>(
    config: &attention::MultiHeadAttentionConfig,
    parameters: &[[TensorData; 2]; 4],
    dtype: DType,
    [x, grad, pad]: [&TensorData; 3],
) -> Vec<TensorData> {
    let mut module = config.init::<B>(&Default::default());
    let layers = [&mut module.query, &mut module.key, &mut module.value, &mut module.output];
    for (layer, [weight, bias]) in layers.into_iter().zip(parameters) {
        layer.weight = Param::from_tensor(tensor(weight, dtype));
        layer.bias = Some(Param::from_tensor(tensor(bias, dtype)));
    }
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
    // Rows enough that one product makes queries, keys and values, and fewer.
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
        let layers = parameters.each_ref().map(|[weight, bias]| Layer {
            weight: exact(weight.iter::<f64>()),
            bias: exact(bias.iter::<f64>()),
        });
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

/// The place of the gradient of the key's bias, after the output and four gradients. It is 0 or small:
/// a softmax does not see what is added to all of its scores.
const KEY_BIAS: usize = 5;

#[test]
fn transformer_encoder() {
    let random = Random::new();
    for (shape, norm_first) in [([2, 5, 8], false), ([2, 5, 8], true), ([5, 9, 8], false), ([5, 9, 8], true)]
    {
        let x = uniform(&random, &shape);
        compare!(
            format!("encoder of {shape:?}, norm first {norm_first}"),
            x,
            TransformerEncoderConfig(8, 12, 2, 1).with_dropout(0.0).with_norm_first(norm_first),
            [burn::nn::transformer, transformer],
            |B, api, module, x| module.forward(api::TransformerEncoderInput::new(x))
        );
    }
}

/// Sums and means of more elements than a block's, in every float type: the oracle's own sums of 16-bit floats lose
/// bits.
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
                let sum: f64 = residuals.iter().map(|&r| each(r).0).sum();
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
