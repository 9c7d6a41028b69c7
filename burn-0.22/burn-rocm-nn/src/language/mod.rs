//! Language models. `docs/guide/language-layers.md` and `language-training.md` have examples.
//!
//! - **Layers**, with gradients: the rotary embedding fused with the split into heads and their
//!   norms, RMS norm with the residual connection, gated linear units, and a decoder of them.
//! - **Decoding**, without gradients: a paged cache of keys and values, attention of a step's tokens
//!   over it, the choice of the next token on the device, and the step as a graph.
//! - Quantised weights ([`quant`]), and low-rank adapters of frozen layers ([`lora`]).
//!
//! The cache's allocator is on the host and needs no device:
//!
//! ```
//! # use burn_rocm_nn_022 as burn_rocm_nn;
//! use burn_rocm_nn::language::{Blocks, CacheError};
//! let mut blocks = Blocks::new(4);
//! let prompt = blocks.create();
//! blocks.reserve(prompt, 40)?; // three blocks
//! blocks.advance(prompt, 40)?;
//! let answer = blocks.fork(prompt, 40)?; // shares them
//! assert_eq!(blocks.blocks_free(), 1);
//! // The third block has 8 tokens of both, so the first that appends gets its own.
//! assert!(blocks.reserve(answer, 1)?.is_some());
//! assert!(matches!(blocks.reserve(prompt, 9), Err(CacheError::OutOfBlocks { needed: 1, free: 0 })));
//! # Ok::<(), CacheError>(())
//! ```

mod attention;
#[path = "../../../../burn-rocm/nn/src/language/blocks.rs"]
mod blocks;
#[path = "../../../../burn-rocm/nn/src/language/cache.rs"]
mod cache;
#[path = "../../../../burn-rocm/nn/src/language/config.rs"]
mod config;
#[path = "../../../../burn-rocm/nn/src/language/decode.rs"]
mod decode;
mod decoder;
#[path = "../../../../burn-rocm/nn/src/language/decoder_config.rs"]
mod decoder_config;
mod gate;
pub mod lora;
mod norm;
pub mod quant;
mod rotary;
mod tensors;

pub use attention::attention;
pub use blocks::{BLOCK, BlockCopy, Blocks, CacheError, SequenceId};
pub use burn_rocm::fused::decode::{
    CacheType, DecodeOptions, Draw, LateDraws, SampleState, SampleTables, Sampling,
};
pub use cache::{KvBatch, KvCache, KvCacheConfig};
pub use config::{GateKind, NormConfig, RotaryConfig, RotaryFrequencies, RotaryScaling};
pub use decode::DecodeStep;
pub use decoder::{CrossAttention, Decoder, DecoderLayer};
pub use decoder_config::{AttentionRule, DecoderConfig};
pub use gate::{gated, gated_halves};
pub use norm::{Norm, residual_norm};
pub use rotary::{Heads, Positions, RotaryEmbedding};
pub use tensors::{chances, sample, tokens};
