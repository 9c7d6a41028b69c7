//! Losses. Each takes one kernel forward and one backward. If the forward kernel runs in several
//! blocks, a second kernel joins their sums.
//!
//! They replace those of `burn::nn::loss`, with the same names, fields, configs, records and
//! results. On [`Rocm`](burn_rocm::Rocm), f16 and bf16 are computed in f32 and rounded once.

mod binary_cross_entropy;
mod classes;
mod cross_entropy;
mod huber;
mod mse;
mod nll;
mod residual;

pub use binary_cross_entropy::{BinaryCrossEntropyLoss, BinaryCrossEntropyLossConfig};
pub use burn::nn::loss::Reduction;
pub use cross_entropy::{CrossEntropyLoss, CrossEntropyLossConfig};
pub use huber::{HuberLoss, HuberLossConfig};
pub use mse::MseLoss;
pub use nll::{NllLoss, NllLossConfig};

use crate::fuse::refuse;

/// The checks of options that Burn's classification losses share.
///
/// # Panics
/// For a smoothing outside 0 to 1, and for weights that are not positive.
fn check_options(smoothing: Option<f32>, weights: Option<&[f32]>) {
    if let Some(alpha) = smoothing.filter(|alpha| !(0.0..=1.0).contains(alpha)) {
        refuse("loss", "a label smoothing of 0 to 1", alpha.to_string());
    }
    if let Some(weights) = weights.filter(|weights| !weights.iter().all(|&weight| weight > 0.0)) {
        refuse("loss", "positive class weights", format!("{weights:?}"));
    }
}

/// Pad tokens as Burn displays them.
fn shown(pad_tokens: Option<&[usize]>) -> String {
    pad_tokens.map_or("None".into(), |tokens| format!("Vec<0..{}>", tokens.len()))
}
