//! Transformer modules. Re-exports everything else of `burn::nn::transformer`.

#[path = "../../../../burn-rocm/nn/src/transformer/config.rs"]
mod config;
mod encoder;
mod feed_forward;

pub use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderAutoregressiveCache, TransformerDecoderConfig,
    TransformerDecoderInput, TransformerDecoderLayer, TransformerDecoderLayerAutoregressiveCache,
};
pub use config::{PositionWiseFeedForwardConfig, TransformerEncoderConfig};
pub use encoder::{
    TransformerEncoder, TransformerEncoderAutoregressiveCache, TransformerEncoderInput,
    TransformerEncoderLayer, TransformerEncoderLayerAutoregressiveCache,
};
pub use feed_forward::PositionWiseFeedForward;
