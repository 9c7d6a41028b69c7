//! What a unit of a divided model may hold, and steps in f16.

use burn::tensor::FloatDType;
use burn_rocm::RocmError;
use burn_rocm_nn_022::amp::{GradScaler, GradScalerConfig};

use crate::*;

/// One linear layer, used twice.
#[derive(Module, Debug)]
struct Tied {
    first: Linear,
    again: Linear,
}

fn linear(from: usize, to: usize, seed: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).init(device).map(&mut Fill(1000 * seed))
}

impl Tied {
    fn new(device: &Device) -> Self {
        let first = linear(7, 7, 1, device);
        Self { again: first.clone(), first }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.again.forward(activation::tanh(self.first.forward(x)))
    }
}

/// The gradient of a parameter that a unit holds twice is that of both uses.
#[test]
fn a_unit_may_hold_a_parameter_twice() {
    let Some(count) = devices("units::a_unit_may_hold_a_parameter_twice") else { return };
    const RATE: f64 = 0.5;
    let device = Device::rocm(0).autodiff();
    let block = Tied::new(&device);
    let (x, y) = samples(&[1, 2, 3], &device);
    let x = block.forward(linear(FEATURES, 7, 0, &device).forward(x));
    let grads = (linear(7, 1, 2, &device).forward(x) - y).powi_scalar(2).mean().backward();
    let weight = block.first.weight.val();
    let grad = weight.grad(&grads).expect("the weight is used");
    let expected: Vec<f64> = (weight.inner() - grad * RATE).into_data().iter::<f64>().collect();

    let found = on_ranks(count, |ranks, device| {
        let config = ShardedModelConfig::new(SgdConfig::new());
        let (first, last) = (|| linear(FEATURES, 7, 0, &device), || linear(7, 1, 2, &device));
        let mut model = ShardedModel::build(&ranks, config, first, 1, |_| Tied::new(&device), last).unwrap();
        let (x, y) = samples(&[1, 2, 3], &device);
        model.step(
            RATE,
            Share::EVEN,
            |first: &Linear| first.forward(x.clone()),
            |_, block: &Tied, x| block.forward(x),
            |last: &Linear, x| (last.forward(x) - y).powi_scalar(2).mean(),
        );
        let block = model.whole_block(0);
        [block.first, block.again].map(|layer| numbers(&layer, None).remove(0))
    });
    for found in found.into_iter().flatten() {
        agree("a weight used twice", &[found], &[Some(expected.clone())], 1);
    }
}

/// Without a scaler f16 is refused.
#[test]
fn f16_is_refused() {
    let Some(count) = devices("units::f16_is_refused") else { return };
    let errors = on_ranks(count, |ranks, device| {
        let unit = || linear(7, 7, 0, &device);
        let config = ShardedModelConfig::new(AdamWConfig::new()).with_dtype(FloatDType::F16);
        ShardedModel::build(&ranks, config, unit, 1, |_| unit(), unit).map(drop).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, RocmError::Unsupported { dtype: Some("f16"), .. }), "{error}");
    }
}

/// One rank's samples overflow f16. No rank takes the step, and all go on with a lower scale.
#[test]
fn an_overflow_on_one_rank_skips_the_step_of_all() {
    let Some(count) = devices("units::an_overflow_on_one_rank_skips_the_step_of_all") else { return };
    let state = |scaler: &GradScaler| (scaler.factor(), scaler.skipped());
    let found = on_ranks(count, |ranks, device| {
        let scaler = GradScalerConfig::new().with_initial_scale(256.0).init();
        let config =
            ShardedModelConfig::new(AdamWConfig::new()).with_dtype(FloatDType::F16).with_scaler(scaler);
        let unit = |from, to, seed| linear(from, to, seed, &device);
        let (first, last) = (|| unit(FEATURES, 7, 0), || unit(7, 1, 2));
        let mut model = ShardedModel::build(&ranks, config, first, 1, |_| unit(7, 7, 1), last).unwrap();
        let step = |model: &mut ShardedModel<Linear, Linear, Linear>, at: usize, more: f64| {
            let (x, y) = samples(&[at, at + 1], &device);
            let (x, y) = (x.cast(FloatDType::F16), y.cast(FloatDType::F16) + more);
            model.step(
                1e-3,
                Share::EVEN,
                |first: &Linear| first.forward(x.clone()),
                |_, block: &Linear, x| activation::tanh(block.forward(x)),
                |last: &Linear, x| (last.forward(x) - y).powi_scalar(2).mean(),
            );
        };
        let all = |model: &ShardedModel<Linear, Linear, Linear>| {
            [model.whole_first(), model.whole_block(0), model.whole_last()].map(|unit| numbers(&unit, None))
        };
        step(&mut model, 0, 0.0);
        let before = all(&model);
        // The square of 2^9 is beyond f16.
        step(&mut model, 1, if ranks.rank() == 1 { 512.0 } else { 0.0 });
        assert_eq!(all(&model), before, "rank {} took the step", ranks.rank());
        assert_eq!(model.scaler().map(state), Some((128.0, 1)));
        step(&mut model, 2, 0.0);
        assert_eq!(model.scaler().map(state), Some((128.0, 1)));
        let after = all(&model);
        assert_ne!(after, before, "the next step trains");
        assert!(after.iter().flatten().flatten().flatten().all(|value| value.is_finite()));
        after
    });
    assert!(found.iter().all(|all| *all == found[0]), "the same bits on every rank");
}

/// A clone that was trained has the id of its original, and other values. It may
/// differ in one element, which only the last rank sees.
#[test]
fn clones_that_differ_are_refused() {
    let Some(count) = devices("units::clones_that_differ_are_refused") else { return };
    let trained = |mut layer: Linear| {
        layer.weight = layer.weight.map(|weight| {
            let changed = weight.clone().slice([6..7, 6..7]) + 1.0;
            weight.slice_assign([6..7, 6..7], changed).detach().require_grad()
        });
        layer
    };
    let errors = on_ranks(count, |ranks, device| {
        let config = || ShardedModelConfig::new(SgdConfig::new());
        let unit = || linear(7, 7, 1, &device);
        let first = unit();
        let last = trained(first.clone());
        assert_eq!(first.weight.id, last.weight.id);
        let apart = ShardedModel::build(&ranks, config(), || first, 1, |_| unit(), || last);
        let block = Tied::new(&device);
        let block = || Tied { again: trained(block.again.clone()), ..block.clone() };
        let within = ShardedModel::build(&ranks, config(), unit, 1, |_| block(), unit);
        // The group is still alive.
        let first = unit();
        let again = first.clone();
        assert!(ShardedModel::build(&ranks, config(), || first, 1, |_| unit(), || again).is_ok());
        [apart.map(drop).unwrap_err(), within.map(drop).unwrap_err()]
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(error, RocmError::Invalid { op: "ShardedModel::build", .. }), "{error}");
    }
}
