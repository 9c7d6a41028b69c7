//! Generating a text, token by token.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use burn_rocm::fused::decode::{self, SampleState, SampleTables};
use burn_rocm::{RocmTensor, read_with_fault};

use crate::error::{Error, Result};
use crate::model::{B, Cache, Logits, Model};
use crate::rng::Rng;
use crate::sample::Sampling;

/// Tokens of a prompt that run at once.
pub const PIECE: usize = 1024;

/// How to generate.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most tokens to generate.
    pub tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Tokens that end the text. They are not part of it.
    pub stop: Vec<u32>,
}

/// How long a text took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Tokens of the prompt that the cache lacked.
    pub prompt: usize,
    /// The time until the first new token was chosen.
    pub to_first: Duration,
    /// Tokens that were generated after the first, each by one pass through the model.
    pub generated: usize,
    /// The time that these took.
    pub generation: Duration,
}

/// A text and the cache of its tokens.
#[derive(Debug)]
pub struct Session<'a> {
    model: &'a Model,
    cache: Cache,
    /// The tokens whose keys and values are in the cache.
    text: Vec<u32>,
    /// Draws the tokens, on the device.
    state: SampleState,
    /// Draws a seed for each text.
    rng: Rng,
}

impl<'a> Session<'a> {
    /// A session without text, with room for `context` tokens.
    ///
    /// # Errors
    /// As [`Cache::new`]; an error of the device.
    pub fn new(model: &'a Model, context: usize, seed: u64) -> Result<Self> {
        let cache = Cache::new(model, context)?;
        let tables = SampleTables { counts: true, chances: true, ring: 0 };
        let state = SampleState::new(model.device(), 1, model.config().vocabulary, tables)?;
        Ok(Self { model, cache, text: Vec::new(), state, rng: Rng::new(seed) })
    }

    /// Generates a text after this prompt. If the prompt starts as the text of the session does,
    /// the cache's keys and values are used again. `each` gets every new token, and may end the
    /// text.
    ///
    /// # Errors
    /// [`Error::TooLong`] if prompt and answer don't fit in the context; the errors of
    /// [`Model::forward`], [`Sampling::check`] and `each`.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &Options,
        mut each: impl FnMut(u32) -> Result<ControlFlow<()>>,
    ) -> Result<Timing> {
        options.sampling.check()?;
        let limit = self.cache.capacity();
        // The last token of an answer need not be in the cache.
        if prompt.len() + options.tokens > limit + 1 {
            return Err(Error::TooLong { prompt: prompt.len(), answer: options.tokens, limit });
        }
        let start = Instant::now();
        let same = self.text.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // At least one token must run, because its logits are wanted.
        let same = same.min(prompt.len().saturating_sub(1));
        self.cache.truncate(same);
        self.text.truncate(same);
        let mut timing = Timing { prompt: prompt.len() - same, ..Timing::default() };
        let logits = self.model.prefill(&prompt[same..], &mut self.cache, PIECE)?;
        self.text.extend(&prompt[same..]);
        if options.tokens == 0 {
            return Ok(timing);
        }
        self.state.set(0, &options.sampling.on_device(self.rng.bits()), &self.text)?;
        let mut next = self.choose(logits)?;
        timing.to_first = start.elapsed();

        let start = Instant::now();
        for last in 1..=options.tokens {
            if options.stop.contains(&next) || each(next)?.is_break() || last == options.tokens {
                break;
            }
            let logits = self.model.forward(&[next], &mut self.cache, Logits::Last)?;
            self.text.push(next);
            next = self.choose(logits)?;
            timing.generated += 1;
        }
        timing.generation = start.elapsed();
        Ok(timing)
    }

    /// Draws a token on the device, and reads it.
    fn choose(&mut self, logits: Tensor<B, 2>) -> Result<u32> {
        decode::sample(logits.into_primitive().tensor(), &self.state)?;
        let first = |tensor: RocmTensor| -> Result<f64> {
            let (data, fault) = read_with_fault(tensor)?;
            fault.map_or(Ok(()), Err)?;
            data.iter::<f64>().next().ok_or_else(|| Error::Read("a model without logits".to_owned()))
        };
        // A NaN among the logits makes the probability NaN.
        if let Some(chances) = self.state.chances()
            && first(chances)?.is_nan()
        {
            return Err(Error::NotNumbers);
        }
        Ok(first(self.state.tokens())? as u32)
    }
}

impl Timing {
    /// Tokens of the prompt a second.
    pub fn prompt_rate(&self) -> f64 {
        self.prompt as f64 / self.to_first.as_secs_f64()
    }

    /// New tokens a second, without the first.
    pub fn rate(&self) -> f64 {
        self.generated as f64 / self.generation.as_secs_f64()
    }
}
