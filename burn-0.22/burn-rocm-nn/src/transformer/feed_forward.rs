//! Two linear layers with an activation between them.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::activation::Activation;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::config::PositionWiseFeedForwardConfig;
use crate::Act;
use crate::fuse::{Route, primitive, say_composed, wrap};
use crate::layer::{drops, linear_act};
use crate::ops::layer::FeedForwardOp;

const MODULE: &str = "PositionWiseFeedForward";

/// `outer(dropout(activation(inner(x))))` for each position ([Vaswani et al.
/// 2017](https://arxiv.org/abs/1706.03762)), with the fields, record and result of Burn's module.
/// As in Burn's module, the record does not hold parameters of the activation. ReLU and exact GELU
/// run in one kernel with the first layer's bias, as in [`LinearAct`](crate::LinearAct). Made by
/// [`PositionWiseFeedForwardConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::transformer::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
///
/// let layer: PositionWiseFeedForward = PositionWiseFeedForwardConfig::new(16, 32).init(&device);
/// let output = layer.forward(Tensor::<3>::ones([1, 4, 16], &device));
/// assert_eq!(output.dims(), [1, 4, 16]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct PositionWiseFeedForward {
    /// From `d_model` to `d_ff` features.
    pub linear_inner: Linear,
    /// From `d_ff` to `d_model` features.
    pub linear_outer: Linear,
    /// Dropout of the features between the two layers.
    pub dropout: Dropout,
    /// The activation.
    #[module(skip)]
    pub activation: Activation,
}

impl ModuleDisplay for PositionWiseFeedForward {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model, d_ff] = self.linear_inner.weight.shape().dims();
        content.add("d_model", &d_model).add("d_ff", &d_ff).add("prob", &self.dropout.prob).optional()
    }
}

impl PositionWiseFeedForwardConfig {
    /// The module, with new parameters.
    pub fn init(&self, device: &Device) -> PositionWiseFeedForward {
        let linear =
            |from, to| LinearConfig::new(from, to).with_initializer(self.initializer.clone()).init(device);
        PositionWiseFeedForward {
            linear_inner: linear(self.d_model, self.d_ff),
            linear_outer: linear(self.d_ff, self.d_model),
            dropout: DropoutConfig::new(self.dropout).init(),
            activation: self.activation.init(device),
        }
    }
}

impl PositionWiseFeedForward {
    /// Runs the layers one after the other.
    ///
    /// # Shapes
    /// - input, output: `[.., d_model]`
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match self.joined(&input, None) {
            Some(output) => output,
            None => self.linear_outer.forward(self.between(input)),
        }
    }

    /// Both layers as one op, with their output added to `onto`. `None` unless the activation is
    /// GELU by tanh and hipBLASLt may compute it together with the products.
    pub(super) fn joined<const D: usize>(
        &self,
        input: &Tensor<D>,
        onto: Option<&Tensor<D>>,
    ) -> Option<Tensor<D>> {
        let Activation::Gelu(gelu) = &self.activation else { return None };
        let (Some(b1), Some(b2)) = (&self.linear_inner.bias, &self.linear_outer.bias) else { return None };
        // The inner layer's output is under autodiff if one of these is.
        let trains = drops(&self.dropout, input) || drops(&self.dropout, &self.linear_inner.weight.val());
        if !gelu.approximate || trains {
            return None;
        }
        let route = Route::of(MODULE, input)?;
        if !route.joins_products(input) {
            return None;
        }
        let (w1, w2) = (&self.linear_inner.weight, &self.linear_outer.weight);
        let [x, w1, w2] = [primitive(input.clone()), primitive(w1.val()), primitive(w2.val())];
        let [b1, b2] = [primitive(b1.val()), primitive(b2.val())];
        Some(wrap(match onto {
            Some(onto) => route.apply(FeedForwardOp, [x, w1, b1, w2, b2, primitive(onto.clone())]).0,
            None => route.apply(FeedForwardOp, [x, w1, b1, w2, b2]).0,
        }))
    }

    /// The input of the second layer.
    pub(super) fn between<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let inner = &self.linear_inner;
        let between = match &self.activation {
            Activation::Gelu(gelu) if !gelu.approximate => linear_act(MODULE, inner, Act::Gelu, input),
            Activation::Relu(_) => linear_act(MODULE, inner, Act::Relu, input),
            other => {
                say_composed(MODULE, &input.device(), "no fused op has its activation");
                other.forward(inner.forward(input))
            }
        };
        if drops(&self.dropout, &between) {
            say_composed(MODULE, &between.device(), "no fused op has its dropout");
        }
        self.dropout.forward(between)
    }
}
