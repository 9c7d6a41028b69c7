//! Quantised tensors.

pub(crate) mod layout;
pub(crate) mod matmul;
pub(crate) mod quantize;
