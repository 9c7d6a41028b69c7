//! burn-train's data parallel `Learner`. Its losses must be those of one device with batches as
//! large as those of all devices together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::backend::{Autodiff, Rocm};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::optim::{AdamWConfig, Optimizer, SgdConfig};
use burn::tensor::ElementConversion;
use burn::tensor::backend::distributed::{DistributedConfig, ReduceOperation};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{
    ExecutionStrategy, InferenceStep, Learner, MultiDeviceOptim, SupervisedTraining, TrainOutput, TrainStep,
};
use burn_rocm::RocmDevice;

use crate::model::{BATCH, Batch, Batches, Item, Model, STEPS, agree, divided, items};

/// In f64, so that rounding is far below what a wrong average changes.
type B = Autodiff<Rocm<f64>>;

/// The losses of a run: the device, and the value.
static LOSSES: Mutex<Vec<(String, f64)>> = Mutex::new(Vec::new());

/// Whether the devices take turns. A backward pass of Burn 0.21 drops nodes that another thread is
/// just recording (burn#5573). `ExecutionStrategy::ddp` prevents it on this backend, and
/// `ExecutionStrategy::multi` can't.
static TURNS: AtomicBool = AtomicBool::new(false);
static TURN: Mutex<()> = Mutex::new(());

impl<B: AutodiffBackend> TrainStep for Model<B> {
    type Input = Batch<B>;
    type Output = ();

    fn step(&self, batch: Batch<B>) -> TrainOutput<()> {
        let turn = TURNS.load(Ordering::Relaxed).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
        let loss = self.loss(batch);
        let value: f64 = loss.clone().into_scalar().elem();
        LOSSES.lock().unwrap().push((format!("{:?}", loss.device()), value));
        let output = TrainOutput::new(self, loss.backward(), ());
        drop(turn);
        output
    }
}

impl<B: Backend> InferenceStep for Model<B> {
    type Input = Batch<B>;
    type Output = ();

    fn step(&self, batch: Batch<B>) {
        drop(self.loss(batch));
    }
}

/// Each step's loss, averaged over the devices. Nothing but the strategy says that there are
/// several.
fn run(
    strategy: ExecutionStrategy<B>,
    items: Vec<Item>,
    batch: usize,
    model: Model<B>,
    optimizer: impl Optimizer<Model<B>, B> + 'static,
    lr: f64,
) -> Vec<f64> {
    static FOLDERS: AtomicUsize = AtomicUsize::new(0);
    let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("burn-rocm-ddp-{}-{number}", std::process::id()));
    LOSSES.lock().unwrap().clear();
    let train = DataLoaderBuilder::new(Batches).batch_size(batch).build(InMemDataset::new(items.clone()));
    let valid = DataLoaderBuilder::new(Batches).batch_size(batch).build(InMemDataset::new(items));
    let training = SupervisedTraining::new(&folder, train, valid)
        .with_training_strategy(strategy.into())
        .with_application_logger(None)
        .num_epochs(1);
    drop(training.launch(Learner::new(model, optimizer, lr)));
    std::fs::remove_dir_all(&folder).ok();
    let losses = std::mem::take(&mut *LOSSES.lock().unwrap());
    let mut all: Vec<(String, Vec<f64>)> = Vec::new();
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

#[test]
fn the_learner_trains_as_on_one_device() {
    let Some(devices) = crate::devices("learner::the_learner_trains_as_on_one_device") else { return };
    let count = devices.len();
    let single = || ExecutionStrategy::single(devices[0].clone());
    let ddp = || {
        ExecutionStrategy::ddp(devices.clone(), DistributedConfig { all_reduce_op: ReduceOperation::Mean })
    };
    let items = items(count);
    // The first device takes its batches from the first part of the dataset, and so on.
    let parts = divided(&items, count).concat();
    let model = Model::<B>::new(&RocmDevice::new(0));

    let sgd = || SgdConfig::new().init();
    let expected = run(single(), items.clone(), BATCH * count, model.clone(), sgd(), 0.1);
    agree("SGD", &run(ddp(), parts.clone(), BATCH, model.clone(), sgd(), 0.1), &expected);
    // This strategy adds up the devices' gradients.
    for optim in [MultiDeviceOptim::OptimMainDevice, MultiDeviceOptim::OptimSharded] {
        TURNS.store(true, Ordering::Relaxed);
        let strategy = ExecutionStrategy::multi(devices.clone(), optim);
        let found = run(strategy, parts.clone(), BATCH, model.clone(), sgd(), 0.1 / count as f64);
        agree(&format!("{optim:?}"), &found, &expected);
        TURNS.store(false, Ordering::Relaxed);
    }

    let adamw = || AdamWConfig::new().with_weight_decay(0.05).init();
    let expected = run(single(), items, BATCH * count, model.clone(), adamw(), 0.02);
    agree("AdamW", &run(ddp(), parts, BATCH, model, adamw(), 0.02), &expected);
}
