//! Language models: a paged cache of keys and values, attention of a step's tokens over it, the
//! choice of the next token on the device, and the step as a graph. No gradients.
//! `docs/guide/language-models.md` has an overview.
//!
//! The cache's allocator is on the host, and can be asked without a device:
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

#[path = "../../../../burn-rocm/nn/src/language/blocks.rs"]
mod blocks;
#[path = "../../../../burn-rocm/nn/src/language/cache.rs"]
mod cache;
#[path = "../../../../burn-rocm/nn/src/language/decode.rs"]
mod decode;
pub mod lora;
pub mod quant;
mod tensors;

pub use blocks::{BLOCK, BlockCopy, Blocks, CacheError, SequenceId};
pub use burn_rocm::fused::decode::{CacheType, DecodeOptions, SampleState, SampleTables, Sampling};
pub use cache::{KvBatch, KvCache, KvCacheConfig};
pub use decode::DecodeStep;
pub use tensors::{chances, sample, tokens};
