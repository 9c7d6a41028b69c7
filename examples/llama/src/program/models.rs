//! Models with random weights.

use std::path::Path;

use serde_json::json;

use super::arguments::RandomModel;
use crate::config::{Config, Fields};
use crate::error::{Error, Result};
use crate::rng::Rng;

impl RandomModel {
    /// The model's settings.
    ///
    /// # Errors
    /// Those of [`Config::of`], if the program's own numbers don't fit together.
    pub fn config(self) -> Result<Config> {
        let settings = match self {
            Self::Tiny => json!({
                "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 192,
                "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
                "max_position_embeddings": 4096, "tie_word_embeddings": true
            }),
            // https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json
            Self::Llama32 => json!({
                "model_type": "llama", "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192,
                "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
                "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
                "rope_theta": 500_000.0, "rope_scaling": {
                    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192
                }
            }),
            // https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json
            Self::Llama31 => json!({
                "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
                "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
                "rope_theta": 500_000.0, "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192
                }
            }),
        };
        let path = Path::new("--random");
        match settings {
            serde_json::Value::Object(map) => Config::of(&Fields::of(path, map)),
            other => Err(Error::file(path, other)),
        }
    }
}

/// A prompt of random tokens.
pub(crate) fn random_prompt(count: usize, vocabulary: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| (rng.uniform() * vocabulary as f64) as u32).collect()
}
