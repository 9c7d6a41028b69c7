//! BERT base, built with the modules of `parts`. This file is compiled once for each set of modules.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int, Tensor};

use super::parts::*;
use crate::gpu::models::{Scored, Trained, labels};

/// The tokens of a sentence.
const LENGTH: usize = 128;
const FEATURES: usize = 768;
const WORDS: i64 = 30522;

/// BERT base as a classifier of two classes (Devlin et al. 2018, "BERT: Pre-training of Deep
/// Bidirectional Transformers for Language Understanding"): 12 post-norm layers with 12 heads, over
/// sentences of 128 tokens. Without dropout, as the other models.
#[derive(Module, Debug)]
pub(crate) struct Bert<B: Backend> {
    words: Embedding<B>,
    positions: Embedding<B>,
    segments: Embedding<B>,
    norm: LayerNorm<B>,
    encoder: TransformerEncoder<B>,
    pooler: Linear<B>,
    classifier: Linear<B>,
}

impl<B: Backend> Trained<B> for Bert<B> {
    type Batch = (Tensor<B, 2, Int>, Tensor<B, 1, Int>);

    fn new(device: &B::Device) -> Self {
        let embedding = |count: usize| EmbeddingConfig::new(count, FEATURES).init(device);
        Self {
            words: embedding(WORDS as usize),
            positions: embedding(512),
            segments: embedding(2),
            norm: LayerNormConfig::new(FEATURES).init(device),
            encoder: TransformerEncoderConfig::new(FEATURES, 4 * FEATURES, 12, 12)
                .with_dropout(0.0)
                .init(device),
            pooler: LinearConfig::new(FEATURES, FEATURES).init(device),
            classifier: LinearConfig::new(FEATURES, 2).init(device),
        }
    }

    fn batch(size: usize, device: &B::Device) -> Self::Batch {
        let words = Tensor::<B, 1, Int>::arange(0..(size * LENGTH) as i64, device).mul_scalar(7919);
        (words.remainder_scalar(WORDS).reshape([size, LENGTH]), labels(size, 2, device))
    }

    /// A batch of words has no floats.
    fn cast(batch: Self::Batch, _: FloatDType) -> Self::Batch {
        batch
    }

    fn loss(&self, batch: Self::Batch) -> Tensor<B, 1> {
        let classes = batch.1.clone();
        cross_entropy(self.scores(batch), classes)
    }
}

impl<B: Backend> Scored<B> for Bert<B> {
    fn scores(&self, (words, _): Self::Batch) -> Tensor<B, 2> {
        let device = words.device();
        let places = Tensor::<B, 1, Int>::arange(0..LENGTH as i64, &device).unsqueeze();
        let x = self.words.forward(words.clone())
            + self.segments.forward(words.zeros_like())
            + self.positions.forward(places);
        let x = self.encoder.forward(TransformerEncoderInput::new(self.norm.forward(x)));
        let first = x.narrow(1, 0, 1).squeeze_dim::<2>(1);
        self.classifier.forward(self.pooler.forward(first).tanh())
    }
}
