//! The configurations of the transformer modules. Both versions of Burn compile this file.

use burn::config::Config;
use burn::module::Initializer;
use burn::nn::activation::ActivationConfig;

/// Configuration of [`TransformerEncoder`](super::TransformerEncoder).
#[derive(Config, Debug)]
pub struct TransformerEncoderConfig {
    /// Features of the input and of the output.
    pub d_model: usize,
    /// Features between the two position-wise linear layers.
    pub d_ff: usize,
    /// The number of heads; divides `d_model`.
    pub n_heads: usize,
    /// The number of layers.
    pub n_layers: usize,
    /// The probability of every dropout. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether the layer norms come before the sub-layers instead of after them. Default: false
    #[config(default = false)]
    pub norm_first: bool,
    /// Whether 1 is added to the sum of a row's exponentials, see
    /// [`quiet_softmax`](crate::attention::MultiHeadAttentionConfig::quiet_softmax). Default: false
    #[config(default = false)]
    pub quiet_softmax: bool,
    /// How to initialise the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// The activation between the two position-wise linear layers. Default: Gelu
    #[config(default = "ActivationConfig::Gelu")]
    pub activation: ActivationConfig,
    /// The epsilon of the layer norms. Default: 1e-5
    #[config(default = 1e-5)]
    pub layer_norm_eps: f64,
}

/// Configuration of [`PositionWiseFeedForward`](super::PositionWiseFeedForward).
#[derive(Config, Debug)]
pub struct PositionWiseFeedForwardConfig {
    /// Features of the input and of the output.
    pub d_model: usize,
    /// Features between the two linear layers.
    pub d_ff: usize,
    /// The probability that a feature between the two layers is dropped. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// How to initialise the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// The activation. Default: Gelu
    #[config(default = "ActivationConfig::Gelu")]
    pub activation: ActivationConfig,
}
