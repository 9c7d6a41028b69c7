//! MIOpen over cuDNN 9.
//!
//! Kernels of this provider's own serve what cuDNN has not, or in graphs alone: layer norm, T5's and group norm,
//! maximum pooling that keeps indices, some activations. Layouts and types that neither takes are
//! `miopenStatusNotImplemented`. f32 is convolved in f32: TF32 only where [`crate::allow_tf32`] allows it; f16
//! and bf16 are summed in f32.

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
