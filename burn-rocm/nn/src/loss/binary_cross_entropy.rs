//! Binary cross entropy.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use burn_rocm::fused::{self, BinaryTargets};
use burn_rocm::{RocmError, RocmTensor};

use super::{check_options, constant_weights};
use crate::fuse::{Applied, Gradients, Kept, Op, Route, primitive, wrap};

/// What [`BinaryCrossEntropyLoss`] is made of.
#[derive(Config, Debug)]
pub struct BinaryCrossEntropyLossConfig {
    /// A positive weight of each label: of each column, or of 0 and 1 where scores have one axis.
    pub weights: Option<Vec<f32>>,
    /// The share of each target that is spread over all labels, 0 to 1.
    pub smoothing: Option<f32>,
    /// Whether the input is logits, and not probabilities.
    #[config(default = false)]
    pub logits: bool,
}

impl BinaryCrossEntropyLossConfig {
    /// The loss.
    ///
    /// # Panics
    /// For a smoothing outside 0 to 1, and for weights that are not positive.
    pub fn init<B: Backend>(&self, device: &B::Device) -> BinaryCrossEntropyLoss<B> {
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
/// Logarithms of probabilities are kept above -100; where that happens the gradient is 0 (Burn's is NaN at exactly 0 and 1).
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct BinaryCrossEntropyLoss<B: Backend> {
    /// Of each column, or of 0 and 1 where scores have one axis.
    pub weights: Option<Tensor<B, 1>>,
    /// The share of each target that is spread over all labels.
    pub smoothing: Option<f32>,
    /// Whether the input is logits.
    pub logits: bool,
}

impl<B: Backend> ModuleDisplay for BinaryCrossEntropyLoss<B> {
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

impl<B: Backend> BinaryCrossEntropyLoss<B> {
    /// The loss.
    ///
    /// # Shapes
    /// - logits, targets: `[rows]`, or `[.., labels]`
    /// - output: `[1]`
    ///
    /// # Panics
    /// For other shapes.
    pub fn forward<const D: usize>(&self, logits: Tensor<B, D>, targets: Tensor<B, D, Int>) -> Tensor<B, 1> {
        let Some(route) = Route::<B>::of() else { return self.composed(logits, targets) };
        let of =
            BinaryTargets { logits: self.logits, targets: route.int(targets), smoothing: self.smoothing };
        let op = BinaryLoss { weighted: self.weights.is_some(), of };
        let scores = primitive(logits);
        wrap(match &self.weights {
            Some(weights) => route.apply(op, [scores, primitive(weights.clone())]).0,
            None => route.apply(op, [scores]).0,
        })
    }

    fn composed<const D: usize>(&self, logits: Tensor<B, D>, targets: Tensor<B, D, Int>) -> Tensor<B, 1> {
        let loss = burn::nn::loss::BinaryCrossEntropyLoss {
            weights: self.weights.clone(),
            smoothing: self.smoothing,
            logits: self.logits,
        };
        loss.forward(logits, targets)
    }
}

#[derive(Debug)]
struct BinaryLoss {
    /// Whether weights are the second input.
    weighted: bool,
    of: BinaryTargets,
}

impl<const N: usize> Op<N> for BinaryLoss {
    fn names(&self) -> [&'static str; 2] {
        ["nn_binary_cross_entropy", "nn_binary_cross_entropy_backward"]
    }

    fn reads(&self) -> [bool; N] {
        [true; N]
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let scores = inputs.next().expect("the scores come first");
        Ok((fused::binary_cross_entropy(scores, inputs.next(), &self.of)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        if wanted.get(1) == Some(&true) {
            return constant_weights("nn_binary_cross_entropy_backward");
        }
        let mut inputs = kept.inputs.into_iter().flatten();
        let scores = inputs.next().expect("the scores are kept");
        let found = fused::binary_cross_entropy_backward(scores, inputs.next(), &self.of, grad)?;
        let mut found = Some(found);
        Ok(std::array::from_fn(|_| found.take()))
    }
}
