//! Burn's collectives on several devices, and burn-train's data parallel `Learner`. Its losses must
//! be those of one device with batches as large as those of all devices together. The devices are the
//! CPU provider's, unless `BURN_ROCM_PROVIDER` names another one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::InMemDataset;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::distributed::{DistributedConfig, ReduceOperation, all_reduce};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData, activation};
use burn::train::{
    ExecutionStrategy, InferenceStep, Learner, MultiDeviceOptim, SupervisedTraining, TrainOutput, TrainStep,
};
use burn_cubecl::{RocmDevice, RocmError, take_last_error};

use crate::again::again;

/// Runs a test in processes with two and with four devices, in which a collective that never ends
/// is an error after 20 seconds. In such a process, returns the devices.
fn devices(test: &str) -> Option<Vec<Device>> {
    const DEVICES: &str = "BURN_ROCM_CPU_DEVICES";
    if let Ok(count) = std::env::var(DEVICES) {
        return Some((0..count.parse().expect("a number")).map(Device::rocm).collect());
    }
    let provider = std::env::var("BURN_ROCM_PROVIDER").unwrap_or_default();
    let (provider, counts, timeout) = match provider.as_str() {
        "" | "cpu" => ("cpu", vec!["2".to_string(), "4".to_string()], "20"),
        // A GPU compiles kernels while the other ranks wait.
        name => {
            let count = RocmDevice::all().expect("the provider starts").len();
            assert!(count >= 2, "the {name} provider has {count} devices, and collectives need 2");
            (name, vec![count.to_string()], "120")
        }
    };
    for count in counts {
        let environment =
            [(DEVICES, &*count), ("BURN_ROCM_PROVIDER", provider), ("BURN_ROCM_COLLECTIVE_TIMEOUT", timeout)];
        again(&["--exact", test], &environment);
    }
    None
}

/// Numbers of a device, whose sum and mean over up to four devices every float type holds exactly.
fn numbers(device: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((device + 1) * (i % 16)) as f32 - 8.0).collect()
}

fn expected(devices: usize, op: ReduceOperation, count: usize) -> Vec<f32> {
    let mut sums = vec![0.0; count];
    for device in 0..devices {
        sums.iter_mut().zip(numbers(device, count)).for_each(|(sum, x)| *sum += x);
    }
    if op == ReduceOperation::Mean {
        sums.iter_mut().for_each(|sum| *sum /= devices as f32);
    }
    sums
}

fn on(index: usize, count: usize, dtype: DType, device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(numbers(index, count), [count]).convert_dtype(dtype), (device, dtype))
}

fn read(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn all_reduces_of_threads_and_of_one_thread() {
    let Some(devices) = devices("ddp::all_reduces_of_threads_and_of_one_thread") else { return };
    let (all, count) = (&devices, devices.len());
    for op in [ReduceOperation::Sum, ReduceOperation::Mean] {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let started: Vec<_> = devices
                .iter()
                .enumerate()
                .map(|(index, device)| all_reduce(on(index, 37, dtype, device), op, devices.clone()))
                .collect();
            for tensor in started {
                assert_eq!(read(tensor.resolve()), expected(count, op, 37), "{op:?} {dtype:?}");
            }
        }
        thread::scope(|scope| {
            for (index, device) in devices.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..10 {
                        let tensor = on(index, 40 + round, DType::F32, device);
                        let result = all_reduce(tensor, op, all.clone()).resolve();
                        assert_eq!(read(result), expected(count, op, 40 + round));
                    }
                    // Under autodiff, the gradient is reduced too.
                    let x = on(index, 16, DType::F32, &device.clone().autodiff()).require_grad();
                    let all: Vec<Device> = all.iter().map(|device| device.clone().autodiff()).collect();
                    let result = all_reduce(x.clone(), op, all).resolve();
                    let weights = on(index, 16, DType::F32, &device.clone().autodiff());
                    let grads = (result * weights).sum().backward();
                    assert_eq!(read(x.grad(&grads).expect("a gradient")), expected(count, op, 16));
                });
            }
        });
    }
}

#[test]
fn calls_that_differ_are_an_error_on_each_device() {
    let Some(devices) = devices("ddp::calls_that_differ_are_an_error_on_each_device") else { return };
    let start = |device: usize, count: usize| {
        let tensor = on(device, count, DType::F32, &devices[device]);
        all_reduce(tensor, ReduceOperation::Sum, devices[..2].to_vec())
    };
    for tensor in [start(0, 3), start(1, 4)] {
        catch_unwind(AssertUnwindSafe(|| drop(tensor.resolve()))).expect_err("shapes differ");
        let error = take_last_error().expect("the typed error is kept");
        let text = error.to_string();
        assert!(matches!(error, RocmError::Mismatch { .. }), "{text}");
        assert!(text.contains("[3] of f32") && text.contains("[4] of f32"), "{text}");
    }
    for tensor in [start(0, 5), start(1, 5)] {
        assert_eq!(read(tensor.resolve()), expected(2, ReduceOperation::Sum, 5));
    }
}

const FEATURES: usize = 6;
const STEPS: usize = 10;
const BATCH: usize = 4;

/// An item: its features, and a target.
type Item = ([f64; FEATURES], f64);

#[derive(Clone, Debug)]
struct Batch {
    x: Tensor<2>,
    y: Tensor<2>,
}

#[derive(Clone)]
struct Batches;

impl Batcher<Item, Batch> for Batches {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Batch {
        let x: Vec<f64> = items.iter().flat_map(|(x, _)| *x).collect();
        let y: Vec<f64> = items.iter().map(|(_, y)| *y).collect();
        Batch {
            x: Tensor::from_data(TensorData::new(x, [items.len(), FEATURES]), (device, DType::F64)),
            y: Tensor::from_data(TensorData::new(y, [items.len(), 1]), (device, DType::F64)),
        }
    }
}

#[derive(Module, Debug)]
struct Model {
    hidden: Linear,
    output: Linear,
}

/// Casts the parameters to f64, so that rounding is far below what a wrong average changes.
struct Wide;

impl ModuleMapper for Wide {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let wide = Tensor::from_inner(tensor.inner().cast(FloatDType::F64)).require_grad();
        Param::from_mapped_value(id, wide, mapper)
    }
}

impl Model {
    fn new(device: &Device) -> Self {
        let model = Self {
            hidden: LinearConfig::new(FEATURES, 8).init(device),
            output: LinearConfig::new(8, 1).init(device),
        };
        model.map(&mut Wide)
    }

    fn loss(&self, batch: Batch) -> Tensor<1> {
        let x = activation::tanh(self.hidden.forward(batch.x));
        (self.output.forward(x) - batch.y).powi_scalar(2).mean()
    }
}

/// The losses of a run: the device, and the value.
static LOSSES: Mutex<Vec<(Device, f64)>> = Mutex::new(Vec::new());

impl TrainStep for Model {
    type Input = Batch;
    type Output = ();

    fn step(&self, batch: Batch) -> TrainOutput<()> {
        let loss = self.loss(batch);
        let value = loss.clone().into_data().iter::<f64>().next().expect("a loss is one number");
        LOSSES.lock().expect("no step panics with the lock").push((loss.device().inner(), value));
        TrainOutput::new(self, loss.backward(), ())
    }
}

impl InferenceStep for Model {
    type Input = Batch;
    type Output = ();

    fn step(&self, batch: Batch) {
        drop(self.loss(batch));
    }
}

/// The items of all steps, in the order in which one device takes them.
fn items(count: usize) -> Vec<Item> {
    let item = |i: usize| {
        let x = [0.7, 1.3, 2.1, 2.9, 0.3, 1.9].map(|step: f64| (i as f64 * step).sin());
        (x, x[0] * x[1] - x[4])
    };
    (0..count).map(item).collect()
}

/// The same items as burn-train divides them: the first device takes its batches from the first
/// part of the dataset, and so on.
fn divided(items: &[Item], count: usize) -> Vec<Item> {
    let batches: Vec<&[Item]> = items.chunks(BATCH).collect();
    let of = |device| batches.iter().skip(device).step_by(count).flat_map(|batch| batch.to_vec());
    (0..count).flat_map(of).collect()
}

/// Each step's loss, averaged over the devices.
fn run(
    strategy: ExecutionStrategy,
    items: Vec<Item>,
    batch: usize,
    model: Model,
    optimizer: ModuleOptimizer,
    lr: f64,
) -> Vec<f64> {
    static FOLDERS: AtomicUsize = AtomicUsize::new(0);
    let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("burn-rocm-ddp-022-{}-{number}", std::process::id()));
    LOSSES.lock().expect("no run panicked").clear();
    let loader = |items| DataLoaderBuilder::new(Batches).batch_size(batch).build(InMemDataset::new(items));
    let training = SupervisedTraining::new(&folder, loader(items.clone()), loader(items))
        .with_training_strategy(strategy.into())
        .with_application_logger(None)
        .num_epochs(1);
    drop(training.launch(Learner::new(model, optimizer, lr)));
    std::fs::remove_dir_all(&folder).ok();
    let losses = std::mem::take(&mut *LOSSES.lock().expect("no step panicked"));
    let mut all: Vec<(Device, Vec<f64>)> = Vec::new();
    for (device, loss) in losses {
        match all.iter_mut().find(|(other, _)| *other == device) {
            Some((_, losses)) => losses.push(loss),
            None => all.push((device, vec![loss])),
        }
    }
    (0..STEPS)
        .map(|step| all.iter().map(|(_, losses)| losses[step]).sum::<f64>() / all.len() as f64)
        .collect()
}

/// A loss and its gradients are made of some 2^9 sums and products of numbers near 1, each rounded
/// by 2^-53 of it, and there are fewer than 2^4 steps. The steps after an error may amplify it by
/// 2^6. A wrong average changes the second loss by more than 2^-10.
const LIMIT: f64 = 5.8e-11; // 2^(9 + 4 + 6 - 53)

fn agree(what: &str, found: &[f64], expected: &[f64]) {
    assert!(expected[STEPS - 1] < 0.8 * expected[0], "{what} learns: {expected:?}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < LIMIT, "{what}, step {step}: {found} instead of {expected}");
    }
}

#[test]
fn the_learner_trains_as_on_one_device() {
    let Some(devices) = devices("ddp::the_learner_trains_as_on_one_device") else { return };
    let count = devices.len();
    let devices: Vec<Device> = devices.into_iter().map(Device::autodiff).collect();
    let single = || ExecutionStrategy::single(devices[0].clone());
    let ddp = || {
        ExecutionStrategy::ddp(devices.clone(), DistributedConfig { all_reduce_op: ReduceOperation::Mean })
    };
    let items = items(STEPS * BATCH * count);
    let parts = divided(&items, count);
    devices[0].seed(5);
    let model = Model::new(&devices[0]);

    let sgd = || SgdConfig::new().init();
    let expected = run(single(), items.clone(), BATCH * count, model.clone(), sgd(), 0.1);
    agree("SGD", &run(ddp(), parts.clone(), BATCH, model.clone(), sgd(), 0.1), &expected);
    // This strategy adds up the devices' gradients.
    for optim in [MultiDeviceOptim::OptimMainDevice, MultiDeviceOptim::OptimSharded] {
        let strategy = ExecutionStrategy::multi(devices.clone(), optim);
        let found = run(strategy, parts.clone(), BATCH, model.clone(), sgd(), 0.1 / count as f64);
        agree(&format!("{optim:?}"), &found, &expected);
    }

    let adamw = || AdamWConfig::new().with_weight_decay(0.05).init();
    let expected = run(single(), items, BATCH * count, model.clone(), adamw(), 0.02);
    agree("AdamW", &run(ddp(), parts, BATCH, model, adamw(), 0.02), &expected);
}
