//! The ops of generation on Burn's tensors.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Int, Tensor};
use burn_rocm::RocmError;
use burn_rocm::fused::decode::{self, DecodeOptions, SampleState};

use super::blocks::CacheError;
use super::cache::{KvBatch, KvCache};
use crate::fuse::{Route, primitive};

fn route<B: Backend>(op: &'static str) -> Result<Route<B>, RocmError> {
    Route::of(op).ok_or_else(|| {
        let what = format!("tensors of {}", std::any::type_name::<B>());
        RocmError::Unsupported { op, dtype: None, what: Some(what) }
    })
}

impl KvCache {
    /// Writes a layer's keys and values of the step's tokens into the blocks of the batch's
    /// sequences, behind their tokens so far. The sequences may have different numbers of tokens.
    ///
    /// # Shapes
    /// - `keys`, `values`: `[tokens, heads, features]`, the tokens of all rows one after the other
    ///
    /// # Errors
    /// `Device`, as [`fused::decode::append`](burn_rocm::fused::decode::append).
    pub fn append<B: Backend>(
        &self,
        layer: usize,
        batch: &KvBatch,
        keys: Tensor<B, 3>,
        values: Tensor<B, 3>,
    ) -> Result<(), CacheError> {
        let route = route::<B>("KvCache::append")?;
        let [keys, values] = [keys, values].map(|tensor| route.inner(primitive(tensor)));
        Ok(decode::append(self.layer(layer)?, &batch.device, keys, values)?)
    }

    /// A layer's keys and values of all rows, one row after the other, for another op. `lengths` is
    /// the number of tokens of each row; they must have been written.
    ///
    /// # Shapes
    /// - output: `[tokens, heads, features]` of `dtype`, keys and values
    ///
    /// # Errors
    /// `Device`, as [`fused::decode::gather`](burn_rocm::fused::decode::gather).
    pub fn gather<B: Backend>(
        &self,
        layer: usize,
        batch: &KvBatch,
        lengths: &[usize],
        dtype: DType,
    ) -> Result<[Tensor<B, 3>; 2], CacheError> {
        let route = route::<B>("KvCache::gather")?;
        let [keys, values, _] = decode::gather(self.layer(layer)?, &batch.device, lengths, dtype)?;
        Ok([keys, values].map(|tensor| route.constant(tensor)))
    }

    /// Attention of the step's tokens over the keys of their sequences up to their own, which
    /// [`append`](Self::append) has written before. For one to sixteen tokens a row, a kernel reads
    /// the blocks in place, split along the keys. For a batch that allows more, keys and values are
    /// gathered, and [`fused::attention_packed_inference`](burn_rocm::fused::attention_packed_inference)
    /// computes attention.
    ///
    /// # Shapes
    /// - `queries`: `[tokens, heads, features]`, the tokens of all rows one after the other; the
    ///   cache's heads divide `heads`. Tokens behind the last row's give zeros.
    /// - output: `[tokens, heads, features]`
    ///
    /// # Errors
    /// `Device`, as [`fused::decode::attention`](burn_rocm::fused::decode::attention); `Capture` in a
    /// capture if keys must be gathered.
    pub fn attend<B: Backend>(
        &self,
        layer: usize,
        batch: &KvBatch,
        queries: Tensor<B, 3>,
        options: &DecodeOptions,
    ) -> Result<Tensor<B, 3>, CacheError> {
        let route = route::<B>("KvCache::attend")?;
        let queries = route.inner(primitive(queries));
        let out = match batch.device.most_tokens() {
            ..=16 => decode::attention(self.layer(layer)?, &batch.device, queries, options)?,
            _ => self.attend_gathered(layer, batch, queries, options)?,
        };
        Ok(route.constant(out))
    }
}

/// Draws the next token of each row into [`tokens`], and counts it.
///
/// # Shapes
/// - `logits`: `[rows, vocabulary]` of f32, f16 or bf16
///
/// # Errors
/// As [`fused::decode::sample`](burn_rocm::fused::decode::sample).
pub fn sample<B: Backend>(logits: Tensor<B, 2>, state: &SampleState) -> Result<(), RocmError> {
    let route = route::<B>("language::sample")?;
    decode::sample(route.inner(primitive(logits)), state)
}

/// The tokens that were drawn last, `[rows]`, in memory that each draw overwrites.
///
/// # Errors
/// `Unsupported` on a backend of another project.
pub fn tokens<B: Backend>(state: &SampleState) -> Result<Tensor<B, 1, Int>, RocmError> {
    Ok(route::<B>("language::tokens")?.ints(state.tokens()))
}

/// The natural logarithms of the probabilities of the last tokens, `[rows]`, in memory that each
/// draw overwrites; `None` if the state does not keep them.
///
/// # Errors
/// `Unsupported` on a backend of another project.
pub fn chances<B: Backend>(state: &SampleState) -> Result<Option<Tensor<B, 1>>, RocmError> {
    let route = route::<B>("language::chances")?;
    Ok(state.chances().map(|chances| route.constant(chances)))
}
