//! A layer: attention and a feed-forward part, each added to the residual.

use burn::tensor::Tensor;

use super::ops::{Scores, Turns, attention, gated, heads, linear, residual_norm};
use super::{B, Cache};
use crate::config::{Config, LayerConfig};
use crate::error::Result;

/// A linear layer's matrix `[outputs, inputs]` and its bias.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) weight: Tensor<B, 2>,
    pub(super) bias: Option<Tensor<B, 1>>,
}

/// A layer of the model. Norms are f32.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) index: usize,
    pub(super) attention_norm: Tensor<B, 1>,
    /// The layers of queries, keys and values, one below the other.
    pub(super) heads: Linear,
    /// The norms of each head's queries and keys.
    pub(super) head_norms: Option<[Tensor<B, 1>; 2]>,
    pub(super) output: Linear,
    /// The norms of the outputs of attention and of the feed-forward part.
    pub(super) post_norms: Option<[Tensor<B, 1>; 2]>,
    pub(super) feed_forward_norm: Tensor<B, 1>,
    /// The layers of the gate and of the other factor, one below the other.
    pub(super) gate_and_up: Linear,
    pub(super) down: Linear,
}

impl Linear {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        linear(x, &self.weight, self.bias.as_ref())
    }
}

impl Layer {
    /// The tokens after this layer, and their norm by `next`, the norm of what follows.
    ///
    /// # Shapes
    /// - hidden, outputs: `[tokens, width]`
    /// - normed: `hidden` after [`attention_norm`](Self::attention_norm)
    pub(super) fn forward(
        &self,
        [hidden, normed]: [Tensor<B, 2>; 2],
        next: &Tensor<B, 1>,
        config: &Config,
        (settings, turns): (&LayerConfig, &Turns),
        cache: &mut Cache,
    ) -> Result<[Tensor<B, 2>; 2]> {
        let [of_attention, of_fed] = match &self.post_norms {
            Some([attention, fed]) => [Some(attention), Some(fed)],
            None => [None, None],
        };
        let attended = self.attend(normed, config, (settings, turns), cache)?;
        let [hidden, normed] =
            residual_norm(attended, hidden, of_attention, &self.feed_forward_norm, config.epsilon)?;
        let fed = self.down.forward(gated(config.activation, self.gate_and_up.forward(normed))?);
        residual_norm(fed, hidden, of_fed, next, config.epsilon)
    }

    fn attend(
        &self,
        x: Tensor<B, 2>,
        config: &Config,
        (settings, turns): (&LayerConfig, &Turns),
        cache: &mut Cache,
    ) -> Result<Tensor<B, 2>> {
        let [tokens, _] = x.dims();
        let packed = self.heads.forward(x);
        let [query, key, value] = heads(packed, self.head_norms.as_ref(), turns, cache.start(), config)?;
        let all = cache.append(self.index, [key, value]);
        let scores = Scores { scale: config.scale, softcap: config.score_softcap, window: settings.window };
        let context = attention(query, all, scores)?.swap_dims(1, 2);
        Ok(self.output.forward(context.reshape([tokens, config.heads * config.head_dim])))
    }
}
