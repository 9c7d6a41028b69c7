//! A linear layer and an activation.

use burn::config::Config;
use burn::module::{Initializer, Param};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::module::linear;
use burn::tensor::{Device, Tensor};

use super::Act;
use super::bias_act::bias_act;
use super::like_burn::like_burn;

/// Configuration of [`LinearAct`]: Burn's `LinearConfig` and an activation.
#[derive(Config, Debug)]
pub struct LinearActConfig {
    /// Features of the input.
    pub d_input: usize,
    /// Features of the output.
    pub d_output: usize,
    /// The activation.
    pub activation: Act,
    /// Whether there is a bias.
    #[config(default = true)]
    pub bias: bool,
    /// How to initialise the parameters.
    #[config(default = "Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }")]
    pub initializer: Initializer,
    /// The weight's layout in memory.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

impl LinearActConfig {
    /// The layer.
    pub fn init(&self, device: &Device) -> LinearAct {
        let linear = LinearConfig::new(self.d_input, self.d_output)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .with_layout(self.layout);
        LinearAct::from_burn(linear.init(device), self.activation)
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
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::{Act, LinearAct, LinearActConfig};
///
/// let layer: LinearAct = LinearActConfig::new(8, 16, Act::Gelu).init(&device);
/// let output = layer.forward(Tensor::<2>::ones([2, 8], &device));
/// assert_eq!(output.dims(), [2, 16]);
/// ```
#[derive(Clone, Debug)]
pub struct LinearAct {
    /// `[d_input, d_output]`.
    pub weight: Param<Tensor<2>>,
    /// `[d_output]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// The activation.
    pub activation: Act,
}

like_burn!(LinearAct, Linear, [weight, bias]);

impl LinearAct {
    /// The layer's output.
    ///
    /// # Shapes
    /// - input: `[.., d_input]`
    /// - output: `[.., d_output]`
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        by_params("LinearAct", &self.weight, self.bias.as_ref(), self.activation, input)
    }
}

/// Computes a Burn layer and an activation as [`LinearAct`] does. `module` is the name for the log.
pub(crate) fn linear_act<const D: usize>(
    module: &'static str,
    layer: &Linear,
    act: Act,
    input: Tensor<D>,
) -> Tensor<D> {
    by_params(module, &layer.weight, layer.bias.as_ref(), act, input)
}

fn by_params<const D: usize>(
    module: &'static str,
    weight: &Param<Tensor<2>>,
    bias: Option<&Param<Tensor<1>>>,
    act: Act,
    input: Tensor<D>,
) -> Tensor<D> {
    bias_act(module, act, linear(input, weight.val(), None), bias.map(Param::val), D - 1)
}
