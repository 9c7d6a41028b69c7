//! Norms. With f16 or bf16 inputs, parameters may be f32. The kernels then read them as f32, and
//! the parameters' gradients are f32.

mod batch;
mod config;
mod group;
mod instance;
mod layer;
mod rms;

pub use batch::{BatchNorm, BatchNormConfig};
pub use config::{GroupNormConfig, InstanceNormConfig, LayerNormConfig, RmsNormConfig};
pub use group::GroupNorm;
pub use instance::InstanceNorm;
pub use layer::LayerNorm;
pub use rms::RmsNorm;

use burn::module::Param;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};

use crate::fuse::refuse;

/// The same parameter, for another module. Initialises it first, because a clone of an
/// uninitialised parameter would become a separate tensor, and that tensor would receive the
/// gradient.
fn shared<B: Backend, const D: usize>(param: &Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
    param.val();
    param.clone()
}

/// The output of Burn's module. Burn's module does not accept an f16 or bf16 input with f32
/// parameters, so such an input is computed in f32.
fn composed<B: Backend, const D: usize>(
    params: Option<DType>,
    input: Tensor<B, D>,
    forward: impl FnOnce(Tensor<B, D>) -> Tensor<B, D>,
) -> Tensor<B, D> {
    match (input.dtype(), params) {
        (dtype @ (DType::F16 | DType::BF16), Some(DType::F32)) => forward(input.cast(DType::F32)).cast(dtype),
        _ => forward(input),
    }
}

/// Gamma and beta, both or neither. Panics if `affine` asks for a parameter that is missing.
fn both<B: Backend>(
    affine: bool,
    gamma: Option<Tensor<B, 1>>,
    beta: Option<Tensor<B, 1>>,
) -> Option<[Tensor<B, 1>; 2]> {
    match (affine, gamma, beta) {
        (false, ..) => None,
        (true, Some(gamma), Some(beta)) => Some([gamma, beta]),
        (true, ..) => refuse("group_norm", "gamma and beta, as `affine` is true", "at least one is missing"),
    }
}
