//! Quantised weights: how the formats of checkpoints become the device's format, and layers that
//! use them.
//!
//! | checkpoint | what it has | here |
//! |---|---|---|
//! | GPTQ | 4 or 8 bits, a scale and a zero for each group, inputs in any order of groups | [`Gptq`] |
//! | AWQ | 4 bits, eight outputs in a word, interleaved | [`Awq`] |
//! | compressed-tensors | `pack-quantized` of 4 or 8 bits, `int-quantized` of 8 | [`CompressedTensors`] |
//! | GGUF | Q4_0, Q5_0, Q8_0, Q4_K, Q6_K | [`gguf`] |
//! | Burn | Q8, Q4 and Q2, with one scale or blocks | [`WeightParts::of_burn`] |
//! | f32 | | [`round_to_nearest`] |
//!
//! Each gives [`WeightParts`], which [`QuantWeight::upload`] copies to a device. All numbers stay as
//! they are in the checkpoint. The bytes grow by at most 3 %, because zeros, and Q4_K's scales and
//! least values of 6 bits, take a byte each. Only those of Q5_0 grow more: its numbers of 5 bits take
//! 8. If all outputs share one scale or one zero, each gets a copy of it.
//!
//! [`Fp8Weight`] is a weight in fp8. Products convert it to floats, or hipBLASLt multiplies its codes by those of
//! the inputs: see [`Fp8Inputs`].
//!
//! Weights are frozen. [`QuantLinear`] has a gradient with respect to its input, so that layers
//! before and beside it can be trained.

#[path = "../../../../../burn-rocm/nn/src/language/quant/awq.rs"]
mod awq;
#[path = "../../../../../burn-rocm/nn/src/language/quant/compressed.rs"]
mod compressed;
#[path = "../../../../../burn-rocm/nn/src/language/quant/gguf.rs"]
pub mod gguf;
#[path = "../../../../../burn-rocm/nn/src/language/quant/gptq.rs"]
mod gptq;
mod linear;
#[path = "../../../../../burn-rocm/nn/src/language/quant/raw.rs"]
mod raw;
#[path = "../../../../../burn-rocm/nn/src/language/quant/round.rs"]
mod round;

pub use awq::Awq;
pub use burn_rocm::fused::{
    Fp8Inputs, Fp8Tensor, Fp8Type, Fp8Weight, GroupScales, GroupZeros, GroupedWeights, QuantWeight,
    WeightFormat, WeightParts, quant_linear, quant_linear_x_backward,
};
pub use compressed::CompressedTensors;
pub use gptq::{Gptq, GptqZeros};
pub use linear::{Fp8Linear, QuantEmbedding, QuantLinear};
pub use raw::RawTensor;
pub use round::{RoundTo, round_to_nearest};
