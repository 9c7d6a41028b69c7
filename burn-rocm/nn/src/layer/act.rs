//! The activations that layers take. Both versions of Burn compile this file.

use burn::config::Config;
use burn_rocm::fused;

/// An activation that is fused with the layer before it.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `max(z, 0)`.
    Relu,
    /// `z Phi(z)`, the exact form ([Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415)).
    Gelu,
    /// `z sigmoid(z)`.
    Silu,
}

impl Act {
    pub(super) fn fused(self) -> fused::Act {
        match self {
            Self::Relu => fused::Act::Relu,
            Self::Gelu => fused::Act::Gelu,
            Self::Silu => fused::Act::Silu,
        }
    }
}
