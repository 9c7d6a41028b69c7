//! Generating a text, token by token.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;

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
    rng: Rng,
}

impl<'a> Session<'a> {
    /// A session without text, with room for `context` tokens.
    ///
    /// # Errors
    /// As [`Cache::new`].
    pub fn new(model: &'a Model, context: usize, seed: u64) -> Result<Self> {
        Ok(Self { model, cache: Cache::new(model, context)?, text: Vec::new(), rng: Rng::new(seed) })
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
        let mut next = self.choose(logits, options)?;
        timing.to_first = start.elapsed();

        let start = Instant::now();
        for last in 1..=options.tokens {
            if options.stop.contains(&next) || each(next)?.is_break() || last == options.tokens {
                break;
            }
            let logits = self.model.forward(&[next], &mut self.cache, Logits::Last)?;
            self.text.push(next);
            next = self.choose(logits, options)?;
            timing.generated += 1;
        }
        timing.generation = start.elapsed();
        Ok(timing)
    }

    /// Reads the logits, and draws a token.
    fn choose(&mut self, logits: Tensor<B, 2>, options: &Options) -> Result<u32> {
        let data = logits.try_into_data().map_err(|why| Error::Read(why.to_string()))?;
        let logits: Vec<f32> = data.to_vec().map_err(|why| Error::Read(format!("{why:?}")))?;
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(Error::NotNumbers);
        }
        let next = options.sampling.next(&logits, &self.text, &mut self.rng);
        next.ok_or_else(|| Error::Read("a model without logits".to_owned()))
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
