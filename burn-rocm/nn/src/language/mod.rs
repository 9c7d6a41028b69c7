//! Language models: a paged cache of keys and values, attention of a step's tokens over it, the
//! choice of the next token on the device, and the step as a graph. No gradients.
//! `docs/guide/language-models.md` has an overview.

mod blocks;
mod cache;
mod decode;
mod tensors;

pub use blocks::{BLOCK, BlockCopy, Blocks, CacheError, SequenceId};
pub use burn_rocm::fused::decode::{CacheType, DecodeOptions, SampleState, SampleTables, Sampling};
pub use cache::{KvBatch, KvCache, KvCacheConfig};
pub use decode::DecodeStep;
pub use tensors::{chances, sample, tokens};
