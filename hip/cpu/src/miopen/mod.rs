//! AMD's MIOpen on the host: the C API of `miopen-sys`, computed by this process.
//!
//! Tensors are packed in the order of their dimensions; other layouts are `miopenStatusNotImplemented`. Sums are in
//! `f32`, or better, for every type of data, and in an order that depends on the shapes alone: results are the same
//! bits on every run, whatever the number of cores.
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
