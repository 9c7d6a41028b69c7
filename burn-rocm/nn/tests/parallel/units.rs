//! What a unit of a divided model may hold, and the loss that a step returns.

use std::sync::Mutex;

use burn::tensor::{DType, FloatDType};
use burn_rocm::RocmError;
use burn_rocm_nn::amp::Precision;
use burn_rocm_nn::optim::{AdamWConfig, SgdConfig};
use burn_rocm_nn::parallel::{ShardedModel, ShardedModelConfig, Share};

use crate::model::{S, WIDTH, build, linear, schedule, step};
use crate::*;

/// One linear layer, used twice.
#[derive(Module, Debug)]
struct Tied<B: Backend> {
    first: Linear<B>,
    again: Linear<B>,
}

impl Tied<B> {
    fn new(device: &RocmDevice) -> Self {
        let first = linear(WIDTH, WIDTH, 20, device);
        Self { again: first.clone(), first }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.again.forward(activation::tanh(self.first.forward(x)))
    }
}

/// The gradient of a parameter that a unit holds twice is that of both uses.
#[test]
fn a_unit_may_hold_a_parameter_twice() {
    let Some(count) = devices("units::a_unit_may_hold_a_parameter_twice") else { return };
    const RATE: f64 = 0.5;
    let (first, last) = (
        |device: &RocmDevice| linear::<B>(FEATURES, WIDTH, 0, device),
        |device: &RocmDevice| linear::<B>(WIDTH, 1, 90, device),
    );
    let device = RocmDevice::new(0);
    let block = Tied::new(&device);
    let (x, y) = samples::<B>(&[1, 2, 3], &device);
    let x = block.forward(first(&device).forward(x));
    let grads = (last(&device).forward(x) - y).powi_scalar(2).mean().backward();
    let weight = block.first.weight.val();
    let grad = weight.grad(&grads).expect("the weight is used");
    let expected: Vec<f64> = (weight.inner() - grad * RATE).into_data().iter::<f64>().collect();

    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let config = ShardedModelConfig::new(SgdConfig::new());
        let (first, last) = (|| first(&device), || last(&device));
        let mut model = ShardedModel::build(&ranks, config, first, 1, |_| Tied::new(&device), last).unwrap();
        let (x, y) = samples::<B>(&[1, 2, 3], &device);
        model.step(
            RATE,
            Share::EVEN,
            |first: &Linear<B>| first.forward(x.clone()),
            |_, block: &Tied<B>, x| block.forward(x),
            |last: &Linear<B>, x| (last.forward(x) - y).powi_scalar(2).mean(),
        );
        let block = model.whole_block(0);
        [block.first, block.again].map(|layer| parameters(&layer).remove(0))
    });
    for found in found.into_iter().flatten() {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.into_iter().zip(&expected) {
            assert!((found - expected).abs() <= limit(1), "{found} instead of {expected}");
        }
    }
}

/// A rank without samples has the others' dtype, so the ranks can average the loss.
#[test]
fn the_loss_has_one_dtype_on_all_ranks() {
    let Some(count) = devices("units::the_loss_has_one_dtype_on_all_ranks") else { return };
    let bf16 = FloatDType::BF16;
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let config = ShardedModelConfig::new(AdamWConfig::new()).with_dtype(bf16);
        let mut model = build::<S>(&ranks, config, &device);
        for part in schedule(&ranks) {
            let (x, y) = samples::<S>(&part.indices, &device);
            let loss = step(&mut model, 1e-3, part.share, (x.cast(bf16), y.cast(bf16)));
            assert_eq!(loss.dtype(), DType::F32);
            let mean: f32 = ranks.mean(loss, part.share).into_scalar();
            assert!(mean > 0.0 && mean.is_finite(), "{mean}");
        }
    });
}

/// Without a scaler f16 is refused: as the dtype of the computation, and of a part.
#[test]
fn f16_is_refused() {
    let Some(count) = devices("units::f16_is_refused") else { return };
    let errors = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let unit = || linear::<S>(WIDTH, WIDTH, 0, &device);
        let config = || ShardedModelConfig::new(AdamWConfig::new());
        let half = || Precision::new(FloatDType::F16).convert(&unit());
        let by_config = config().with_dtype(FloatDType::F16);
        let by_config = ShardedModel::build(&ranks, by_config, unit, 1, |_| unit(), unit);
        let by_unit = ShardedModel::build(&ranks, config(), unit, 1, |_| unit(), half);
        // The group is still alive.
        assert!(ShardedModel::build(&ranks, config(), unit, 1, |_| unit(), unit).is_ok());
        [by_config, by_unit].map(|built| built.map(drop).unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(error, RocmError::Unsupported { dtype: Some("f16"), .. }), "{error}");
    }
}

/// A clone that was trained has the id of its original, and other values. It may
/// differ in one element, which only the last rank sees.
#[test]
fn clones_that_differ_are_refused() {
    let Some(count) = devices("units::clones_that_differ_are_refused") else { return };
    let trained = |mut layer: Linear<B>| {
        layer.weight = layer.weight.map(|weight| {
            let last = WIDTH - 1..WIDTH;
            let changed = weight.clone().slice([last.clone(), last.clone()]) + 1.0;
            weight.slice_assign([last.clone(), last], changed).detach().require_grad()
        });
        layer
    };
    let errors = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let config = || ShardedModelConfig::new(SgdConfig::new());
        let unit = || linear::<B>(WIDTH, WIDTH, 0, &device);
        let first = unit();
        let last = trained(first.clone());
        assert_eq!(first.weight.id, last.weight.id);
        let apart = ShardedModel::build(&ranks, config(), || first, 1, |_| unit(), || last);
        let block = Tied::new(&device);
        let block = || Tied { again: trained(block.again.clone()), ..block.clone() };
        let within = ShardedModel::<B, _, _, _>::build(&ranks, config(), unit, 1, |_| block(), unit);
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

/// Building a model logs once what stays whole, and once what is tied, for all units together. A step
/// logs nothing.
#[test]
fn what_stays_whole_is_said_once() {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    struct Keeper;
    impl log::Log for Keeper {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.level() <= log::Level::Info && metadata.target().starts_with("burn_rocm_nn")
        }
        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                SAID.lock().unwrap().push(record.args().to_string());
            }
        }
        fn flush(&self) {}
    }
    let Some(count) = devices("units::what_stays_whole_is_said_once") else { return };
    log::set_logger(&Keeper).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let said = || std::mem::take(&mut *SAID.lock().unwrap());
    // Each of the four blocks has a weight and a bias that are frozen.
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let mut model = build::<S>(&ranks, ShardedModelConfig::new(SgdConfig::new()), &device);
        for at in 0..3 {
            step(&mut model, 1e-3, Share::EVEN, samples::<S>(&[at, at + 1], &device));
        }
    });
    let whole = "burn_rocm_nn: 8 parameters that are not trained stay whole on every rank";
    assert_eq!(said(), vec![whole; count], "one line of each rank");
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let unit = || linear::<S>(WIDTH, WIDTH, 0, &device);
        let first = unit();
        let tied = first.clone();
        let config = ShardedModelConfig::new(SgdConfig::new());
        ShardedModel::build(&ranks, config, || first, 2, |_| tied.clone(), unit).unwrap();
    });
    let tied = "burn_rocm_nn: 4 parameters are tied to those of earlier units with their ids";
    assert_eq!(said(), vec![tied; count], "one line of each rank");
}
