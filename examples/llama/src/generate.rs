//! Generating a text, token by token.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use burn_rocm::fused::decode::{Draw, LateDraws};

use crate::error::{Error, Result};
pub use crate::model::PIECE;
use crate::model::{Cache, Model, PASSES, Step};
use crate::ranks::{Command, Engine, Followers};
use crate::rng::Rng;
use crate::sample::Sampling;

/// How long the passes of one graph may take together. Their tokens come all at once, and a reader
/// should not notice that. Longer passes would hardly gain: only 17 us lie between two graphs
/// ([`PASSES`]).
const SEVERAL_WITHIN: Duration = Duration::from_millis(20);

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
    engine: Engine<'a>,
    /// The other devices of a model that is divided.
    followers: Option<Followers>,
    /// The tokens whose keys and values are in the cache.
    text: Vec<u32>,
    /// Draws a seed for each text.
    rng: Rng,
    /// How long the passes of one graph may take together.
    several_within: Duration,
}

impl<'a> Session<'a> {
    /// A session without text, with room for `context` tokens.
    ///
    /// # Errors
    /// As [`Cache::new`]; an error of the device.
    pub fn new(model: &'a Model, context: usize, seed: u64) -> Result<Self> {
        Self::with_cache(model, Cache::new(model, context)?, seed)
    }

    /// A session whose text is kept in this cache.
    ///
    /// # Errors
    /// [`Error::Argument`] for a cache that was made with others; an error of the device.
    pub fn with_cache(model: &'a Model, cache: Cache, seed: u64) -> Result<Self> {
        Ok(Self {
            engine: Engine::new(model, cache)?,
            followers: None,
            text: Vec::new(),
            rng: Rng::new(seed),
            several_within: SEVERAL_WITHIN,
        })
    }

    /// The same session, which leads the ranks that have the other parts of the model.
    pub fn leading(self, followers: Followers) -> Self {
        Self { followers: Some(followers), ..self }
    }

    /// The same session, whose passes are never captured.
    pub fn op_by_op(mut self) -> Self {
        self.engine.step = self.engine.step.op_by_op();
        self
    }

    /// The same session, which runs [`PASSES`] passes as one graph if they take less than this time
    /// together (20 ms by default). Their tokens come all at once. With [`Duration::ZERO`] each pass is
    /// a graph, and with [`Duration::MAX`] the time of the passes does not matter.
    pub fn several_within(self, longest: Duration) -> Self {
        Self { several_within: longest, ..self }
    }

    /// The pass of a token.
    pub fn step(&self) -> &Step<'a> {
        &self.engine.step
    }

    /// The tokens in the cache.
    pub fn text(&self) -> &[u32] {
        &self.text
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
        each: impl FnMut(u32) -> Result<ControlFlow<()>>,
    ) -> Result<Timing> {
        options.sampling.check()?;
        let limit = self.engine.cache.capacity();
        // The last token of an answer need not be in the cache.
        if prompt.len() + options.tokens > limit + 1 {
            return Err(Error::TooLong { prompt: prompt.len(), answer: options.tokens, limit });
        }
        let start = Instant::now();
        let same = self.text.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // At least one token must run, because its logits are wanted.
        let same = same.min(prompt.len().saturating_sub(1));
        self.tell(&Command::Truncate(same))?;
        self.text.truncate(same);
        let mut timing = Timing { prompt: prompt.len() - same, ..Timing::default() };
        let tokens = prompt[same..].to_vec();
        let text = [&self.text, &tokens[..]].concat();
        let answer = (options.tokens > 0)
            .then(|| Box::new((options.sampling.on_device(self.rng.bits()), text.clone())));
        self.tell(&Command::Prompt { tokens, answer })?;
        self.text = text;
        if options.tokens == 0 {
            return Ok(timing);
        }
        let answered = self.answer(options, start, &mut timing, each);
        // Without the tokens of passes that ran ahead of the end.
        let truncated = self.tell(&Command::Truncate(self.text.len()));
        answered.and(truncated).map(|()| timing)
    }

    /// Does something on all ranks.
    fn tell(&mut self, command: &Command) -> Result<()> {
        if let Some(followers) = &self.followers {
            followers.tell(command);
        }
        self.engine.run(command)
    }

    /// Enqueues one pass or several of those that are left, and the copy of what they draw. `time` is
    /// how long a pass took, if that is known.
    fn run_ahead(&mut self, left: &mut usize, time: Option<Duration>) -> Result<Option<LateDraws>> {
        if *left == 0 {
            return Ok(None);
        }
        let is_short = |time: Duration| time.saturating_mul(PASSES as u32) < self.several_within;
        let several = *left >= PASSES && self.step().takes_several() && time.is_some_and(is_short);
        let read = if several {
            *left -= PASSES;
            self.tell(&Command::Several)?;
            self.step().state().begin_read_passes()?
        } else {
            *left -= 1;
            self.tell(&Command::Pass)?;
            self.step().state().begin_read()?
        };
        Ok(Some(read))
    }

    /// Generates after the first token was drawn. A token is read after the pass that takes it was
    /// launched, so the device does not wait for the host. The last passes may have been in vain.
    ///
    /// An answer begins with two single passes, so its first tokens wait for no others. The second
    /// token then shows how long a pass takes.
    fn answer(
        &mut self,
        options: &Options,
        start: Instant,
        timing: &mut Timing,
        mut each: impl FnMut(u32) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut begun = Instant::now();
        let (mut last_read, mut time) = (None, None);
        let mut drawn = 0;
        let mut left = options.tokens - 1;
        let mut read = Some(self.step().state().begin_read()?);
        while let Some(draws) = read.take() {
            read = self.run_ahead(&mut left, time)?;
            let draws = draws.wait()?;
            let now = Instant::now();
            if let Some(before) = last_read.replace(now) {
                // There is one row, so each draw is that of a pass.
                time = now.duration_since(before).checked_div(draws.len() as u32);
            }
            for draw in draws {
                let token = token_of(draw)?;
                drawn += 1;
                if drawn == 1 {
                    timing.to_first = start.elapsed();
                    begun = Instant::now();
                } else {
                    timing.generated += 1;
                    timing.generation = begun.elapsed();
                }
                if options.stop.contains(&token) || each(token)?.is_break() {
                    return Ok(());
                }
                if drawn < options.tokens {
                    self.text.push(token);
                }
            }
        }
        Ok(())
    }
}

/// The token of a draw.
fn token_of(draw: Draw) -> Result<u32> {
    match draw.chance {
        // A NaN among the logits makes the probability NaN.
        Some(chance) if chance.is_nan() => Err(Error::NotNumbers),
        _ => Ok(draw.token),
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

impl Timing {
    /// Tokens of the prompt a second; `None` if no token was asked for.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt, self.to_first)
    }

    /// New tokens a second, not counting the first; `None` if there are no others.
    pub fn rate(&self) -> Option<f64> {
        rate(self.generated, self.generation)
    }
}
