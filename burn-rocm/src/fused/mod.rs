//! Ops beyond Burn's traits, each one kernel or library call: what modules of the crate `burn-rocm-nn` are made of.
//!
//! All take tensors in any layout, and give contiguous ones.

mod activation;

pub use activation::{silu, silu_backward};
