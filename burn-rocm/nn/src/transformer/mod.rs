//! Transformers: as `burn::nn::transformer`, whose other items are found here too.

mod encoder;
mod feed_forward;

pub use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderAutoregressiveCache, TransformerDecoderConfig,
    TransformerDecoderInput, TransformerDecoderLayer, TransformerDecoderLayerAutoregressiveCache,
};
pub use encoder::{
    TransformerEncoder, TransformerEncoderAutoregressiveCache, TransformerEncoderConfig,
    TransformerEncoderInput, TransformerEncoderLayer, TransformerEncoderLayerAutoregressiveCache,
};
pub use feed_forward::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
