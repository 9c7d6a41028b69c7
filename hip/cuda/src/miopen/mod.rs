//! MIOpen over cuDNN 9.
//!
//! This provider's own kernels compute what cuDNN lacks or has only in its graph API: layer norm,
//! T5 layer norm, group norm, maximum pooling and some activations. Layouts and types that neither
//! supports give `miopenStatusNotImplemented`. f32 is convolved in f32, or in TF32 if
//! [`crate::allow_tf32`] allows it. f16 and bf16 are summed in f32.

mod activation;
mod batch_norm;
mod conv;
mod fusion;
mod handle;
mod pool;
mod reduce;
mod replay;
mod row_norm;
mod softmax;
mod status;
mod tensor;

use miopen_sys::Miopen;

/// MIOpen for NVIDIA GPUs.
pub fn miopen_table() -> Miopen {
    hip_provider::miopen::table::<handle::Handle>()
}
