//! Cross entropy.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor};
use burn_rocm::fused::ClassScores;

use super::check_options;
use super::classes::{Options, class_loss};
use super::nll::NllLoss;

/// Configuration of [`CrossEntropyLoss`].
#[derive(Config, Debug)]
pub struct CrossEntropyLossConfig {
    /// Pad tokens: rows with these targets have no loss, and do not count in the mean. They need
    /// not be classes.
    pub pad_tokens: Option<Vec<usize>>,
    /// A positive weight for each class. The loss is then divided by the sum of the targets'
    /// weights.
    pub weights: Option<Vec<f32>>,
    /// Label smoothing: the share of each target that is spread over all classes, 0 to 1.
    pub smoothing: Option<f32>,
    /// Whether the input holds logits instead of probabilities.
    #[config(default = true)]
    pub logits: bool,
}

impl CrossEntropyLossConfig {
    /// The loss.
    ///
    /// # Panics
    /// If the smoothing is outside 0 to 1 or a weight is not positive.
    pub fn init(&self, device: &Device) -> CrossEntropyLoss {
        check_options(self.smoothing, self.weights.as_deref());
        CrossEntropyLoss {
            pad_tokens: self.pad_tokens.clone(),
            weights: self.weights.as_ref().map(|weights| Tensor::from_floats(weights.as_slice(), device)),
            smoothing: self.smoothing,
            logits: self.logits,
        }
    }
}

/// The mean over rows of `-log(p)`, where `p` is the probability of the row's class.
///
/// Logits are computed by log-sum-exp, so no logit overflows. [`burn_rocm::fused::cross_entropy`]
/// has the formula. A loss with more than [`burn_rocm::fused::MAX_PAD_TOKENS`] pad tokens, or whose
/// weights require a gradient, is composed of Burn's ops.
///
/// If the targets' weights sum to 0, or all targets are pad tokens, the loss is NaN, as in Burn.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
///
/// let loss: CrossEntropyLoss = CrossEntropyLossConfig::new().init(&device);
/// let logits = Tensor::from_floats([[0.0, 0.0]], &device);
/// let found = loss.forward(logits, Tensor::from_ints([1], &device));
/// assert!((found.into_scalar::<f32>() - 2f32.ln()).abs() < 1e-6);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct CrossEntropyLoss {
    /// Pad tokens: rows with these targets have no loss.
    pub pad_tokens: Option<Vec<usize>>,
    /// `[classes]`.
    pub weights: Option<Tensor<1>>,
    /// Label smoothing: the share of each target that is spread over all classes.
    pub smoothing: Option<f32>,
    /// Whether the input holds logits.
    pub logits: bool,
}

impl ModuleDisplay for CrossEntropyLoss {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("pad_tokens", &super::shown(self.pad_tokens.as_deref()))
            .add("weights", &self.weights)
            .add("smoothing", &self.smoothing)
            .add("logits", &self.logits)
            .optional()
    }
}

impl CrossEntropyLoss {
    /// The loss of logits with at most one pad token.
    pub fn new(pad_index: Option<usize>, device: &Device) -> Self {
        CrossEntropyLossConfig::new().with_pad_tokens(pad_index.map(|index| vec![index])).init(device)
    }

    /// The loss.
    ///
    /// # Shapes
    /// - logits: `[rows, classes]`
    /// - targets: `[rows]`
    /// - output: `[1]`
    ///
    /// # Panics
    /// If the shapes are not as described above. A target that is not a class does not panic: it
    /// adds nothing to the loss, and reads of the loss and its gradients report it.
    pub fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        let options = Options {
            scores: if self.logits { ClassScores::Logits } else { ClassScores::Probabilities },
            smoothing: self.smoothing,
            pad_tokens: self.pad_tokens.as_deref().unwrap_or_default(),
        };
        const NAMES: [&str; 2] = ["nn_cross_entropy", "nn_cross_entropy_backward"];
        // As in Burn, a probability of 0 has a finite logarithm. Without smoothing, the fused op
        // ensures this.
        let scores = match (self.logits, self.smoothing, logits.dtype().finfo()) {
            (false, Some(_), Some(info)) => logits.clone().clamp_min(info.min_positive.sqrt()),
            _ => logits.clone(),
        };
        class_loss("CrossEntropyLoss", NAMES, options, self.weights.as_ref(), &scores, &targets)
            .unwrap_or_else(|| self.composed(logits, targets))
    }

    fn composed(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        let [_, classes] = logits.dims();
        // Burn's loss reads the class of each target, even of a pad token that is not a class.
        if self.pad_tokens.iter().flatten().any(|&token| token >= classes) {
            let log_probs = match (self.logits, logits.dtype().finfo()) {
                (true, _) => log_softmax(logits, 1),
                // As in Burn, a probability of 0 has a finite logarithm.
                (false, Some(info)) => logits.clamp_min(info.min_positive.sqrt()).log(),
                (false, None) => logits.log(),
            };
            let Self { pad_tokens, weights, smoothing, .. } = self.clone();
            return NllLoss { pad_tokens, weights, smoothing }.composed("cross_entropy", log_probs, targets);
        }
        let loss = burn::nn::loss::CrossEntropyLoss {
            pad_tokens: self.pad_tokens.clone(),
            weights: self.weights.clone(),
            smoothing: self.smoothing,
            logits: self.logits,
        };
        loss.forward(logits, targets)
    }
}
