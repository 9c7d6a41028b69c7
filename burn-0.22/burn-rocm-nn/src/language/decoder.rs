//! A decoder: layers of attention and a gated feed-forward part, with the norms before them.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::{
    AttentionRule, DecoderConfig, Heads, Norm, NormConfig, Positions, RotaryEmbedding, attention,
    gated_halves, residual_norm,
};
use crate::fuse::refuse;

impl DecoderConfig {
    fn norm(&self, d_model: usize, device: &Device) -> Norm {
        NormConfig::new(d_model).with_epsilon(self.epsilon).with_adds_one(self.adds_one).init(device)
    }

    /// A layer.
    ///
    /// # Panics
    /// With [`Invalid`](burn_rocm::RocmError::Invalid) if the heads of keys do not divide those of
    /// queries, if there is no `head_dim` and the heads do not divide `d_model`, or as
    /// [`RotaryConfig::frequencies`](super::RotaryConfig::frequencies).
    pub fn init_layer(&self, device: &Device) -> DecoderLayer {
        let [heads, kv_heads, head_dim] = self.sizes();
        let linear = |inputs, outputs, bias| LinearConfig::new(inputs, outputs).with_bias(bias).init(device);
        let norm_if = |wanted: bool, features| wanted.then(|| self.norm(features, device));
        let cross = self.cross.then(|| CrossAttention {
            norm: self.norm(self.d_model, device),
            query: linear(self.d_model, heads * head_dim, self.qkv_bias),
            key_value: linear(self.d_model, 2 * kv_heads * head_dim, self.qkv_bias),
            output: linear(heads * head_dim, self.d_model, self.output_bias),
            heads,
            kv_heads,
            scale: self.scale,
        });
        DecoderLayer {
            attention_norm: self.norm(self.d_model, device),
            query_key_value: linear(self.d_model, (heads + 2 * kv_heads) * head_dim, self.qkv_bias),
            query_norm: norm_if(self.head_norms, head_dim),
            key_norm: norm_if(self.head_norms, head_dim),
            output: linear(heads * head_dim, self.d_model, self.output_bias),
            attention_post_norm: norm_if(self.post_norms, self.d_model),
            cross,
            feed_forward_norm: self.norm(self.d_model, device),
            gate_and_up: linear(self.d_model, 2 * self.d_ff, self.inner_bias),
            down: linear(self.d_ff, self.d_model, self.inner_bias),
            feed_forward_post_norm: norm_if(self.post_norms, self.d_model),
            config: self.clone(),
        }
    }

    /// The decoder.
    ///
    /// # Panics
    /// As [`init_layer`](Self::init_layer).
    pub fn init(&self, device: &Device) -> Decoder {
        let [.., head_dim] = self.sizes();
        let rotary = self.rotary.clone().unwrap_or_else(|| super::RotaryConfig::new(head_dim));
        if rotary.head_dim != head_dim {
            refuse("DecoderConfig", format!("a rotary embedding of {head_dim}"), rotary.head_dim.to_string());
        }
        Decoder {
            layers: (0..self.layers).map(|_| self.init_layer(device)).collect(),
            norm: self.norm(self.d_model, device),
            rotary: rotary.init(device),
        }
    }
}

/// Layers with their rotary embedding, and the norm after the last. Embedding and output layer are
/// the model's own.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::language::{Decoder, DecoderConfig, Positions};
///
/// let config = DecoderConfig::new(32, 64, 2, 4).with_kv_heads(Some(2));
/// let decoder: Decoder = config.init(&device);
/// let tokens = Tensor::<3>::ones([1, 5, 32], &device);
/// assert_eq!(decoder.forward(tokens, &Positions::FromZero, None).dims(), [1, 5, 32]);
/// ```
#[derive(Module, Debug)]
pub struct Decoder {
    /// The layers.
    pub layers: Vec<DecoderLayer>,
    /// The norm after the last layer.
    pub norm: Norm,
    /// The rotary embedding of all layers.
    pub rotary: RotaryEmbedding,
}

/// A layer of a [`Decoder`].
#[derive(Module, Debug)]
pub struct DecoderLayer {
    /// The norm before attention.
    pub attention_norm: Norm,
    /// The packed layers of queries, keys and values: `[d_model, (heads + 2 kv_heads) * head_dim]`.
    pub query_key_value: Linear,
    /// The norm of each head's queries.
    pub query_norm: Option<Norm>,
    /// The norm of each head's keys.
    pub key_norm: Option<Norm>,
    /// Attention's output layer.
    pub output: Linear,
    /// The norm of attention's output.
    pub attention_post_norm: Option<Norm>,
    /// Attention to an encoder.
    pub cross: Option<CrossAttention>,
    /// The norm before the feed-forward part.
    pub feed_forward_norm: Norm,
    /// The packed layers of the gate and of the other factor: `[d_model, 2 d_ff]`.
    pub gate_and_up: Linear,
    /// The feed-forward part's output layer.
    pub down: Linear,
    /// The norm of the feed-forward part's output.
    pub feed_forward_post_norm: Option<Norm>,
    /// The settings.
    #[module(skip)]
    pub config: DecoderConfig,
}

/// Attention of a decoder's tokens to those of an encoder, without a rotary embedding, with the
/// norm before it.
#[derive(Module, Debug)]
pub struct CrossAttention {
    /// The norm before it.
    pub norm: Norm,
    /// The layer of queries.
    pub query: Linear,
    /// The packed layers of keys and values: `[d_model, 2 kv_heads * head_dim]`.
    pub key_value: Linear,
    /// The output layer.
    pub output: Linear,
    /// The heads of queries.
    pub heads: usize,
    /// The heads of keys and values.
    pub kv_heads: usize,
    /// The factor of the scores; `1 / sqrt(head_dim)` by default.
    pub scale: Option<f64>,
}

impl CrossAttention {
    /// The encoder's keys and values, which are the same for all tokens of the decoder.
    ///
    /// # Shapes
    /// - encoded: `[batch, keys, d_model]`
    /// - outputs: `[batch, kv_heads, keys, head_dim]`
    pub fn keys_and_values(&self, encoded: Tensor<3>) -> [Tensor<4>; 2] {
        let [batch, keys, _] = encoded.dims();
        let packed = self.key_value.forward(encoded);
        let head_dim = packed.dims()[2] / (2 * self.kv_heads);
        let all = packed.reshape([batch, keys, 2 * self.kv_heads, head_dim]).swap_dims(1, 2);
        [all.clone().narrow(1, 0, self.kv_heads), all.narrow(1, self.kv_heads, self.kv_heads)]
    }

    /// The output, from the normed tokens.
    ///
    /// # Shapes
    /// - normed, output: `[batch, length, d_model]`
    pub fn forward(&self, normed: Tensor<3>, [key, value]: [Tensor<4>; 2]) -> Tensor<3> {
        let [batch, length, _] = normed.dims();
        let query = self.query.forward(normed);
        let head_dim = query.dims()[2] / self.heads;
        let query = query.reshape([batch, length, self.heads, head_dim]).swap_dims(1, 2);
        let rule = AttentionRule { scale: self.scale, ..AttentionRule::default() };
        self.output.forward(tokens_of(attention(query, key, value, &rule)))
    }
}

/// `[batch, heads, length, features]` as `[batch, length, heads * features]`.
fn tokens_of(context: Tensor<4>) -> Tensor<3> {
    let [batch, heads, length, features] = context.dims();
    context.swap_dims(1, 2).reshape([batch, length, heads * features])
}

impl DecoderLayer {
    /// The attention of the layer's settings: causal, with its scale, window and softcap.
    pub fn attention(&self, heads: Heads) -> Tensor<4> {
        let DecoderConfig { scale, window, softcap, .. } = self.config;
        let rule = AttentionRule { scale, softcap, causal: true, window };
        attention(heads.query, heads.key, heads.value, &rule)
    }

    /// The tokens after this layer, and their norm by `next`, which is the next layer's norm or the
    /// last one.
    ///
    /// `attend` computes the context `[batch, heads, length, head_dim]` from the heads of the new
    /// tokens: [`attention`](Self::attention) among these tokens, or a step over a cache. `encoded`
    /// are the keys and values of [`CrossAttention::keys_and_values`], which a layer with cross
    /// attention needs.
    ///
    /// # Shapes
    /// - hidden, outputs: `[batch, length, d_model]`
    /// - normed: `hidden` after [`attention_norm`](Self::attention_norm)
    ///
    /// # Panics
    /// With [`Invalid`](burn_rocm::RocmError::Invalid) if shapes do not fit, for cross attention
    /// without `encoded`, and for `encoded` without cross attention.
    pub fn forward(
        &self,
        [hidden, normed]: [Tensor<3>; 2],
        next: &Norm,
        rotary: (&RotaryEmbedding, &Positions),
        encoded: Option<[Tensor<4>; 2]>,
        attend: impl FnOnce(Heads) -> Tensor<4>,
    ) -> [Tensor<3>; 2] {
        let (sum, normed) = self.run([hidden, normed], Some(next), rotary, encoded, attend);
        [sum, normed.expect("there is a norm after")]
    }

    /// The tokens after this layer, from the tokens before it: [`forward`](Self::forward) for a
    /// layer that does not know the next one. It computes its own first norm.
    ///
    /// # Shapes
    /// - hidden, output: `[batch, length, d_model]`
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn forward_alone(
        &self,
        hidden: Tensor<3>,
        rotary: (&RotaryEmbedding, &Positions),
        encoded: Option<[Tensor<4>; 2]>,
        attend: impl FnOnce(Heads) -> Tensor<4>,
    ) -> Tensor<3> {
        let normed = self.attention_norm.forward(hidden.clone());
        self.run([hidden, normed], None, rotary, encoded, attend).0
    }

    fn run(
        &self,
        [hidden, normed]: [Tensor<3>; 2],
        next: Option<&Norm>,
        (rotary, positions): (&RotaryEmbedding, &Positions),
        encoded: Option<[Tensor<4>; 2]>,
        attend: impl FnOnce(Heads) -> Tensor<4>,
    ) -> (Tensor<3>, Option<Tensor<3>>) {
        let [heads, kv_heads, _] = self.config.sizes();
        let packed = self.query_key_value.forward(normed);
        let norms = self.query_norm.as_ref().zip(self.key_norm.as_ref()).map(|(query, key)| [query, key]);
        let heads = rotary.forward(packed, [heads, kv_heads], positions, norms);
        let attended = self.output.forward(tokens_of(attend(heads)));
        let post = self.attention_post_norm.as_ref();
        let [hidden, normed] = match (&self.cross, encoded) {
            (None, None) => both(attended, hidden, post, &self.feed_forward_norm),
            (Some(cross), Some(encoded)) => {
                let [hidden, normed] = both(attended, hidden, post, &cross.norm);
                both(cross.forward(normed, encoded), hidden, None, &self.feed_forward_norm)
            }
            (cross, _) => {
                let (with, without) = ("keys and values of an encoder", "none");
                let (expected, found) = if cross.is_some() { (with, without) } else { (without, with) };
                refuse("DecoderLayer", expected, found)
            }
        };
        let fed = self.down.forward(gated_halves(self.config.gate, self.gate_and_up.forward(normed)));
        match (self.feed_forward_post_norm.as_ref(), next) {
            (None, None) => (hidden + fed, None),
            (post, next) => residual_norm(fed, hidden, post, next),
        }
    }
}

/// [`residual_norm`] with a norm after the sum.
fn both(x: Tensor<3>, residual: Tensor<3>, before: Option<&Norm>, after: &Norm) -> [Tensor<3>; 2] {
    let (sum, normed) = residual_norm(x, residual, before, Some(after));
    [sum, normed.expect("there is a norm after")]
}

impl Decoder {
    /// The tokens after all layers and the last norm. Each token sees those before it.
    ///
    /// # Shapes
    /// - tokens, output: `[batch, length, d_model]`
    /// - encoded: `[batch, keys, d_model]`, for layers with cross attention
    ///
    /// # Panics
    /// As [`DecoderLayer::forward`]. `encoded` is refused if no layer has cross attention.
    pub fn forward(&self, tokens: Tensor<3>, positions: &Positions, encoded: Option<Tensor<3>>) -> Tensor<3> {
        if encoded.is_some() && self.layers.iter().all(|layer| layer.cross.is_none()) {
            refuse(
                "Decoder",
                "no encoder's tokens, because no layer has cross attention",
                "tokens of an encoder",
            );
        }
        let norm_of = |at: usize| self.layers.get(at).map_or(&self.norm, |layer| &layer.attention_norm);
        let mut state = [tokens.clone(), norm_of(0).forward(tokens)];
        for (at, layer) in self.layers.iter().enumerate() {
            let encoded = layer.cross.as_ref().zip(encoded.clone());
            let encoded = encoded.map(|(cross, encoded)| cross.keys_and_values(encoded));
            let attend = |heads| layer.attention(heads);
            state = layer.forward(state, norm_of(at + 1), (&self.rotary, positions), encoded, attend);
        }
        let [_, normed] = state;
        normed
    }
}
