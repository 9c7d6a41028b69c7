//! A linear layer and an activation.

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::module::linear;

use super::bias_act::bias_act;
use super::like_burn::like_burn;
use super::{Act, LinearActConfig};
use crate::fuse::{Route, primitive, wrap};
use crate::ops::layer::LinearReluOp;

impl LinearActConfig {
    /// The layer.
    pub fn init<B: Backend>(&self, device: &B::Device) -> LinearAct<B> {
        LinearAct::from_burn(self.linear().init(device), self.activation)
    }
}

/// `act(x W + b)`: the product runs on rocBLAS, and bias and activation in one kernel. Backward,
/// one kernel computes the gradients of the activation and the bias (a second kernel may join the
/// bias' partial sums), and then the products' gradients are computed.
///
/// Its record is the same as that of Burn's [`Linear`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::{Act, LinearAct, LinearActConfig};
///
/// let layer: LinearAct<Rocm> = LinearActConfig::new(8, 16, Act::Gelu).init(&device);
/// let output = layer.forward(Tensor::<Rocm, 2>::ones([2, 8], &device));
/// assert_eq!(output.dims(), [2, 16]);
/// ```
#[derive(Clone, Debug)]
pub struct LinearAct<B: Backend> {
    /// `[d_input, d_output]`.
    pub weight: Param<Tensor<B, 2>>,
    /// `[d_output]`.
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// The activation.
    pub activation: Act,
}

like_burn!(LinearAct, Linear, [weight, bias]);

impl<B: Backend> LinearAct<B> {
    /// The layer's output.
    ///
    /// # Shapes
    /// - input: `[.., d_input]`
    /// - output: `[.., d_output]`
    pub fn forward<const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        by_params("LinearAct", &self.weight, self.bias.as_ref(), self.activation, input)
    }
}

/// Computes a Burn layer and an activation as [`LinearAct`] does. `module` is the name for the log.
pub(crate) fn linear_act<B: Backend, const D: usize>(
    module: &'static str,
    layer: &Linear<B>,
    act: Act,
    input: Tensor<B, D>,
) -> Tensor<B, D> {
    by_params(module, &layer.weight, layer.bias.as_ref(), act, input)
}

fn by_params<B: Backend, const D: usize>(
    module: &'static str,
    weight: &Param<Tensor<B, 2>>,
    bias: Option<&Param<Tensor<B, 1>>>,
    act: Act,
    input: Tensor<B, D>,
) -> Tensor<B, D> {
    if act == Act::Relu
        && let Some(route) = Route::<B>::of(module)
        && route.joins_products(&input.device())
    {
        let (x, weight) = (primitive(input), primitive(weight.val()));
        return wrap(match bias {
            Some(bias) => route.apply(LinearReluOp, [x, weight, primitive(bias.val())]).0,
            None => route.apply(LinearReluOp, [x, weight]).0,
        });
    }
    bias_act(module, act, linear(input, weight.val(), None), bias.map(Param::val), D - 1)
}
