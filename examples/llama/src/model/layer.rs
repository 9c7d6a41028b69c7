//! A layer: attention and a feed-forward part, each added to the residual.

use burn::tensor::Tensor;
use burn_rocm::Communicator;

use super::B;
use super::cache::Keys;
use super::matrix::Matrix;
use super::ops::{Scores, Turns, gated, heads, residual_norm, sum};
use crate::config::{Config, LayerConfig};
use crate::error::Result;

/// A linear layer's matrix `[outputs, inputs]` and its bias.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) weight: Matrix,
    pub(super) bias: Option<Tensor<B, 1>>,
}

/// Linear layers of one input, whose outputs lie side by side.
#[derive(Debug)]
pub(super) struct Joined {
    /// One layer, unless matrices are stored in different ways.
    parts: Vec<Linear>,
}

/// What all layers of a pass share.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) config: &'a Config,
    pub(super) keys: &'a dyn Keys,
    /// The devices that have parts of the layers, if there are several.
    pub(super) ranks: Option<&'a Communicator>,
}

/// A layer of the model. Norms are f32.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) index: usize,
    pub(super) attention_norm: Tensor<B, 1>,
    /// The layers of queries, keys and values.
    pub(super) heads: Joined,
    /// The norms of each head's queries and keys.
    pub(super) head_norms: Option<[Tensor<B, 1>; 2]>,
    pub(super) output: Linear,
    /// The norms of the outputs of attention and of the feed-forward part.
    pub(super) post_norms: Option<[Tensor<B, 1>; 2]>,
    pub(super) feed_forward_norm: Tensor<B, 1>,
    /// The layers of the gate and of the other factor.
    pub(super) gate_and_up: Joined,
    pub(super) down: Linear,
}

impl Linear {
    fn forward(&self, x: Tensor<B, 2>) -> Result<Tensor<B, 2>> {
        self.weight.product(x, self.bias.as_ref())
    }

    /// Both layers as one, if their matrices can be one.
    fn joined(&self, next: &Self) -> Result<Option<Self>> {
        let bias = match (&self.bias, &next.bias) {
            (None, None) => None,
            (Some(one), Some(other)) => Some(Tensor::cat(vec![one.clone(), other.clone()], 0)),
            _ => return Ok(None),
        };
        Ok(self.weight.joined(&next.weight)?.map(|weight| Self { weight, bias }))
    }
}

impl Joined {
    pub(super) fn new(layers: impl IntoIterator<Item = Linear>) -> Result<Self> {
        let mut parts: Vec<Linear> = Vec::new();
        for layer in layers {
            let joined = match parts.last() {
                Some(last) => last.joined(&layer)?,
                None => None,
            };
            match (joined, parts.last_mut()) {
                (Some(joined), Some(last)) => *last = joined,
                _ => parts.push(layer),
            }
        }
        Ok(Self { parts })
    }

    fn forward(&self, x: Tensor<B, 2>) -> Result<Tensor<B, 2>> {
        if let [one] = &self.parts[..] {
            return one.forward(x);
        }
        let outputs = self.parts.iter().map(|part| part.forward(x.clone()));
        Ok(Tensor::cat(outputs.collect::<Result<_>>()?, 1))
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
        (settings, turns): (&LayerConfig, &Turns),
        pass: Pass<'_>,
    ) -> Result<[Tensor<B, 2>; 2]> {
        let config = pass.config;
        let [of_attention, of_fed] = match &self.post_norms {
            Some([attention, fed]) => [Some(attention), Some(fed)],
            None => [None, None],
        };
        let attended = sum(self.attend(normed, (settings, turns), pass)?, pass.ranks)?;
        let [hidden, normed] =
            residual_norm(attended, hidden, of_attention, &self.feed_forward_norm, config.epsilon)?;
        let gated = gated(config.activation, self.gate_and_up.forward(normed)?)?;
        let fed = sum(self.down.forward(gated)?, pass.ranks)?;
        residual_norm(fed, hidden, of_fed, next, config.epsilon)
    }

    fn attend(
        &self,
        x: Tensor<B, 2>,
        (settings, turns): (&LayerConfig, &Turns),
        Pass { config, keys, .. }: Pass<'_>,
    ) -> Result<Tensor<B, 2>> {
        let [tokens, _] = x.dims();
        let packed = self.heads.forward(x)?;
        let all = heads(packed, self.head_norms.as_ref(), turns, keys.positions(), config)?;
        let scores = Scores { scale: config.scale, softcap: config.score_softcap, window: settings.window };
        let context = keys.attend(self.index, all, scores)?;
        self.output.forward(context.reshape([tokens, config.heads * config.head_dim]))
    }
}
