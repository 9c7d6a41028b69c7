//! The settings of a model, from `config.json` of a Hugging Face folder.

mod family;
mod fields;
mod generation;
mod rope;

use std::path::Path;

use burn_rocm::fused::decode::{CacheType, PAGE};
use serde_json::Value;

use crate::error::{Error, Result};

pub use family::Family;
pub use fields::Fields;
pub(crate) use fields::read_json;
pub use generation::Generation;
pub use rope::Rope;

/// More layers than any model has. A damaged file could ask for more memory than there is.
const MOST_LAYERS: usize = 10_000;

/// The most features of a token, features of all heads, and tokens of a vocabulary: four times as
/// many as any model has. With [`MOST_LAYERS`], the bytes of all weights fit in 64 bits.
const MOST_FEATURES: usize = 1 << 20;

/// The function between the two products of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// SiLU.
    Silu,
    /// GELU.
    Gelu,
    /// The approximation of GELU by tanh.
    GeluTanh,
}

/// What differs among a model's layers.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// A query sees itself and the `window - 1` keys before it, or all keys before it.
    pub window: Option<usize>,
    /// The index of the layer's embedding in [`Config::ropes`].
    pub rope: usize,
}

/// The settings of a model. All families are one architecture with different settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which family the model belongs to.
    pub family: Family,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Features of a token between layers.
    pub width: usize,
    /// Features within a feed-forward layer.
    pub inner: usize,
    /// The layers.
    pub layers: Vec<LayerConfig>,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Added to the mean of squares in each norm.
    pub epsilon: f64,
    /// Whether a norm's factor is 1 + its weight (Gemma).
    pub norm_adds_one: bool,
    /// Whether the output of attention and of the feed-forward layer has a norm too (Gemma).
    pub post_norms: bool,
    /// Whether queries and keys have a norm for each head (Qwen 3, Gemma 3).
    pub head_norms: bool,
    /// Whether the layers of queries, keys and values have biases (Qwen 2).
    pub qkv_bias: bool,
    /// Whether attention's output layer has a bias.
    pub output_bias: bool,
    /// Whether the layers of the feed-forward part have biases.
    pub inner_bias: bool,
    /// The feed-forward layer's function.
    pub activation: Activation,
    /// The rotary embeddings. Gemma 3 has two: that of layers with a window, and that of the
    /// others.
    pub ropes: Vec<Rope>,
    /// The factor of attention's scores.
    pub scale: f64,
    /// The factor of embedded tokens, which Gemma rounds to the weights' dtype.
    pub embedding_scale: Option<f64>,
    /// Softcap of the scores (Gemma 2).
    pub score_softcap: Option<f64>,
    /// Softcap of the logits (Gemma 2).
    pub logit_softcap: Option<f64>,
    /// Whether the embedding is the output matrix too.
    pub tied: bool,
    /// The longest context that the model was made for, in tokens.
    pub context: usize,
}

impl Config {
    /// Reads `config.json` of a folder.
    ///
    /// # Errors
    /// [`Error::File`] if the file is missing or damaged, [`Error::Field`] if a setting is missing
    /// or makes no sense, and [`Error::Unsupported`] for another architecture, a mixture of
    /// experts, or a model of images or sound.
    pub fn read(folder: &Path) -> Result<Self> {
        Self::of(&Fields::read(&folder.join("config.json"))?)
    }

    /// The settings of `config.json`'s contents.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn of(outer: &Fields) -> Result<Self> {
        let (family, fields) = family::find(outer)?;
        family::refuse_others(&fields)?;
        let size = |name: &str, default| fields.size_up_to(name, MOST_FEATURES, default);
        let width = size("hidden_size", None)?;
        let count = fields.size_up_to("num_hidden_layers", MOST_LAYERS, None)?;
        let [default_heads, default_kv_heads] = family.heads();
        let heads = size("num_attention_heads", default_heads)?;
        // A null stands for the number of heads.
        let missing = !fields.has("num_key_value_heads");
        let kv_heads = default_kv_heads.filter(|&kv_heads| missing && heads.is_multiple_of(kv_heads));
        let kv_heads = match fields.count("num_key_value_heads")?.or(kv_heads) {
            None => heads,
            Some(kv_heads) if kv_heads > 0 && heads.is_multiple_of(kv_heads) => kv_heads,
            Some(other) => {
                let expected = format!("a divisor of the {heads} heads of queries");
                return Err(fields.wrong("num_key_value_heads", expected, other.to_string()));
            }
        };
        let head_dim = match (fields.count("head_dim")?, family.head_dim()) {
            (Some(0), _) => return Err(fields.wrong("head_dim", "at least 2 features", "0")),
            (Some(own), _) | (None, Some(own)) => own,
            (None, None) if width.is_multiple_of(heads) => width / heads,
            (None, None) => {
                let expected = format!("a multiple of the {heads} heads, or a `head_dim`");
                return Err(fields.wrong("hidden_size", expected, width.to_string()));
            }
        };
        if head_dim > MOST_FEATURES / heads {
            let expected = format!("at most {MOST_FEATURES} features of all {heads} heads together");
            return Err(fields.wrong("head_dim", expected, head_dim.to_string()));
        }
        let context = fields.size("max_position_embeddings", Some(family.context()))?;
        let windows = windows(family, &fields, count)?;
        let ropes = family::ropes(family, &fields, head_dim, context)?;
        let bias = fields.flag("attention_bias", false)?;
        let gemma = matches!(family, Family::Gemma2 | Family::Gemma3);
        let scalar = if gemma { fields.positive("query_pre_attn_scalar")?.or(Some(256.0)) } else { None };
        let softcap = |name: &str, default: f64| match (family, fields.has(name)) {
            (Family::Gemma2, false) => Ok(Some(default)),
            (Family::Gemma2 | Family::Gemma3, _) => fields.positive(name),
            _ => Ok(None),
        };
        Ok(Self {
            family,
            vocabulary: size("vocab_size", family.vocabulary())?,
            width,
            inner: size("intermediate_size", None)?,
            layers: windows
                .into_iter()
                .map(|window| LayerConfig { window, rope: usize::from(window.is_none() && ropes.len() > 1) })
                .collect(),
            heads,
            kv_heads,
            head_dim,
            epsilon: fields.positive("rms_norm_eps")?.unwrap_or(1e-6),
            norm_adds_one: gemma,
            post_norms: gemma,
            head_norms: matches!(family, Family::Qwen3 | Family::Gemma3),
            qkv_bias: family == Family::Qwen2 || bias,
            output_bias: family != Family::Qwen2 && bias,
            inner_bias: fields.flag("mlp_bias", false)?,
            activation: activation(&fields, family)?,
            ropes,
            scale: scalar.unwrap_or(head_dim as f64).powf(-0.5),
            embedding_scale: gemma.then(|| (width as f64).sqrt()),
            score_softcap: softcap("attn_logit_softcapping", 50.0)?,
            logit_softcap: softcap("final_logit_softcapping", 30.0)?,
            // An outer object may say it for the inner one.
            tied: fields.flag("tie_word_embeddings", outer.flag("tie_word_embeddings", gemma)?)?,
            context,
        })
    }

    /// Bytes that the keys and values of so many tokens take; `usize::MAX` if the number overflows.
    pub fn cache_bytes(&self, tokens: usize, stored: CacheType) -> usize {
        let page = PAGE * stored.bytes_of_token(self.kv_heads, self.head_dim);
        tokens.div_ceil(PAGE).saturating_mul(self.layers.len().saturating_mul(page))
    }
}

/// The window of each layer.
fn windows(family: Family, fields: &Fields, count: usize) -> Result<Vec<Option<usize>>> {
    let used = match family {
        Family::Llama => false,
        Family::Qwen2 | Family::Qwen3 => fields.flag("use_sliding_window", false)?,
        Family::Mistral | Family::Gemma2 | Family::Gemma3 => true,
    };
    let window = match fields.has("sliding_window") || !used {
        true if used => fields.count("sliding_window")?,
        true => None,
        false => Some(4096),
    };
    if window == Some(0) {
        return Err(fields.wrong("sliding_window", "at least 1 key", "0"));
    }
    if let (Some(types), true) = (fields.list("layer_types")?, family != Family::Mistral) {
        if types.len() != count {
            let expected = format!("{count} entries, one for each layer");
            return Err(fields.wrong("layer_types", expected, types.len().to_string()));
        }
        let of = |kind: &Value| match (kind.as_str(), window) {
            (Some("full_attention"), _) => Ok(None),
            (Some("sliding_attention"), Some(window)) => Ok(Some(window)),
            (Some("sliding_attention"), None) => {
                Err(fields.wrong("sliding_window", "a window, which `layer_types` uses", "none"))
            }
            _ => {
                let expected = "\"full_attention\" or \"sliding_attention\"";
                Err(fields.wrong("layer_types", expected, kind.to_string()))
            }
        };
        return types.iter().map(of).collect();
    }
    let first = fields.count("max_window_layers")?.unwrap_or(28);
    let period = fields.size("sliding_window_pattern", Some(6))?;
    let has = |layer: usize| match family {
        Family::Llama => false,
        Family::Qwen2 | Family::Qwen3 => layer >= first,
        Family::Mistral => true,
        Family::Gemma2 => layer.is_multiple_of(2),
        Family::Gemma3 => !(layer + 1).is_multiple_of(period),
    };
    Ok((0..count).map(|layer| window.filter(|_| has(layer))).collect())
}

fn activation(fields: &Fields, family: Family) -> Result<Activation> {
    let gemma = matches!(family, Family::Gemma2 | Family::Gemma3);
    let name = if gemma { "hidden_activation" } else { "hidden_act" };
    let default = if gemma { "gelu_pytorch_tanh" } else { "silu" };
    match fields.text(name)?.unwrap_or(default) {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        other => Err(Error::Unsupported {
            path: fields.path().to_owned(),
            what: format!("the activation `{other}` is"),
            supported: "silu, gelu and gelu_pytorch_tanh".to_owned(),
        }),
    }
}
