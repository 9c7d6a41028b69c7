//! Negative log-likelihood.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::{Device, Int, Tensor};
use burn_rocm::fused::ClassScores;

use super::check_options;
use super::classes::{Options, class_loss};
use crate::fuse::refuse;

/// Configuration of [`NllLoss`].
#[derive(Config, Debug)]
pub struct NllLossConfig {
    /// Pad tokens: rows with these targets have no loss, and do not count in the mean. They need
    /// not be classes.
    pub pad_tokens: Option<Vec<usize>>,
    /// A positive weight for each class. The loss is then divided by the sum of the targets'
    /// weights.
    pub weights: Option<Vec<f32>>,
    /// Label smoothing: the share of each target that is spread over all classes, 0 to 1.
    pub smoothing: Option<f32>,
}

impl NllLossConfig {
    /// The loss.
    ///
    /// # Panics
    /// If the smoothing is outside 0 to 1 or a weight is not positive.
    pub fn init(&self, device: &Device) -> NllLoss {
        check_options(self.smoothing, self.weights.as_deref());
        NllLoss {
            pad_tokens: self.pad_tokens.clone(),
            weights: self.weights.as_ref().map(|weights| Tensor::from_floats(weights.as_slice(), device)),
            smoothing: self.smoothing,
        }
    }
}

/// The mean over rows of minus the log-probability of the row's class:
/// [`CrossEntropyLoss`](super::CrossEntropyLoss) for inputs that have gone through a log-softmax.
///
/// If the targets' weights sum to 0, or all targets are pad tokens, the loss is NaN. Burn has no
/// loss of this name; options and record are those of its cross entropy. A loss
/// with more than [`burn_rocm::fused::MAX_PAD_TOKENS`] pad tokens, or whose weights require a
/// gradient, is composed of Burn's ops.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::loss::{NllLoss, NllLossConfig};
///
/// let loss: NllLoss = NllLossConfig::new().init(&device);
/// let log_probs = Tensor::from_floats([[-1.0, -0.5]], &device);
/// let found = loss.forward(log_probs, Tensor::from_ints([1], &device));
/// assert_eq!(found.into_scalar::<f32>(), 0.5);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct NllLoss {
    /// Pad tokens: rows with these targets have no loss.
    pub pad_tokens: Option<Vec<usize>>,
    /// `[classes]`.
    pub weights: Option<Tensor<1>>,
    /// Label smoothing: the share of each target that is spread over all classes.
    pub smoothing: Option<f32>,
}

impl ModuleDisplay for NllLoss {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("pad_tokens", &super::shown(self.pad_tokens.as_deref()))
            .add("weights", &self.weights)
            .add("smoothing", &self.smoothing)
            .optional()
    }
}

impl NllLoss {
    /// The loss.
    ///
    /// # Shapes
    /// - log_probs: `[rows, classes]`; the loss does not normalise them
    /// - targets: `[rows]`
    /// - output: `[1]`
    ///
    /// # Panics
    /// If the shapes are not as described above. A target that is not a class does not panic: it
    /// adds nothing to the loss, and reads of the loss and its gradients report it.
    pub fn forward(&self, log_probs: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        let options = Options {
            scores: ClassScores::LogProbabilities,
            smoothing: self.smoothing,
            pad_tokens: self.pad_tokens.as_deref().unwrap_or_default(),
        };
        const NAMES: [&str; 2] = ["nn_nll_loss", "nn_nll_loss_backward"];
        class_loss("NllLoss", NAMES, options, self.weights.as_ref(), &log_probs, &targets)
            .unwrap_or_else(|| self.composed("nll_loss", log_probs, targets))
    }

    /// The loss by Burn's ops. `op` is the loss's name in errors.
    pub(super) fn composed(
        &self,
        op: &'static str,
        log_probs: Tensor<2>,
        targets: Tensor<1, Int>,
    ) -> Tensor<1> {
        let [rows, classes] = log_probs.dims();
        if targets.dims() != [rows] {
            let found = format!("{:?}", targets.dims());
            refuse(op, format!("a target for each of {rows} rows"), found);
        }
        let smoothing = f64::from(self.smoothing.unwrap_or(0.0));
        // A pad token need not be a class. Its row reads class 0 here; its weight becomes 0
        // below.
        let outside = self.pad_tokens.iter().flatten().filter(|&&token| token >= classes);
        let outside = outside.map(|&token| targets.clone().equal_scalar(token as i64));
        let at = match outside.reduce(|one, other| one.bool_or(other)) {
            Some(outside) => targets.clone().mask_fill(outside, 0),
            None => targets.clone(),
        };
        let weight = match &self.weights {
            Some(weights) => weights.clone().gather(0, at.clone()),
            None => Tensor::ones([rows], (&log_probs.device(), log_probs.dtype())),
        };
        let mut loss = log_probs.clone().gather(1, at.reshape([rows, 1])).reshape([rows]);
        loss = loss * weight.clone();
        if self.smoothing.is_some() {
            let all = match &self.weights {
                Some(weights) => log_probs * weights.clone().reshape([1, classes]),
                None => log_probs,
            };
            let spread = all.sum_dim(1).reshape([rows]);
            loss = loss * (1.0 - smoothing) + spread * (smoothing / classes as f64);
        }
        let mut weight = weight;
        for &token in self.pad_tokens.iter().flatten() {
            let is_pad = targets.clone().equal_scalar(token as i64);
            loss = loss.mask_fill(is_pad.clone(), 0);
            weight = weight.mask_fill(is_pad, 0);
        }
        loss.sum().neg() / weight.sum()
    }
}
