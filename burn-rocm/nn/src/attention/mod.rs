//! Attention modules. Re-exports everything else of `burn::nn::attention`.

mod cache;
mod mha;
mod options;
mod packed;
mod sequence;
mod weights;

pub use burn::nn::attention::{
    CrossAttention, CrossAttentionCache, CrossAttentionConfig, GeneratePaddingMask, SeqLengthOption,
    generate_autoregressive_mask, generate_padding_mask,
};
pub use cache::{MhaCache, TensorCache};
pub(crate) use mha::{Mask, Masks};
pub use mha::{MhaInput, MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig, SlidingWindow};
pub use options::PackedAttentionOptions;
pub use packed::{PackedSequences, packed_attention};
pub(crate) use sequence::sequence_first;
pub use weights::MhaWeights;
