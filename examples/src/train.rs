//! Training and evaluation, for any backend.

use std::time::{Duration, Instant};

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::AutodiffModule;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::activation::softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use indicatif::{ProgressBar, ProgressStyle};

use crate::data::{CLASSES, Data, SIDE, Split, epoch_order};
use crate::error::Error;
use crate::model::Model;

/// The number of steps between two readings of the loss. Reading the loss in each step would make
/// the host wait for the device each time. So the device sums loss and hits, and the host reads the
/// sums every so many steps. The readings also keep the host from running far ahead of the device.
const STEPS_PER_READ: usize = 10;

/// Images evaluated at once.
const EVALUATION_BATCH: usize = 500;

/// How to train.
#[derive(Debug, Clone)]
pub struct Options {
    /// Passes over the training split.
    pub epochs: usize,
    /// Stop after this many steps in all.
    pub steps: Option<usize>,
    /// Images in one step.
    pub batch_size: usize,
    /// Learning rate at the start; it falls to 0 along a cosine.
    pub lr: f64,
    /// Decides the order of the images.
    pub seed: u64,
}

/// Loss and accuracy after some step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Steps done.
    pub step: usize,
    /// Mean cross entropy in nats.
    pub loss: f32,
    /// The share of images classified right, in 0..=1.
    pub accuracy: f32,
}

/// The readings of a training run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Readings on the training split, each the mean over some steps.
    pub train: Vec<Reading>,
    /// Readings on the test split, one after each epoch.
    pub test: Vec<Reading>,
}

/// Sums of loss and hits that stay on the device until they are read.
struct Tally<B: Backend> {
    sums: Option<Tensor<B, 1>>,
    images: usize,
}

impl<B: Backend> Tally<B> {
    const fn new() -> Self {
        Self { sums: None, images: 0 }
    }

    /// Adds a batch: its mean loss, its scores `[batch, 10]` and its labels `[batch]`. Does not
    /// wait for the device.
    fn add(&mut self, loss: Tensor<B, 1>, scores: Tensor<B, 2>, labels: Tensor<B, 1, Int>) {
        let [images, _] = scores.dims();
        let hits = scores.argmax(1).flatten::<1>(0, 1).equal(labels).int().sum().float();
        let sums = Tensor::cat(vec![loss * images as f32, hits], 0);
        self.sums = Some(match self.sums.take() {
            Some(before) => before + sums,
            None => sums,
        });
        self.images += images;
    }

    /// Reads mean loss and accuracy since the last call. Waits for the device.
    fn read(&mut self, step: usize) -> Result<Reading, Error> {
        let images = std::mem::take(&mut self.images).max(1) as f32;
        let sums = match self.sums.take() {
            Some(sums) => {
                let data = sums.try_into_data().map_err(|error| Error::Device(error.to_string()))?;
                data.iter::<f32>().collect()
            }
            None => vec![0.0; 2],
        };
        Ok(Reading { step, loss: sums[0] / images, accuracy: sums[1] / images })
    }
}

type Batch<B> = (Tensor<B, 3>, Tensor<B, 1, Int>);

fn upload<B: Backend>(data: &Data, split: &Split, indices: &[usize], device: &B::Device) -> Batch<B> {
    let (pixels, labels) = data.batch(split, indices);
    let images = TensorData::new(pixels, [indices.len(), SIDE, SIDE]);
    let labels = TensorData::new(labels, [indices.len()]);
    (Tensor::from_data(images, device), Tensor::from_data(labels, device))
}

/// Trains `model` with Adam and shows the progress. Returns the trained model and the readings.
///
/// # Errors
///
/// [`Error::Diverged`] when the loss is no longer finite, [`Error::Device`] when the device failed.
pub fn train<B: AutodiffBackend>(
    mut model: Model<B>,
    data: &Data,
    options: &Options,
    device: &B::Device,
) -> Result<(Model<B>, History), Error> {
    let per_epoch = data.train.len().div_ceil(options.batch_size);
    let total = options.steps.unwrap_or(usize::MAX).min(options.epochs * per_epoch);
    let epochs = total.div_ceil(per_epoch);

    let loss_function = CrossEntropyLossConfig::new().init(device);
    let mut optimizer = AdamConfig::new().init();
    let mut schedule = CosineAnnealingLrSchedulerConfig::new(options.lr, total)
        .init()
        .map_err(|reason| Error::Device(format!("learning rate schedule: {reason}")))?;
    let mut history = History::default();
    let mut step = 0;

    for epoch in 0..epochs {
        let bar = progress_bar(epoch, epochs, per_epoch.min(total - step));
        let order = epoch_order(data.train.len(), options.seed, epoch);
        let mut tally = Tally::new();
        let mut epoch_sums = Means::default();
        let (begin, mut since) = (Instant::now(), Instant::now());

        for indices in order.chunks(options.batch_size).take(total - step) {
            let (images, labels) = upload::<B>(data, &data.train, indices, device);
            let scores = model.forward(images);
            let loss = loss_function.forward(scores.clone(), labels.clone());
            tally.add(loss.clone().inner(), scores.inner(), labels.inner());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(schedule.step(), model, gradients);

            step += 1;
            if step % STEPS_PER_READ == 0 || step == total {
                let images = tally.images;
                let reading = tally.read(step)?;
                if !reading.loss.is_finite() {
                    bar.abandon();
                    return Err(Error::Diverged { step, loss: reading.loss, lr: options.lr });
                }
                epoch_sums.add(&reading, images);
                let rate = per_second(images, since.elapsed());
                since = Instant::now();
                bar.set_message(format!("{}  {rate:>7.0} images/s", summary(&reading)));
                history.train.push(reading);
            }
            bar.inc(1);
        }
        // Images since the last reading count for the epoch too.
        let (images, duration) = (epoch_sums.images + tally.images, begin.elapsed());
        let rest = tally.images;
        epoch_sums.add(&tally.read(step)?, rest);
        bar.finish_and_clear();

        let mut reading = evaluate(&model.valid(), data, &data.test, device)?;
        reading.step = step;
        history.test.push(reading);
        println!(
            "epoch {}/{epochs}  {}  held out: {}  {:.0} images/s",
            epoch + 1,
            short(&epoch_sums.reading(step)),
            short(&reading),
            per_second(images, duration),
        );
    }
    Ok((model, history))
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
    let loss_function = CrossEntropyLossConfig::new().init(device);
    let all: Vec<usize> = (0..split.len()).collect();
    let mut tally = Tally::new();
    for indices in all.chunks(EVALUATION_BATCH) {
        let (images, labels) = upload::<B>(data, split, indices, device);
        let scores = model.forward(images);
        tally.add(loss_function.forward(scores.clone(), labels.clone()), scores, labels);
    }
    tally.read(0)
}

/// A model's classification of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guess {
    /// The likeliest digit.
    pub digit: u8,
    /// Its probability, in 0..=1.
    pub share: f32,
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
        guesses.extend(shares.chunks(CLASSES).map(|row| {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            best.map_or(Guess { digit: 0, share: 0.0 }, |(digit, &share)| Guess { digit: digit as u8, share })
        }));
    }
    Ok(guesses)
}

/// Means of readings, weighted by their images.
#[derive(Default)]
struct Means {
    loss: f64,
    hits: f64,
    images: usize,
}

impl Means {
    fn add(&mut self, reading: &Reading, images: usize) {
        self.loss += f64::from(reading.loss) * images as f64;
        self.hits += f64::from(reading.accuracy) * images as f64;
        self.images += images;
    }

    fn reading(&self, step: usize) -> Reading {
        let images = self.images.max(1) as f64;
        Reading { step, loss: (self.loss / images) as f32, accuracy: (self.hits / images) as f32 }
    }
}

fn per_second(images: usize, time: Duration) -> f64 {
    images as f64 / time.as_secs_f64().max(1e-9)
}

fn short(reading: &Reading) -> String {
    format!("loss {:.4}, {:.2} %", reading.loss, reading.accuracy * 100.0)
}

fn summary(reading: &Reading) -> String {
    format!("loss {:.4}  accuracy {:>5.2} %", reading.loss, reading.accuracy * 100.0)
}

fn progress_bar(epoch: usize, epochs: usize, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    let template = "{prefix} {bar:24.cyan/237} {pos}/{len}  {msg}";
    // The template is constant. If it did not parse, the plain bar would do.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar.set_prefix(format!("epoch {}/{epochs}", epoch + 1));
    bar
}
