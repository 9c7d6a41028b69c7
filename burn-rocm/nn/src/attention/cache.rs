//! What an autoregressive pass keeps between tokens.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::fuse::refuse;

/// The output of a layer for the tokens so far.
pub struct TensorCache<B: Backend, const D: usize> {
    value: Option<Tensor<B, D>>,
}

impl<B: Backend, const D: usize> TensorCache<B, D> {
    /// A cache of nothing.
    pub fn empty() -> Self {
        Self { value: None }
    }

    /// Panics unless `tokens` are one more than the cached ones along `axis`. Of several new
    /// tokens, all but the last would be lost.
    fn check(&self, tokens: &Tensor<B, 3>, axis: usize) {
        let Some(value) = &self.value else { return };
        let cached = value.dims()[axis];
        if tokens.dims()[1] != cached + 1 {
            let expected = format!("{} tokens: the {cached} cached ones and a new one", cached + 1);
            refuse("autoregressive cache", expected, format!("{:?}", tokens.dims()));
        }
    }

    /// The layer's output for all tokens along `axis`: the cached ones, then the new one. The first
    /// call runs all tokens through the layer, each later call the last one.
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

    /// The layer's output for the first call's tokens.
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

/// The cache of one of its linear layers.
pub(super) enum MhaLinearCache<B: Backend, const D: usize> {
    /// Grows by a token each call, along this axis.
    Autoregressive(TensorCache<B, D>, usize),
    /// Stays what the first call made it.
    Full(TensorCache<B, D>),
}

impl<B: Backend> MhaCache<B> {
    /// For decoding with self-attention.
    pub fn autoregressive() -> Self {
        Self {
            query: MhaLinearCache::Autoregressive(TensorCache::empty(), 2),
            key: MhaLinearCache::Autoregressive(TensorCache::empty(), 2),
            value: MhaLinearCache::Autoregressive(TensorCache::empty(), 2),
            output: MhaLinearCache::Autoregressive(TensorCache::empty(), 1),
        }
    }

    /// For decoding with cross-attention, whose keys and values are those of the first call.
    pub fn autoregressive_cross_attention() -> Self {
        Self {
            key: MhaLinearCache::Full(TensorCache::empty()),
            value: MhaLinearCache::Full(TensorCache::empty()),
            ..Self::autoregressive()
        }
    }
}

impl<B: Backend, const D: usize> MhaLinearCache<B, D> {
    /// Panics where [`forward`](Self::forward) would.
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
