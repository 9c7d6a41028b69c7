//! Norms and overflows of a whole model's gradients, of which each rank has some parts.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn_022::amp::{GradScaler, GradScalerConfig};
use burn_rocm_nn_022::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn_rocm_nn_022::parallel::{ColumnLinear, ParallelAttention, ParallelFeedForward, RowLinear};
use burn_rocm_nn_022::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};

use crate::layers::{float, values};
use crate::*;

const WIDTH: usize = 16;
const RATE: f64 = 0.5;

/// All layers that can be divided, between two that are not.
#[derive(Module, Debug)]
struct Whole {
    first: Linear,
    columns: Linear,
    rows: Linear,
    block: PositionWiseFeedForward,
    attention: MultiHeadAttention,
    last: (Linear, Linear),
}

/// [`Whole`], with the parameters in the same order.
#[derive(Module, Debug)]
struct Parted {
    first: Linear,
    columns: ColumnLinear,
    rows: RowLinear,
    block: ParallelFeedForward,
    attention: ParallelAttention,
    last: (Linear, Linear),
}

/// The parameters that every rank has whole: those of the first and the last layers, and three biases
/// behind sums.
const SAME: [usize; 9] = [0, 1, 5, 9, 17, 18, 19, 20, 21];

impl Whole {
    fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let block = PositionWiseFeedForwardConfig::new(WIDTH, 2 * WIDTH).with_dropout(0.0);
        let net = Self {
            first: linear(FEATURES, WIDTH),
            columns: linear(WIDTH, 2 * WIDTH),
            rows: linear(2 * WIDTH, WIDTH),
            block: block.init(device),
            attention: MultiHeadAttentionConfig::new(WIDTH, 8).with_dropout(0.0).init(device),
            last: (linear(WIDTH, WIDTH), linear(WIDTH, 2)),
        };
        net.map(&mut Fill(0))
    }
}

fn series(shape: [usize; 3], first: usize, device: &Device) -> Tensor<3> {
    let count: usize = shape.iter().product();
    float((first..first + count).map(|i| 0.5 * (1.7 * i as f64).sin()).collect(), shape, device)
}

/// The loss of either model, for the same tokens on every rank.
macro_rules! loss {
    ($net:expr, $device:expr) => {{
        let x = $net.first.forward(series([3, 5, FEATURES], 90, $device));
        let x = $net.rows.forward(activation::tanh($net.columns.forward(x)));
        let x = $net.block.forward(x);
        let x = $net.attention.forward(MhaInput::self_attn(x)).context;
        let x = $net.last.1.forward($net.last.0.forward(x));
        (x * series([3, 5, 2], 70, $device)).sum()
    }};
}

impl Parted {
    fn new(ranks: &DataParallel, device: &Device) -> Self {
        let all = ranks.communicator();
        let Whole { first, columns, rows, block, attention, last } = Whole::new(device);
        Self {
            first,
            columns: ColumnLinear::of(columns, all),
            rows: RowLinear::of(rows, all),
            block: ParallelFeedForward::of(block, all),
            attention: ParallelAttention::of(attention, all),
            last,
        }
    }

    fn grads(&self, ranks: &DataParallel, device: &Device, scaler: Option<&GradScaler>) -> GradientsParams {
        let loss = loss!(self, device);
        let loss = scaler.map_or(loss.clone(), |scaler| scaler.scale(loss));
        ranks.backward(self, Some(loss))
    }
}

fn all(module: &impl Module, grads: Option<&GradientsParams>) -> Vec<Vec<f64>> {
    numbers(module, grads).into_iter().map(|values| values.expect("all are used")).collect()
}

/// Parameters and gradients of the undivided model.
fn whole() -> Vec<(Vec<f64>, Vec<f64>)> {
    let device = Device::rocm(0).autodiff();
    let net = Whole::new(&device);
    let grads = GradientsParams::from_grads(loss!(net, &device).backward(), &net);
    all(&net, None).into_iter().zip(all(&net, Some(&grads))).collect()
}

fn norm_of(whole: &[(Vec<f64>, Vec<f64>)]) -> f64 {
    whole.iter().flat_map(|(_, grad)| grad).map(|x| x * x).sum::<f64>().sqrt()
}

/// The ranks' parameters are those of the undivided model after a step with gradients times `factor`.
/// The errors of gradients are those of [`limit`], in units of their norm.
fn check(what: &str, found: &[Vec<Vec<f64>>], whole: &[(Vec<f64>, Vec<f64>)], factor: f64) {
    let limit = limit(1) * (1.0 + norm_of(whole));
    let near = |found: &[f64], expected: &[f64]| {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= limit, "{what}: {found} instead of {expected}");
        }
    };
    let sorted = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all
    };
    for (at, (param, grad)) in whole.iter().enumerate() {
        let expected: Vec<f64> = param.iter().zip(grad).map(|(p, g)| p - RATE * factor * g).collect();
        let parts = found.iter().map(|parameters| parameters[at].clone());
        match SAME.contains(&at) {
            true => parts.for_each(|part| {
                near(&part, &expected);
                assert_eq!(part, found[0][at], "{what}: the same bits on every rank");
            }),
            false => near(&sorted(parts.flatten().collect()), &sorted(expected)),
        }
    }
}

/// The norm is that of the undivided model's gradients, with the same bits on every rank, and so is
/// the step with clipped gradients. A rank's own parts have another norm.
#[test]
fn the_norm_of_divided_layers_is_the_whole_models() {
    let Some(count) = devices("global::the_norm_of_divided_layers_is_the_whole_models") else { return };
    let whole = whole();
    assert_eq!(whole.len(), 22);
    let norm = norm_of(&whole);
    for most in [0.25 * norm, 4.0 * norm] {
        let most = most as f32;
        let found = on_ranks(count, |ranks, device| {
            let net = Parted::new(&ranks, &device);
            let grads = net.grads(&ranks, &device, None);
            let own: f64 = all(&net, Some(&grads)).iter().flatten().map(|x| x * x).sum();
            let (clipped, found) = clip_global_norm(&net, grads, most);
            let net = SgdConfig::new().init().step(RATE, net, clipped);
            (values(found)[0], own.sqrt(), all(&net, None))
        });
        for (found, own, _) in &found {
            assert!((found - norm).abs() <= limit(1) * norm, "{found} instead of {norm}");
            assert!(*own < 0.999 * norm, "a rank's own gradients have the norm {own} of {norm}");
        }
        assert!(found.iter().all(|(norm, ..)| norm.to_bits() == found[0].0.to_bits()));
        let stepped: Vec<_> = found.into_iter().map(|(.., parameters)| parameters).collect();
        check("clipped", &stepped, &whole, f64::min(1.0, f64::from(most) / norm));
    }
}

/// A gradient that overflowed in one rank's part: no rank takes the step, and all lower the scale.
/// Then all take the same step.
#[test]
fn an_overflow_in_one_ranks_part_is_seen_by_all() {
    let Some(count) = devices("global::an_overflow_in_one_ranks_part_is_seen_by_all") else { return };
    let whole = whole();
    for victim in 0..count {
        let found = on_ranks(count, |ranks, device| {
            let net = Parted::new(&ranks, &device);
            let mut scaler = GradScalerConfig::new().with_initial_scale(8.0).init();
            let mut optimizer = SgdConfig::new().init();
            let mut grads = net.grads(&ranks, &device, Some(&scaler));
            if ranks.rank() == victim {
                let id = net.block.part.linear_outer.weight.id;
                let grad = grads.remove::<2>(id).expect("the layer is used");
                grads.register(id, grad * f64::INFINITY);
            }
            let before = all(&net, None);
            let net = scaler.step(&mut optimizer, RATE, net, grads);
            assert_eq!(all(&net, None), before, "rank {} took the step", ranks.rank());
            assert_eq!((scaler.factor(), scaler.skipped()), (4.0, 1), "rank {}", ranks.rank());
            let grads = net.grads(&ranks, &device, Some(&scaler));
            let net = scaler.step(&mut optimizer, RATE, net, grads);
            assert_eq!((scaler.factor(), scaler.skipped()), (4.0, 1), "rank {}", ranks.rank());
            all(&net, None)
        });
        // Scales are powers of 2, which round nothing.
        check("after the overflow", &found, &whole, 1.0);
    }
}

/// Each rank has a [`ShardedModel`] of its own, whose block all ranks divide. The gradient of the last
/// rank's rows overflows: no rank takes the step, and all lower the scale.
#[test]
fn an_overflow_in_one_ranks_part_skips_the_step_of_all_models() {
    let Some(count) = devices("global::an_overflow_in_one_ranks_part_skips_the_step_of_all_models") else {
        return;
    };
    on_ranks(count, |ranks, device| {
        let group = ranks.communicator();
        let alone = DataParallel::new(Communicator::local(&[group.device()]).unwrap().remove(0));
        let linear = |from, to, first| LinearConfig::new(from, to).init(&device).map(&mut Fill(first));
        let block = |_| {
            let (mut columns, mut rows) = (linear(WIDTH, WIDTH, 1000), linear(WIDTH, WIDTH, 2000));
            // The rows' weights are 0, so the output is finite. Their gradient has a factor of 1e290.
            let bias = (0..WIDTH).map(|at| if at == WIDTH - 1 { 1e290 } else { 1.0 }).collect();
            columns.bias = Some(Param::from_tensor(float(bias, [WIDTH], &device)));
            rows.weight = Param::from_tensor(float(vec![0.0; WIDTH * WIDTH], [WIDTH, WIDTH], &device));
            (ColumnLinear::of(columns, group), RowLinear::of(rows, group))
        };
        let scaler = GradScalerConfig::new().with_initial_scale(2f64.powi(100)).init();
        let config = ShardedModelConfig::new(SgdConfig::new()).with_scaler(scaler);
        let (first, last) = (|| linear(FEATURES, WIDTH, 0), || linear(WIDTH, 1, 3000));
        let mut model = ShardedModel::build(&alone, config, first, 1, block, last).unwrap();
        let parameters = |model: &ShardedModel<Linear, (ColumnLinear, RowLinear), Linear>| {
            [
                all(&model.whole_first(), None),
                all(&model.whole_block(0), None),
                all(&model.whole_last(), None),
            ]
        };
        let before = parameters(&model);
        let (x, _) = samples(&[1, 2, 3], &device);
        model.step(
            RATE,
            Share::EVEN,
            |first: &Linear| first.forward(x.clone()),
            |_, (columns, rows): &(ColumnLinear, RowLinear), x| rows.forward(columns.forward(x)),
            |last: &Linear, x| last.forward(x).sum(),
        );
        assert_eq!(parameters(&model), before, "rank {} took the step", ranks.rank());
        let scaler = model.scaler().expect("the configuration has one");
        assert_eq!((scaler.factor(), scaler.skipped()), (2f32.powi(99), 1), "rank {}", ranks.rank());
    });
}

/// A bucket may have divided parameters and others.
#[test]
fn a_norm_of_buckets_refuses_divided_layers() {
    let Some(count) = devices("global::a_norm_of_buckets_refuses_divided_layers") else { return };
    let errors = on_ranks(count, |ranks, device| {
        let net = Parted::new(&ranks, &device);
        let grads = net.grads(&ranks, &device, None);
        let mut optimizer = ShardedOptimizer::new(&ranks, SgdConfig::new()).with_global_norm(1.0);
        let step = || drop(optimizer.step(RATE, net, grads, Share::EVEN));
        catch_unwind(AssertUnwindSafe(step)).expect_err("is refused");
        let by_optimizer = take_last_error().expect("a typed error");
        let linear = || LinearConfig::new(WIDTH, WIDTH).init(&device);
        let config = ShardedModelConfig::new(SgdConfig::new()).with_global_norm(1.0);
        let block = |_| ColumnLinear::of(linear(), ranks.communicator());
        let by_model = ShardedModel::build(&ranks, config, linear, 1, block, linear);
        [by_optimizer, by_model.map(drop).unwrap_err()]
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(&error, RocmError::Unsupported { what: Some(_), .. }), "{error}");
        assert!(error.to_string().contains("layers divided among ranks"), "{error}");
    }
}
