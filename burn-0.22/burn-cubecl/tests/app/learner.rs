//! burn-train's `Learner` with its checkpoints.

use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};

use crate::again::again;

/// Points in four dimensions, of two classes.
type Item = ([f32; 4], i64);

#[derive(Clone, Debug)]
struct Batch {
    points: Tensor<2>,
    classes: Tensor<1, Int>,
}

#[derive(Clone)]
struct Batches;

impl Batcher<Item, Batch> for Batches {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Batch {
        let points: Vec<f32> = items.iter().flat_map(|(point, _)| *point).collect();
        let classes: Vec<i64> = items.iter().map(|(_, class)| *class).collect();
        Batch {
            points: Tensor::from_data(TensorData::new(points, [items.len(), 4]), device),
            classes: Tensor::from_data(TensorData::new(classes, [items.len()]), device),
        }
    }
}

#[derive(Module, Debug)]
struct Model {
    hidden: Linear,
    norm: BatchNorm,
    output: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(4, 16).init(device),
            norm: BatchNormConfig::new(16).init(device),
            output: LinearConfig::new(16, 2).init(device),
        }
    }

    fn scores(&self, points: Tensor<2>) -> Tensor<2> {
        self.output.forward(activation::relu(self.norm.forward(self.hidden.forward(points))))
    }

    fn classify(&self, batch: Batch) -> ClassificationOutput {
        let output = self.scores(batch.points);
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        let loss = loss.forward(output.clone(), batch.classes.clone());
        ClassificationOutput::new(loss, output, batch.classes)
    }
}

impl TrainStep for Model {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Model {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

fn points(count: usize, shift: usize) -> Vec<Item> {
    let point = |i: usize| [0.7, 1.3, 2.1, 2.9].map(|step: f32| (i as f32 * step).sin());
    let class = |[a, b, c, _]: [f32; 4]| i64::from(a + b * c > 0.0);
    (shift..shift + count).map(|i| (point(i), class(point(i)))).collect()
}

/// How many of the held-out points the model classifies right.
fn right(model: &Model) -> i64 {
    let batch = Batches.batch(points(64, 160), &Device::rocm(0));
    let hits = model.scores(batch.points).argmax(1).flatten::<1>(0, 1).equal(batch.classes).int().sum();
    hits.into_scalar::<i64>()
}

/// The numbers of the model that training changes.
fn numbers(model: &Model) -> Vec<f32> {
    let weights = [&model.hidden.weight, &model.output.weight].map(|weight| weight.val().into_data());
    let mean = model.norm.running_mean.value().into_data();
    weights.iter().chain([&mean]).flat_map(|data| data.iter::<f32>().collect::<Vec<_>>()).collect()
}

/// Epochs, batches and their order are the same in each run. On a GPU, atomic additions would still
/// happen in another order each time, so the test sets the variable for deterministic sums, in a
/// process of its own.
#[test]
fn a_learner_resumes_from_its_checkpoint() {
    const SETTING: &str = "BURN_ROCM_DETERMINISTIC";
    if std::env::var(SETTING).as_deref() != Ok("1") {
        again(&["--exact", "learner::a_learner_resumes_from_its_checkpoint"], &[(SETTING, "1")]);
        return;
    }
    let folder = std::env::temp_dir().join(format!("burn-rocm-learner-{}", std::process::id()));
    let device = Device::rocm(0).autodiff();
    let run = |name: &str, epochs: usize, from: Option<usize>| {
        let loader = |items| DataLoaderBuilder::new(Batches).batch_size(16).build(InMemDataset::new(items));
        let training =
            SupervisedTraining::new(folder.join(name), loader(points(160, 0)), loader(points(64, 160)))
                .metrics((AccuracyMetric::new(), LossMetric::new()))
                .with_default_checkpointers()
                .with_application_logger(None)
                .num_epochs(epochs);
        let training = match from {
            Some(epoch) => training.checkpoint(epoch),
            None => training,
        };
        // Ten steps an epoch.
        let schedule = CosineAnnealingLrSchedulerConfig::new(2e-2, 80).init().expect("a schedule");
        training.launch(Learner::new(Model::new(&device), AdamConfig::new().init(), schedule)).model
    };
    device.seed(3);
    let whole = run("whole", 6, None);
    // A classifier that always names the more frequent class is right for 34 of the 64.
    assert!(right(&whole) >= 52, "{} of 64", right(&whole));

    device.seed(3);
    let half = run("halves", 4, None);
    assert_ne!(numbers(&half), numbers(&whole));
    // A new model with other weights. Model, optimizer and schedule come from the checkpoint.
    let resumed = run("halves", 6, Some(4));
    assert_eq!(numbers(&resumed), numbers(&whole));
    std::fs::remove_dir_all(&folder).expect("the learner wrote it");
}
