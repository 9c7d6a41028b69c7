//! Small models, their batches and their steps, for tests of both versions of Burn.
#![allow(dead_code, unused_macros, unused_imports, reason = "no test program uses all")]

use burn::nn::conv::Conv2dConfig;
use burn::nn::{DropoutConfig, LinearConfig};
use burn::tensor::TensorData;
use burn::tensor::activation::relu;

use crate::world::nn::BatchNormConfig;
use crate::world::nn::loss::CrossEntropyLossConfig;
use crate::world::{BatchNorm, Conv2d, Linear, Tracked, TrackedInt, tracking};

const BATCH: usize = 8;
const SIDE: usize = 6;
const CLASSES: usize = 4;

/// Two layers, with dropout between them.
pub(crate) type Mlp = (Linear, Linear);
/// A convolution, batch norm, dropout and a layer.
pub(crate) type Cnn = (Conv2d, BatchNorm, Linear);

pub(crate) fn mlp() -> Mlp {
    let device = tracking();
    (LinearConfig::new(SIDE * SIDE, 20).init(&device), LinearConfig::new(20, CLASSES).init(&device))
}

pub(crate) fn cnn() -> Cnn {
    let device = tracking();
    (
        Conv2dConfig::new([1, 3], [3, 3]).init(&device),
        BatchNormConfig::new(3).init(&device),
        LinearConfig::new(3 * (SIDE - 2) * (SIDE - 2), CLASSES).init(&device),
    )
}

/// Images and labels, which follow from the number.
pub(crate) struct Batch {
    pub(crate) images: Tracked<3>,
    pub(crate) labels: TrackedInt<1>,
}

pub(crate) fn batch(number: usize) -> Batch {
    let value = |i: usize| ((i * 7919 + number * 104_729) % 2003) as f32 / 1001.0 - 1.0;
    let pixels: Vec<f32> = (0..BATCH * SIDE * SIDE).map(value).collect();
    let labels: Vec<i32> = (0..BATCH).map(|i| ((i * 3 + number) % CLASSES) as i32).collect();
    Batch {
        images: Tracked::from_data(TensorData::new(pixels, [BATCH, SIDE, SIDE]), &tracking()),
        labels: TrackedInt::from_data(TensorData::new(labels, [BATCH]), &tracking()),
    }
}

/// A model of the two.
pub(crate) trait Scores {
    fn scores(&self, images: Tracked<3>) -> Tracked<2>;

    fn loss(&self, batch: &Batch) -> Tracked<1> {
        let scores = self.scores(batch.images.clone());
        CrossEntropyLossConfig::new().init(&tracking()).forward(scores, batch.labels.clone())
    }
}

impl Scores for Mlp {
    fn scores(&self, images: Tracked<3>) -> Tracked<2> {
        let x = relu(self.0.forward(images.flatten(1, 2)));
        self.1.forward(DropoutConfig::new(0.3).init().forward(x))
    }
}

impl Scores for Cnn {
    fn scores(&self, images: Tracked<3>) -> Tracked<2> {
        let x = self.1.forward(self.0.forward(images.unsqueeze_dim(1)));
        let x: Tracked<2> = relu(x).flatten(1, 3);
        self.2.forward(DropoutConfig::new(0.2).init().forward(x))
    }
}

/// A training step, with a learning rate of 0.01 or the one given. Gives the new model and the loss.
/// A macro, because the optimizers' traits of Burn 0.21 and 0.22 differ.
macro_rules! step {
    ($model:expr, $optimizer:expr, $batch:expr) => {
        $crate::small::step!($model, $optimizer, $batch, 0.01)
    };
    ($model:expr, $optimizer:expr, $batch:expr, $lr:expr) => {{
        let model = $model;
        let loss = $crate::small::Scores::loss(&model, $batch);
        let grads = burn::optim::GradientsParams::from_grads(loss.backward(), &model);
        ($optimizer.step($lr, model, grads), loss.inner())
    }};
}
pub(crate) use step;

/// The bits of a loss.
pub(crate) fn loss_bits(loss: crate::world::Plain<1>) -> u32 {
    loss.into_data().iter::<f32>().next().expect("one number").to_bits()
}
