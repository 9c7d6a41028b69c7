//! A layer: attention and a feed-forward part, each added to the residual.

use burn::tensor::Tensor;
use burn_rocm::Communicator;
use burn_rocm::fused::{Projected, Projection};

use super::B;
use super::cache::Keys;
use super::matrix::Matrix;
use super::ops::{Packed, Scores, Turns, gate, gated, primitive, residual_norm, sum};
use crate::config::{Config, LayerConfig};
use crate::error::{Error, Result};

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

    /// The layer with what is around it, in one kernel for few tokens. Its matrix has no adapter.
    fn projected(&self, x: Projected, options: Projection) -> Result<(Tensor<B, 2>, Option<Projected>)> {
        let bias = self.bias.clone().map(primitive);
        self.weight.projected(x, Projection { bias, ..options })
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

    /// The layer, if it is one.
    fn single(&self) -> Option<&Linear> {
        match &self.parts[..] {
            [one] => Some(one),
            _ => None,
        }
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

    /// The layers that [`few`](Self::few) runs: queries, keys and values; the output of attention;
    /// the gate and the other factor; the feed-forward part's output. `None` if matrices are stored
    /// in different ways or have adapters, or if there are norms after the parts.
    fn projections(&self) -> Option<[&Linear; 4]> {
        let all = [self.heads.single()?, &self.output, self.gate_and_up.single()?, &self.down];
        (self.post_norms.is_none() && all.iter().all(|layer| layer.weight.is_alone())).then_some(all)
    }

    /// Whether [`few`](Self::few) runs this layer for so many tokens in fewer launches.
    pub(super) fn takes_few(&self, tokens: usize) -> bool {
        let takes = |layer: &Linear| layer.weight.takes_few(tokens);
        self.projections().is_some_and(|layers| layers.into_iter().all(takes))
    }

    /// The tokens after this layer, and their norm by `next`, for few tokens. Each linear layer is one
    /// kernel with the gate or the sum after it, and with its share of the norm. If the layers are
    /// divided among devices, the residual sum and the norm follow the all-reduce, in a kernel of
    /// their own.
    ///
    /// # Shapes
    /// As for [`forward`](Self::forward).
    pub(super) fn few(
        &self,
        (hidden, normed): (Tensor<B, 2>, Projected),
        next: &Tensor<B, 1>,
        (settings, turns): (&LayerConfig, &Turns),
        Pass { config, keys, ranks }: Pass<'_>,
    ) -> Result<(Tensor<B, 2>, Projected)> {
        let Some([heads, output, gate_and_up, down]) = self.projections() else {
            return Ok((hidden, normed));
        };
        // A sum and its norm.
        let onto = |layer: &Linear, x: Tensor<B, 2>, hidden: Tensor<B, 2>, norm: &Tensor<B, 1>| {
            let x = primitive(x).into();
            if ranks.is_some() {
                let (part, _) = layer.projected(x, Projection::default())?;
                let [sum, normed] = residual_norm(sum(part, ranks)?, hidden, None, norm, config.epsilon)?;
                return Ok((sum, primitive(normed).into()));
            }
            let (residual, norm) = (Some(primitive(hidden)), Some((primitive(norm.clone()), config.epsilon)));
            let options = Projection { residual, norm, ..Projection::default() };
            let (sum, normed) = layer.projected(x, options)?;
            let normed = normed.unwrap_or_else(|| primitive(sum.clone()).into());
            Ok::<_, Error>((sum, normed))
        };
        let (packed, _) = heads.projected(normed, Projection::default())?;
        let context = self.context(packed, (settings, turns), config, keys)?;
        let (hidden, normed) = onto(output, context, hidden, &self.feed_forward_norm)?;
        let gate = Some(gate(config.activation));
        let (fed, _) = gate_and_up.projected(normed, Projection { gate, ..Projection::default() })?;
        onto(down, fed, hidden, next)
    }

    fn attend(
        &self,
        x: Tensor<B, 2>,
        (settings, turns): (&LayerConfig, &Turns),
        Pass { config, keys, .. }: Pass<'_>,
    ) -> Result<Tensor<B, 2>> {
        let packed = self.heads.forward(x)?;
        self.output.forward(self.context(packed, (settings, turns), config, keys)?)
    }

    /// Attention of the heads of queries, keys and values.
    ///
    /// # Shapes
    /// - packed: `[tokens, (heads + 2 kv_heads) * head_dim]`; output: `[tokens, heads * head_dim]`
    fn context(
        &self,
        packed: Tensor<B, 2>,
        (settings, turns): (&LayerConfig, &Turns),
        config: &Config,
        keys: &dyn Keys,
    ) -> Result<Tensor<B, 2>> {
        let [tokens, _] = packed.dims();
        let packed = Packed::new(packed, self.head_norms.as_ref(), turns, keys.positions(), config);
        let scores = Scores { scale: config.scale, softcap: config.score_softcap, window: settings.window };
        let context = keys.attend(self.index, packed, scores)?;
        Ok(context.reshape([tokens, config.heads * config.head_dim]))
    }
}
