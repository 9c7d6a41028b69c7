//! A convolution and an activation.

use burn::config::Config;
use burn::module::{Initializer, Param};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};
use burn_rocm::fused::Conv2dOptions;

use super::Act;
use super::bias_act::bias_act;
use super::like_burn::like_burn;
use crate::fuse::{Route, primitive, refuse, wrap};
use crate::ops::layer::ConvRelu;

/// Configuration of [`ConvAct`]: Burn's `Conv2dConfig` and an activation.
#[derive(Config, Debug)]
pub struct ConvActConfig {
    /// The numbers of input and output channels.
    pub channels: [usize; 2],
    /// Height and width of the window.
    pub kernel_size: [usize; 2],
    /// The activation.
    pub activation: Act,
    /// The window's stride.
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// The distance between the window's elements.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// The number of groups of channels.
    #[config(default = "1")]
    pub groups: usize,
    /// The padding.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether there is a bias.
    #[config(default = true)]
    pub bias: bool,
    /// How to initialise the parameters.
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

/// A 2-D convolution and an activation. With ReLU it is one MIOpen call if MIOpen has a fusion plan
/// for the shape. Otherwise MIOpen convolves, and one kernel adds the bias and applies the
/// activation. Backward, one kernel computes the gradients of the activation and the bias (a second
/// kernel may join the bias' partial sums), and then the convolution's gradients are computed.
///
/// Its record is the same as that of Burn's [`Conv2d`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::{Act, ConvAct, ConvActConfig};
///
/// let layer: ConvAct<Rocm> = ConvActConfig::new([3, 8], [3, 3], Act::Relu).init(&device);
/// let output = layer.forward(Tensor::<Rocm, 4>::ones([1, 3, 8, 8], &device));
/// assert_eq!(output.dims(), [1, 8, 6, 6]);
/// ```
#[derive(Clone, Debug)]
pub struct ConvAct<B: Backend> {
    /// `[channels_out, channels_in / groups, height, width]`.
    pub weight: Param<Tensor<B, 4>>,
    /// `[channels_out]`.
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// The window's stride.
    pub stride: [usize; 2],
    /// Height and width of the window.
    pub kernel_size: [usize; 2],
    /// The distance between the window's elements.
    pub dilation: [usize; 2],
    /// The number of groups of channels.
    pub groups: usize,
    /// The padding.
    pub padding: PaddingConfig2d,
    /// The activation.
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
        let dims = input.dims();
        if let (Act::Relu, Some(route), Some(padding)) =
            (self.activation, Route::<B>::of("ConvAct"), self.even_padding(dims))
        {
            let options =
                Conv2dOptions { stride: self.stride, padding, dilation: self.dilation, groups: self.groups };
            let (input, weight) = (primitive(input), primitive(self.weight.val()));
            return wrap(match &self.bias {
                Some(bias) => route.apply(ConvRelu(options), [input, weight, primitive(bias.val())]).0,
                None => route.apply(ConvRelu(options), [input, weight]).0,
            });
        }
        let conv = Conv2d { bias: None, ..self.burn() };
        bias_act(
            "ConvAct",
            self.activation,
            conv.forward(input),
            self.bias.as_ref().map(|bias| bias.val()),
            1,
        )
    }

    /// The padding, if it is the same before and after each axis.
    fn even_padding(&self, [_, _, height, width]: [usize; 4]) -> Option<[usize; 2]> {
        match self.padding {
            PaddingConfig2d::Valid => Some([0, 0]),
            PaddingConfig2d::Explicit(top, left, bottom, right) => {
                (top == bottom && left == right).then_some([top, left])
            }
            PaddingConfig2d::Same => {
                if self.stride.contains(&0) {
                    refuse("conv_act", "a stride of at least 1", format!("{:?}", self.stride));
                }
                let whole = |axis: usize, size: usize| {
                    let steps = size.div_ceil(self.stride[axis]).saturating_sub(1);
                    (steps * self.stride[axis] + self.kernel_size[axis]).saturating_sub(size)
                };
                let whole = [whole(0, height), whole(1, width)];
                whole.iter().all(|whole| whole % 2 == 0).then_some(whole.map(|whole| whole / 2))
            }
        }
    }

    /// Folds a convolution, the batch norm after it and an activation into one layer, for
    /// inference. The weight absorbs the norm's scale, and the bias its shift.
    ///
    /// `norm` holds scale, shift, running mean and running variance, each `[channels_out]`.
    /// `epsilon` is the number that the norm adds to the variance. f16 and bf16 are folded in f32.
    /// The layer has the dtype of the convolution's weight.
    ///
    /// # Panics
    /// If the bias or a tensor of the norm does not have the shape `[channels_out]`. The error
    /// names the tensor.
    pub fn folded(conv: Conv2d<B>, norm: [Tensor<B, 1>; 4], epsilon: f64, activation: Act) -> Self {
        let weight = conv.weight.val();
        let (channels, dtype) = (weight.dims()[0], weight.dtype());
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let checked = |what: &str, tensor: Tensor<B, 1>| {
            if tensor.dims() != [channels] {
                let of = weight.dims();
                let expected = format!("{what} of shape [{channels}], as the convolution's weight is {of:?}");
                refuse("ConvAct::folded", expected, format!("{:?}", tensor.dims()));
            }
            tensor.cast(wide)
        };
        let [gamma, beta, mean, variance] = norm;
        let gamma = checked("a scale", gamma);
        let beta = checked("a shift", beta);
        let mean = checked("a running mean", mean);
        let variance = checked("a running variance", variance);
        let scale = gamma / (variance + epsilon).sqrt();
        let mut bias = beta - mean * scale.clone();
        if let Some(own) = &conv.bias {
            bias = bias + checked("a bias", own.val()) * scale.clone();
        }
        let weight = weight.clone().cast(wide) * scale.reshape([channels, 1, 1, 1]);
        let folded = Conv2d {
            weight: Param::from_tensor(weight.cast(dtype).detach()),
            bias: Some(Param::from_tensor(bias.cast(dtype).detach())),
            ..conv
        };
        Self::from_burn(folded, activation)
    }
}
