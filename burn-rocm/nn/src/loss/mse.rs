//! Mean squared error.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::fused::{Residual, Total};

use super::Reduction;
use super::residual::{residual_loss, total};

const MODULE: &str = "MseLoss";
const NAMES: [&str; 2] = ["nn_mse_loss", "nn_mse_loss_backward"];

/// The squared difference of logits and targets.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn::nn::loss::Reduction;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::loss::MseLoss;
///
/// let [a, b] = [1.0, 3.0].map(|value| Tensor::<Rocm, 1>::full([4], value, &device));
/// let loss = MseLoss::new().forward(a, b, Reduction::Mean);
/// assert_eq!(loss.into_scalar(), 4.0);
/// ```
#[derive(Module, Clone, Debug, Default)]
pub struct MseLoss;

impl MseLoss {
    /// The loss.
    pub fn new() -> Self {
        Self
    }

    /// The mean or the sum over all elements. Inputs of different shapes broadcast; Burn's ops
    /// compute these.
    ///
    /// # Shapes
    /// - logits, targets: `[..]`
    /// - output: `[1]`
    ///
    /// # Panics
    /// For [`Reduction::BatchMean`], as Burn's loss does.
    pub fn forward<const D: usize, B: Backend>(
        &self,
        logits: Tensor<B, D>,
        targets: Tensor<B, D>,
        reduction: Reduction,
    ) -> Tensor<B, 1> {
        total::<B>(MODULE, &reduction)
            .and_then(|total| residual_loss(MODULE, NAMES, Residual::Squared, &logits, &targets, total))
            .unwrap_or_else(|| burn::nn::loss::MseLoss::new().forward(logits, targets, reduction))
    }

    /// The squared differences.
    ///
    /// # Shapes
    /// - logits, targets, output: `[..]`
    pub fn forward_no_reduction<const D: usize, B: Backend>(
        &self,
        logits: Tensor<B, D>,
        targets: Tensor<B, D>,
    ) -> Tensor<B, D> {
        residual_loss(MODULE, NAMES, Residual::Squared, &logits, &targets, Total::Each)
            .unwrap_or_else(|| burn::nn::loss::MseLoss::new().forward_no_reduction(logits, targets))
    }
}
