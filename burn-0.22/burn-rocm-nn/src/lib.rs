//! Drop-in replacements for Burn 0.22's modules, losses and optimizers on burn-rocm. Each takes a few
//! kernels and library calls forward and backward.
//!
//! An app names this package in its manifest and changes only its imports:
//!
//! ```toml
//! burn-rocm-nn = { package = "burn-rocm-nn-022", git = "<the address of this repository>" }
//! ```
//!
//! ```
//! # use burn_rocm_nn_022 as burn_rocm_nn;
//! // Before: use burn::nn::{LayerNorm, LayerNormConfig};
//! use burn_rocm_nn::{LayerNorm, LayerNormConfig};
//! use burn::tensor::{Device, Tensor};
//!
//! let device = Device::rocm(0).autodiff();
//! let norm: LayerNorm = LayerNormConfig::new(16).init(&device);
//! assert_eq!(norm.forward(Tensor::<2>::ones([2, 16], &device)).dims(), [2, 16]);
//! ```
//!
//! The modules here have the names, fields, configs and records of Burn's. A module runs the fused
//! ops of this project for tensors on `Device::rocm`, with or without autodiff and with either of
//! Burn's checkpointing strategies. For tensors on every other device it composes Burn's own ops,
//! with the same result, and logs this once, with the reason, at the level `Info`.
//! `BURN_ROCM_TRACE=1` shows which kernels and library calls ran each op; fused ops have their own
//! names.
//!
//! # Which modules are ported
//!
//! | module | here | what Burn does |
//! |---|---|---|
//! | `BatchNorm` | Burn's own, re-exported | asks the backend for the norm and its gradient |
//! | `LayerNorm` | ported | asks the backend without autodiff, composes with it |
//! | `GroupNorm`, `InstanceNorm`, `RmsNorm` | ported | composes |
//! | `softmax`, `log_softmax`, `Silu` | ported | composes the gradients |
//! | losses | ported | composes |
//! | `SwiGlu` and attention, encoder, feed-forward | ported | composes |
//! | `LinearAct`, `ConvAct`, `AddAct`, `MulAdd` | ported | has no such modules |
//! | `MaxPool3d`, `AvgPool3d` | ported | has no such modules |
//! | `Adam`, `AdamW`, `Sgd` | ported | composes, for each parameter |
//! | [`amp`], [`parallel`], [`language`] | ported | has nothing like them |
//!
//! Counted without chains, as on the CPU device, a training step of `BatchNorm` takes 13 launches
//! more than with burn-rocm-nn for Burn 0.21. Each of these works on only one number per channel:
//! the running statistics, and the scale of the gradient.

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
#[path = "../../../burn-rocm/nn/src/ops/mod.rs"]
mod ops;
pub mod optim;
pub mod parallel;
mod pool;
mod ties;
pub mod transformer;
mod warm_up;

pub use activation::Silu;
pub use burn::nn::{BatchNorm, BatchNormConfig};
pub use layer::{
    Act, AddAct, ConvAct, ConvActConfig, LinearAct, LinearActConfig, MulAdd, SwiGlu, SwiGluConfig,
};
pub use norm::{
    GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig, LayerNorm, LayerNormConfig, RmsNorm,
    RmsNormConfig,
};
pub use pool::{AvgPool3d, AvgPool3dConfig, MaxPool3d, MaxPool3dConfig};
pub use warm_up::warm_up;
