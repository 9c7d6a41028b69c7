//! The course of a training run: options, readings, and how they are shown. Nothing here depends on Burn.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::data::CLASSES;

/// The number of steps between two readings of the loss. Reading the loss in each step would make
/// the host wait for the device each time. So the device sums loss and hits, and the host reads the
/// sums only once in this many steps. The readings also keep the host from running far ahead of the
/// device.
pub const STEPS_PER_READ: usize = 10;

/// Images evaluated at once.
pub const EVALUATION_BATCH: usize = 500;

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

impl Options {
    /// The number of steps of the run, with `images` images to train on.
    pub fn total_steps(&self, images: usize) -> usize {
        self.steps.unwrap_or(usize::MAX).min(self.epochs * images.div_ceil(self.batch_size))
    }
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

impl Reading {
    /// The means after `step`, from sums of loss and hits over `images` images; 0 without images.
    pub fn of(step: usize, [loss, hits]: [f32; 2], images: usize) -> Self {
        let images = images.max(1) as f32;
        Self { step, loss: loss / images, accuracy: hits / images }
    }
}

/// The readings of a training run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Readings on the training split, each the mean over some steps.
    pub train: Vec<Reading>,
    /// Readings on the test split, one after each epoch.
    pub test: Vec<Reading>,
}

/// A model's classification of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guess {
    /// The likeliest digit.
    pub digit: u8,
    /// Its probability, in 0..=1.
    pub share: f32,
}

impl Guess {
    /// The likeliest digit of each image, from the classes' probabilities `[images, 10]`.
    pub fn of(shares: &[f32]) -> impl Iterator<Item = Self> {
        shares.chunks(CLASSES).map(|row| {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            best.map_or(Self { digit: 0, share: 0.0 }, |(digit, &share)| Self { digit: digit as u8, share })
        })
    }
}

/// Means of readings, weighted by their images.
#[derive(Debug, Default)]
pub struct Means {
    loss: f64,
    hits: f64,
    /// Images so far.
    pub images: usize,
}

impl Means {
    /// Adds a reading over `images` images.
    pub fn add(&mut self, reading: &Reading, images: usize) {
        self.loss += f64::from(reading.loss) * images as f64;
        self.hits += f64::from(reading.accuracy) * images as f64;
        self.images += images;
    }

    /// The mean, as a reading after `step`.
    pub fn reading(&self, step: usize) -> Reading {
        let images = self.images.max(1) as f64;
        Reading { step, loss: (self.loss / images) as f32, accuracy: (self.hits / images) as f32 }
    }
}

/// Images a second.
pub fn per_second(images: usize, time: Duration) -> f64 {
    images as f64 / time.as_secs_f64().max(1e-9)
}

/// Loss and accuracy in few characters.
pub fn short(reading: &Reading) -> String {
    format!("loss {:.4}, {:.2} %", reading.loss, reading.accuracy * 100.0)
}

/// Loss and accuracy in columns.
pub fn summary(reading: &Reading) -> String {
    format!("loss {:.4}  accuracy {:>5.2} %", reading.loss, reading.accuracy * 100.0)
}

/// The progress bar of an epoch, which has `steps` steps. The first epoch is 0.
pub fn progress_bar(epoch: usize, epochs: usize, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    let template = "{prefix} {bar:24.cyan/237} {pos}/{len}  {msg}";
    // The template is constant. If it did not parse, the plain bar would be shown.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar.set_prefix(format!("epoch {}/{epochs}", epoch + 1));
    bar
}
