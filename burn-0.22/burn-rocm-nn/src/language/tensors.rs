//! The ops of generation on Burn's tensors.

use burn::tensor::{DType, Int, Tensor};
use burn_rocm::fused::decode::{self, DecodeOptions, SampleState};
use burn_rocm::{Rocm, RocmError, RocmTensor};

use super::blocks::CacheError;
use super::cache::{KvBatch, KvCache};
use crate::fuse::{Route, from_rocm, rocm};

fn ours<const D: usize>(op: &'static str, tensor: Tensor<D>) -> Result<RocmTensor, RocmError> {
    match Route::of(op, &tensor) {
        Some(_) => Ok(rocm(tensor)),
        None => {
            let what = format!("tensors on {:?}", tensor.device());
            Err(RocmError::Unsupported { op, dtype: None, what: Some(what) })
        }
    }
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
    pub fn append(
        &self,
        layer: usize,
        batch: &KvBatch,
        keys: Tensor<3>,
        values: Tensor<3>,
    ) -> Result<(), CacheError> {
        let [keys, values] = [ours("KvCache::append", keys)?, ours("KvCache::append", values)?];
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
    pub fn gather(
        &self,
        layer: usize,
        batch: &KvBatch,
        lengths: &[usize],
        dtype: DType,
    ) -> Result<[Tensor<3>; 2], CacheError> {
        let [keys, values, _] = decode::gather(self.layer(layer)?, &batch.device, lengths, dtype)?;
        Ok([keys, values].map(from_rocm))
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
    pub fn attend(
        &self,
        layer: usize,
        batch: &KvBatch,
        queries: Tensor<3>,
        options: &DecodeOptions,
    ) -> Result<Tensor<3>, CacheError> {
        let queries = ours("KvCache::attend", queries)?;
        let out = match batch.device.most_tokens() {
            ..=16 => decode::attention(self.layer(layer)?, &batch.device, queries, options)?,
            _ => self.attend_gathered(layer, batch, queries, options)?,
        };
        Ok(from_rocm(out))
    }
}

/// Draws the next token of each row into [`tokens`], and counts it.
///
/// # Shapes
/// - `logits`: `[rows, vocabulary]` of f32, f16 or bf16
///
/// # Errors
/// As [`fused::decode::sample`](burn_rocm::fused::decode::sample).
pub fn sample(logits: Tensor<2>, state: &SampleState) -> Result<(), RocmError> {
    decode::sample(ours("language::sample", logits)?, state)
}

/// The tokens that were drawn last, `[rows]`, in memory that each draw overwrites.
pub fn tokens(state: &SampleState) -> Tensor<1, Int> {
    Tensor::from_primitive::<Rocm>(state.tokens())
}

/// The natural logarithms of the probabilities of the last tokens, `[rows]`, in memory that each
/// draw overwrites; `None` if the state does not keep them.
pub fn chances(state: &SampleState) -> Option<Tensor<1>> {
    state.chances().map(from_rocm)
}
