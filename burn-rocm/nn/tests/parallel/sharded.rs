//! Optimizers whose step the ranks divide among themselves.

use burn::module::ModuleMapper;
use burn::optim::Optimizer;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::FloatDType;
use burn_rocm::memory_summary;
use burn_rocm_nn::amp::Precision;
use burn_rocm_nn::optim::{AdamConfig, AdamWConfig, OptimizerConfig, SgdConfig};
use burn_rocm_nn::parallel::{ShardedOptimizer, Shards, Share, clip_global_norm};

use crate::*;

pub(super) const STEPS: usize = 8;

/// Trains in global batches of 12, the last of 2: fewer samples than four ranks. `step` takes each
/// step.
fn train(
    ranks: &DataParallel,
    mut step: impl FnMut(Net<B>, GradientsParams, Share) -> Net<B>,
) -> Vec<Vec<f64>> {
    let device = ranks.communicator().device();
    let mut net = ranks.broadcast::<B, _>(Net::<B>::new(&device, ranks.rank()));
    let shards = Shards::new(38, 12, ranks.rank(), ranks.size()).shuffled(5);
    for part in (0..2).flat_map(|epoch| shards.epoch(epoch)) {
        let loss = (!part.indices.is_empty()).then(|| net.loss(&part.indices, &device));
        let grads = ranks.backward(&net, loss);
        net = step(net, grads, part.share);
    }
    parameters(&net)
}

fn configs() -> Vec<(&'static str, f64, OptimizerConfig)> {
    let momentum = MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: true };
    vec![
        ("SGD", 0.05, SgdConfig::new().into()),
        ("SGD with momentum", 0.02, SgdConfig::new().with_momentum(Some(momentum)).into()),
        ("Adam with amsgrad", 0.02, AdamConfig::new().with_amsgrad(true).into()),
        ("AdamW", 0.02, AdamWConfig::new().with_weight_decay(0.05).into()),
    ]
}

/// The same optimizer on one device, whole. Parameters that the loss does not use have gradients of
/// 0, as with a sharded optimizer.
fn whole(config: &OptimizerConfig, lr: f64, most: Option<f32>) -> Vec<Vec<f64>> {
    macro_rules! run {
        ($config:expr) => {{
            let optimizer = $config.init();
            on_ranks(1, |ranks| {
                let mut optimizer = optimizer.clone();
                train(&ranks, |net, grads, _| {
                    let mut grads = zeros_for_missing::<B, _>(&net, grads);
                    if let Some(most) = most {
                        grads = clip_global_norm::<B, _>(&net, grads, most).0;
                    }
                    optimizer.step(lr, net, grads)
                })
            })
            .remove(0)
        }};
    }
    match config {
        OptimizerConfig::Adam(config) => run!(config),
        OptimizerConfig::AdamW(config) => run!(config),
        OptimizerConfig::Sgd(config) => run!(config),
    }
}

pub(crate) fn zeros_for_missing<B: AutodiffBackend, M: Module<B>>(
    net: &M,
    grads: GradientsParams,
) -> GradientsParams {
    struct Fill(GradientsParams);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Fill {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let value = param.val();
            if value.is_require_grad() && self.0.get::<B::InnerBackend, D>(param.id).is_none() {
                self.0.register(param.id, value.inner().zeros_like());
            }
        }
    }
    let mut fill = Fill(grads);
    net.visit(&mut fill);
    fill.0
}

#[track_caller]
pub(super) fn agree(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.concat().into_iter().zip(expected.concat()) {
        assert!((found - expected).abs() <= limit(STEPS), "{what}: {found} instead of {expected}");
    }
}

/// Every rank has the parameters of the whole optimizer on one device, for each bucket size: one
/// parameter in a bucket, some, all.
#[test]
fn a_divided_step_is_the_whole_step() {
    let Some(count) = devices("sharded::a_divided_step_is_the_whole_step") else { return };
    for (what, lr, config) in configs() {
        let expected = whole(&config, lr, None);
        for bytes in [1, 300, 25 << 20] {
            let run = |ranks: DataParallel| {
                let mut optimizer = ShardedOptimizer::new(&ranks, config.clone()).with_bucket_bytes(bytes);
                train(&ranks, |net, grads, share| optimizer.step(lr, net, grads, share))
            };
            let ranks = on_ranks(count, run);
            for parameters in &ranks {
                agree(&format!("{what}, {bytes}"), parameters, &expected);
                assert_eq!(parameters, &ranks[0], "{what}: the same bits on every rank");
            }
            assert_eq!(on_ranks(count, run), ranks, "{what}: the same bits in every run");
        }
    }
}

/// The gradients of all ranks' parts are scaled by the norm of all of them.
#[test]
fn a_divided_step_clips_by_the_norm_of_all_gradients() {
    let Some(count) = devices("sharded::a_divided_step_clips_by_the_norm_of_all_gradients") else { return };
    let config: OptimizerConfig = SgdConfig::new().into();
    // The norm of the first gradients is about 1.
    for most in [0.05, 0.7, 1e4] {
        let expected = whole(&config, 0.1, Some(most));
        let ranks = on_ranks(count, |ranks| {
            let mut optimizer =
                ShardedOptimizer::new(&ranks, config.clone()).with_global_norm(most).with_bucket_bytes(300);
            train(&ranks, |net, grads, share| optimizer.step(0.1, net, grads, share))
        });
        for parameters in &ranks {
            agree(&format!("a norm of {most}"), parameters, &expected);
        }
    }
    assert_ne!(whole(&config, 0.1, Some(0.05)), whole(&config, 0.1, Some(1e4)), "the norm clips");
}

type S = Autodiff<Rocm>;

/// A rank keeps its part of Adam's two moments, and has its part of the averaged gradients. The
/// parameters stay whole.
#[test]
fn states_and_gradients_take_the_divided_memory() {
    let Some(count) = devices("sharded::states_and_gradients_take_the_divided_memory") else { return };
    const LAYERS: usize = 16;
    const SIDE: usize = 128;
    const LAYER: usize = SIDE * SIDE * 4;
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let memory = || {
            device.synchronize().unwrap();
            memory_summary(&device).unwrap().allocated
        };
        let linear = |_| LinearConfig::new(SIDE, SIDE).with_bias(false).init::<S>(&device);
        let mut net: Vec<Linear<S>> = ranks.broadcast::<S, _>((0..LAYERS).map(linear).collect());
        // A layer in a bucket.
        let mut optimizer = ShardedOptimizer::new(&ranks, AdamWConfig::new()).with_bucket_bytes(LAYER);
        let x = Tensor::<S, 2>::ones([1, SIDE], &device);
        // Each layer by itself, so that the pass keeps nothing behind it.
        let gradients = |net: &Vec<Linear<S>>| {
            let loss = net.iter().map(|layer| layer.forward(x.clone()).mean()).reduce(|a, b| a + b);
            ranks.backward(net, loss)
        };
        let grads = gradients(&net);
        net = optimizer.step(1e-3, net, grads, Share::EVEN);
        // The parameters, this rank's parts of both moments, and the input.
        let (whole, part) = (LAYERS * LAYER, LAYERS * LAYER / ranks.size());
        let kept = memory().bytes;
        assert!(kept >= whole + 2 * part, "{kept} bytes, {whole} of all parameters");
        // The pool rounds blocks up, less than half a layer for all of them.
        assert!(kept <= whole + 2 * part + LAYER / 2, "{kept} bytes, {whole} of all parameters");

        let grads = gradients(&net);
        let before = memory().bytes;
        assert!(before >= kept + whole, "this rank's own gradients: {before}");
        device.reset_peak_memory().unwrap();
        net = optimizer.step(1e-3, net, grads, Share::EVEN);
        let peak = memory().peak;
        // While the gradients are reduced, up to two packed layers and a part. While the parameters are
        // gathered, the new ones beside the old ones, and this rank's part of them and of the averaged
        // gradients: all other gradients are gone.
        let reducing = before + 3 * LAYER;
        let gathering = kept + whole + 2 * part;
        assert!(peak <= reducing.max(gathering) + LAYER / 2, "{peak} bytes, {before} before");
        assert!(memory().bytes <= kept + LAYER / 2, "{:?}", memory());
        drop(net);
    });
}

/// A loss of a model in bf16, the same on every rank.
fn half_loss(model: &Linear<S>, device: &RocmDevice, step: usize) -> Tensor<S, 1> {
    let values: Vec<f32> = (0..20).map(|i| (1.3 * (i + 7 * step) as f32).sin()).collect();
    let x = Tensor::<S, 2>::from_data(TensorData::new(values, [4, 5]), device).cast(FloatDType::BF16);
    model.forward(x).cast(FloatDType::F32).powi_scalar(2).mean()
}

fn half_model(device: &RocmDevice) -> Linear<S> {
    let mut model = LinearConfig::new(5, 3).init::<S>(device);
    let values: Vec<f32> = (0..15).map(|i| (0.9 * i as f32).cos()).collect();
    model.weight = Param::from_data(TensorData::new(values, [5, 3]), device);
    model.bias = Some(Param::from_data(TensorData::from([0.1f32, -0.2, 0.3]), device));
    model
}

/// Parameters in bf16 have an f32 copy: the bits are those of one device that keeps f32 parameters
/// and computes with a copy in bf16. All ranks have the same samples, so that their mean is exact.
#[test]
fn parameters_in_bf16_have_an_f32_copy() {
    let Some(count) = devices("sharded::parameters_in_bf16_have_an_f32_copy") else { return };
    let bf16 = Precision::new(FloatDType::BF16);
    let expected = on_ranks(1, |ranks| {
        let device = ranks.communicator().device();
        let mut model = bf16.convert(&half_model(&device));
        // The f32 copy begins with the parameters in bf16.
        let mut master = Precision::new(FloatDType::F32).convert(&model);
        let mut optimizer = AdamWConfig::new().init();
        for step in 0..STEPS {
            let grads = half_loss(&model, &device, step).backward();
            master = optimizer.step(1e-3, master, GradientsParams::from_grads(grads, &model));
            model = bf16.convert(&master);
        }
        parameters(&model)
    })
    .remove(0);
    let ranks = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let mut model = bf16.convert(&half_model(&device));
        let mut optimizer = ShardedOptimizer::new(&ranks, AdamWConfig::new());
        for step in 0..STEPS {
            let grads = ranks.backward(&model, Some(half_loss(&model, &device, step)));
            model = optimizer.step(1e-3, model, grads, Share::EVEN);
            assert_eq!(model.weight.val().dtype(), burn::tensor::DType::BF16);
        }
        parameters(&model)
    });
    for parameters in ranks {
        assert_eq!(parameters, expected);
    }
}

/// A step after something else has set the parameters begins with these: here each weight is
/// transposed in place of its own, which has the same shape and shares its memory.
#[test]
fn replaced_parameters_are_seen() {
    let Some(count) = devices("sharded::replaced_parameters_are_seen") else { return };
    struct Transpose;
    impl ModuleMapper<S> for Transpose {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<S, D>>) -> Param<Tensor<S, D>> {
            param.map(|value| match D {
                2 => value.detach().swap_dims(0, 1).detach().require_grad(),
                _ => value,
            })
        }
    }
    let square = |device: &RocmDevice| {
        let mut model = LinearConfig::new(5, 5).init::<S>(device);
        let values: Vec<f32> = (0..25).map(|i| (0.9 * i as f32).cos()).collect();
        model.weight = Param::from_data(TensorData::new(values, [5, 5]), device);
        model.bias = Some(Param::from_data(TensorData::from([0.1f32, -0.2, 0.3, 0.4, 0.5]), device));
        model
    };
    for precision in [FloatDType::F32, FloatDType::BF16] {
        let converted = |device: &RocmDevice| Precision::new(precision).convert(&square(device));
        let loss = |model: &Linear<S>, device: &RocmDevice| {
            let x = Tensor::<S, 2>::ones([2, 5], device).cast(precision);
            let weights = Tensor::<S, 2>::from_data([[1.0f32, 2.0, 3.0, 4.0, 5.0]], device).cast(precision);
            (model.forward(x) * weights).cast(FloatDType::F32).mean()
        };
        let expected = on_ranks(1, |ranks| {
            let device = ranks.communicator().device();
            let f32 = Precision::new(FloatDType::F32);
            let mut model = f32.convert(&converted(&device));
            let mut optimizer = SgdConfig::new().init();
            for _ in 0..2 {
                let half = Precision::new(precision).convert(&model);
                let grads = GradientsParams::from_grads(loss(&half, &device).backward(), &half);
                model = optimizer.step(0.25, model, grads);
                // As the replaced parameters: the rounded ones.
                model = f32.convert(&Precision::new(precision).convert(&model)).map(&mut Transpose);
            }
            parameters(&model)
        })
        .remove(0);
        let ranks = on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            let mut model = converted(&device);
            let mut optimizer = ShardedOptimizer::new(&ranks, SgdConfig::new());
            for _ in 0..2 {
                let grads = ranks.backward(&model, Some(loss(&model, &device)));
                model = optimizer.step(0.25, model, grads, Share::EVEN).map(&mut Transpose);
            }
            parameters(&model)
        });
        for parameters in ranks {
            assert_eq!(parameters, expected, "{precision:?}");
        }
    }
}

/// What does not fit is a typed error, on every rank, and changes nothing.
#[test]
fn other_parameters_and_clipping_by_parameter_are_refused() {
    let test = "sharded::other_parameters_and_clipping_by_parameter_are_refused";
    let Some(count) = devices(test) else { return };
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let clipped = SgdConfig::new()
            .with_gradient_clipping(Some(burn::grad_clipping::GradientClippingConfig::Norm(1.0)));
        let error = refused(|| drop(ShardedOptimizer::new(&ranks, clipped)));
        assert!(error.contains("clipping by value"), "{error}");

        let mut optimizer = ShardedOptimizer::new(&ranks, SgdConfig::new());
        let net = half_model(&device);
        let grads = ranks.backward(&net, Some(half_loss_f32(&net, &device)));
        let net = optimizer.step(0.5, net, grads, Share::EVEN);
        let before = parameters(&net);
        let other = LinearConfig::new(4, 3).init::<S>(&device);
        let error = refused(|| drop(optimizer.step(0.5, other, GradientsParams::new(), Share::EVEN)));
        assert!(error.contains("the 2 parameters of the step before"), "{error}");
        assert!(error.contains("[4, 3]"), "{error}");
        assert_eq!(parameters(&net), before);
        // The optimizer goes on.
        let grads = ranks.backward(&net, Some(half_loss_f32(&net, &device)));
        let net = optimizer.step(0.5, net, grads, Share::EVEN);
        assert_ne!(parameters(&net), before);
    });
}

fn half_loss_f32(model: &Linear<S>, device: &RocmDevice) -> Tensor<S, 1> {
    model.forward(Tensor::<S, 2>::ones([2, 5], device)).powi_scalar(2).mean()
}

/// The text of the error with which `run` panics.
fn refused(run: impl FnOnce()) -> String {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("is refused");
    burn_rocm::take_last_error().expect("a typed error").to_string()
}
