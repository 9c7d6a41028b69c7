//! The gated linear unit with SiLU.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::activation::silu;
use burn::tensor::backend::Backend;
use burn_rocm::fused::Gate;

use super::SwiGluConfig;
use crate::fuse::{Route, primitive, wrap};
use crate::ops::language::GatedOp;

impl SwiGluConfig {
    /// The layer.
    pub fn init<B: Backend>(&self, device: &B::Device) -> SwiGlu<B> {
        let linear = || self.linear().init(device);
        SwiGlu { linear_inner: linear(), linear_outer: linear() }
    }
}

/// `silu(x W1 + b1) * (x W2 + b2)` ([Shazeer 2020](https://arxiv.org/abs/2002.05202)): SiLU and the
/// product run in one kernel, and the gradients of both in another.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::{SwiGlu, SwiGluConfig};
///
/// let layer: SwiGlu<Rocm> = SwiGluConfig::new(8, 16).init(&device);
/// let output = layer.forward(Tensor::<Rocm, 2>::ones([2, 8], &device));
/// assert_eq!(output.dims(), [2, 16]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SwiGlu<B: Backend> {
    /// The layer `W1`, `b1`, whose output goes through SiLU.
    pub linear_inner: Linear<B>,
    /// The layer `W2`, `b2`, whose output is the other factor.
    pub linear_outer: Linear<B>,
}

impl<B: Backend> ModuleDisplay for SwiGlu<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_input, d_output] = self.linear_inner.weight.shape().dims();
        content
            .add("d_input", &d_input)
            .add("d_output", &d_output)
            .add("bias", &self.linear_inner.bias.is_some())
            .optional()
    }
}

impl<B: Backend> SwiGlu<B> {
    /// The layer's output.
    ///
    /// # Shapes
    /// - input: `[.., d_input]`
    /// - output: `[.., d_output]`
    pub fn forward<const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        let inner = self.linear_inner.forward(input.clone());
        let outer = self.linear_outer.forward(input);
        match Route::<B>::of("SwiGlu") {
            Some(route) => wrap(route.apply(GatedOp(Gate::Silu), [primitive(inner), primitive(outer)]).0),
            None => silu(inner) * outer,
        }
    }
}
