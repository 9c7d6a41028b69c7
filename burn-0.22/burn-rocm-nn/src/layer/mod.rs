//! Layers that compute their last steps in one kernel.

mod bias_act;
mod conv_act;
mod joins;
mod like_burn;
mod linear_act;
mod linear_add;
mod swiglu;

pub use conv_act::{ConvAct, ConvActConfig};
pub use joins::{AddAct, MulAdd};
pub(crate) use linear_act::linear_act;
pub use linear_act::{LinearAct, LinearActConfig};
pub(crate) use linear_add::linear_add;
pub use swiglu::{SwiGlu, SwiGluConfig};

use burn::config::Config;
use burn::nn::Dropout;
use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, relu, silu};
use burn_rocm::fused;

/// An activation that is fused with the layer before it.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `max(z, 0)`.
    Relu,
    /// `z Phi(z)`, the exact form ([Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415)).
    Gelu,
    /// `z sigmoid(z)`.
    Silu,
}

impl Act {
    fn fused(self) -> fused::Act {
        match self {
            Self::Relu => fused::Act::Relu,
            Self::Gelu => fused::Act::Gelu,
            Self::Silu => fused::Act::Silu,
        }
    }
}

/// Whether the dropout does something to `x`.
pub(crate) fn drops<const D: usize>(dropout: &Dropout, x: &Tensor<D>) -> bool {
    dropout.training.is_enabled() && dropout.prob != 0.0 && x.is_autodiff()
}

/// The activation, composed of Burn's ops.
fn composed<const D: usize>(act: Act, x: Tensor<D>) -> Tensor<D> {
    match act {
        Act::Relu => relu(x),
        Act::Gelu => gelu(x),
        Act::Silu => silu(x),
    }
}
