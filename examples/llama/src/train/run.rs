//! The steps of a training run.

use burn::module::AutodiffModule;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_rocm_nn::loss::CrossEntropyLoss;
use burn_rocm_nn::optim::adaptor::OptimizerAdaptor;
use burn_rocm_nn::optim::{AdamW, AdamWConfig, GradientsParams, Optimizer};

use super::corpus::Windows;
use super::decoder::{Decoder, Places};
use crate::config::Config;
use crate::error::{Error, Result};

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// Steps of the run.
    pub steps: usize,
    /// Windows in a step.
    pub batch: usize,
    /// Tokens in a window.
    pub time: usize,
    /// The highest learning rate.
    pub rate: f64,
    /// Steps until the learning rate is highest. It grows linearly, and then falls to a tenth along
    /// a cosine.
    pub warm_up: usize,
    /// The weight decay of AdamW.
    pub decay: f32,
}

impl Recipe {
    /// The learning rate of a step; the first is step 0.
    pub fn rate_at(&self, step: usize) -> f64 {
        let Self { steps, rate, warm_up, .. } = *self;
        if step < warm_up {
            return rate * (step + 1) as f64 / warm_up as f64;
        }
        let part = (step - warm_up) as f64 / steps.saturating_sub(warm_up).max(1) as f64;
        rate * (0.1 + 0.45 * (1.0 + (std::f64::consts::PI * part.min(1.0)).cos()))
    }
}

/// The loss after some step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Steps done.
    pub step: usize,
    /// The mean cross entropy of a token, in nats.
    pub loss: f64,
}

/// A decoder with its optimizer.
pub struct Trainer<B: AutodiffBackend> {
    decoder: Decoder<B>,
    optimizer: OptimizerAdaptor<AdamW, Decoder<B>, B>,
    places: Places<B>,
    recipe: Recipe,
    device: B::Device,
    step: usize,
}

impl<B: AutodiffBackend> Trainer<B> {
    /// A run from its first step on. `dtype`: of the decoder's activations.
    pub fn new(decoder: Decoder<B>, recipe: Recipe, device: &B::Device, dtype: DType) -> Self {
        let optimizer = AdamWConfig::new()
            .with_beta_2(0.95)
            .with_epsilon(1e-8)
            .with_weight_decay(recipe.decay)
            .init::<B, Decoder<B>>();
        let places = Places::new(decoder.config(), [recipe.batch, recipe.time], device, dtype);
        Self { decoder, optimizer, places, recipe, device: device.clone(), step: 0 }
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder<B> {
        &self.decoder
    }

    /// The mean loss of a batch, as it is before the step, and the step. The loss stays on the
    /// device.
    pub fn step(mut self, windows: &Windows) -> (Self, Tensor<B::InnerBackend, 1>) {
        let loss = loss(&self.decoder, windows, &self.places, &self.device);
        let value = loss.clone().inner();
        let grads = GradientsParams::from_grads(loss.backward(), &self.decoder);
        let rate = self.recipe.rate_at(self.step);
        self.decoder = self.optimizer.step(rate, self.decoder, grads);
        self.step += 1;
        (self, value)
    }

    /// The mean loss of windows of the recipe's length. Waits for the device.
    ///
    /// # Errors
    /// [`Error::Read`] if the device reports an error.
    pub fn evaluate(&self, windows: &Windows, dtype: DType) -> Result<f64> {
        let decoder = self.decoder.valid();
        let config: &Config = decoder.config();
        let [all, time] = windows.shape;
        let (mut sum, mut start) = (0.0, 0);
        while start < all {
            let part = windows.part(start, self.recipe.batch);
            let count = part.shape[0];
            let places = Places::<B::InnerBackend>::new(config, [count, time], &self.device, dtype);
            sum += read(loss(&decoder, &part, &places, &self.device))? * count as f64;
            start += count;
        }
        Ok(sum / all as f64)
    }
}

/// The mean cross entropy of a token.
fn loss<B: Backend>(
    decoder: &Decoder<B>,
    windows: &Windows,
    places: &Places<B>,
    device: &B::Device,
) -> Tensor<B, 1> {
    let [count, time] = windows.shape;
    let ids = |ids: &[i32]| {
        Tensor::<B, 1, Int>::from_data(TensorData::new(ids.to_vec(), [ids.len()]), (device, DType::I32))
    };
    let logits = decoder.forward(ids(&windows.tokens).reshape([count, time]), places);
    let logits = match logits.dtype() {
        DType::F16 | DType::BF16 => logits.cast(DType::F32),
        _ => logits,
    };
    CrossEntropyLoss::new(None, device).forward(logits, ids(&windows.targets))
}

/// A number on the device. Waits for the device.
///
/// # Errors
/// [`Error::Read`] if the device reports an error; [`Error::NotNumbers`] for NaN.
pub(super) fn read<B: Backend>(number: Tensor<B, 1>) -> Result<f64> {
    let data = number.try_into_data().map_err(|why| Error::Read(why.to_string()))?;
    match data.iter::<f64>().next() {
        Some(number) if !number.is_nan() => Ok(number),
        _ => Err(Error::NotNumbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_grows_and_falls() {
        let recipe = Recipe { steps: 110, batch: 1, time: 1, rate: 2.0, warm_up: 10, decay: 0.0 };
        let near = |step, expected: f64| assert!((recipe.rate_at(step) - expected).abs() < 1e-12, "{step}");
        for (step, rate) in [(0, 0.2), (4, 1.0), (9, 2.0), (10, 2.0), (60, 1.1), (110, 0.2), (500, 0.2)] {
            near(step, rate);
        }
        let all = Recipe { steps: 5, warm_up: 10, ..recipe };
        assert_eq!(all.rate_at(4), 1.0);
    }
}
