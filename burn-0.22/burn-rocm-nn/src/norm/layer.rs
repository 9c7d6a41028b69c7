//! Layer norm.

use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::tensor::{Device, Tensor};

use super::{LayerNormConfig, composed, shared};
use crate::fuse::{Route, primitive, wrap};
use crate::ops::norm::LayerNormOp;

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` along the last axis ([Ba, Kiros and
/// Hinton 2016](https://arxiv.org/abs/1607.06450)).
///
/// Made by [`LayerNormConfig`]. In the forward pass, MIOpen or a kernel of this project computes
/// the norm, depending on `BURN_ROCM_NORM`. The gradient takes one kernel, and one more that joins
/// the sums of the parameters' gradients.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::{LayerNorm, LayerNormConfig};
///
/// let norm: LayerNorm = LayerNormConfig::new(16).init(&device);
/// let output = norm.forward(Tensor::<2>::ones([2, 16], &device));
/// assert_eq!(output.dims(), [2, 16]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct LayerNorm {
    /// The scale.
    pub gamma: Param<Tensor<1>>,
    /// The shift, if any.
    pub beta: Option<Param<Tensor<1>>>,
    /// Added to the variance.
    epsilon: f64,
}

impl LayerNormConfig {
    /// The module, with gamma 1 and beta 0.
    pub fn init(&self, device: &Device) -> LayerNorm {
        LayerNorm {
            gamma: Initializer::Ones.init([self.d_model], device),
            beta: self.bias.then(|| Initializer::Zeros.init([self.d_model], device)),
            epsilon: self.epsilon,
        }
    }
}

impl LayerNorm {
    /// Normalises along the last axis.
    ///
    /// # Shapes
    /// - input, output: `[.., d_model]`
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let Some(route) = Route::of("LayerNorm", &input) else {
            let [d_model] = self.gamma.shape().dims();
            let config = burn::nn::LayerNormConfig::new(d_model).with_epsilon(self.epsilon);
            let mut norm = config.with_bias(self.beta.is_some()).init(&input.device());
            norm.gamma = shared(&self.gamma);
            norm.beta = self.beta.as_ref().map(shared);
            return composed(Some(self.gamma.val().dtype()), input, |input| norm.forward(input));
        };
        let op = LayerNormOp { epsilon: self.epsilon };
        let (input, gamma) = (primitive(input), primitive(self.gamma.val()));
        wrap(match &self.beta {
            Some(beta) => route.apply(op, [input, gamma, primitive(beta.val())]).0,
            None => route.apply(op, [input, gamma]).0,
        })
    }
}

impl ModuleDisplay for LayerNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model] = self.gamma.shape().dims();
        let content = content.add("d_model", &d_model).add("epsilon", &self.epsilon);
        content.add("bias", &self.beta.is_some()).optional()
    }
}
