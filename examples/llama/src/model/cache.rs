//! The keys and values of the tokens so far.

use burn::tensor::{Int, Tensor};

use super::{B, Model};
use crate::error::{Error, Result};

/// The keys and values of a sequence, in memory that is allocated once.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    len: usize,
    /// Keys and values of each layer, `[1, kv_heads, capacity, head_dim]`; `None` before its first
    /// token.
    layers: Vec<Option<[Tensor<B, 4>; 2]>>,
    /// All positions, so that none is copied to the device for a call.
    positions: Tensor<B, 1, Int>,
}

impl Cache {
    /// An empty cache with room for so many tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] for more tokens than the model was made for, and for none.
    pub fn new(model: &Model, capacity: usize) -> Result<Self> {
        let config = model.config();
        if !(1..=config.context).contains(&capacity) {
            let expected = format!("1 to {} tokens, for which the model was made", config.context);
            return Err(Error::Argument { name: "context", expected, found: capacity.to_string() });
        }
        Ok(Self {
            capacity,
            len: 0,
            layers: config.layers.iter().map(|_| None).collect(),
            positions: Tensor::arange(0..capacity as i64, model.device()),
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

    /// The position of the next token, `[1]`.
    pub(super) fn start(&self) -> Tensor<B, 1, Int> {
        self.positions.clone().narrow(0, self.len, 1)
    }

    /// Writes a layer's keys and values `[1, kv_heads, tokens, head_dim]` behind those of the
    /// tokens so far, in place. Returns all of them, as views of the cache.
    pub(super) fn append(&mut self, layer: usize, new: [Tensor<B, 4>; 2]) -> [Tensor<B, 4>; 2] {
        let [batch, heads, tokens, features] = new[0].dims();
        let shape = [batch, heads, self.capacity, features];
        let (device, dtype) = (new[0].device(), new[0].dtype());
        let old = self.layers[layer]
            .take()
            .unwrap_or_else(|| [(); 2].map(|()| Tensor::zeros(shape, (&device, dtype))));
        let end = self.len + tokens;
        let [mut keys, mut values] = old;
        let [new_keys, new_values] = new;
        // Nobody else holds the buffers, so the backend writes in place.
        keys = keys.slice_assign([0..batch, 0..heads, self.len..end, 0..features], new_keys);
        values = values.slice_assign([0..batch, 0..heads, self.len..end, 0..features], new_values);
        let all = [keys.clone().narrow(2, 0, end), values.clone().narrow(2, 0, end)];
        self.layers[layer] = Some([keys, values]);
        all
    }

    /// Counts tokens whose keys and values all layers have appended.
    pub(super) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}
