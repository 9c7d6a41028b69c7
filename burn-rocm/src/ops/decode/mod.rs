//! Generating text: a paged cache of keys and values, attention of a few queries over it, and the
//! choice of the next token. What a step needs to know lies in device memory, so a captured graph
//! of a step appends at moving positions and draws other numbers at each replay.

mod attention;
mod cache;
mod draws;
mod sample;

pub use attention::{DecodeOptions, attention, attention_gathered, rotary_attention};
pub use cache::{CacheType, PagedBatch, PagedLayer, append, gather, rotary_append};
pub use draws::{Draw, LateDraws, LateFloats};
pub use sample::{SampleState, SampleTables, Sampling, sample, sample_bytes};

/// The tokens of a page. `PAGE` of `paged.h`.
pub const PAGE: usize = 16;
