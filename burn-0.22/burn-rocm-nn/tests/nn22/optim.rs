//! Optimizers: the bits of those for Burn 0.21, and Burn 0.22's own.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim as theirs;
use burn::optim::GradientsParams;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::quantization::QuantScheme;
use burn::tensor::{Device, Tensor};
use burn_rocm::trace::counting;
use burn_rocm_nn_022::optim as ours;
use burn_rocm_nn_022::optim::Optimize;

use crate::worlds::{Ty, assert_launches, assert_same, flex, v21, v22};

const LAYERS: usize = 40;
const STEPS: usize = 5;
const LR: f64 = 0.01;

fn values<M: Module>(module: &M) -> Vec<Vec<f64>> {
    struct Read(Vec<Vec<f64>>);
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data().iter::<f64>().collect());
        }
    }
    let mut read = Read(Vec::new());
    module.visit(&mut read);
    read.0
}

/// 80 parameters, more than a launch takes.
fn model(device: &Device, ty: Ty) -> Vec<Linear> {
    let layers: Vec<Linear> = (0..LAYERS).map(|_| LinearConfig::new(3, 5).init(device)).collect();
    match device == &Device::flex() {
        true => flex::filled(layers, ty),
        false => v22::filled(layers, ty),
    }
}

macro_rules! gradients {
    ($v:ident, $burn:ident, $model:expr, $step:expr, $ty:expr) => {{
        let x = $v::tensor::<2>(50 + $step as u64, [4, 3], $ty);
        let weights = $v::tensor::<2>(60 + $step as u64, [4, 5], $ty);
        let outputs = $model.iter().map(|layer| (layer.forward(x.clone()) * weights.clone()).sum());
        let loss = outputs.reduce(|a, b| a + b).unwrap();
        $burn::optim::GradientsParams::from_grads(loss.backward(), &$model)
    }};
}

fn of_step(model: &Vec<Linear>, step: usize, ty: Ty) -> GradientsParams {
    match model[0].weight.device() == Device::flex() {
        true => gradients!(flex, burn, *model, step, ty),
        false => gradients!(v22, burn, *model, step, ty),
    }
}

/// The parameters after some steps, and the launches of the last.
fn trained(
    mut model: Vec<Linear>,
    optim: &mut impl Optimize,
    ty: Ty,
    steps: std::ops::Range<usize>,
) -> (Vec<Linear>, u64) {
    let mut launches = 0;
    for step in steps {
        let grads = of_step(&model, step, ty);
        let (next, counts) = counting(|| optim.optimize(LR.into(), model, grads));
        (model, launches) = (next, counts.launches());
    }
    (model, launches)
}

/// After the same steps. The numbers of the rules are f32s that Burn combines in another order: 16 roundings of f32 in
/// each step, of updates that are below 8 times the learning rate (all gradients are below 2^7, so SGD's momentum too,
/// once they are scaled by the rate: 2^11 of them).
fn assert_steps(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>], largest: f64) {
    let limit = STEPS as f64 * LR * largest * 16.0 * 2f64.powi(-24);
    for (found, expected) in found.iter().zip(expected) {
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= limit, "{what}: {a}, expected {b} within {limit:.1e}");
        }
    }
}

/// The same settings here and in Burn, with the largest update as a multiple of the learning rate.
macro_rules! everywhere {
    ($Config:ident, $largest:expr $(, $with:ident($value:expr, $value21:expr))*) => {{
        let what = concat!(stringify!($Config), $(" ", stringify!($with)),*);
        for ty in [Ty::F32, Ty::F64, Ty::F16, Ty::BF16] {
            let mut optim = ours::$Config::new()$(.$with($value))*.init();
            let device = Device::rocm(0).autodiff();
            let (after, launches) = trained(model(&device, ty), &mut optim, ty, 0..STEPS);
            // The bits and launches of Burn 0.21's.
            let (old, old_launches) = {
                use burn_021::optim::Optimizer;
                use burn_rocm_nn_021::optim as ours;
                let layers: Vec<burn_021::nn::Linear<_>> =
                    (0..LAYERS).map(|_| burn_021::nn::LinearConfig::new(3, 5).init(&v21::device())).collect();
                let mut model = v21::filled(layers, ty);
                let mut optim = ours::$Config::new()$(.$with($value21))*.init();
                let mut launches = 0;
                for step in 0..STEPS {
                    let grads = gradients!(v21, burn_021, model, step, ty);
                    let (next, counts) = counting(|| optim.step(LR, model, grads));
                    (model, launches) = (next, counts.launches());
                }
                let read = model.iter().flat_map(|layer| {
                    [v21::read(layer.weight.val()), v21::read(layer.bias.as_ref().unwrap().val())]
                });
                (read.collect::<Vec<_>>(), launches)
            };
            assert_same(&format!("{what} {ty:?}"), &values(&after), &old);
            assert_launches(&format!("{what} {ty:?}"), launches, old_launches, 0);
            // Burn's `ModuleOptimizer`: a launch for each parameter, or as few by `step`.
            let mut optim: theirs::ModuleOptimizer = ours::$Config::new()$(.$with($value))*.init().into();
            let (alone, _) = trained(model(&device, ty), &mut optim, ty, 0..STEPS);
            if !optim.has_gradient_clipping() {
                assert_same(&format!("{what} {ty:?} by `step`"), &values(&alone), &old);
                let mut optim: theirs::ModuleOptimizer = ours::$Config::new()$(.$with($value))*.init().into();
                let mut model = model(&device, ty);
                for step in 0..STEPS {
                    let grads = of_step(&model, step, ty);
                    model = optim.step(LR, model, grads);
                }
                assert_same(&format!("{what} {ty:?} in Burn's"), &values(&model), &old);
            }
        }
        // Burn's own, on burn-flex.
        let mut burns = theirs::$Config::new()$(.$with($value))*.init();
        let (expected, _) = trained(model(&Device::flex().autodiff(), Ty::F64), &mut burns, Ty::F64, 0..STEPS);
        let mut optim = ours::$Config::new()$(.$with($value))*.init();
        let (found, _) = trained(model(&Device::rocm(0).autodiff(), Ty::F64), &mut optim, Ty::F64, 0..STEPS);
        assert_steps(what, &values(&found), &values(&expected), $largest);
        // On another device Burn's rule runs.
        let mut optim = ours::$Config::new()$(.$with($value))*.init();
        let (found, _) = trained(model(&Device::flex().autodiff(), Ty::F64), &mut optim, Ty::F64, 0..STEPS);
        assert_same(&format!("{what} on burn-flex"), &values(&found), &values(&expected));
        // Records both ways, after two steps. In f32, to which Burn's records convert on loading.
        let device = Device::rocm(0).autodiff();
        let mut optim = ours::$Config::new()$(.$with($value))*.init();
        let expected = trained(model(&device, Ty::F32), &mut optim, Ty::F32, 0..STEPS).0;
        for ours_first in [true, false] {
            let mut own = ours::$Config::new()$(.$with($value))*.init();
            let mut burns = theirs::$Config::new()$(.$with($value))*.init();
            let model = model(&device, Ty::F32);
            let (found, _) = match ours_first {
                true => {
                    let (model, _) = trained(model, &mut own, Ty::F32, 0..2);
                    let mut burns = burns.from_bytes(own.into_bytes().unwrap()).unwrap();
                    trained(model, &mut burns, Ty::F32, 2..STEPS)
                }
                false => {
                    let (model, _) = trained(model, &mut burns, Ty::F32, 0..2);
                    let mut own = own.from_bytes(burns.into_bytes().unwrap()).unwrap();
                    trained(model, &mut own, Ty::F32, 2..STEPS)
                }
            };
            // The parameters, below 4, are rounded in each step too.
            let largest = $largest + 4.0 / (16.0 * LR);
            assert_steps(&format!("{what}, record"), &values(&found), &values(&expected), largest);
        }
    }};
}

#[test]
fn adam() {
    everywhere!(AdamConfig, 8.0);
    everywhere!(AdamConfig, 8.0, with_amsgrad(true, true));
    everywhere!(
        AdamConfig,
        8.0,
        with_weight_decay(
            Some(WeightDecayConfig::new(0.1)),
            Some(burn_021::optim::decay::WeightDecayConfig::new(0.1))
        )
    );
}

#[test]
fn adamw() {
    everywhere!(AdamWConfig, 8.0);
    everywhere!(AdamWConfig, 8.0, with_cautious_weight_decay(true, true), with_weight_decay(0.1, 0.1));
}

#[test]
fn sgd() {
    everywhere!(SgdConfig, 2048.0);
    everywhere!(
        SgdConfig,
        2048.0,
        with_momentum(Some(MomentumConfig::new()), Some(burn_021::optim::momentum::MomentumConfig::new()))
    );
}

#[test]
fn clipping() {
    type Old = burn_021::grad_clipping::GradientClippingConfig;
    everywhere!(
        AdamConfig,
        8.0,
        with_grad_clipping(Some(GradientClippingConfig::Value(0.5)), Some(Old::Value(0.5)))
    );
    everywhere!(
        SgdConfig,
        8.0,
        with_gradient_clipping(Some(GradientClippingConfig::Norm(0.5)), Some(Old::Norm(0.5)))
    );
    let optim = ours::AdamConfig::new().with_grad_clipping(Some(GradientClippingConfig::Value(0.5))).init();
    assert!(optim.has_gradient_clipping() && optim.grad_clipping().is_some());
    assert!(theirs::ModuleOptimizer::from(optim).has_gradient_clipping());
    let optim = ours::ModuleOptimizer::from(ours::AdamConfig::new().build());
    assert!(!optim.has_gradient_clipping());
    assert!(optim.with_grad_clipping(GradientClippingConfig::Norm(1.0).init()).has_gradient_clipping());
}

/// A parameter's settings outlive a step: whether it is trained, and its checkpointing strategy.
#[test]
fn settings_of_parameters() {
    let device = Device::rocm(0).autodiff().gradient_checkpointing();
    let model = LinearConfig::new(3, 2).init(&device);
    let grads = GradientsParams::from_grads(
        model.forward(Tensor::<2>::ones([4, 3], &device)).sum().backward(),
        &model,
    );
    let model = ours::AdamWConfig::new().init().step(LR, model, grads);
    assert!(model.weight.is_require_grad());
    let strategy = model.weight.val().gradient_checkpointing_strategy();
    assert_eq!(strategy, device.gradient_checkpointing_strategy());
    // The next forward pass meets no other strategy.
    model.forward(Tensor::<2>::ones([4, 3], &device)).sum().backward();
}

/// A gradient that does not fit ends the step with a typed error. Parameters before it have been updated.
#[test]
fn a_gradient_that_does_not_fit() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let device = Device::rocm(0).autodiff();
    let model = vec![LinearConfig::new(3, 2).init(&device), LinearConfig::new(3, 2).init(&device)];
    let loss = model
        .iter()
        .map(|l| l.forward(Tensor::<2>::ones([4, 3], &device)).sum())
        .reduce(|a, b| a + b)
        .unwrap();
    let mut grads = GradientsParams::from_grads(loss.backward(), &model);
    grads.register(model[1].weight.id, Tensor::<2>::ones([7, 7], &Device::rocm(0)));
    let mut optim = ours::AdamConfig::new().init();
    assert!(catch_unwind(AssertUnwindSafe(|| optim.step(LR, model.clone(), grads))).is_err());
    assert!(matches!(burn_rocm::take_last_error(), Some(burn_rocm::RocmError::Invalid { .. })));
    // The optimizer goes on: its states are what the step left.
    let loss = model
        .iter()
        .map(|l| l.forward(Tensor::<2>::ones([4, 3], &device)).sum())
        .reduce(|a, b| a + b)
        .unwrap();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let model = optim.step(LR, model, grads);
    assert!(values(&model).iter().flatten().all(|value| value.is_finite()));
}

/// A frozen clone has the id of its original. The step leaves it as it is, also if the module lists
/// it first.
#[test]
fn a_step_updates_the_trained_one_of_clones() {
    let device = Device::rocm(0).autodiff();
    let trained = v22::filled(LinearConfig::new(3, 2).with_bias(false).init(&device), Ty::F32);
    // The frozen one, and the trained one.
    let model: [Linear; 2] = [trained.clone().no_grad(), trained];
    let [x, y] = [1, 2].map(|tag| v22::tensor::<2>(tag, [4, 3], Ty::F32));
    let loss = (model[0].forward(x) * model[1].forward(y)).sum();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let id = model[1].weight.id;
    let before = values(&model);
    let grad: Vec<f64> = grads.get::<2>(id).unwrap().into_data().iter::<f64>().collect();
    let model = ours::SgdConfig::new().init().step(0.125, model, grads);
    assert_eq!([model[0].weight.id, model[1].weight.id], [id; 2]);
    assert!(!model[0].weight.val().is_require_grad() && model[1].weight.val().is_require_grad());
    let after = values(&model);
    assert_eq!(after[0], before[0]);
    // A product by a power of two is exact. Gradients are below 2^7, so the difference is below 2^4.
    for ((after, before), grad) in after[1].iter().zip(&before[1]).zip(grad) {
        let expected = before - 0.125 * grad;
        assert!((after - expected).abs() <= 2f64.powi(4 - 24), "{after}, expected {expected}");
    }
}

/// The same for a frozen clone on another device, and for a quantised one.
#[test]
fn a_step_leaves_frozen_clones_elsewhere() {
    let device = Device::rocm(0).autodiff();
    let trained = v22::filled(LinearConfig::new(4, 8).with_bias(false).init(&device), Ty::F32);
    let frozen = trained.clone().no_grad();
    let elsewhere = frozen.clone().to_device(&Device::flex().autodiff()).no_grad();
    let mut quantised = frozen;
    quantised.weight = quantised.weight.map(|weight| weight.quantize_dynamic(&QuantScheme::default()));
    for first in [elsewhere, quantised] {
        let model: [Linear; 2] = [first, trained.clone()];
        assert_eq!(model[0].weight.id, model[1].weight.id);
        let loss = model[1].forward(v22::tensor::<2>(1, [3, 4], Ty::F32)).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let bytes = |model: &[Linear; 2]| model.each_ref().map(|layer| layer.weight.val().into_data());
        let (before, dtype) = (bytes(&model), model[0].weight.val().dtype());
        let id = model[1].weight.id;
        let model = ours::SgdConfig::new().init().step(0.125, model, grads);
        let after = bytes(&model);
        assert_eq!([model[0].weight.id, model[1].weight.id], [id; 2], "{dtype:?}");
        assert!(after[0] == before[0] && after[1] != before[1], "{dtype:?}");
    }
}

/// Clones of a batch norm share their running statistics, which no step changes.
#[test]
fn a_step_leaves_the_statistics_of_clones() {
    let device = Device::rocm(0).autodiff();
    let norm: BatchNorm = BatchNormConfig::new(3).init(&device);
    drop((norm.gamma.val(), norm.beta.val()));
    let model = [norm.clone(), norm];
    let y = model[1].forward(model[0].forward(v22::tensor::<2>(1, [8, 3], Ty::F32)));
    let grads = GradientsParams::from_grads(y.powf_scalar(2.0).sum().backward(), &model);
    // Burn applies the last update now. Until then it is kept aside, where no step finds it.
    drop(model.valid());
    let statistics = |model: &[BatchNorm; 2]| {
        let of = |norm: &BatchNorm| [&norm.running_mean, &norm.running_var].map(|state| state.value_sync());
        model.each_ref().map(|norm| of(norm).map(v22::read))
    };
    let (before, gamma) = (statistics(&model), v22::read(model[0].gamma.val()));
    let model = ours::SgdConfig::new().init().step(0.1, model, grads);
    assert_eq!(statistics(&model), before);
    let after = model.each_ref().map(|norm| v22::read(norm.gamma.val()));
    assert!(after[0] != gamma && after[0] == after[1], "{after:?}");
}

/// Burn keeps a parameter's clipping with its state, from the first step on.
#[test]
fn clipping_outlives_the_conversion_of_states() {
    let device = Device::rocm(0).autodiff();
    let config = ours::SgdConfig::new().with_gradient_clipping(Some(GradientClippingConfig::Value(0.5)));
    let grads = |model: &Linear| {
        let loss = (model.forward(Tensor::<2>::ones([4, 3], &device)) * 100.0).sum();
        GradientsParams::from_grads(loss.backward(), model)
    };
    for loaded in [false, true] {
        let model: Linear = LinearConfig::new(3, 2).init(&device);
        let mut optim = config.init();
        let first = grads(&model);
        let model = optim.step(1.0, model, first);
        if loaded {
            optim = config.init().load_record(optim.to_record());
        }
        let mut optim: theirs::ModuleOptimizer = optim.into();
        let (before, second) = (model.weight.val(), grads(&model));
        let after = optim.step(1.0, model, second);
        let moved = (before - after.weight.val()).abs().max().into_scalar::<f32>();
        // Each gradient is 400. The difference of two numbers below 4 is off by their rounding.
        assert!((moved - 0.5).abs() < 1e-6, "{moved}, loaded: {loaded}");
    }
}
