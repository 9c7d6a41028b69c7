//! Binary cross entropy.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::{Device, Int, Tensor};
use burn_rocm::fused::BinaryTargets;

use super::check_options;
use crate::fuse::{Route, primitive, wrap};
use crate::ops::loss::BinaryLoss;

/// Configuration of [`BinaryCrossEntropyLoss`].
#[derive(Config, Debug)]
pub struct BinaryCrossEntropyLossConfig {
    /// Positive weights: one for each label (column) or, for scores with one axis, one for each of
    /// the targets 0 and 1.
    pub weights: Option<Vec<f32>>,
    /// Label smoothing: the share of each target that is spread over all labels, 0 to 1.
    pub smoothing: Option<f32>,
    /// Whether the input holds logits instead of probabilities.
    #[config(default = false)]
    pub logits: bool,
}

impl BinaryCrossEntropyLossConfig {
    /// The loss.
    ///
    /// # Panics
    /// If the smoothing is outside 0 to 1 or a weight is not positive.
    pub fn init(&self, device: &Device) -> BinaryCrossEntropyLoss {
        check_options(self.smoothing, self.weights.as_deref());
        BinaryCrossEntropyLoss {
            weights: self.weights.as_ref().map(|weights| Tensor::from_floats(weights.as_slice(), device)),
            smoothing: self.smoothing,
            logits: self.logits,
        }
    }
}

/// The mean over elements of `-y log(p) - (1 - y) log(1 - p)`.
///
/// Logarithms below -100 become -100, with a gradient of 0 (Burn's gradient is NaN at exactly 0 and
/// 1). A loss whose weights require a gradient is composed of Burn's ops.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::loss::{BinaryCrossEntropyLoss, BinaryCrossEntropyLossConfig};
///
/// let loss: BinaryCrossEntropyLoss = BinaryCrossEntropyLossConfig::new().init(&device);
/// let probabilities = Tensor::<1>::from_floats([0.5, 0.5], &device);
/// let found = loss.forward(probabilities, Tensor::from_ints([1, 0], &device));
/// assert!((found.into_scalar::<f32>() - 2f32.ln()).abs() < 1e-6);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct BinaryCrossEntropyLoss {
    /// One weight for each label (column) or, for scores with one axis, one for each of the targets
    /// 0 and 1.
    pub weights: Option<Tensor<1>>,
    /// Label smoothing: the share of each target that is spread over all labels.
    pub smoothing: Option<f32>,
    /// Whether the input holds logits.
    pub logits: bool,
}

impl ModuleDisplay for BinaryCrossEntropyLoss {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("weights", &self.weights)
            .add("smoothing", &self.smoothing)
            .add("logits", &self.logits)
            .optional()
    }
}

impl BinaryCrossEntropyLoss {
    /// The loss.
    ///
    /// # Shapes
    /// - logits, targets: `[rows]`, or `[.., labels]`
    /// - output: `[1]`
    ///
    /// # Panics
    /// If the shapes are not as described above.
    pub fn forward<const D: usize>(&self, logits: Tensor<D>, targets: Tensor<D, Int>) -> Tensor<1> {
        self.fused(&logits, &targets).unwrap_or_else(|| self.composed(logits, targets))
    }

    /// The loss by the fused op, if there is a route and the weights require no gradient.
    fn fused<const D: usize>(&self, logits: &Tensor<D>, targets: &Tensor<D, Int>) -> Option<Tensor<1>> {
        const MODULE: &str = "BinaryCrossEntropyLoss";
        let route = Route::of(MODULE, logits)?;
        let weights = match &self.weights {
            None => None,
            Some(weights) => Some(route.untracked(MODULE, weights)?),
        };
        let targets = route.int(targets.clone());
        let of = BinaryTargets { logits: self.logits, targets, smoothing: self.smoothing };
        Some(wrap(route.apply(BinaryLoss { weights, of }, [primitive(logits.clone())]).0))
    }

    fn composed<const D: usize>(&self, logits: Tensor<D>, targets: Tensor<D, Int>) -> Tensor<1> {
        let loss = burn::nn::loss::BinaryCrossEntropyLoss {
            weights: self.weights.clone(),
            smoothing: self.smoothing,
            logits: self.logits,
        };
        loss.forward(logits, targets)
    }
}
