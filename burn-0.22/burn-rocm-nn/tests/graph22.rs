//! Training steps replayed from graphs with Burn 0.22, compared bit by bit with the same steps run
//! one by one.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_rocm::graph::Graph;
use burn_rocm::{RocmDevice, RocmError};
use burn_rocm_nn_022::amp::{GradScalerConfig, Precision};
use burn_rocm_nn_022::graph;
use burn_rocm_nn_022::optim::{AdamConfig, ModuleOptimizer, SgdConfig};

const BEFORE: usize = 3;
const REPLAYED: usize = 200;

/// The tests seed the device's random numbers, and one thread captures at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    dropout: Dropout,
    second: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(12, 20).init(device),
            dropout: DropoutConfig::new(0.3).init(),
            second: LinearConfig::new(20, 1).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.second.forward(self.dropout.forward(relu(self.first.forward(x))))
    }
}

#[derive(Default)]
struct Bits(Vec<u32>);

impl ModuleVisitor for Bits {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.extend(param.val().into_data().iter::<f32>().map(f32::to_bits));
    }
}

fn batch(number: usize, device: &Device) -> Tensor<2> {
    let value = |i: usize| ((i * 7919 + number * 104_729) % 2003) as f32 / 1001.0 - 1.0;
    let values: Vec<f32> = (0..8 * 12).map(value).collect();
    Tensor::from_data(TensorData::new(values, [8, 12]), device)
}

fn rate(number: usize) -> f64 {
    0.01 * (1.0 + (number as f64 / (BEFORE + REPLAYED) as f64 * std::f64::consts::PI).cos())
}

/// The losses and parameters of the steps, in f32 or in f16 with a scaler.
fn train(mut optimizer: ModuleOptimizer, half: bool, replayed: bool) -> (Vec<u32>, Vec<u32>) {
    let device = Device::rocm(0).autodiff();
    Device::rocm(0).seed(17);
    let mut model = Some(Mlp::new(&device));
    let mut scaler = GradScalerConfig::new().init();
    let x = batch(0, &device);
    let mut step = |lr: f64| {
        let before = model.take().unwrap();
        if half {
            let narrow = Precision::new(FloatDType::F16).convert(&before);
            let y = narrow.forward(x.clone().cast(DType::F16)).cast(DType::F32);
            let loss = y.powf_scalar(2.0).mean();
            let grads = GradientsParams::from_grads(scaler.scale(loss.clone()).backward(), &narrow);
            drop(narrow);
            model = Some(scaler.step(&mut optimizer, lr, before, grads));
            return loss.inner();
        }
        let loss = before.forward(x.clone()).powf_scalar(2.0).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &before);
        model = Some(optimizer.step(lr, before, grads));
        loss.inner()
    };
    let mut losses = Vec::new();
    let mut keep = |loss: &Tensor<1>| losses.push(loss.clone().into_scalar::<f32>().to_bits());
    for number in 0..BEFORE {
        graph::write(&x, batch(number, &device)).unwrap();
        keep(&step(rate(number)));
    }
    if replayed {
        let (captured, loss) = Graph::capture_after(&RocmDevice::new(0), 0, || step(0.5)).unwrap();
        for number in BEFORE..BEFORE + REPLAYED {
            graph::write(&x, batch(number, &device)).unwrap();
            captured.set_learning_rate(rate(number)).unwrap();
            captured.replay().unwrap();
            keep(&loss);
        }
    } else {
        for number in BEFORE..BEFORE + REPLAYED {
            graph::write(&x, batch(number, &device)).unwrap();
            keep(&step(rate(number)));
        }
    }
    let mut state = Bits::default();
    model.unwrap().visit(&mut state);
    (losses, state.0)
}

#[test]
fn replays_are_the_steps_bit_by_bit() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let optimizers: [fn() -> ModuleOptimizer; 2] = [|| AdamConfig::new().init(), || SgdConfig::new().init()];
    for optimizer in optimizers {
        for half in [false, true] {
            let expected = train(optimizer(), half, false);
            assert_eq!(train(optimizer(), half, true), expected, "half: {half}");
        }
    }
}

/// Burn 0.22 counts Adam's steps on the host. A graph's own clock is found again by its other
/// steps, by other graphs and by steps that are not replayed.
#[test]
fn every_step_advances_one_clock() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Device::rocm(0).autodiff();
    let train = |replayed: bool| {
        Device::rocm(0).seed(5);
        let mut model = Some(LinearConfig::new(12, 3).init(&device));
        let mut optimizer = AdamConfig::new().init();
        let x = batch(0, &device);
        let mut step = || {
            let before: Linear = model.take().unwrap();
            let loss = before.forward(x.clone()).powf_scalar(2.0).mean();
            let grads = GradientsParams::from_grads(loss.backward(), &before);
            model = Some(optimizer.step(0.02, before, grads));
        };
        step();
        if replayed {
            let capture =
                |steps: &mut dyn FnMut()| Graph::capture_after(&RocmDevice::new(0), 0, steps).unwrap();
            let (two, ()) = capture(&mut || (0..2).for_each(|_| step()));
            two.replay().unwrap();
            let (one, ()) = capture(&mut step);
            one.replay().unwrap();
            step();
            two.replay().unwrap();
            one.replay().unwrap();
            step();
        } else {
            (0..8).for_each(|_| step());
        }
        let mut state = Bits::default();
        model.unwrap().visit(&mut state);
        state.0
    };
    assert_eq!(train(true), train(false));
}

/// A capture that fails takes no step, so Adam's count of steps stays too.
#[test]
fn a_failed_capture_counts_no_step() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Device::rocm(0).autodiff();
    let train = |captures: usize| {
        Device::rocm(0).seed(5);
        let mut model = Some(LinearConfig::new(12, 3).init(&device));
        let mut optimizer = AdamConfig::new().init();
        let x = batch(0, &device);
        let mut step = || {
            let before: Linear = model.take().unwrap();
            let loss = before.forward(x.clone()).powf_scalar(2.0).mean();
            let grads = GradientsParams::from_grads(loss.backward(), &before);
            model = Some(optimizer.step(0.02, before, grads));
            loss.inner()
        };
        step();
        for _ in 0..captures {
            // The refused read comes after the optimizer's step.
            let read = || step().try_into_scalar::<f32>().ok();
            let failed = Graph::capture_after(&RocmDevice::new(0), 0, read);
            assert!(failed.is_err(), "{failed:?}");
        }
        step();
        step();
        let mut state = Bits::default();
        model.unwrap().visit(&mut state);
        state.0
    };
    assert_eq!(train(2), train(0));
}

#[test]
fn writes_are_checked() {
    let device = Device::rocm(0);
    let target = Tensor::<1>::zeros([3], &device);
    let narrow = graph::write(&target, Tensor::zeros([2], &device));
    assert!(matches!(narrow, Err(RocmError::Invalid { op: "graph::write", .. })), "{narrow:?}");
    let elsewhere = graph::write(&target, Tensor::zeros([3], &Device::flex()));
    assert!(matches!(elsewhere, Err(RocmError::Invalid { op: "graph::write", .. })), "{elsewhere:?}");
    let clone = target.clone();
    graph::write(&target, Tensor::ones([3], &device)).unwrap();
    assert_eq!(clone.into_data().iter::<f32>().collect::<Vec<_>>(), [1.0; 3]);
}

/// It would be dequantised, and the copy written.
#[test]
fn a_quantised_target_is_refused() {
    let device = Device::rocm(0);
    let ones = Tensor::<2>::ones([32, 32], &device);
    let target = ones.clone().quantize_dynamic(&burn::tensor::quantization::QuantScheme::default());
    let written = graph::write(&target, ones * 2.0);
    assert!(matches!(written, Err(RocmError::Invalid { op: "graph::write", .. })), "{written:?}");
}
