//! Drop-in replacements for Burn's modules, losses and optimizers. Each takes a few kernels and
//! library calls forward and backward.
//!
//! Burn composes norms, losses, optimizers, attention and the gradient of softmax from many small
//! ops. The modules here have the names, fields, configs and records of Burn's. An app changes only
//! its imports:
//!
//! ```
//! // Before: use burn::nn::{BatchNorm, BatchNormConfig};
//! use burn_rocm_nn::{BatchNorm, BatchNormConfig};
//! # use burn::tensor::Tensor;
//! # use burn_rocm::Rocm;
//!
//! let device = Default::default();
//! let norm: BatchNorm<Rocm> = BatchNormConfig::new(3).init(&device);
//! let images = Tensor::<Rocm, 4>::ones([2, 3, 8, 8], &device);
//! assert_eq!(norm.forward(images).dims(), [2, 3, 8, 8]);
//! ```
//!
//! Trait bounds stay `B: Backend`. A module runs the fused ops of this project if `B` is
//! [`Rocm`](burn_rocm::Rocm) or `Autodiff<Rocm, C>`, with any element types and any of Burn's
//! checkpointing strategies `C`. On every other backend, including Burn's dispatch, it composes
//! Burn's own ops, with the same result. A module that composes Burn's ops logs this once, with the
//! reason, at the level `Info`. `BURN_ROCM_TRACE=1` shows which kernels and library calls ran each
//! op; fused ops have their own names.

pub mod activation;
pub mod amp;
pub mod attention;
pub mod custom;
mod divided;
mod fuse;
pub mod graph;
pub mod language;
mod layer;
pub mod loss;
mod norm;
mod ops;
pub mod optim;
pub mod parallel;
mod pool;
mod ties;
pub mod transformer;
mod warm_up;

pub use activation::Silu;
pub use layer::{
    Act, AddAct, ConvAct, ConvActConfig, LinearAct, LinearActConfig, MulAdd, SwiGlu, SwiGluConfig,
};
pub use norm::{
    BatchNorm, BatchNormConfig, GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig, LayerNorm,
    LayerNormConfig, RmsNorm, RmsNormConfig,
};
pub use pool::{AvgPool3d, AvgPool3dConfig, MaxPool3d, MaxPool3dConfig};
pub use warm_up::warm_up;
