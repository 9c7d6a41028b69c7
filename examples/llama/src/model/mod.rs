//! The model: tokens in, logits out.

mod batch;
mod cache;
mod layer;
mod load;
mod matrix;
mod ops;
mod step;

use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_rocm::fused::{Projected, Projection};
use burn_rocm::{Communicator, Rocm, RocmDevice};

use crate::config::Config;
use crate::error::{Error, Result};
use cache::Keys;
use layer::{Layer, Pass};
use matrix::Matrix;
use ops::{Turns, gathered, primitive, rms_norm, softcap, wrap};

pub use batch::{Next, Paged, Piece};
pub use cache::Cache;
pub(crate) use cache::stored_as;
pub(crate) use load::Stored;
pub use load::{Loaded, Quantise, frozen_bytes, pass_bytes, weight_bytes};
pub(crate) use ops::rounded;
pub use step::{PASSES, Step};

/// Tokens of a prompt that run at once.
pub const PIECE: usize = 1024;

/// The backend.
pub type B = Rocm;

/// Of which tokens [`Model::forward`] computes logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Of the last token.
    Last,
    /// Of all tokens of the call.
    All,
}

/// A model on a device.
#[derive(Debug)]
pub struct Model {
    config: Config,
    device: RocmDevice,
    dtype: DType,
    embedding: Matrix,
    layers: Vec<Layer>,
    /// The rotary embeddings of [`Config::ropes`].
    ropes: Vec<Turns>,
    norm: Tensor<B, 1>,
    /// The output matrix, unless it is the embedding. With ranks, a view of some of its outputs.
    output: Option<Matrix>,
    /// The devices that have parts of the model, if there are several.
    ranks: Option<Communicator>,
}

impl Model {
    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The device.
    pub fn device(&self) -> &RocmDevice {
        &self.device
    }

    /// This device's rank among those that have parts of the model; `None` for the whole model.
    pub fn ranks(&self) -> Option<&Communicator> {
        self.ranks.as_ref()
    }

    /// The dtype of activations, and of all weights that are neither norms nor quantised.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Computes the logits of tokens that follow those in the cache, and adds them to the cache.
    ///
    /// # Shapes
    /// - output, f32: `[1, vocabulary]` for [`Logits::Last`], `[tokens, vocabulary]` for
    ///   [`Logits::All`]
    ///
    /// # Errors
    /// [`Error::Argument`] for no tokens, [`Error::Token`] for a token outside the vocabulary,
    /// [`Error::TooLong`] if the cache has no room for the tokens; an error of the device. After
    /// one of the first three, the cache is as it was.
    pub fn forward(&self, tokens: &[u32], cache: &mut Cache, logits: Logits) -> Result<Tensor<B, 2>> {
        let vocabulary = self.config.vocabulary;
        if tokens.is_empty() {
            let (expected, found) = ("at least 1 token".to_owned(), "none".to_owned());
            return Err(Error::Argument { name: "tokens", expected, found });
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::Token { token, vocabulary });
        }
        cache.check(tokens.len())?;
        cache.begin(tokens.len())?;

        let ids: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
        let ids = ops::ints(TensorData::new(ids, [tokens.len()]), &self.device);
        let mut features = self.features(ids, cache)?;
        cache.advance(tokens.len());
        if logits == Logits::Last {
            features = features.narrow(tokens.len() - 1, 1)?;
        }
        Ok(self.logits(features)?.cast(DType::F32))
    }

    /// Runs tokens through all layers, and adds them to the keys and values.
    ///
    /// # Shapes
    /// - ids: `[tokens]`
    fn features(&self, ids: Tensor<B, 1, Int>, keys: &dyn Keys) -> Result<Projected> {
        let [tokens] = ids.dims();
        let mut hidden = self.embedding.rows(ids, self.dtype)?;
        if let Some(scale) = self.config.embedding_scale {
            hidden = hidden * ops::rounded(scale, self.dtype);
        }
        let pass = Pass { config: &self.config, keys, ranks: self.ranks.as_ref() };
        let layers = self.layers.iter().zip(&self.config.layers).enumerate();
        // Each norm is computed with the sum before it: the first of a layer by the layer before.
        let norm_of = |layer: usize| self.layers.get(layer).map_or(&self.norm, |layer| &layer.attention_norm);
        let mut normed = rms_norm(hidden.clone(), norm_of(0), self.config.epsilon)?;
        if self.layers.iter().all(|layer| layer.takes_few(tokens)) {
            let mut both = (hidden, primitive(normed).into());
            for (at, (layer, settings)) in layers {
                let turns = &self.ropes[settings.rope];
                both = layer.few(both, norm_of(at + 1), (settings, turns), pass)?;
            }
            return Ok(both.1);
        }
        for (at, (layer, settings)) in layers {
            let turns = &self.ropes[settings.rope];
            [hidden, normed] = layer.forward([hidden, normed], norm_of(at + 1), (settings, turns), pass)?;
        }
        Ok(primitive(normed).into())
    }

    /// The logits of features, in the model's dtype or in f32. Either has the same numbers.
    ///
    /// # Shapes
    /// - output: `[tokens, vocabulary]`
    fn logits(&self, features: Projected) -> Result<Tensor<B, 2>> {
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        let mut logits = match output.is_alone() {
            true => output.projected(features, Projection::default())?.0,
            false => output.product(wrap(features.into_rows()?), None)?,
        };
        if let Some(ranks) = self.ranks.as_ref().filter(|_| logits.dims()[1] < self.config.vocabulary) {
            logits = gathered(logits, ranks)?;
        }
        Ok(match self.config.logit_softcap {
            Some(cap) => softcap(logits.cast(DType::F32), cap),
            None => logits,
        })
    }

    /// Adds a prompt to the cache, and computes the logits of its last token. Runs in pieces of
    /// so many tokens, so that working memory does not grow with the prompt.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); a piece of 0 tokens is an [`Error::Argument`].
    pub fn prefill(&self, prompt: &[u32], cache: &mut Cache, piece: usize) -> Result<Tensor<B, 2>> {
        if piece == 0 || prompt.is_empty() {
            let found = format!("{} tokens in pieces of {piece}", prompt.len());
            return Err(Error::Argument { name: "prompt", expected: "at least 1 of each".to_owned(), found });
        }
        cache.check(prompt.len())?;
        let last = (prompt.len() - 1) / piece * piece;
        for piece in prompt[..last].chunks(piece) {
            self.forward(piece, cache, Logits::Last)?;
        }
        self.forward(&prompt[last..], cache, Logits::Last)
    }
}
