//! A text while it is generated.

use std::sync::Arc;
use std::time::Instant;

use burn_rocm::fused::decode::Sampling;
use burn_rocm_nn::language::SequenceId;
use tokio::sync::mpsc;

use super::job::{Chances, End, Event, Job};
use super::prefixes::Chain;
use crate::model::Next;

/// A text with all that is needed to go on with it, in the batch or out of it.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) job: u64,
    pub(super) choice: usize,
    /// Sequences run in this order.
    pub(super) order: u64,
    /// The order of the job's first sequence with the same prompt, whose blocks this one shares.
    pub(super) leader: Option<u64>,
    /// The prompt, and the tokens that were drawn.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    /// The most tokens to draw.
    pub(super) most: usize,
    pub(super) stop: Arc<[u32]>,
    pub(super) sampling: Sampling,
    pub(super) chances: Option<usize>,
    events: mpsc::Sender<Event>,
    /// When it was asked for or, later, when its last token was drawn.
    pub(super) since: Instant,
    /// Whether it has been in the batch.
    pub(super) begun: bool,
}

/// A sequence in the batch.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) sequence: Sequence,
    pub(super) id: SequenceId,
    /// Its row of the state that draws.
    pub(super) row: usize,
    /// Its tokens in the cache.
    pub(super) cached: usize,
    /// Tokens that were drawn and not read.
    pub(super) unread: usize,
    pub(super) chain: Chain,
    /// Whether its row has its parameters.
    pub(super) set: bool,
}

/// The sequences of a job that was submitted at `since`. The first has this order, and the others
/// follow.
pub(super) fn sequences(
    id: u64,
    job: Job,
    since: Instant,
    order: u64,
    events: &mpsc::Sender<Event>,
) -> impl Iterator<Item = Sequence> {
    let Job { prompts, choices, tokens, sampling, stop, chances } = job;
    let (stop, events): (Arc<[u32]>, _) = (stop.into(), events.clone());
    let all = prompts.into_iter().enumerate();
    let all = all.flat_map(move |(index, prompt)| {
        (0..choices).map(move |copy| (index * choices, copy, prompt.clone()))
    });
    all.map(move |(first, copy, prompt)| {
        let choice = first + copy;
        let sampling = Sampling { seed: sampling.seed.wrapping_add(choice as u64), ..sampling };
        Sequence {
            job: id,
            choice,
            order: order + choice as u64,
            leader: (copy > 0).then_some(order + first as u64),
            prompt: prompt.len(),
            tokens: prompt,
            most: tokens,
            stop: stop.clone(),
            sampling,
            chances,
            events: events.clone(),
            since,
            begun: false,
        }
    })
}

impl Sequence {
    /// The tokens that were drawn.
    pub(super) fn drawn(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Sends an event. The channel has room for all of them. If nobody reads it, the command that
    /// cancels the job was sent before.
    pub(super) fn send(&self, event: Event) {
        let _ = self.events.try_send(event);
    }

    /// Adds a token that was drawn. Returns why the text ends, if it does.
    pub(super) fn push(&mut self, token: u32, chances: Option<Chances>) -> Option<End> {
        if self.stop.contains(&token) {
            return Some(End::Stop);
        }
        self.tokens.push(token);
        self.send(Event::Token { choice: self.choice, token, chances });
        (self.drawn() >= self.most).then_some(End::Length)
    }
}

impl Running {
    /// The tokens that are not in the cache.
    pub(super) fn rest(&self) -> usize {
        self.sequence.tokens.len() + self.unread - self.cached
    }

    /// Whether all of its tokens were drawn.
    pub(super) fn is_complete(&self) -> bool {
        self.sequence.drawn() + self.unread >= self.sequence.most
    }

    /// Its next tokens, so many of the [`rest`](Self::rest).
    pub(super) fn next(&self, tokens: usize) -> Next<'_> {
        match self.sequence.tokens.get(self.cached..self.cached + tokens) {
            Some(known) => Next::Tokens(known),
            // The last is drawn, and rests alone.
            None => Next::Drawn(self.row),
        }
    }
}
