//! The ops of a language model's layer that Burn composes from many: gated linear units, RMS norm
//! with a residual connection, and the rotary embedding of heads.

pub(crate) mod gate;
pub(crate) mod residual_norm;
pub(crate) mod rotary;
