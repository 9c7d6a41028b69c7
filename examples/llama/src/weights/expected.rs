//! The tensors that a model needs, with names and shapes.

use crate::config::{Config, Family};

/// What a weight does in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The embedding `[vocabulary, width]`.
    Embedding,
    /// The matrix of the logits, `[vocabulary, width]`.
    Output,
    /// The norm before the logits.
    FinalNorm,
    /// The norm before attention.
    AttentionNorm,
    /// The norm of attention's output (Gemma).
    AttentionPostNorm,
    /// The norm before the feed-forward layer.
    FeedForwardNorm,
    /// The norm of the feed-forward layer's output (Gemma).
    FeedForwardPostNorm,
    /// The matrix of queries, `[heads * head_dim, width]`.
    Query,
    /// The bias of queries.
    QueryBias,
    /// The matrix of keys, `[kv_heads * head_dim, width]`.
    Key,
    /// The bias of keys.
    KeyBias,
    /// The matrix of values, `[kv_heads * head_dim, width]`.
    Value,
    /// The bias of values.
    ValueBias,
    /// The norm of each head's queries.
    QueryNorm,
    /// The norm of each head's keys.
    KeyNorm,
    /// Attention's output matrix, `[width, heads * head_dim]`.
    AttentionOutput,
    /// The bias of attention's output.
    AttentionOutputBias,
    /// The feed-forward matrix whose product goes through the activation, `[inner, width]`.
    Gate,
    /// The bias of that product.
    GateBias,
    /// The feed-forward matrix of the other factor, `[inner, width]`.
    Up,
    /// The bias of the other factor.
    UpBias,
    /// The feed-forward layer's output matrix, `[width, inner]`.
    Down,
    /// The bias of the feed-forward layer's output.
    DownBias,
}

/// One tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// What it does.
    pub role: Role,
    /// The index of its layer; `None` for the tensors before and after the layers.
    pub layer: Option<usize>,
    /// Its shape: `[outputs, inputs]` or `[features]`.
    pub shape: Vec<usize>,
}

impl Weight {
    /// The number of elements.
    #[allow(clippy::len_without_is_empty, reason = "a weight has elements")]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether this is the factor of a norm, which stays in f32.
    pub fn is_norm(&self) -> bool {
        use Role::*;
        matches!(
            self.role,
            FinalNorm
                | AttentionNorm
                | AttentionPostNorm
                | FeedForwardNorm
                | FeedForwardPostNorm
                | QueryNorm
                | KeyNorm
        )
    }

    /// The name in a Hugging Face checkpoint, without the prefix of the whole text model. `gemma`:
    /// whether the norms have Gemma's names.
    pub(crate) fn name(&self, gemma: bool) -> String {
        let name = match self.role {
            Role::Embedding => "embed_tokens.weight",
            Role::Output => "lm_head.weight",
            Role::FinalNorm => "norm.weight",
            Role::AttentionNorm => "input_layernorm.weight",
            Role::AttentionPostNorm => "post_attention_layernorm.weight",
            Role::FeedForwardNorm if gemma => "pre_feedforward_layernorm.weight",
            Role::FeedForwardNorm => "post_attention_layernorm.weight",
            Role::FeedForwardPostNorm => "post_feedforward_layernorm.weight",
            Role::Query => "self_attn.q_proj.weight",
            Role::QueryBias => "self_attn.q_proj.bias",
            Role::Key => "self_attn.k_proj.weight",
            Role::KeyBias => "self_attn.k_proj.bias",
            Role::Value => "self_attn.v_proj.weight",
            Role::ValueBias => "self_attn.v_proj.bias",
            Role::QueryNorm => "self_attn.q_norm.weight",
            Role::KeyNorm => "self_attn.k_norm.weight",
            Role::AttentionOutput => "self_attn.o_proj.weight",
            Role::AttentionOutputBias => "self_attn.o_proj.bias",
            Role::Gate => "mlp.gate_proj.weight",
            Role::GateBias => "mlp.gate_proj.bias",
            Role::Up => "mlp.up_proj.weight",
            Role::UpBias => "mlp.up_proj.bias",
            Role::Down => "mlp.down_proj.weight",
            Role::DownBias => "mlp.down_proj.bias",
        };
        match self.layer {
            Some(layer) => format!("layers.{layer}.{name}"),
            None => name.to_owned(),
        }
    }
}

/// The name of a weight's layer in a Hugging Face model, which adapters have too.
pub(crate) fn layer_name(weight: &Weight, family: Family) -> String {
    let name = weight.name(matches!(family, Family::Gemma2 | Family::Gemma3));
    let name = name.strip_suffix(".weight").unwrap_or(&name);
    match weight.role {
        Role::Output => name.to_owned(),
        _ => format!("model.{name}"),
    }
}

/// The tensors of a model, in the order in which a token passes them.
pub(crate) fn expected(config: &Config) -> Vec<Weight> {
    use Role::*;
    let (width, inner, dim) = (config.width, config.inner, config.head_dim);
    let (queries, keys) = (config.heads * dim, config.kv_heads * dim);
    let mut weights = Vec::new();
    let mut push = |role, layer, shape: &[usize]| {
        weights.push(Weight { role, layer, shape: shape.to_vec() });
    };
    push(Embedding, None, &[config.vocabulary, width]);
    for layer in (0..config.layers.len()).map(Some) {
        push(AttentionNorm, layer, &[width]);
        push(Query, layer, &[queries, width]);
        push(Key, layer, &[keys, width]);
        push(Value, layer, &[keys, width]);
        if config.qkv_bias {
            push(QueryBias, layer, &[queries]);
            push(KeyBias, layer, &[keys]);
            push(ValueBias, layer, &[keys]);
        }
        if config.head_norms {
            push(QueryNorm, layer, &[dim]);
            push(KeyNorm, layer, &[dim]);
        }
        push(AttentionOutput, layer, &[width, queries]);
        if config.output_bias {
            push(AttentionOutputBias, layer, &[width]);
        }
        if config.post_norms {
            push(AttentionPostNorm, layer, &[width]);
        }
        push(FeedForwardNorm, layer, &[width]);
        push(Gate, layer, &[inner, width]);
        push(Up, layer, &[inner, width]);
        push(Down, layer, &[width, inner]);
        if config.inner_bias {
            push(GateBias, layer, &[inner]);
            push(UpBias, layer, &[inner]);
            push(DownBias, layer, &[width]);
        }
        if config.post_norms {
            push(FeedForwardPostNorm, layer, &[width]);
        }
    }
    push(FinalNorm, None, &[width]);
    if !config.tied {
        push(Output, None, &[config.vocabulary, width]);
    }
    weights
}

/// Bytes that the weights of a model take, with norms in f32 and all else in elements of so many
/// bytes.
pub fn bytes(config: &Config, element: usize) -> usize {
    expected(config).iter().map(|weight| weight.len() * if weight.is_norm() { 4 } else { element }).sum()
}
