//! MIOpen on the host's CPU.
//!
//! Tensors must be packed in row-major order; other layouts give `miopenStatusNotImplemented`. Sums
//! are `f32` or `f64` for every data type. Their order depends only on the shapes, so every run
//! gives the same bits, with any number of cores.
#![allow(non_snake_case, non_upper_case_globals)] // AMD's names.

mod activation;
mod batch_norm;
mod conv;
mod handle;
mod pool;
mod reduce;
mod row_norm;
mod softmax;
mod status;

use miopen_sys::Miopen;

pub(crate) use crate::numeric::shared::Shared;

/// The CPU device's MIOpen.
pub fn miopen_table() -> Miopen {
    hip_provider::miopen::table::<handle::Handle>()
}
