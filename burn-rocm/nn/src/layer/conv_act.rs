//! A convolution and an activation.

use burn::config::Config;
use burn::module::{Initializer, Param};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::Act;
use super::bias_act::bias_act;
use super::like_burn::like_burn;

/// What [`ConvAct`] is made of: Burn's `Conv2dConfig` and an activation.
#[derive(Config, Debug)]
pub struct ConvActConfig {
    /// Channels of the input and of the output.
    pub channels: [usize; 2],
    /// Height and width of the window.
    pub kernel_size: [usize; 2],
    /// What follows.
    pub activation: Act,
    /// How far the window moves.
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// How far apart the window's elements are.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// Groups of channels.
    #[config(default = "1")]
    pub groups: usize,
    /// What is around the input.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether there is a bias.
    #[config(default = true)]
    pub bias: bool,
    /// How parameters start.
    #[config(default = "Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }")]
    pub initializer: Initializer,
}

impl ConvActConfig {
    /// The layer.
    pub fn init<B: Backend>(&self, device: &B::Device) -> ConvAct<B> {
        let conv = Conv2dConfig::new(self.channels, self.kernel_size)
            .with_stride(self.stride)
            .with_dilation(self.dilation)
            .with_groups(self.groups)
            .with_padding(self.padding.clone())
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone());
        ConvAct::from_burn(conv.init(device), self.activation)
    }
}

/// The activation of a 2-D convolution: that on MIOpen, bias and activation in one kernel; backward, the activation's gradient and the
/// bias' in one kernel (and one that joins the sums of its parts), then the convolution's.
///
/// Its record is that of Burn's [`Conv2d`].
#[derive(Clone, Debug)]
pub struct ConvAct<B: Backend> {
    /// `[channels_out, channels_in / groups, height, width]`.
    pub weight: Param<Tensor<B, 4>>,
    /// `[channels_out]`.
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// How far the window moves.
    pub stride: [usize; 2],
    /// Height and width of the window.
    pub kernel_size: [usize; 2],
    /// How far apart the window's elements are.
    pub dilation: [usize; 2],
    /// Groups of channels.
    pub groups: usize,
    /// What is around the input.
    pub padding: PaddingConfig2d,
    /// What follows.
    pub activation: Act,
}

like_burn!(ConvAct, Conv2d, [weight, bias, stride, kernel_size, dilation, groups, padding]);

impl<B: Backend> ConvAct<B> {
    /// The layer's output.
    ///
    /// # Shapes
    /// - input: `[batch, channels_in, height, width]`
    /// - output: `[batch, channels_out, height_out, width_out]`
    pub fn forward(&self, input: Tensor<B, 4>) -> Tensor<B, 4> {
        let conv = Conv2d { bias: None, ..self.burn() };
        bias_act(self.activation, conv.forward(input), self.bias.as_ref().map(|bias| bias.val()), 1)
    }

    /// A convolution, the batch norm behind it and an activation as one layer, for inference: the norm's scale is in the weight, what it adds in the
    /// bias.
    ///
    /// `norm` has scale, shift, running mean and running variance, each `[channels_out]`; `epsilon` is what the norm adds to the variance.
    pub fn folded(conv: Conv2d<B>, norm: [Tensor<B, 1>; 4], epsilon: f64, activation: Act) -> Self {
        let [gamma, beta, mean, variance] = norm;
        let scale = gamma / (variance + epsilon).sqrt();
        let mut bias = beta - mean * scale.clone();
        if let Some(own) = &conv.bias {
            bias = bias + own.val() * scale.clone();
        }
        let channels = scale.dims()[0];
        let weight = conv.weight.val() * scale.reshape([channels, 1, 1, 1]);
        let folded = Conv2d {
            weight: Param::from_tensor(weight.detach()),
            bias: Some(Param::from_tensor(bias.detach())),
            ..conv
        };
        Self::from_burn(folded, activation)
    }
}
