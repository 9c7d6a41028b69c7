//! The configuration of a decoder. Both versions of Burn compile this file.

use burn::config::Config;
use burn::tensor::DType;
use burn_rocm::fused::check_softcap;
use burn_rocm::raise;

use super::{GateKind, RotaryConfig};
use crate::fuse::refuse;

/// Configuration of a [`Decoder`](super::Decoder), and of its layers.
#[derive(Config, Debug)]
pub struct DecoderConfig {
    /// The features of a token.
    pub d_model: usize,
    /// The features within the feed-forward part.
    pub d_ff: usize,
    /// The number of layers.
    pub layers: usize,
    /// The heads of queries.
    pub heads: usize,
    /// The heads of keys and values, which divide those of queries. Default: as many
    #[config(default = "None")]
    pub kv_heads: Option<usize>,
    /// The features of a head. Default: `d_model / heads`
    #[config(default = "None")]
    pub head_dim: Option<usize>,
    /// Added to the mean of squares in each norm. Default: 1e-6
    #[config(default = 1e-6)]
    pub epsilon: f64,
    /// Whether a norm's scale is 1 + its weight, as in Gemma. Default: `false`
    #[config(default = false)]
    pub adds_one: bool,
    /// Whether the outputs of attention and of the feed-forward part have norms, as in Gemma.
    /// Default: `false`
    #[config(default = false)]
    pub post_norms: bool,
    /// Whether each head's queries and keys have norms, as in Qwen 3. Default: `false`
    #[config(default = false)]
    pub head_norms: bool,
    /// Whether the layers of queries, keys and values have biases, as in Qwen 2. Default: `false`
    #[config(default = false)]
    pub qkv_bias: bool,
    /// Whether attention's output layer has a bias. Default: `false`
    #[config(default = false)]
    pub output_bias: bool,
    /// Whether the feed-forward part's layers have biases. Default: `false`
    #[config(default = false)]
    pub inner_bias: bool,
    /// The feed-forward part's activation. Default: SiLU
    #[config(default = "GateKind::Silu")]
    pub gate: GateKind,
    /// The factor of attention's scores. Default: `1 / sqrt(head_dim)`
    #[config(default = "None")]
    pub scale: Option<f64>,
    /// Scores `s` become `softcap * tanh(s / softcap)`. Default: they stay
    #[config(default = "None")]
    pub softcap: Option<f64>,
    /// A token sees itself and the `window - 1` tokens before it. Default: all before it
    #[config(default = "None")]
    pub window: Option<usize>,
    /// The rotary embedding. Default: that of all features, with base 10000
    #[config(default = "None")]
    pub rotary: Option<RotaryConfig>,
    /// Whether layers have attention to an encoder. Default: `false`
    #[config(default = false)]
    pub cross: bool,
}

impl DecoderConfig {
    /// The heads of queries, those of keys and values, and the features of a head.
    ///
    /// # Panics
    /// If they do not fit.
    pub(super) fn sizes(&self) -> [usize; 3] {
        let kv_heads = self.kv_heads.unwrap_or(self.heads);
        if kv_heads == 0 || !self.heads.is_multiple_of(kv_heads) || self.heads == 0 {
            let expected = format!("heads of keys that divide {}", self.heads);
            refuse("DecoderConfig", expected, kv_heads.to_string());
        }
        let head_dim = self.head_dim.unwrap_or(self.d_model / self.heads);
        if head_dim == 0 || (self.head_dim.is_none() && !self.d_model.is_multiple_of(self.heads)) {
            let expected =
                format!("{} heads that divide {} features, or a head_dim", self.heads, self.d_model);
            refuse("DecoderConfig", expected, head_dim.to_string());
        }
        [self.heads, kv_heads, head_dim]
    }
}

/// What attention does to its scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionRule {
    /// The factor of the scores; `1 / sqrt(features)` by default.
    pub scale: Option<f64>,
    /// Scores `s` become `softcap * tanh(s / softcap)`.
    pub softcap: Option<f64>,
    /// Whether a query sees only the keys up to its own position. The last query is at the last
    /// key.
    pub causal: bool,
    /// A sliding window of positions, at least 1. All keys by default.
    pub window: Option<usize>,
}

impl AttentionRule {
    /// Refuses a window of no key, and a softcap that is not above 0 in the precision in which the kernels
    /// compute the scores.
    pub(super) fn check(&self, dtype: DType) {
        const OP: &str = "attention";
        if self.window == Some(0) {
            refuse(OP, "a window of at least 1 key", "0");
        }
        check_softcap(OP, self.softcap, dtype).unwrap_or_else(|error| raise(error));
    }
}
