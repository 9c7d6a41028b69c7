//! Batch norm over all ranks, and layers that are divided among ranks. The reference is one device
//! with all samples and whole layers.

use burn::module::Lora;
use burn::tensor::{FloatDType, Gradients};
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn_022::amp::Precision;
use burn_rocm_nn_022::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn_rocm_nn_022::parallel::{
    ColumnLinear, ParallelAttention, ParallelFeedForward, RowLinear, SyncBatchNorm,
};
use burn_rocm_nn_022::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use burn_rocm_nn_022::{BatchNorm, BatchNormConfig};

use crate::*;

pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

pub(crate) fn float<const D: usize>(values: Vec<f64>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F64))
}

fn near(what: &str, found: &[f64], expected: &[f64], limit: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= limit, "{what}: {found} instead of {expected}");
    }
}

const CHANNELS: usize = 3;
const SPATIAL: usize = 5;

#[derive(Module, Debug)]
struct WithNorm {
    own: Option<BatchNorm>,
    sync: Option<SyncBatchNorm>,
}

fn norm(device: &Device) -> BatchNorm {
    let param = |values: [f64; CHANNELS]| Param::from_tensor(float(values.to_vec(), [CHANNELS], device));
    let mut norm = BatchNormConfig::new(CHANNELS).with_momentum(0.3).init(device);
    norm.gamma = param([0.5, -1.5, 2.0]);
    norm.beta = param([0.1, 0.2, -0.3]);
    norm.map(&mut Wide)
}

/// Casts running statistics to f64.
struct Wide;

impl ModuleMapper for Wide {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| match tensor.dtype() {
            DType::F64 => tensor,
            _ => Tensor::from_inner(tensor.inner().cast(FloatDType::F64)),
        })
    }
}

/// Samples whose channels have means far from 0 and other deviations, `[count, channels, spatial]`.
fn images(first: usize, count: usize, device: &Device) -> Tensor<3> {
    let value = |at: usize| {
        let channel = at / SPATIAL % CHANNELS;
        [3.0, -20.0, 0.0][channel] + [1.0, 0.1, 7.0][channel] * (0.7 * at as f64).sin()
    };
    let len = CHANNELS * SPATIAL;
    let values = (first * len..(first + count) * len).map(value).collect();
    float(values, [count, CHANNELS, SPATIAL], device)
}

struct Found {
    output: Vec<f64>,
    by_x: Vec<f64>,
    by_parameters: Vec<f64>,
    running: Vec<f64>,
}

/// One step with samples `first..first + count` of `total`. The loss weighs each element, and is the
/// mean over the samples.
fn step(
    ranks: &mut DataParallel,
    device: &Device,
    sync: bool,
    (first, count, total): (usize, usize, usize),
) -> Found {
    let (own, all) = (norm(device), ranks.communicator().clone());
    let model = match sync {
        true => WithNorm { own: None, sync: Some(SyncBatchNorm::of(own, &all)) },
        false => WithNorm { own: Some(own), sync: None },
    };
    let x = images(first, count, device).require_grad();
    let output = match &model {
        WithNorm { sync: Some(norm), .. } => norm.forward(x.clone()),
        WithNorm { own: Some(norm), .. } => norm.forward(x.clone()),
        _ => unreachable!(),
    };
    let len = CHANNELS * SPATIAL;
    let weights = (first * len..(first + count) * len).map(|at| (1.1 * at as f64).cos()).collect();
    let weights = float(weights, output.dims(), device);
    let loss = (output.clone() * weights + output.clone().powi_scalar(3)).sum() * (1.0 / count as f64);
    let mut grads = loss.backward();
    let by_x = x.grad(&grads).unwrap() * (count as f64 / total as f64);
    let grads = GradientsParams::from_module(&mut grads, &model);
    let grads = ranks.reduce(&model, grads, Share::of(count, total));
    let states = match &model {
        WithNorm { sync: Some(norm), .. } => [&norm.running_mean, &norm.running_var],
        WithNorm { own: Some(norm), .. } => [&norm.running_mean, &norm.running_var],
        _ => unreachable!(),
    };
    Found {
        output: values(output),
        by_x: values(by_x),
        by_parameters: numbers(&model, Some(&grads)).into_iter().flatten().flatten().collect(),
        running: states.into_iter().flat_map(|state| values(state.value_sync())).collect(),
    }
}

/// Output, gradients and running statistics are those of one device that has all samples, also if
/// the ranks have other numbers of samples.
#[test]
fn ranks_normalise_as_one_device() {
    let Some(count) = devices("layers::ranks_normalise_as_one_device") else { return };
    // A mean is up to 2^9 deviations from 0, which the normalised x loses of its 53 bits. Its cubes
    // are below 2^6, their gradients grow by up to 2^5 (gamma / deviation), and 2^6 are added up.
    let agree = |what: &str, found: &[f64], expected: &[f64]| {
        near(what, found, expected, 2f64.powi(9 + 6 + 5 + 6 - 53));
    };
    for per_rank in [vec![3; count], (1..=count).collect()] {
        let total: usize = per_rank.iter().sum();
        let whole = (0, total, total);
        let expected = on_ranks(1, |mut ranks, device| step(&mut ranks, &device, false, whole)).remove(0);
        let on_all = |sync: bool| {
            on_ranks(count, |mut ranks, device| {
                let first = per_rank[..ranks.rank()].iter().sum();
                let own = per_rank[ranks.rank()];
                step(&mut ranks, &device, sync, (first, own, total))
            })
        };
        let found = on_all(true);
        let joined = |part: fn(&Found) -> &[f64]| found.iter().flat_map(part).copied().collect::<Vec<_>>();
        agree("output", &joined(|found| &found.output), &expected.output);
        agree("gradient of x", &joined(|found| &found.by_x), &expected.by_x);
        for rank in &found {
            agree("running statistics", &rank.running, &expected.running);
            agree("gradient", &rank.by_parameters, &expected.by_parameters);
            assert_eq!(rank.by_parameters.len(), 2 * CHANNELS);
        }
        let apart: Vec<f64> = on_all(false).into_iter().flat_map(|found| found.output).collect();
        assert_ne!(apart, joined(|found| &found.output), "the ranks' own statistics differ");
    }
}

/// Without autodiff, and in a frozen layer, the running statistics normalise, and no rank waits for
/// another.
#[test]
fn inference_and_frozen_layers_are_a_ranks_own() {
    let Some(count) = devices("layers::inference_and_frozen_layers_are_a_ranks_own") else { return };
    on_ranks(count, |ranks, device| {
        if ranks.rank() > 0 {
            return;
        }
        let x = images(0, 2, &device);
        let expected = norm(&device).valid().forward(x.clone().inner()).into_data();
        let sync = SyncBatchNorm::of(norm(&device), ranks.communicator());
        sync.valid().forward(x.clone().inner()).into_data().assert_eq(&expected, true);
        let expected = norm(&device).freeze().forward(x.clone()).into_data();
        sync.freeze().forward(x).into_data().assert_eq(&expected, true);
    });
}

/// A conversion leaves the norm in f32, as it leaves `BatchNorm`.
#[test]
fn mixed_precision_keeps_the_norm() {
    let Some(count) = devices("layers::mixed_precision_keeps_the_norm") else { return };
    on_ranks(count, |ranks, device| {
        let norm = SyncBatchNorm::of(BatchNormConfig::new(CHANNELS).init(&device), ranks.communicator());
        let half = Precision::new(FloatDType::BF16).convert(&norm);
        let x = Tensor::<3>::ones([2, CHANNELS, SPATIAL], &device);
        let output = half.forward(x.cast(FloatDType::BF16));
        assert_eq!(output.dtype(), DType::BF16);
        let grads = ranks.backward(&half, Some(output.sum()));
        for param in [&half.gamma, &half.beta] {
            let grad = grads.get::<1>(param.id).unwrap();
            assert_eq!([param.val().dtype(), grad.dtype()], [DType::F32; 2]);
        }
    });
}

const IN: usize = 6;
const HIDDEN: usize = 16;
const OUT: usize = 5;

fn series<const D: usize>(shape: [usize; D], first: usize, device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    float((first..first + count).map(|i| 0.5 * (1.7 * i as f64).sin()).collect(), shape, device)
}

/// An output, the gradient of the input, and those of the parameters in the order of the module.
type Passes = (Vec<f64>, Vec<f64>, Vec<Vec<f64>>);

fn passes<M: Module>(module: &M, x: Tensor<3>, forward: impl Fn(&M, Tensor<3>) -> Tensor<3>) -> Passes {
    struct Read<'a>(&'a Gradients, Vec<Vec<f64>>);
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.push(values(param.val().grad(self.0).unwrap()));
        }
    }
    let x = x.require_grad();
    let y = forward(module, x.clone());
    let grads = (y.clone() * series(y.dims(), 3000, &y.device())).sum().backward();
    let mut read = Read(&grads, Vec::new());
    module.visit(&mut read);
    (values(y), values(x.grad(&grads).unwrap()), read.1)
}

/// The divided module has the output and the gradients of the whole one. `whole` are the parameters
/// that every rank has whole. The parts of the others are compared with the whole as a set.
fn check(what: &str, whole: &[usize], found: &[Passes], expected: &Passes) {
    let near = |found: &[f64], expected: &[f64]| near(what, found, expected, limit(1));
    for (output, by_x, by_parameters) in found {
        near(output, &expected.0);
        near(by_x, &expected.1);
        assert_eq!(by_parameters.len(), expected.2.len(), "{what}");
    }
    let sorted = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all
    };
    for (at, of) in expected.2.iter().enumerate() {
        let parts = found.iter().map(|(_, _, parameters)| parameters[at].clone());
        match whole.contains(&at) {
            true => parts.for_each(|part| near(&part, of)),
            false => near(&sorted(parts.flatten().collect()), &sorted(of.clone())),
        }
    }
}

#[derive(Module, Debug)]
struct Divided {
    first: ColumnLinear,
    second: RowLinear,
}

#[test]
fn divided_layers_are_the_whole_ones() {
    let Some(count) = devices("layers::divided_layers_are_the_whole_ones") else { return };
    let pair = |device: &Device| {
        let pair = [(IN, HIDDEN), (HIDDEN, OUT)].map(|(from, to)| LinearConfig::new(from, to).init(device));
        pair.to_vec().map(&mut Fill(100))
    };
    let x = |device: &Device| series([3, 4, IN], 2000, device);
    let found = on_ranks(count, |ranks, device| {
        let [first, second]: [Linear; 2] = pair(&device).try_into().unwrap();
        let all = ranks.communicator();
        let pair = Divided { first: ColumnLinear::of(first, all), second: RowLinear::of(second, all) };
        passes(&pair, x(&device), |pair, x| pair.second.forward(activation::tanh(pair.first.forward(x))))
    });
    let device = Device::rocm(0).autodiff();
    let expected =
        passes(&pair(&device), x(&device), |pair, x| pair[1].forward(activation::tanh(pair[0].forward(x))));
    check("linear layers", &[3], &found, &expected);
}

#[test]
fn a_divided_feed_forward_is_the_whole_one() {
    let Some(count) = devices("layers::a_divided_feed_forward_is_the_whole_one") else { return };
    let block = |device: &Device| -> PositionWiseFeedForward {
        PositionWiseFeedForwardConfig::new(IN, HIDDEN).with_dropout(0.0).init(device).map(&mut Fill(100))
    };
    let x = |device: &Device| series([3, 4, IN], 2000, device);
    let found = on_ranks(count, |ranks, device| {
        let module = ParallelFeedForward::of(block(&device), ranks.communicator());
        passes(&module, x(&device), |module, x| module.forward(x))
    });
    let device = Device::rocm(0).autodiff();
    let expected = passes(&block(&device), x(&device), |module, x| module.forward(x));
    // Inner weight and bias, outer weight, outer bias.
    check("feed forward", &[3], &found, &expected);
}

#[test]
fn divided_heads_are_the_whole_attention() {
    let Some(count) = devices("layers::divided_heads_are_the_whole_attention") else { return };
    // The heads of keys that 8 heads of queries share.
    for (kv_heads, cross) in [(None, false), (Some(4), true)] {
        let attention = |device: &Device| -> MultiHeadAttention {
            let config = MultiHeadAttentionConfig::new(16, 8).with_dropout(0.0).with_kv_heads(kv_heads);
            config.init(device).map(&mut Fill(100))
        };
        let input = |x: Tensor<3>| match cross {
            true => MhaInput::new(x.clone(), x.clone().mul_scalar(2.0), x),
            false => {
                let mask = generate_autoregressive_mask(3, 5, &x.device());
                MhaInput::self_attn(x).mask_attn(mask)
            }
        };
        let x = |device: &Device| series([3, 5, 16], 2000, device);
        let found = on_ranks(count, |ranks, device| {
            let module = ParallelAttention::of(attention(&device), ranks.communicator());
            passes(&module, x(&device), |module, x| module.forward(input(x)).context)
        });
        let device = Device::rocm(0).autodiff();
        let expected = passes(&attention(&device), x(&device), |module, x| module.forward(input(x)).context);
        // Weights and biases of query, key and value; the output's weight and bias.
        check("attention", &[7], &found, &expected);
    }
}

/// Burn's adapters are merged into the weights before the ranks divide them.
#[test]
fn adapters_are_divided_with_their_weights() {
    let Some(count) = devices("layers::adapters_are_divided_with_their_weights") else { return };
    fn adapted<M: Module>(module: M) -> M {
        module.apply_lora(Lora::new(2, 4.0)).map(&mut Fill(100))
    }
    // Weights are 0.5 and an adapter 1 at most, so attention's scores are below 2^8. Their rounding,
    // by 2^5 terms of 2^-53 each, multiplies outputs below 2^9. An adapter changes outputs by more.
    let same = |what: &str, found: Tensor<3>, expected: Tensor<3>| {
        near(what, &values(found), &values(expected), 2f64.powi(8 + 5 + 9 - 53));
    };
    on_ranks(count, |ranks, device| {
        let all = ranks.communicator();
        let x = series([3, 4, IN], 2000, &device);
        let [first, second] = [(IN, HIDDEN), (HIDDEN, OUT)]
            .map(|(from, to)| adapted(LinearConfig::new(from, to).init(&device)));
        let expected = second.forward(first.forward(x.clone()));
        let found = ColumnLinear::of(first, all).forward(x.clone());
        same("linear layers", RowLinear::of(second, all).forward(found), expected);

        let config = PositionWiseFeedForwardConfig::new(IN, HIDDEN).with_dropout(0.0);
        let block = adapted(config.init(&device));
        let expected = block.forward(x.clone());
        same("feed forward", ParallelFeedForward::of(block, all).forward(x), expected);

        let config = MultiHeadAttentionConfig::new(16, 8).with_dropout(0.0);
        let attention = adapted(config.init(&device));
        let input = || MhaInput::self_attn(series([3, 5, 16], 2000, &device));
        let expected = attention.forward(input()).context;
        same("attention", ParallelAttention::of(attention, all).forward(input()).context, expected);
    });
}

#[test]
fn what_the_ranks_do_not_divide_is_refused() {
    let Some(count) = devices("layers::what_the_ranks_do_not_divide_is_refused") else { return };
    on_ranks(count, |ranks, device| {
        let all = ranks.communicator();
        let layer = || LinearConfig::new(IN + 1, OUT).init(&device);
        let block = || PositionWiseFeedForwardConfig::new(IN, 9).init(&device);
        let attention = || MultiHeadAttentionConfig::new(16, 8).with_kv_heads(Some(1)).init(&device);
        let cases: [&dyn Fn(); 4] = [
            &|| drop(ColumnLinear::of(layer(), all)),
            &|| drop(RowLinear::of(layer(), all)),
            &|| drop(ParallelFeedForward::of(block(), all)),
            &|| drop(ParallelAttention::of(attention(), all)),
        ];
        for refused in cases {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(refused)).expect_err("is refused");
            let error = take_last_error().expect("a typed error");
            assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
        }
    });
}
