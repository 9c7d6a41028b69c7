//! Layers that compute their last steps in one kernel.

mod act;
mod bias_act;
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

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, relu, silu};
use burn::tensor::backend::Backend;

/// The activation, composed of Burn's ops.
fn composed<B: Backend, const D: usize>(act: Act, x: Tensor<B, D>) -> Tensor<B, D> {
    match act {
        Act::Relu => relu(x),
        Act::Gelu => gelu(x),
        Act::Silu => silu(x),
    }
}
