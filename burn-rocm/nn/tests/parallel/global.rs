//! Norms and overflows of a whole model's gradients, of which each rank has some parts.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::ModuleMapper;
use burn::optim::Optimizer;
use burn_rocm::graph::{Graph, WARM_UPS};
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn::amp::{GradScaler, GradScalerConfig};
use burn_rocm_nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn_rocm_nn::graph;
use burn_rocm_nn::optim::{AdamConfig, SgdConfig};
use burn_rocm_nn::parallel::{
    ColumnLinear, ParallelAttention, ParallelFeedForward, RowLinear, ShardedModel, ShardedModelConfig,
    ShardedOptimizer, Share, clip_global_norm,
};
use burn_rocm_nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};

use crate::model::linear;
use crate::processes::on_processes;
use crate::tensor::{sorted, tensor, values};
use crate::*;

const WIDTH: usize = 16;
const RATE: f64 = 0.5;

/// All layers that can be divided, between two that are not.
#[derive(Module, Debug)]
struct Whole<B: Backend> {
    first: Linear<B>,
    columns: Linear<B>,
    rows: Linear<B>,
    block: PositionWiseFeedForward<B>,
    attention: MultiHeadAttention<B>,
    last: (Linear<B>, Linear<B>),
}

/// [`Whole`], with the parameters in the same order.
#[derive(Module, Debug)]
struct Parted<B: Backend> {
    first: Linear<B>,
    columns: ColumnLinear<B>,
    rows: RowLinear<B>,
    block: ParallelFeedForward<B>,
    attention: ParallelAttention<B>,
    last: (Linear<B>, Linear<B>),
}

/// The parameters that every rank has whole: those of the first and the last layers, and three biases
/// behind sums.
const SAME: [usize; 9] = [0, 1, 5, 9, 17, 18, 19, 20, 21];

/// Sets each parameter to a series of its own.
struct Fill(usize);

impl ModuleMapper<B> for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        self.0 += 1000;
        let first = self.0;
        param.map(|value| tensor(value.dims(), first, &value.device()).require_grad())
    }
}

impl Whole<B> {
    fn new(device: &RocmDevice) -> Self {
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

/// Tokens, and the weights of the outputs in the loss: the same on every rank.
fn batch(device: &RocmDevice) -> [Tensor<B, 3>; 2] {
    [tensor([3, 5, FEATURES], 90, device), tensor([3, 5, 2], 70, device)]
}

/// The loss of either model.
macro_rules! loss {
    ($net:expr, $batch:expr) => {{
        let [x, weights] = $batch;
        let x = $net.first.forward(x);
        let x = $net.rows.forward(activation::tanh($net.columns.forward(x)));
        let x = $net.block.forward(x);
        let x = $net.attention.forward(MhaInput::self_attn(x)).context;
        let x = $net.last.1.forward($net.last.0.forward(x));
        (x * weights).sum()
    }};
}

impl Parted<B> {
    fn new(ranks: &DataParallel) -> Self {
        let all = ranks.communicator();
        let Whole { first, columns, rows, block, attention, last } = Whole::new(&all.device());
        Self {
            first,
            columns: ColumnLinear::of(columns, all),
            rows: RowLinear::of(rows, all),
            block: ParallelFeedForward::of(block, all),
            attention: ParallelAttention::of(attention, all),
            last,
        }
    }

    fn grads(
        &self,
        ranks: &DataParallel,
        batch: [Tensor<B, 3>; 2],
        scaler: Option<&GradScaler>,
    ) -> GradientsParams {
        let loss = loss!(self, batch);
        let loss = scaler.map_or(loss.clone(), |scaler| scaler.scale(loss));
        ranks.backward(self, Some(loss))
    }
}

/// Parameters and gradients of the undivided model.
fn whole() -> Vec<(Vec<f64>, Vec<f64>)> {
    on_ranks(1, |ranks| {
        let device = ranks.communicator().device();
        let net = Whole::new(&device);
        let grads = ranks.backward(&net, Some(loss!(net, batch(&device))));
        let grads = gradients::<B>(&net, &grads).into_iter().map(|grad| grad.expect("all are used"));
        parameters(&net).into_iter().zip(grads).collect()
    })
    .remove(0)
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
    for (at, (param, grad)) in whole.iter().enumerate() {
        let expected: Vec<f64> = param.iter().zip(grad).map(|(p, g)| p - RATE * factor * g).collect();
        let parts = found.iter().map(|parameters| parameters[at].clone());
        match SAME.contains(&at) {
            true => parts.for_each(|part| {
                near(&part, &expected);
                assert_eq!(part, found[0][at], "{what}: the same bits on every rank");
            }),
            false => near(&sorted(parts), &sorted([expected])),
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
        let found = on_ranks(count, |ranks| {
            let net = Parted::new(&ranks);
            let grads = net.grads(&ranks, batch(&ranks.communicator().device()), None);
            let own: f64 = gradients::<B>(&net, &grads).iter().flatten().flatten().map(|x| x * x).sum();
            let (clipped, found) = clip_global_norm(&net, grads, most);
            let net = SgdConfig::new().init().step(RATE, net, clipped);
            (values(found)[0], own.sqrt(), parameters(&net))
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

/// Multiplies a rank's part of a gradient.
fn spoil(net: &Parted<B>, grads: &mut GradientsParams, by: Tensor<Inner, 1>) {
    let id = net.block.part.linear_outer.weight.id;
    let grad = grads.remove::<Inner, 2>(id).expect("the layer is used");
    grads.register(id, grad * by.unsqueeze());
}

/// A gradient that overflowed in one rank's part: no rank takes the step, and all lower the scale.
/// Then all take the same step.
#[test]
fn an_overflow_in_one_ranks_part_is_seen_by_all() {
    let Some(count) = devices("global::an_overflow_in_one_ranks_part_is_seen_by_all") else { return };
    let whole = whole();
    for victim in 0..count {
        let found = on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            let net = Parted::new(&ranks);
            let mut scaler = GradScalerConfig::new().with_initial_scale(8.0).init();
            let mut optimizer = SgdConfig::new().init();
            let mut grads = net.grads(&ranks, batch(&device), Some(&scaler));
            let by = if ranks.rank() == victim { f64::INFINITY } else { 1.0 };
            spoil(&net, &mut grads, Tensor::from_data([by], &device));
            let before = parameters(&net);
            let net = scaler.step(&mut optimizer, RATE, net, grads);
            assert_eq!(parameters(&net), before, "rank {} took the step", ranks.rank());
            assert_eq!((scaler.factor(), scaler.skipped()), (4.0, 1), "rank {}", ranks.rank());
            let grads = net.grads(&ranks, batch(&device), Some(&scaler));
            let net = scaler.step(&mut optimizer, RATE, net, grads);
            assert_eq!((scaler.factor(), scaler.skipped()), (4.0, 1), "rank {}", ranks.rank());
            parameters(&net)
        });
        // Scales are powers of 2, which round nothing.
        check("after the overflow", &found, &whole, 1.0);
    }
}

/// The replays of a graph skip the steps that the eager ones skip, on every rank, with the same bits.
#[test]
fn an_overflow_in_a_graph_is_seen_by_all() {
    let Some(count) = devices("global::an_overflow_in_a_graph_is_seen_by_all") else { return };
    let factors = |rank: usize| [1.0, if rank == 1 { f64::INFINITY } else { 1.0 }, 1.0];
    let trained = |captured: bool| {
        on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            let mut net = Some(Parted::new(&ranks));
            let mut scaler = GradScalerConfig::new().with_initial_scale(8.0).init();
            let mut optimizer = AdamConfig::new().init();
            let by = Tensor::<Inner, 1>::from_data([1.0], &device) + 0.0;
            let batch = batch(&device);
            let mut step = |by: Tensor<Inner, 1>| {
                let before = net.take().unwrap();
                let mut grads = before.grads(&ranks, batch.clone(), Some(&scaler));
                spoil(&before, &mut grads, by);
                net = Some(scaler.step(&mut optimizer, 0.01, before, grads));
            };
            if captured {
                let (graph, ()) = Graph::capture(&device, || step(by.clone())).unwrap();
                for factor in factors(ranks.rank()) {
                    graph::write(&by, Tensor::from_data([factor], &device)).unwrap();
                    graph.replay().unwrap();
                }
            } else {
                (0..WARM_UPS).for_each(|_| step(by.clone()));
                for factor in factors(ranks.rank()) {
                    step(Tensor::from_data([factor], &device));
                }
            }
            (scaler.factor(), scaler.skipped(), parameters(&net.unwrap()))
        })
    };
    let expected = trained(false);
    assert_eq!((expected[0].0, expected[0].1), (4.0, 1));
    assert_eq!(trained(true), expected);
}

/// Each rank has a [`ShardedModel`] of its own, whose block all ranks divide. The gradient of the last
/// rank's rows overflows: no rank takes the step, and all lower the scale.
///
/// The ranks are processes, because threads of different models do not wait for each other's
/// backward passes (burn#5573).
#[test]
fn an_overflow_in_one_ranks_part_skips_the_step_of_all_models() {
    const NAME: &str = "global::an_overflow_in_one_ranks_part_skips_the_step_of_all_models";
    type Block = (ColumnLinear<B>, RowLinear<B>);
    on_processes(NAME, |group| {
        let device = group.device();
        let alone = DataParallel::new(Communicator::local(std::slice::from_ref(&device)).unwrap().remove(0));
        let block = |_| {
            let [mut columns, mut rows] = [10, 20].map(|seed| linear::<B>(WIDTH, WIDTH, seed, &device));
            // The rows' weights are 0, so the output is finite. Their gradient has a factor of 1e290.
            let bias: Vec<f64> = (0..WIDTH).map(|at| if at == WIDTH - 1 { 1e290 } else { 1.0 }).collect();
            columns.bias = Some(Param::from_data(TensorData::new(bias, [WIDTH]), &device));
            rows.weight =
                Param::from_data(TensorData::new(vec![0.0; WIDTH * WIDTH], [WIDTH, WIDTH]), &device);
            (ColumnLinear::of(columns, &group), RowLinear::of(rows, &group))
        };
        let scaler = GradScalerConfig::new().with_initial_scale(2f64.powi(100)).init();
        let config = ShardedModelConfig::new(SgdConfig::new()).with_scaler(scaler);
        let (first, last) =
            (|| linear::<B>(FEATURES, WIDTH, 0, &device), || linear::<B>(WIDTH, 1, 30, &device));
        let mut model = ShardedModel::<B, _, _, _>::build(&alone, config, first, 1, block, last).unwrap();
        let all = |model: &ShardedModel<B, Linear<B>, Block, Linear<B>>| {
            let block = parameters::<B>(&model.whole_block(0));
            [parameters::<B>(&model.whole_first()), block, parameters::<B>(&model.whole_last())]
        };
        let before = all(&model);
        let (x, _) = samples::<B>(&[1, 2, 3], &device);
        model.step(
            RATE,
            Share::EVEN,
            |first: &Linear<B>| first.forward(x.clone()),
            |_, (columns, rows): &Block, x| rows.forward(columns.forward(x)),
            |last: &Linear<B>, x| last.forward(x).sum(),
        );
        assert_eq!(all(&model), before, "rank {} took the step", group.rank());
        let scaler = model.scaler().expect("the configuration has one");
        assert_eq!((scaler.factor(), scaler.skipped()), (2f32.powi(99), 1), "rank {}", group.rank());
    });
}

/// A bucket may have divided parameters and others.
#[test]
fn a_norm_of_buckets_refuses_divided_layers() {
    let Some(count) = devices("global::a_norm_of_buckets_refuses_divided_layers") else { return };
    let errors = on_ranks(count, |ranks| {
        let net = Parted::new(&ranks);
        let grads = net.grads(&ranks, batch(&ranks.communicator().device()), None);
        let mut optimizer = ShardedOptimizer::new(&ranks, SgdConfig::new()).with_global_norm(1.0);
        let step = || drop(optimizer.step(RATE, net, grads, Share::EVEN));
        catch_unwind(AssertUnwindSafe(step)).expect_err("is refused");
        let by_optimizer = take_last_error().expect("a typed error");
        let device = ranks.communicator().device();
        let linear = || LinearConfig::new(WIDTH, WIDTH).init::<B>(&device);
        let config = ShardedModelConfig::new(SgdConfig::new()).with_global_norm(1.0);
        let block = |_| ColumnLinear::of(linear(), ranks.communicator());
        let by_model = ShardedModel::<B, _, _, _>::build(&ranks, config, linear, 1, block, linear);
        [by_optimizer, by_model.map(drop).unwrap_err()]
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(&error, RocmError::Unsupported { what: Some(_), .. }), "{error}");
        assert!(error.to_string().contains("layers divided among ranks"), "{error}");
    }
}

/// The ranks that divide a model's layers have other parts of the same shapes. Averaged or sent, they
/// would be mixed.
#[test]
fn a_group_that_divides_layers_is_not_averaged_over() {
    let Some(count) = devices("global::a_group_that_divides_layers_is_not_averaged_over") else { return };
    on_ranks(count, |mut ranks| {
        let net = Parted::new(&ranks);
        let grads = || GradientsParams::new();
        let is_refused = |what: &str, call: &mut dyn FnMut()| {
            catch_unwind(AssertUnwindSafe(call)).expect_err(what);
            let error = take_last_error().expect("an error").to_string();
            assert!(error.contains("hold the same part of the divided layers"), "{what}: {error}");
        };
        is_refused("a mean", &mut || drop(ranks.reduce(&net, grads(), Share::EVEN)));
        is_refused("a broadcast", &mut || drop(ranks.broadcast::<B, _>(Parted::new(&ranks))));
        let mut sharded = ShardedOptimizer::new(&ranks, SgdConfig::new());
        let step = &mut || drop(sharded.step::<B, _>(RATE, Parted::new(&ranks), grads(), Share::EVEN));
        is_refused("a sharded optimizer", step);
        let (device, group) = (ranks.communicator().device(), ranks.communicator().clone());
        let block = |_| ColumnLinear::of(linear::<B>(WIDTH, WIDTH, 10, &device), &group);
        let ends = || linear::<B>(WIDTH, WIDTH, 0, &device);
        let config = ShardedModelConfig::new(SgdConfig::new());
        let built = ShardedModel::<B, _, _, _>::build(&ranks, config, ends, 1, block, ends);
        let error = built.map(drop).expect_err("is refused");
        assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
    });
}
