//! Models trained for fifty steps with these modules, losses and optimizers, and with Burn's own on
//! `burn-flex`. The losses agree, and a model and an optimizer that one saved continue with the
//! other.

use burn::module::{AutodiffModule, Module, ModuleMapper, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, Optimizer};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Record, Recorder};
use burn::tensor::Int;
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm_nn::{Act, AddAct};

use crate::attention::{loaded, made, saved};
use crate::support::*;

/// The input of a step.
struct Batch {
    input: TensorData,
    targets: Vec<i64>,
}

/// A model, with Burn's modules or with this crate's.
trait Model<B: Backend>: Module<B> {
    fn new() -> Self;
    fn loss(&self, batch: &Batch) -> Tensor<B, 1>;
}

fn targets<B: Backend>(batch: &Batch) -> Tensor<B, 1, Int> {
    Tensor::from_data(TensorData::new(batch.targets.clone(), [batch.targets.len()]), &Default::default())
}

/// The models with `burn::nn` or with this crate. `$join` computes the residual's sum.
macro_rules! models {
    ($name:ident, $nn:path, $transformer:path, $loss:path, |$a:ident, $b:ident| $join:expr) => {
        mod $name {
            use super::*;
            use $loss as loss;
            use $nn as nn;
            use $transformer as transformer;

            /// A residual block between a convolution and a classifier.
            #[derive(Module, Debug)]
            pub(super) struct Residual<B: Backend> {
                first: Conv2d<B>,
                norm_0: nn::BatchNorm<B>,
                conv_1: Conv2d<B>,
                norm_1: nn::BatchNorm<B>,
                conv_2: Conv2d<B>,
                norm_2: nn::BatchNorm<B>,
                last: Linear<B>,
            }

            impl<B: Backend> Model<B> for Residual<B> {
                fn new() -> Self {
                    let device = Default::default();
                    let conv = |from, to| {
                        let config = Conv2dConfig::new([from, to], [3, 3]).with_bias(false);
                        config.with_padding(PaddingConfig2d::Same).init(&device)
                    };
                    let norm = || nn::BatchNormConfig::new(6).init(&device);
                    Self {
                        first: conv(2, 6),
                        norm_0: norm(),
                        conv_1: conv(6, 6),
                        norm_1: norm(),
                        conv_2: conv(6, 6),
                        norm_2: norm(),
                        last: LinearConfig::new(6, 4).init(&device),
                    }
                }

                fn loss(&self, batch: &Batch) -> Tensor<B, 1> {
                    let x =
                        Tensor::<B, 4>::from_data(batch.input.clone().convert::<f32>(), &Default::default());
                    let x = relu(self.norm_0.forward(self.first.forward(x)));
                    let y = relu(self.norm_1.forward(self.conv_1.forward(x.clone())));
                    let ($a, $b) = (self.norm_2.forward(self.conv_2.forward(y)), x);
                    let x: Tensor<B, 4> = $join;
                    let x = x.mean_dim(3).mean_dim(2).flatten::<2>(1, 3);
                    let loss = loss::CrossEntropyLossConfig::new().with_smoothing(Some(0.1));
                    loss.init(&x.device()).forward(self.last.forward(x), targets(batch))
                }
            }

            /// Two layers of an encoder, and a classifier for each position.
            #[derive(Module, Debug)]
            pub(super) struct Encoder<B: Backend> {
                encoder: transformer::TransformerEncoder<B>,
                last: Linear<B>,
            }

            impl<B: Backend> Model<B> for Encoder<B> {
                fn new() -> Self {
                    let device = Default::default();
                    let config = transformer::TransformerEncoderConfig::new(8, 12, 2, 2).with_dropout(0.0);
                    Self { encoder: config.init(&device), last: LinearConfig::new(8, 5).init(&device) }
                }

                fn loss(&self, batch: &Batch) -> Tensor<B, 1> {
                    let x =
                        Tensor::<B, 3>::from_data(batch.input.clone().convert::<f32>(), &Default::default());
                    let out = self.encoder.forward(transformer::TransformerEncoderInput::new(x));
                    let loss = loss::CrossEntropyLossConfig::new().init(&out.device());
                    loss.forward(self.last.forward(out).flatten::<2>(0, 1), targets(batch))
                }
            }
        }
    };
}
models!(stock, burn::nn, burn::nn::transformer, burn::nn::loss, |a, b| relu(a + b));
models!(fused, burn_rocm_nn, burn_rocm_nn::transformer, burn_rocm_nn::loss, |a, b| {
    AddAct::new(Act::Relu).forward(a, b)
});

fn images(random: &Random) -> Batch {
    Batch { input: uniform(random, &[8, 2, 6, 6]), targets: (0..8).map(|_| random.below(4) as i64).collect() }
}

fn sequences(random: &Random) -> Batch {
    Batch { input: uniform(random, &[4, 6, 8]), targets: (0..24).map(|_| random.below(5) as i64).collect() }
}

/// Takes steps and returns the loss before each.
fn train<B: AutodiffBackend, M: Model<B> + AutodiffModule<B>>(
    model: &mut Option<M>,
    optimizer: &mut impl Optimizer<M, B>,
    lr: f64,
    steps: usize,
    batch: &Batch,
) -> Vec<f64> {
    let mut step = |_| {
        let now = model.take().unwrap();
        let loss = now.loss(batch);
        let grads = GradientsParams::from_grads(loss.backward(), &now);
        *model = Some(optimizer.step(lr, now, grads));
        loss.into_data().iter::<f64>().next().unwrap()
    };
    (0..steps).map(&mut step).collect()
}

/// Changes each parameter by up to 2^-19 of its value, 32 roundings of f32.
struct Nudge<'a>(&'a Random);

impl<B: Backend> ModuleMapper<B> for Nudge<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|x| {
            let factors =
                (0..x.shape().num_elements()).map(|_| 1.0 + 2f64.powi(-19) * self.0.uniform(-1.0, 1.0));
            let factors = TensorData::new(factors.collect::<Vec<f64>>(), x.shape()).convert::<f32>();
            let device = x.device();
            x * Tensor::from_data(factors, &device)
        })
    }
}

/// Asserts that losses are Burn's. Training amplifies rounding errors, by more in some draws than in
/// others. `nudged` has Burn's losses from parameters that are 32 roundings off, once. A step here
/// rounds otherwise than Burn's by less, but each step does, and their effects add up: so up to 8
/// times what the nudge has changed so far is taken for rounding. Once that is more than a hundredth
/// of the loss, a comparison shows nothing more. In the first twenty steps that is a failure.
fn agree(what: &str, ours: &[f64], theirs: &[f64], nudged: &[f64]) {
    let last = theirs.len() - 1;
    assert!(last < 20 || theirs[last] < 0.9 * theirs[0], "{what} learns: {theirs:?}");
    let mut limit = 0f64;
    for (step, ((ours, theirs), nudged)) in ours.iter().zip(theirs).zip(nudged).enumerate() {
        limit = limit.max(8.0 * (nudged - theirs).abs()).max(1e-5 * theirs);
        if limit > 0.01 * theirs {
            assert!(step >= 20, "{what}, step {step}: a wide limit, {limit}");
            break;
        }
        let off = (ours - theirs).abs();
        assert!(off < limit, "{what}, step {step}: {ours} instead of {theirs}, {off:e} of {limit:e}");
    }
}

/// Fifty steps from the same parameters with Burn's optimizer and with this crate's.
macro_rules! fifty_steps {
    ($Model:ident, $batch:ident, $lr:expr, |$optim:ident| $optimizer:expr) => {{
        let random = Random::new();
        let batch = $batch(&random);
        let first = made(stock::$Model::<Oracle>::new());
        let record = saved(first.clone());
        let nudged = saved(first.map(&mut Nudge(&random)));
        macro_rules! losses {
            ($B:ident, $models:ident, $api:path, $record:ident) => {{
                use $api as $optim;
                let mut model = Some(loaded($models::$Model::<$B>::new(), &$record));
                let mut optimizer = $optimizer.init();
                train::<$B, _>(&mut model, &mut optimizer, $lr, steps(), &batch)
            }};
        }
        let theirs = losses!(Oracle, stock, burn::optim, record);
        let nudged = losses!(Oracle, stock, burn::optim, nudged);
        let what = concat!(stringify!($Model), " by ", stringify!($optimizer));
        agree(what, &losses!(Ours, fused, burn_rocm_nn::optim, record), &theirs, &nudged);
        let recomputed = losses!(Balanced, fused, burn_rocm_nn::optim, record);
        agree(&format!("{what}, recomputed"), &recomputed, &theirs, &nudged);
    }};
}

fn momentum() -> Option<MomentumConfig> {
    Some(MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: true })
}

#[test]
fn a_residual_block_trains_as_burns() {
    fifty_steps!(Residual, images, 1e-3, |optim| optim::AdamWConfig::new().with_weight_decay(0.01));
    fifty_steps!(Residual, images, 0.02, |optim| {
        optim::SgdConfig::new()
            .with_momentum(momentum())
            .with_weight_decay(Some(WeightDecayConfig::new(1e-3)))
    });
}

#[test]
fn an_encoder_trains_as_burns() {
    fifty_steps!(Encoder, sequences, 1e-3, |optim| optim::AdamWConfig::new().with_weight_decay(0.01));
    fifty_steps!(Encoder, sequences, 0.05, |optim| optim::SgdConfig::new().with_momentum(momentum()));
}

fn save<B: Backend, R: Record<B>>(record: R) -> Vec<u8> {
    BinBytesRecorder::<FullPrecisionSettings>::default().record(record, ()).unwrap()
}

fn load<B: Backend, R: Record<B>>(bytes: Vec<u8>) -> R {
    BinBytesRecorder::<FullPrecisionSettings>::default().load(bytes, &Default::default()).unwrap()
}

/// Ten steps with Burn's modules on the oracle, ten here, and ten there again give the same as
/// thirty there.
#[test]
fn checkpoints_go_on_elsewhere_and_come_back() {
    macro_rules! there_and_back {
        ($Model:ident, $batch:ident) => {{
            let random = Random::new();
            let batch = $batch(&random);
            let first = made(stock::$Model::<Oracle>::new());
            let record = saved(first.clone());
            let nudged = saved(first.map(&mut Nudge(&random)));
            let lr = 2e-3;
            let theirs = || burn::optim::AdamWConfig::new().init::<Oracle, stock::$Model<Oracle>>();
            let mut model = Some(loaded(stock::$Model::<Oracle>::new(), &record));
            let expected = train(&mut model, &mut theirs(), lr, 30, &batch);
            let mut model = Some(loaded(stock::$Model::<Oracle>::new(), &nudged));
            let nudged = train(&mut model, &mut theirs(), lr, 30, &batch);

            let (mut optimizer, mut model) =
                (theirs(), Some(loaded(stock::$Model::<Oracle>::new(), &record)));
            let mut found = train(&mut model, &mut optimizer, lr, 10, &batch);
            let bytes = [saved(model.unwrap()), save::<Oracle, _>(optimizer.to_record())];

            let ours = burn_rocm_nn::optim::AdamWConfig::new().init::<Ours, fused::$Model<Ours>>();
            let mut ours = ours.load_record(load(bytes[1].clone()));
            let mut model = Some(loaded(fused::$Model::<Ours>::new(), &bytes[0]));
            found.extend(train(&mut model, &mut ours, lr, 10, &batch));
            let bytes = [saved(model.unwrap()), save::<Ours, _>(ours.to_record())];

            let mut optimizer = theirs().load_record(load(bytes[1].clone()));
            let mut model = Some(loaded(stock::$Model::<Oracle>::new(), &bytes[0]));
            found.extend(train(&mut model, &mut optimizer, lr, 10, &batch));
            agree(concat!(stringify!($Model), " there and back"), &found, &expected, &nudged);
        }};
    }
    there_and_back!(Residual, images);
    there_and_back!(Encoder, sequences);
}
