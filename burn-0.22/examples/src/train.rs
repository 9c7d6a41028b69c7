//! Training and evaluation.

use std::time::Instant;

use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_rocm_examples::data::{CLASSES, Data, SIDE, Split, epoch_order};
use burn_rocm_examples::error::Error;
use burn_rocm_examples::progress::{
    EVALUATION_BATCH, Guess, History, Means, Options, Reading, STEPS_PER_READ, per_second, progress_bar,
    short, summary,
};

use crate::model::Model;

/// Sums of loss and hits that stay on the device until they are read.
struct Tally {
    sums: Option<Tensor<1>>,
    images: usize,
}

impl Tally {
    const fn new() -> Self {
        Self { sums: None, images: 0 }
    }

    /// Adds a batch: its mean loss, its scores `[batch, 10]` and its labels `[batch]`. Does not
    /// wait for the device.
    fn add(&mut self, loss: Tensor<1>, scores: Tensor<2>, labels: Tensor<1, Int>) {
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

type Batch = (Tensor<3>, Tensor<1, Int>);

fn upload(data: &Data, split: &Split, indices: &[usize], device: &Device) -> Batch {
    let (pixels, labels) = data.batch(split, indices);
    let images = TensorData::new(pixels, [indices.len(), SIDE, SIDE]);
    let labels = TensorData::new(labels, [indices.len()]);
    (Tensor::from_data(images, device), Tensor::from_data(labels, device))
}

/// Trains `model` with Adam on `device`, which has autodiff, and shows the progress. Returns the
/// trained model and the readings.
///
/// # Errors
///
/// [`Error::Diverged`] when the loss is no longer finite, [`Error::Device`] when the device failed.
pub fn train(
    mut model: Model,
    data: &Data,
    options: &Options,
    device: &Device,
) -> Result<(Model, History), Error> {
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
            let (images, labels) = upload(data, &data.train, indices, device);
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

        let mut reading = evaluate(&model.valid(), data, &data.test, &device.clone().without_autodiff())?;
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
pub fn evaluate(model: &Model, data: &Data, split: &Split, device: &Device) -> Result<Reading, Error> {
    let loss_function = CrossEntropyLossConfig::new().init(device);
    let all: Vec<usize> = (0..split.len()).collect();
    let mut tally = Tally::new();
    for indices in all.chunks(EVALUATION_BATCH) {
        let (images, labels) = upload(data, split, indices, device);
        let scores = model.forward(images);
        tally.add(loss_function.forward(scores.clone(), labels.clone()), scores, labels);
    }
    tally.read(0)
}

/// Classifies each image of `split`, one of the two of `data`.
///
/// # Errors
///
/// [`Error::Device`] when the device failed.
pub fn classify(model: &Model, data: &Data, split: &Split, device: &Device) -> Result<Vec<Guess>, Error> {
    let all: Vec<usize> = (0..split.len()).collect();
    let mut guesses = Vec::with_capacity(split.len());
    for indices in all.chunks(EVALUATION_BATCH) {
        let (images, _) = upload(data, split, indices, device);
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
