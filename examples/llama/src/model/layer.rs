//! A layer: attention and a feed-forward part, each added to the residual.

use burn::tensor::Tensor;

use super::matrix::Matrix;
use super::ops::{Scores, gated, rms_norm, rotate};
use super::{B, Cache};
use crate::config::{Config, LayerConfig};
use crate::error::Result;

/// A linear layer's matrix `[outputs, inputs]` and its bias.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) weight: Matrix,
    pub(super) bias: Option<Tensor<B, 1>>,
}

/// A layer of the model. Norms are f32.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) index: usize,
    pub(super) attention_norm: Tensor<B, 1>,
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    /// The norms of each head's queries and keys.
    pub(super) head_norms: Option<[Tensor<B, 1>; 2]>,
    pub(super) output: Linear,
    /// The norms of the outputs of attention and of the feed-forward part.
    pub(super) post_norms: Option<[Tensor<B, 1>; 2]>,
    pub(super) feed_forward_norm: Tensor<B, 1>,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

impl Linear {
    fn forward(&self, x: Tensor<B, 2>) -> Result<Tensor<B, 2>> {
        self.weight.product(x, self.bias.as_ref())
    }
}

impl Layer {
    /// The tokens after this layer.
    ///
    /// # Shapes
    /// - hidden, output: `[tokens, width]`
    pub(super) fn forward(
        &self,
        hidden: Tensor<B, 2>,
        config: &Config,
        settings: &LayerConfig,
        cache: &Cache,
    ) -> Result<Tensor<B, 2>> {
        let x = rms_norm(hidden.clone(), &self.attention_norm, config.epsilon)?;
        let mut attended = self.attend(x, config, settings, cache)?;
        if let Some([norm, _]) = &self.post_norms {
            attended = rms_norm(attended, norm, config.epsilon)?;
        }
        let hidden = hidden + attended;

        let x = rms_norm(hidden.clone(), &self.feed_forward_norm, config.epsilon)?;
        let inner = gated(config.activation, self.gate.forward(x.clone())?, self.up.forward(x)?)?;
        let mut fed = self.down.forward(inner)?;
        if let Some([_, norm]) = &self.post_norms {
            fed = rms_norm(fed, norm, config.epsilon)?;
        }
        Ok(hidden + fed)
    }

    fn attend(
        &self,
        x: Tensor<B, 2>,
        config: &Config,
        settings: &LayerConfig,
        cache: &Cache,
    ) -> Result<Tensor<B, 2>> {
        let [tokens, _] = x.dims();
        let heads =
            |x: Tensor<B, 2>, count: usize| x.reshape([1, tokens, count, config.head_dim]).swap_dims(1, 2);
        let mut query = heads(self.query.forward(x.clone())?, config.heads);
        let mut key = heads(self.key.forward(x.clone())?, config.kv_heads);
        let value = heads(self.value.forward(x)?, config.kv_heads);
        if let Some([of_query, of_key]) = &self.head_norms {
            query = rms_norm(query, of_query, config.epsilon)?;
            key = rms_norm(key, of_key, config.epsilon)?;
        }
        let angles = cache.angles(settings.rope, tokens);
        let (query, key) = (rotate(query, &angles), rotate(key, &angles));
        let packed = |x: Tensor<B, 4>, count| x.swap_dims(1, 2).reshape([tokens, count, config.head_dim]);
        let query = packed(query, config.heads);
        let [key, value] = [key, value].map(|x| packed(x, config.kv_heads));
        let scores = Scores { scale: config.scale, softcap: config.score_softcap, window: settings.window };
        let context = cache.attend(self.index, [query, key, value], scores)?;
        self.output.forward(context.reshape([tokens, config.heads * config.head_dim]))
    }
}
