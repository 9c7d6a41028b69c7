//! Layers that compute their last steps in one kernel.

#[path = "../../../../burn-rocm/nn/src/layer/act.rs"]
mod act;
mod bias_act;
#[path = "../../../../burn-rocm/nn/src/layer/config.rs"]
mod config;
mod conv_act;
mod joins;
mod like_burn;
mod linear_act;
mod linear_add;
mod swiglu;

pub use act::Act;
pub use config::{ConvActConfig, LinearActConfig, SwiGluConfig};
pub use conv_act::ConvAct;
pub use joins::{AddAct, MulAdd};
pub use linear_act::LinearAct;
pub(crate) use linear_act::linear_act;
pub(crate) use linear_add::linear_add;
pub use swiglu::SwiGlu;

use burn::nn::Dropout;
use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, relu, silu};

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
