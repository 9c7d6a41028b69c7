//! Ops beyond Burn's traits, each one kernel or library call: what modules of the crate `burn-rocm-nn` are made of.
//!
//! All take tensors in any layout, and give contiguous ones.

mod activation;
pub mod amp;
mod attention;
mod batch_norm;
mod group_norm;
mod layer_norm;
pub mod optim;

pub use activation::{silu, silu_backward};
pub use attention::{
    Attended, AttentionDropout, AttentionOptions, AttentionPath, attention, attention_backward,
    attention_weights, attention_weights_backward,
};
pub use batch_norm::{BatchNormed, batch_norm_backward, batch_norm_infer, batch_norm_train};
pub use group_norm::{group_norm, group_norm_backward};
pub use layer_norm::{layer_norm, layer_norm_backward, rms_norm, rms_norm_backward};
