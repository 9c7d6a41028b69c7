//! The parts of a language model's layer: the rotary embedding fused with the split into heads and
//! their norms, RMS norm with the residual connection, and gated linear units.
//!
//! `docs/guide/language-models.md` says how they fit together.

#[path = "../../../../burn-rocm/nn/src/language/config.rs"]
mod config;
mod gate;
mod norm;
mod rotary;

pub use config::{GateKind, NormConfig, RotaryConfig, RotaryFrequencies, RotaryScaling};
pub use gate::{gated, gated_halves};
pub use norm::{Norm, residual_norm};
pub use rotary::{Heads, Positions, RotaryEmbedding};
