//! The caches of autoregressive decoding.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::fuse::refuse;

/// A layer's output for the tokens so far.
pub struct TensorCache<B: Backend, const D: usize> {
    value: Option<Tensor<B, D>>,
}

impl<B: Backend, const D: usize> TensorCache<B, D> {
    /// An empty cache.
    pub fn empty() -> Self {
        Self { value: None }
    }

    /// Panics unless `tokens` has exactly one token more along `axis` than the cache. With several
    /// new tokens, all but the last would be lost.
    fn check(&self, tokens: &Tensor<B, 3>, axis: usize) {
        let Some(value) = &self.value else { return };
        let cached = value.dims()[axis];
        if tokens.dims()[1] != cached + 1 {
            let expected = format!("{} tokens: the {cached} cached ones and a new one", cached + 1);
            refuse("autoregressive cache", expected, format!("{:?}", tokens.dims()));
        }
    }

    /// The layer's output for all tokens along `axis`: the cached ones, then the new one. The first
    /// call runs all tokens through the layer; each later call runs only the last token.
    pub(crate) fn forward_autoregressive(
        &mut self,
        tokens: Tensor<B, 3>,
        axis: usize,
        layer: impl Fn(Tensor<B, 3>) -> Tensor<B, D>,
    ) -> Tensor<B, D> {
        self.check(&tokens, axis);
        let value = match self.value.take() {
            Some(value) => {
                let cached = value.dims()[axis];
                Tensor::cat(vec![value, layer(tokens.narrow(1, cached, 1))], axis)
            }
            None => layer(tokens),
        };
        self.value.insert(value).clone()
    }

    /// The layer's output for the tokens of the first call.
    pub(crate) fn forward_full(
        &mut self,
        tokens: Tensor<B, 3>,
        layer: impl Fn(Tensor<B, 3>) -> Tensor<B, D>,
    ) -> Tensor<B, D> {
        self.value.get_or_insert_with(|| layer(tokens)).clone()
    }
}

/// The cache of a [`MultiHeadAttention`](super::MultiHeadAttention), for decoding token by token.
pub struct MhaCache<B: Backend> {
    pub(super) query: MhaLinearCache<B, 4>,
    pub(super) key: MhaLinearCache<B, 4>,
    pub(super) value: MhaLinearCache<B, 4>,
    pub(super) output: MhaLinearCache<B, 3>,
}

/// The cache of one linear layer of the attention.
pub(super) enum MhaLinearCache<B: Backend, const D: usize> {
    /// Grows by one token in each call, along this axis.
    Autoregressive(TensorCache<B, D>, usize),
    /// Keeps the output of the first call.
    Full(TensorCache<B, D>),
}

impl<B: Backend> MhaCache<B> {
    /// A cache for decoding with self-attention.
    pub fn autoregressive() -> Self {
        Self {
            query: MhaLinearCache::Autoregressive(TensorCache::empty(), 2),
            key: MhaLinearCache::Autoregressive(TensorCache::empty(), 2),
            value: MhaLinearCache::Autoregressive(TensorCache::empty(), 2),
            output: MhaLinearCache::Autoregressive(TensorCache::empty(), 1),
        }
    }

    /// A cache for decoding with cross-attention, which keeps the keys and values of the first
    /// call. A module with a window refuses it.
    pub fn autoregressive_cross_attention() -> Self {
        Self {
            key: MhaLinearCache::Full(TensorCache::empty()),
            value: MhaLinearCache::Full(TensorCache::empty()),
            ..Self::autoregressive()
        }
    }

    /// Whether the keys of the first call stay.
    pub(super) fn keeps_keys(&self) -> bool {
        matches!(self.key, MhaLinearCache::Full(_))
    }
}

impl<B: Backend, const D: usize> MhaLinearCache<B, D> {
    /// Panics if [`forward`](Self::forward) would.
    pub(super) fn check(&self, tokens: &Tensor<B, 3>) {
        if let Self::Autoregressive(cache, axis) = self {
            cache.check(tokens, *axis);
        }
    }

    pub(super) fn forward(
        &mut self,
        tokens: Tensor<B, 3>,
        layer: impl Fn(Tensor<B, 3>) -> Tensor<B, D>,
    ) -> Tensor<B, D> {
        match self {
            Self::Autoregressive(cache, axis) => cache.forward_autoregressive(tokens, *axis, layer),
            Self::Full(cache) => cache.forward_full(tokens, layer),
        }
    }
}
