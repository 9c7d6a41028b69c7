//! The loop of a training run. For each version of Burn there is a module `train` that implements
//! [`Training`].

use std::time::Instant;

use indicatif::ProgressBar;

use crate::data::{Data, epoch_order};
use crate::error::Error;
use crate::progress::{
    History, Means, Options, Reading, STEPS_PER_READ, per_second, progress_bar, short, summary,
};

/// A model in training.
pub trait Training: Sized {
    /// Takes a step on these images of the training split, and adds loss and hits to sums on the
    /// device. Does not wait for the device.
    fn step(self, indices: &[usize]) -> Self;

    /// Reads the sums since the last call: the loss, in nats, and the hits. Waits for the device.
    ///
    /// # Errors
    /// [`Error::Device`] when the device failed.
    fn read(&mut self) -> Result<[f32; 2], Error>;

    /// Whether this run shows its progress. Of several ranks, one does.
    fn is_shown(&self) -> bool {
        true
    }

    /// Mean loss and accuracy on the held-out images.
    ///
    /// # Errors
    /// [`Error::Device`] when the device failed.
    fn evaluate(&self) -> Result<Reading, Error>;
}

/// Trains and shows the progress. Returns the readings.
///
/// # Errors
/// [`Error::Diverged`] when the loss is no longer finite, [`Error::Device`] when the device failed.
pub fn run<T: Training>(mut training: T, data: &Data, options: &Options) -> Result<(T, History), Error> {
    let per_epoch = data.train.len().div_ceil(options.batch_size);
    let total = options.total_steps(data.train.len());
    let epochs = total.div_ceil(per_epoch);
    let mut history = History::default();
    let mut step = 0;
    let is_shown = training.is_shown();

    for epoch in 0..epochs {
        let bar = match is_shown {
            true => progress_bar(epoch, epochs, per_epoch.min(total - step)),
            false => ProgressBar::hidden(),
        };
        let order = epoch_order(data.train.len(), options.seed, epoch);
        let mut means = Means::default();
        let mut unread = 0;
        let (begin, mut since) = (Instant::now(), Instant::now());

        for indices in order.chunks(options.batch_size).take(total - step) {
            training = training.step(indices);
            unread += indices.len();
            step += 1;
            if step % STEPS_PER_READ == 0 || step == total {
                let reading = Reading::of(step, training.read()?, unread);
                if !reading.loss.is_finite() {
                    bar.abandon();
                    return Err(Error::Diverged { step, loss: reading.loss, lr: options.lr });
                }
                means.add(&reading, unread);
                let rate = per_second(unread, since.elapsed());
                (unread, since) = (0, Instant::now());
                bar.set_message(format!("{}  {rate:>7.0} images/s", summary(&reading)));
                history.train.push(reading);
            }
            bar.inc(1);
        }
        // Images since the last reading belong to the epoch too.
        let duration = begin.elapsed();
        means.add(&Reading::of(step, training.read()?, unread), unread);
        bar.finish_and_clear();

        let reading = Reading { step, ..training.evaluate()? };
        history.test.push(reading);
        if !is_shown {
            continue;
        }
        println!(
            "epoch {}/{epochs}  {}  held out: {}  {:.0} images/s",
            epoch + 1,
            short(&means.reading(step)),
            short(&reading),
            per_second(means.images, duration),
        );
    }
    Ok((training, history))
}
