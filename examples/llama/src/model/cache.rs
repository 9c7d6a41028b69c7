//! The keys and values of the tokens so far.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use burn_rocm::fused::decode::{self, CacheType, DecodeOptions, PAGE, PagedBatch, PagedLayer};
use burn_rocm::fused::{
    AttentionInferenceOptions, PackedOffsets, RotaryPositions, attention_packed_inference,
};
use burn_rocm::{RocmError, RocmTensor};

use super::ops::{Packed, Scores, primitive, wrap};
use super::{B, Model};
use crate::error::{Error, Result};

/// The most tokens of a call that attend to the cache's pages where they are. For more, all keys
/// and values are gathered, and attention's kernels for long sequences run.
pub(super) const FEW: usize = 16;

/// The keys and values that a pass appends to, and to which its tokens attend.
pub(super) trait Keys {
    /// The positions of the pass's tokens in their sequences: those of each sequence's first token,
    /// if all sequences have the same number of tokens in the pass, or else those of all tokens.
    fn positions(&self) -> RotaryPositions;

    /// Writes a layer's keys and values of the pass's tokens behind those of the tokens so far, and
    /// computes attention to all of them. Causal: a token sees those before it.
    ///
    /// # Shapes
    /// - output: `[tokens, heads, features]`
    fn attend(&self, layer: usize, packed: Packed, scores: Scores) -> Result<Tensor<B, 3>>;
}

/// The keys and values of a sequence, in memory that is allocated once.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    len: usize,
    /// Shared with the other sequences that were made together.
    layers: Arc<Vec<PagedLayer>>,
    /// The sequence's pages.
    pages: Vec<u32>,
    /// The sequence on the device, for calls of few tokens and of many.
    few: PagedBatch,
    many: PagedBatch,
    /// The tokens of the call that runs.
    call: usize,
    /// Of queries, keys and values.
    dtype: DType,
}

impl Cache {
    /// An empty cache with room for `capacity` tokens, which stores them in the model's dtype.
    ///
    /// # Errors
    /// [`Error::Argument`] for more tokens than the model was made for, and for none; an error of
    /// the device.
    pub fn new(model: &Model, capacity: usize) -> Result<Self> {
        Self::stored(model, capacity, stored_as(model.dtype()))
    }

    /// [`new`](Self::new), with keys and values stored in this way.
    ///
    /// # Errors
    /// As [`new`](Self::new), and `Unsupported` if the model's keys can't be stored so.
    pub fn stored(model: &Model, capacity: usize, stored: CacheType) -> Result<Self> {
        let mut one = Self::rows(model, 1, capacity, stored)?;
        one.pop().ok_or_else(|| wrong_capacity(model, 0))
    }

    /// The caches of `rows` sequences, each with room for `capacity` tokens. One
    /// [`Step`](super::Step) can extend them together.
    ///
    /// # Errors
    /// As [`stored`](Self::stored).
    pub fn rows(model: &Model, rows: usize, capacity: usize, stored: CacheType) -> Result<Vec<Self>> {
        let (config, device, dtype) = (model.config(), model.device(), model.dtype());
        if !(1..=config.context).contains(&capacity) {
            return Err(wrong_capacity(model, capacity));
        }
        if !stored.takes(dtype) {
            let what = Some(format!("keys of {dtype:?} stored as {stored:?}"));
            return Err(RocmError::Unsupported { op: "Cache", dtype: None, what }.into());
        }
        let each = capacity.div_ceil(PAGE);
        let layer = |_| PagedLayer::new(device, rows * each, config.kv_heads, config.head_dim, stored);
        let layers: Arc<Vec<_>> =
            Arc::new(config.layers.iter().map(layer).collect::<std::result::Result<_, _>>()?);
        let row = |row: usize| {
            Ok(Self {
                capacity,
                len: 0,
                layers: layers.clone(),
                pages: (row * each..(row + 1) * each).map(|page| page as u32).collect(),
                few: PagedBatch::new(device, 1, each, FEW)?,
                many: PagedBatch::new(device, 1, each, capacity)?,
                call: 0,
                dtype,
            })
        };
        (0..rows).map(row).collect()
    }

    /// The memory of all sequences that were made together.
    pub(super) fn layers(&self) -> &Arc<Vec<PagedLayer>> {
        &self.layers
    }

    /// The sequence's pages.
    pub(super) fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is in the cache.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of tokens that the cache has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets all tokens after the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Fails unless the cache has room for `more` tokens.
    pub(super) fn check(&self, more: usize) -> Result<()> {
        if more > self.capacity - self.len {
            return Err(Error::TooLong { prompt: self.len, answer: more, limit: self.capacity });
        }
        Ok(())
    }

    /// The sequence on the device, in the form for the current call's number of tokens.
    fn batch(&self) -> &PagedBatch {
        if self.call <= FEW { &self.few } else { &self.many }
    }

    /// Begins a call of `tokens` tokens, for which there is room.
    pub(super) fn begin(&mut self, tokens: usize) -> Result<()> {
        self.call = tokens;
        Ok(self.batch().write(&[(&self.pages, self.len, tokens)])?)
    }

    /// Counts tokens whose keys and values all layers have appended.
    pub(super) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}

impl Keys for Cache {
    fn positions(&self) -> RotaryPositions {
        RotaryPositions::Starts(self.batch().lengths())
    }

    fn attend(&self, layer: usize, packed: Packed, scores: Scores) -> Result<Tensor<B, 3>> {
        let (layer, batch) = (&self.layers[layer], self.batch());
        if self.call <= FEW {
            return attend_few(layer, batch, packed, scores);
        }
        let [query, key, value] = packed.heads()?.map(primitive);
        decode::append(layer, batch, key.clone(), value.clone())?;
        let [key, value, keys]: [RocmTensor; 3] = match self.len {
            0 => [key, value, batch.offsets()],
            len => decode::gather(layer, batch, &[len + self.call], self.dtype)?,
        };
        let offsets = PackedOffsets { queries: batch.offsets(), keys };
        let Scores { scale, softcap, window } = scores;
        let options = AttentionInferenceOptions { scale: Some(scale), softcap, causal: true, window };
        Ok(wrap(attention_packed_inference(query, key, value, &offsets, &options)?))
    }
}

/// [`Keys::attend`] for at most [`FEW`] tokens of each sequence.
pub(super) fn attend_few(
    layer: &PagedLayer,
    batch: &PagedBatch,
    Packed { x, norms, rotary }: Packed,
    scores: Scores,
) -> Result<Tensor<B, 3>> {
    let Scores { scale, softcap, window } = scores;
    let options = DecodeOptions { scale: Some(scale), softcap, window, ..DecodeOptions::default() };
    Ok(wrap(decode::rotary_attention(layer, batch, x, norms, &rotary, &options)?))
}

/// How keys and values of this dtype are stored unless somebody asks for less.
pub(crate) fn stored_as(dtype: DType) -> CacheType {
    match dtype {
        DType::F16 => CacheType::F16,
        DType::BF16 => CacheType::BF16,
        _ => CacheType::F32,
    }
}

fn wrong_capacity(model: &Model, capacity: usize) -> Error {
    let expected = format!("1 to {} tokens, for which the model was made", model.config().context);
    Error::Argument { name: "context", expected, found: capacity.to_string() }
}
