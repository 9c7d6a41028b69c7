//! Training and evaluation, for any backend.

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::cosine::{CosineAnnealingLrScheduler, CosineAnnealingLrSchedulerConfig};
use burn::module::AutodiffModule;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::activation::softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};

use crate::data::{Data, SIDE, Split};
use crate::epochs::{self, Training};
use crate::error::Error;
use crate::model::Model;
use crate::progress::EVALUATION_BATCH;
pub use crate::progress::{Guess, History, Options, Reading};

/// Sums of loss and hits that stay on the device until they are read.
struct Tally<B: Backend>(Option<Tensor<B, 1>>);

impl<B: Backend> Tally<B> {
    /// Adds a batch: its mean loss, its scores `[batch, 10]` and its labels `[batch]`. Does not
    /// wait for the device.
    fn add(&mut self, loss: Tensor<B, 1>, scores: Tensor<B, 2>, labels: Tensor<B, 1, Int>) {
        let [images, _] = scores.dims();
        let hits = scores.argmax(1).flatten::<1>(0, 1).equal(labels).int().sum().float();
        let sums = Tensor::cat(vec![loss * images as f32, hits], 0);
        self.0 = Some(match self.0.take() {
            Some(before) => before + sums,
            None => sums,
        });
    }

    /// Reads the sums since the last call, added up by `total` over the ranks. Waits for the device.
    fn read(
        &mut self,
        total: impl Fn(Tensor<B, 1>) -> Tensor<B, 1>,
        device: &B::Device,
    ) -> Result<[f32; 2], Error> {
        let sums = self.0.take().unwrap_or_else(|| Tensor::zeros([2], device));
        let data = total(sums).try_into_data().map_err(|error| Error::Device(error.to_string()))?;
        let mut sums = data.iter::<f32>();
        Ok([(); 2].map(|()| sums.next().unwrap_or(f32::NAN)))
    }
}

type Batch<B> = (Tensor<B, 3>, Tensor<B, 1, Int>);

fn upload<B: Backend>(data: &Data, split: &Split, indices: &[usize], device: &B::Device) -> Batch<B> {
    let (pixels, labels) = data.batch(split, indices);
    let images = TensorData::new(pixels, [indices.len(), SIDE, SIDE]);
    let labels = TensorData::new(labels, [indices.len()]);
    (Tensor::from_data(images, device), Tensor::from_data(labels, device))
}

/// Trains the model together with other ranks. Without this trait's methods a rank is alone.
pub trait Together<B: AutodiffBackend> {
    /// This rank, and the number of ranks.
    fn rank(&self) -> (usize, usize) {
        (0, 1)
    }

    /// The part of these images that this rank takes.
    fn part(&self, images: &[usize]) -> Vec<usize> {
        images.to_vec()
    }

    /// The gradients of the mean loss over these images of all ranks, from the mean loss over this
    /// rank's part; `None` if that is empty.
    fn gradients(
        &mut self,
        model: &Model<B>,
        loss: Option<Tensor<B, 1>>,
        _images: &[usize],
    ) -> GradientsParams {
        let of = |loss: Tensor<B, 1>| GradientsParams::from_grads(loss.backward(), model);
        loss.map_or_else(GradientsParams::new, of)
    }

    /// Gives the model the running statistics of rank 0: each rank's are those of its own images.
    fn same(&self, _model: &Model<B>) {}

    /// The sums over all ranks.
    fn sum(&self, sums: Tensor<B::InnerBackend, 1>) -> Tensor<B::InnerBackend, 1> {
        sums
    }
}

/// The only rank.
pub struct Alone;

impl<B: AutodiffBackend> Together<B> for Alone {}

/// A model with its optimizer.
struct Run<'a, B: AutodiffBackend, O, R> {
    model: Model<B>,
    optimizer: O,
    schedule: CosineAnnealingLrScheduler,
    loss: CrossEntropyLoss<B>,
    tally: Tally<B::InnerBackend>,
    data: &'a Data,
    device: &'a B::Device,
    ranks: R,
}

impl<B: AutodiffBackend, O: Optimizer<Model<B>, B>, R: Together<B>> Run<'_, B, O, R> {
    /// The loss of this rank's images, if it has any.
    fn loss(&mut self, own: &[usize]) -> Option<Tensor<B, 1>> {
        if own.is_empty() {
            return None;
        }
        let (images, labels) = upload::<B>(self.data, &self.data.train, own, self.device);
        let scores = self.model.forward(images);
        let loss = self.loss.forward(scores.clone(), labels.clone());
        self.tally.add(loss.clone().inner(), scores.inner(), labels.inner());
        Some(loss)
    }
}

impl<B: AutodiffBackend, O: Optimizer<Model<B>, B>, R: Together<B>> Training for Run<'_, B, O, R> {
    fn step(mut self, indices: &[usize]) -> Self {
        let own = self.ranks.part(indices);
        let loss = self.loss(&own);
        let gradients = self.ranks.gradients(&self.model, loss, indices);
        self.model = self.optimizer.step(self.schedule.step(), self.model, gradients);
        self
    }

    fn read(&mut self) -> Result<[f32; 2], Error> {
        self.tally.read(|sums| self.ranks.sum(sums), self.device)
    }

    fn is_shown(&self) -> bool {
        self.ranks.rank().0 == 0
    }

    fn evaluate(&self) -> Result<Reading, Error> {
        self.ranks.same(&self.model);
        evaluate_together(&self.model.valid(), self.data, &self.data.test, self.device, &self.ranks)
    }
}

/// Trains `model` with Adam and shows the progress. Returns the trained model and the readings.
///
/// # Errors
///
/// [`Error::Diverged`] when the loss is no longer finite, [`Error::Device`] when the device failed.
pub fn train<B: AutodiffBackend>(
    model: Model<B>,
    data: &Data,
    options: &Options,
    device: &B::Device,
) -> Result<(Model<B>, History), Error> {
    train_together(model, data, options, device, Alone)
}

/// Trains the model of one rank, in steps of `options.batch_size` images of all ranks together. The
/// readings are those over all ranks.
///
/// # Errors
///
/// As [`train`].
pub fn train_together<B: AutodiffBackend>(
    model: Model<B>,
    data: &Data,
    options: &Options,
    device: &B::Device,
    ranks: impl Together<B>,
) -> Result<(Model<B>, History), Error> {
    let schedule = CosineAnnealingLrSchedulerConfig::new(options.lr, options.total_steps(data.train.len()))
        .init()
        .map_err(|reason| Error::Device(format!("learning rate schedule: {reason}")))?;
    let run = Run {
        model,
        optimizer: AdamConfig::new().init(),
        schedule,
        loss: CrossEntropyLossConfig::new().init(device),
        tally: Tally(None),
        data,
        device,
        ranks,
    };
    let (run, history) = epochs::run(run, data, options)?;
    Ok((run.model, history))
}

/// Mean loss and accuracy of `model` on `split`, one of the two of `data`.
///
/// # Errors
///
/// [`Error::Device`] when the device failed.
pub fn evaluate<B: Backend>(
    model: &Model<B>,
    data: &Data,
    split: &Split,
    device: &B::Device,
) -> Result<Reading, Error> {
    let all: Vec<usize> = (0..split.len()).collect();
    let mut tally = tally(model, data, split, &all, device);
    Ok(Reading::of(0, tally.read(|sums| sums, device)?, split.len()))
}

/// [`evaluate`] with each rank taking a part of the images.
fn evaluate_together<B: AutodiffBackend>(
    model: &Model<B::InnerBackend>,
    data: &Data,
    split: &Split,
    device: &B::Device,
    ranks: &impl Together<B>,
) -> Result<Reading, Error> {
    let (rank, count) = ranks.rank();
    let own: Vec<usize> = (rank..split.len()).step_by(count).collect();
    let mut tally = tally(model, data, split, &own, device);
    Ok(Reading::of(0, tally.read(|sums| ranks.sum(sums), device)?, split.len()))
}

/// The sums of loss and hits over these images of the split.
fn tally<B: Backend>(
    model: &Model<B>,
    data: &Data,
    split: &Split,
    images: &[usize],
    device: &B::Device,
) -> Tally<B> {
    let loss_function = CrossEntropyLossConfig::new().init(device);
    let mut tally = Tally(None);
    for indices in images.chunks(EVALUATION_BATCH) {
        let (images, labels) = upload::<B>(data, split, indices, device);
        let scores = model.forward(images);
        tally.add(loss_function.forward(scores.clone(), labels.clone()), scores, labels);
    }
    tally
}

/// Classifies each image of `split`, one of the two of `data`.
///
/// # Errors
///
/// [`Error::Device`] when the device failed.
pub fn classify<B: Backend>(
    model: &Model<B>,
    data: &Data,
    split: &Split,
    device: &B::Device,
) -> Result<Vec<Guess>, Error> {
    let all: Vec<usize> = (0..split.len()).collect();
    let mut guesses = Vec::with_capacity(split.len());
    for indices in all.chunks(EVALUATION_BATCH) {
        let (images, _) = upload::<B>(data, split, indices, device);
        let shares = softmax(model.forward(images), 1);
        let shares = shares.try_into_data().map_err(|error| Error::Device(error.to_string()))?;
        let shares: Vec<f32> = shares.iter().collect();
        guesses.extend(Guess::of(&shares));
    }
    Ok(guesses)
}
