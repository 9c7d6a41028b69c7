//! A 2-D convolution, its bias and an activation.

use hip::{Activation, Error as RocmError};

use super::options::Options;
use crate::ops::activation::{Act, bias_act, bias_act_backward};
use crate::ops::channels_last;
use crate::ops::copy::packed;
use crate::tensor::{RocmTensor, float_type};

const OP: &str = "conv_act";

/// The options of a 2-D convolution. Each array holds the value for the height, then for the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// The window's stride.
    pub stride: [usize; 2],
    /// The number of zeros before and after the input.
    pub padding: [usize; 2],
    /// The distance between the window's elements.
    pub dilation: [usize; 2],
    /// The number of groups of channels.
    pub groups: usize,
}

impl Conv2dOptions {
    fn options(&self) -> Options {
        Options {
            stride: self.stride.to_vec(),
            padding: self.padding.to_vec(),
            dilation: self.dilation.to_vec(),
            groups: self.groups,
            transposed: false,
            padding_out: vec![0; 2],
        }
    }
}

/// `act(x * weight + bias)`. With ReLU it is one MIOpen call if MIOpen has a fusion plan for the
/// shape. Otherwise it is the convolution, then one kernel for bias and activation.
///
/// # Shapes
/// - x: `[batch, channels, height, width]`; weight:
///   `[channels_out, channels / groups, window's height, width]`; bias: `[channels_out]`
/// - result: `[batch, channels_out, height_out, width_out]`
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for integers; an error of the
/// device.
pub fn conv_act(
    act: Act,
    x: RocmTensor,
    weight: RocmTensor,
    bias: Option<RocmTensor>,
    options: Conv2dOptions,
) -> Result<RocmTensor, RocmError> {
    float_type(OP, &x)?;
    let options = options.options();
    // Packed once for the plan and the convolution, unless the convolution may put channels last.
    let (x, weight) = match channels_last::is_on(x.dtype_of())? {
        true => (x, weight),
        false => (packed(x)?, packed(weight)?),
    };
    if act == Act::Relu
        && let Some(out) = super::by_plan(OP, &x, &weight, bias.as_ref(), &options, Activation::Relu)?
    {
        return Ok(out);
    }
    bias_act(act, super::forward(OP, x, weight, None, &options)?, bias, 1)
}

/// The gradients of [`conv_act`] with ReLU with respect to x, weight and bias, each if `wanted`,
/// from the output and the output's gradient.
///
/// # Errors
/// As for [`conv_act`], and `Invalid` for a gradient of another shape or dtype than the output's.
pub fn conv_relu_backward(
    x: RocmTensor,
    weight: RocmTensor,
    output: RocmTensor,
    grad: RocmTensor,
    options: Conv2dOptions,
    wanted: [bool; 3],
) -> Result<[Option<RocmTensor>; 3], RocmError> {
    let options = options.options();
    let (grad, by_bias) = bias_act_backward(Act::Relu, output, None, grad, 1, wanted[2])?;
    let by_x = match wanted[0] {
        true => {
            Some(super::x_backward("conv2d_x_backward", x.dims(), weight.clone(), grad.clone(), &options)?)
        }
        false => None,
    };
    let by_weight = match wanted[1] {
        true => Some(super::weight_backward("conv2d_weight_backward", x, weight.dims(), grad, &options)?),
        false => None,
    };
    Ok([by_x, by_weight, by_bias])
}
