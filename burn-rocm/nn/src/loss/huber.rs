//! The Huber loss.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::fused::{Residual, Total};

use super::Reduction;
use super::residual::{loss_of_residuals, residual_loss, total};
use crate::fuse::refuse;

const MODULE: &str = "HuberLoss";
const NAMES: [&str; 2] = ["nn_huber_loss", "nn_huber_loss_backward"];

/// Configuration of [`HuberLoss`].
#[derive(Config, Debug)]
pub struct HuberLossConfig {
    /// The residual beyond which the loss is linear.
    pub delta: f32,
}

impl HuberLossConfig {
    /// The loss.
    ///
    /// # Panics
    /// For a `delta` that is negative or NaN.
    pub fn init(&self) -> HuberLoss {
        if self.delta.is_nan() || self.delta < 0.0 {
            refuse("HuberLossConfig", "a delta of at least 0", self.delta.to_string());
        }
        HuberLoss { delta: self.delta, lin_bias: self.delta * self.delta * 0.5 }
    }
}

/// The loss of a residual `r`: `r^2 / 2` up to `|r| = delta`, and `delta |r| - delta^2 / 2` beyond
/// ([Huber 1964](https://doi.org/10.1214/aoms/1177703732)).
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn::nn::loss::Reduction;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::loss::HuberLossConfig;
///
/// let [a, b] = [1.0, 4.0].map(|value| Tensor::<Rocm, 1>::full([4], value, &device));
/// let loss = HuberLossConfig::new(1.0).init().forward(a, b, Reduction::Mean);
/// assert_eq!(loss.into_scalar(), 2.5);
/// ```
#[derive(Module, Clone, Debug)]
#[module(custom_display)]
pub struct HuberLoss {
    /// The residual beyond which the loss is linear.
    pub delta: f32,
    /// `delta^2 / 2`.
    pub lin_bias: f32,
}

impl ModuleDisplay for HuberLoss {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content.add("delta", &self.delta).add("lin_bias", &self.lin_bias).optional()
    }
}

impl HuberLoss {
    fn kind(&self) -> Residual {
        Residual::Huber { delta: self.delta, lin_bias: self.lin_bias }
    }

    fn composed(&self) -> burn::nn::loss::HuberLoss {
        burn::nn::loss::HuberLoss { delta: self.delta, lin_bias: self.lin_bias }
    }

    /// The mean or the sum over all elements. Inputs of different shapes broadcast; Burn's ops
    /// compute these.
    ///
    /// # Shapes
    /// - predictions, targets: `[..]`
    /// - output: `[1]`
    ///
    /// # Panics
    /// For [`Reduction::BatchMean`], as Burn's loss does.
    pub fn forward<const D: usize, B: Backend>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
        reduction: Reduction,
    ) -> Tensor<B, 1> {
        total::<B>(MODULE, &reduction)
            .and_then(|total| residual_loss(MODULE, NAMES, self.kind(), &predictions, &targets, total))
            .unwrap_or_else(|| self.composed().forward(predictions, targets, reduction))
    }

    /// The loss of each element.
    ///
    /// # Shapes
    /// - predictions, targets, output: `[..]`
    pub fn forward_no_reduction<const D: usize, B: Backend>(
        &self,
        predictions: Tensor<B, D>,
        targets: Tensor<B, D>,
    ) -> Tensor<B, D> {
        residual_loss(MODULE, NAMES, self.kind(), &predictions, &targets, Total::Each)
            .unwrap_or_else(|| self.composed().forward_no_reduction(predictions, targets))
    }

    /// The loss of each residual.
    ///
    /// # Shapes
    /// - residuals, output: `[..]`
    pub fn forward_residuals<const D: usize, B: Backend>(&self, residuals: Tensor<B, D>) -> Tensor<B, D> {
        loss_of_residuals(MODULE, NAMES, self.kind(), &residuals)
            .unwrap_or_else(|| self.composed().forward_residuals(residuals))
    }
}
