//! Layer norm.

use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::{LayerNormConfig, composed};
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
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::{LayerNorm, LayerNormConfig};
///
/// let norm: LayerNorm<Rocm> = LayerNormConfig::new(16).init(&device);
/// let output = norm.forward(Tensor::<Rocm, 2>::ones([2, 16], &device));
/// assert_eq!(output.dims(), [2, 16]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct LayerNorm<B: Backend> {
    /// The scale.
    pub gamma: Param<Tensor<B, 1>>,
    /// The shift, if any.
    pub beta: Option<Param<Tensor<B, 1>>>,
    /// Added to the variance.
    epsilon: f64,
}

impl LayerNormConfig {
    /// The module, with gamma 1 and beta 0.
    pub fn init<B: Backend>(&self, device: &B::Device) -> LayerNorm<B> {
        LayerNorm {
            gamma: Initializer::Ones.init([self.d_model], device),
            beta: self.bias.then(|| Initializer::Zeros.init([self.d_model], device)),
            epsilon: self.epsilon,
        }
    }
}

impl<B: Backend> LayerNorm<B> {
    /// Normalises along the last axis.
    ///
    /// # Shapes
    /// - input, output: `[.., d_model]`
    pub fn forward<const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        let gamma = self.gamma.val();
        let beta = self.beta.as_ref().map(|beta| primitive(beta.val()));
        let op = LayerNormOp { epsilon: self.epsilon };
        match (Route::<B>::of("LayerNorm"), beta) {
            (Some(route), Some(beta)) => wrap(route.apply(op, [primitive(input), primitive(gamma), beta]).0),
            (Some(route), None) => wrap(route.apply(op, [primitive(input), primitive(gamma)]).0),
            (None, beta) => composed(Some(gamma.dtype()), input, |input| {
                wrap(B::layer_norm(primitive(input), primitive(gamma), beta, self.epsilon))
            }),
        }
    }
}

impl<B: Backend> ModuleDisplay for LayerNorm<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model] = self.gamma.shape().dims();
        let content = content.add("d_model", &d_model).add("epsilon", &self.epsilon);
        content.add("bias", &self.beta.is_some()).optional()
    }
}
