//! Losses. Each takes one kernel forward and one backward. If the forward kernel runs in several
//! blocks, a second kernel joins their sums.
//!
//! They replace the losses of `burn::nn::loss`, with the same names, fields, configs, records and
//! results. On [`Rocm`](burn_rocm::Rocm), f16 and bf16 are computed in f32 and rounded once.

mod binary_cross_entropy;
mod classes;
mod cross_entropy;
mod huber;
mod mse;
mod nll;
#[path = "../../../../burn-rocm/nn/src/loss/options.rs"]
mod options;
mod residual;

pub use binary_cross_entropy::{BinaryCrossEntropyLoss, BinaryCrossEntropyLossConfig};
pub use burn::nn::loss::Reduction;
pub use cross_entropy::{CrossEntropyLoss, CrossEntropyLossConfig};
pub use huber::{HuberLoss, HuberLossConfig};
pub use mse::MseLoss;
pub use nll::{NllLoss, NllLossConfig};

use options::{check_options, shown};
