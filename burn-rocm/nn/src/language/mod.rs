//! The parts of a language model's layer: the rotary embedding fused with the split into heads and
//! their norms, RMS norm with the residual connection, and gated linear units; and a decoder of
//! them.
//!
//! `docs/guide/language-models.md` says how they fit together.

mod attention;
mod config;
mod decoder;
mod decoder_config;
mod gate;
mod norm;
mod rotary;

pub use attention::attention;
pub use config::{GateKind, NormConfig, RotaryConfig, RotaryFrequencies, RotaryScaling};
pub use decoder::{CrossAttention, Decoder, DecoderLayer};
pub use decoder_config::{AttentionRule, DecoderConfig};
pub use gate::{gated, gated_halves};
pub use norm::{Norm, residual_norm};
pub use rotary::{Heads, Positions, RotaryEmbedding};
