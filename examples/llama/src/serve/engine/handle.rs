//! The engine as seen from other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use burn_rocm_nn::language::BLOCK;
use tokio::sync::mpsc;

use super::job::{Event, Job};
use crate::error::Error;
use crate::serve::metrics::Metrics;

/// The sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most sequences in the batch.
    pub rows: usize,
    /// The most tokens of a step; at least `rows`.
    pub step: usize,
    /// The most tokens of a sequence, prompt and answer.
    pub context: usize,
    /// Blocks of 16 tokens in the cache.
    pub blocks: usize,
    /// The most sequences that wait for their first place in the batch.
    pub waiting: usize,
}

/// The most sequences in the batch: what `SampleState::begin_read` reads at once.
const MOST_ROWS: usize = 8192;

impl Limits {
    /// Checks the sizes, for a model with a context of `longest` tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] for limits of 0, more than 8192 rows, a step of fewer tokens than rows,
    /// or a context that the model or the blocks don't have.
    pub fn check(&self, longest: usize) -> crate::Result<()> {
        let Self { rows, step, context, blocks, .. } = *self;
        let room = blocks.saturating_mul(BLOCK);
        let most = longest.min(room);
        let wrong = |name, expected: String, found: usize| {
            Err(Error::Argument { name, expected, found: found.to_string() })
        };
        if rows == 0 {
            return wrong("sequences", "at least 1".to_owned(), rows);
        }
        if rows > MOST_ROWS {
            return wrong("sequences", format!("at most {MOST_ROWS}"), rows);
        }
        if step < rows {
            return wrong("step-tokens", format!("at least one for each of {rows} sequences"), step);
        }
        if !(2..=most).contains(&context) {
            let why = match room < longest {
                true => "for which the cache has room (--cache-tokens)",
                false => "for which the model was made",
            };
            return wrong("context", format!("2 to {most} tokens, {why}"), context);
        }
        Ok(())
    }
}

/// A message to the engine.
#[derive(Debug)]
pub(super) enum Command {
    /// A job, when it was asked for, and where its events go.
    Start(u64, Box<Job>, Instant, mpsc::Sender<Event>),
    /// Nobody reads the job any more. With a choice: only that one ends, because its text is
    /// complete.
    Cancel(u64, Option<usize>),
}

/// Why a job was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many sequences wait.
    #[error("{waiting} sequences wait, and at most {limit} may; try again later")]
    Busy {
        /// The sequences that wait.
        waiting: usize,
        /// The most that may wait.
        limit: usize,
    },
    /// A prompt leaves no room for an answer.
    #[error("a sequence may have {limit} tokens, found {prompt} of the prompt + {answer} to generate")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens to generate.
        answer: usize,
        /// The most tokens of a sequence.
        limit: usize,
    },
    /// A number of the job makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The engine has ended.
    #[error("the engine has stopped")]
    Stopped,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) limits: Limits,
    pub(super) vocabulary: usize,
    pub(super) metrics: Arc<Metrics>,
    pub(super) alive: AtomicBool,
    pub(super) next: AtomicU64,
}

/// Gives jobs to an engine. The engine ends when all handles and tickets are gone.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) commands: Sender<Command>,
}

/// A job that runs. If it is dropped, the job is cancelled.
#[derive(Debug)]
pub struct Ticket {
    /// What happens. It ends early only if the engine does.
    pub events: mpsc::Receiver<Event>,
    id: u64,
    commands: Sender<Command>,
}

impl Handle {
    /// The sizes.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// The tokens that the model knows.
    pub fn vocabulary(&self) -> usize {
        self.shared.vocabulary
    }

    /// The counters.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.shared.metrics
    }

    /// Whether the engine runs.
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::Acquire)
    }

    /// Gives a job to the engine. Doesn't wait.
    ///
    /// # Errors
    /// Why the job is not accepted.
    pub fn submit(&self, job: Job) -> Result<Ticket, Refusal> {
        let since = Instant::now();
        let Limits { context: limit, waiting: most, .. } = self.shared.limits;
        let vocabulary = self.shared.vocabulary;
        let texts = job.texts();
        if texts == 0 || job.tokens == 0 || job.prompts.iter().any(Vec::is_empty) {
            return Err(Refusal::Invalid(
                "expected prompts with tokens, and at least 1 token to generate".into(),
            ));
        }
        if let Some(token) = job.prompts.iter().flatten().find(|&&token| token as usize >= vocabulary) {
            return Err(Refusal::Invalid(format!("expected token ids below {vocabulary}, found {token}")));
        }
        // Not `Busy`, because waiting would never make room for it.
        if texts > most {
            let found = format!("{} prompts with {} choices each", job.prompts.len(), job.choices);
            return Err(Refusal::Invalid(format!("expected at most {most} texts at once, found {found}")));
        }
        job.sampling.check().map_err(|error| Refusal::Invalid(error.to_string()))?;
        let prompt = job.prompts.iter().map(Vec::len).max().unwrap_or(0);
        if prompt.saturating_add(job.tokens) > limit {
            return Err(Refusal::TooLong { prompt, answer: job.tokens, limit });
        }
        let room = |waiting: usize| waiting.checked_add(texts).filter(|&all| all <= most);
        let waiting = &self.shared.metrics.waiting;
        waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, room)
            .map_err(|waiting| Refusal::Busy { waiting, limit: most })?;
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = mpsc::channel(job.events());
        match self.commands.send(Command::Start(id, Box::new(job), since, sender)) {
            Ok(()) => Ok(Ticket { events, id, commands: self.commands.clone() }),
            Err(_) => {
                waiting.fetch_sub(texts, Ordering::AcqRel);
                Err(Refusal::Stopped)
            }
        }
    }
}

impl Ticket {
    /// Ends one choice, whose text is complete.
    pub fn end(&self, choice: usize) {
        // An engine that has ended has ended the choice too.
        let _ = self.commands.send(Command::Cancel(self.id, Some(choice)));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Cancel(self.id, None));
    }
}

#[cfg(test)]
mod tests {
    use burn_rocm::fused::decode::Sampling;

    use super::*;
    use crate::serve::engine::sequence::sequences;

    /// The engine takes a job when its step is over.
    #[test]
    fn the_time_to_the_first_token_begins_where_the_job_is_submitted() {
        let limits = Limits { rows: 1, step: 1, context: 16, blocks: 1, waiting: 2 };
        let (metrics, alive, next) = (Arc::default(), AtomicBool::new(true), AtomicU64::new(0));
        let shared = Arc::new(Shared { limits, vocabulary: 8, metrics, alive, next });
        let (commands, queue) = std::sync::mpsc::channel();
        let sampling = Sampling::default();
        let job =
            Job { prompts: vec![vec![1]], choices: 2, tokens: 1, sampling, stop: vec![], chances: None };
        let before = Instant::now();
        let ticket = Handle { shared, commands }.submit(job).expect("an accepted job");
        let after = Instant::now();
        let Ok(Command::Start(id, job, since, events)) = queue.recv() else { panic!("no job") };
        assert_eq!(id, ticket.id);
        let found: Vec<_> = sequences(id, *job, since, 0, &events).map(|sequence| sequence.since).collect();
        assert!(found == [since; 2] && (before..=after).contains(&since), "{found:?}");
    }
}
