//! The ops of a language model's layer that Burn composes from many: gated linear units, RMS norm
//! with a residual connection, linear layers with what surrounds them, and the rotary embedding of
//! heads.

pub(crate) mod around;
pub(crate) mod gate;
pub(crate) mod projection;
pub(crate) mod residual_norm;
pub(crate) mod rotary;
