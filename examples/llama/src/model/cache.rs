//! The keys and values of the tokens so far.

use burn::tensor::{DType, Tensor};
use burn_rocm::RocmTensor;
use burn_rocm::fused::decode::{self, CacheType, DecodeOptions, PAGE, PagedBatch, PagedLayer};
use burn_rocm::fused::{AttentionInferenceOptions, PackedOffsets, attention_packed_inference};

use super::ops::{Scores, primitive, wrap};
use super::{B, Model};
use crate::error::{Error, Result};

/// The most tokens of a call that attend to the cache's pages where they are. For more, all keys and
/// values are gathered, and attention's kernels for long sequences run.
const FEW: usize = 16;

/// The keys and values of a sequence, in memory that is allocated once.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    len: usize,
    layers: Vec<PagedLayer>,
    /// The sequence on the device, for calls of few tokens and of many.
    few: PagedBatch,
    many: PagedBatch,
    /// The tokens of the call that runs.
    call: usize,
    /// Of queries, keys and values.
    dtype: DType,
}

impl Cache {
    /// An empty cache with room for `capacity` tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] for more tokens than the model was made for, and for none; an error of the
    /// device.
    pub fn new(model: &Model, capacity: usize) -> Result<Self> {
        let (config, device) = (model.config(), model.device());
        if !(1..=config.context).contains(&capacity) {
            let expected = format!("1 to {} tokens, for which the model was made", config.context);
            return Err(Error::Argument { name: "context", expected, found: capacity.to_string() });
        }
        let stored = match model.dtype() {
            DType::F16 => CacheType::F16,
            DType::BF16 => CacheType::BF16,
            _ => CacheType::F32,
        };
        let pages = capacity.div_ceil(PAGE);
        let layer = |_| PagedLayer::new(device, pages, config.kv_heads, config.head_dim, stored);
        Ok(Self {
            capacity,
            len: 0,
            layers: config.layers.iter().map(layer).collect::<std::result::Result<_, _>>()?,
            few: PagedBatch::new(device, 1, pages, FEW)?,
            many: PagedBatch::new(device, 1, pages, capacity)?,
            call: 0,
            dtype: model.dtype(),
        })
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
        let pages: Vec<u32> = (0..self.capacity.div_ceil(PAGE) as u32).collect();
        Ok(self.batch().write(&[(&pages, self.len, tokens)])?)
    }

    /// The position of the call's first token, `[1]`.
    pub(super) fn start(&self) -> RocmTensor {
        self.batch().lengths()
    }

    /// Writes a layer's keys and values of the call's tokens behind those of the tokens so far, and
    /// computes attention to all of them. Causal: a token sees those before it.
    ///
    /// # Shapes
    /// - query, output: `[tokens, heads, features]`
    /// - key, value: `[tokens, kv_heads, features]`
    pub(super) fn attend(
        &self,
        layer: usize,
        [query, key, value]: [Tensor<B, 3>; 3],
        scores: Scores,
    ) -> Result<Tensor<B, 3>> {
        let (layer, batch) = (&self.layers[layer], self.batch());
        let [query, key, value] = [query, key, value].map(primitive);
        decode::append(layer, batch, key.clone(), value.clone())?;
        let Scores { scale, softcap, window } = scores;
        let scale = Some(scale);
        if self.call <= FEW {
            let options = DecodeOptions { scale, softcap, window, ..DecodeOptions::default() };
            return Ok(wrap(decode::attention(layer, batch, query, &options)?));
        }
        let [key, value, keys]: [RocmTensor; 3] = match self.len {
            0 => [key, value, batch.offsets()],
            len => decode::gather(layer, batch, &[len + self.call], self.dtype)?,
        };
        let offsets = PackedOffsets { queries: batch.offsets(), keys };
        let options = AttentionInferenceOptions { scale, softcap, causal: true, window };
        Ok(wrap(attention_packed_inference(query, key, value, &offsets, &options)?))
    }

    /// Counts tokens whose keys and values all layers have appended.
    pub(super) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}
