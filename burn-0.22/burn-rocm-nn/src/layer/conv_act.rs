//! A convolution and an activation.

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::{DType, Device, Tensor};
use burn_rocm::fused::Conv2dOptions;

use super::bias_act::bias_act;
use super::config::even_padding;
use super::like_burn::like_burn;
use super::{Act, ConvActConfig};
use crate::fuse::{Route, primitive, refuse, wrap};
use crate::ops::layer::ConvRelu;

impl ConvActConfig {
    /// The layer.
    pub fn init(&self, device: &Device) -> ConvAct {
        ConvAct::from_burn(self.conv().init(device), self.activation)
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
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::{Act, ConvAct, ConvActConfig};
///
/// let layer: ConvAct = ConvActConfig::new([3, 8], [3, 3], Act::Relu).init(&device);
/// let output = layer.forward(Tensor::<4>::ones([1, 3, 8, 8], &device));
/// assert_eq!(output.dims(), [1, 8, 6, 6]);
/// ```
#[derive(Clone, Debug)]
pub struct ConvAct {
    /// `[channels_out, channels_in / groups, height, width]`.
    pub weight: Param<Tensor<4>>,
    /// `[channels_out]`.
    pub bias: Option<Param<Tensor<1>>>,
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

impl ConvAct {
    /// The layer's output.
    ///
    /// # Shapes
    /// - input: `[batch, channels_in, height, width]`
    /// - output: `[batch, channels_out, height_out, width_out]`
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let padding = even_padding(&self.padding, input.dims(), self.kernel_size, self.stride);
        if let (Act::Relu, Some(route), Some(padding)) =
            (self.activation, Route::of("ConvAct", &input), padding)
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
    pub fn folded(conv: Conv2d, norm: [Tensor<1>; 4], epsilon: f64, activation: Act) -> Self {
        let weight = conv.weight.val();
        let (channels, dtype) = (weight.dims()[0], weight.dtype());
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let checked = |what: &str, tensor: Tensor<1>| {
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
