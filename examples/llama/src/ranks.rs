//! One text by several devices. The first rank leads: it tells the others what it does, and they do
//! the same. All draw the same tokens, because all have the same logits and seeds, so no token
//! travels from one to another.

use std::sync::mpsc::{Receiver, Sender, channel};

use burn_rocm::fused::decode::{self, SampleTables};

use crate::error::{Error, Result};
use crate::model::{Cache, Model, PIECE, Step};

/// What all ranks do in the same order.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Forget all tokens after the first ones, this many.
    Truncate(usize),
    /// Add tokens to the cache, and draw the next one.
    Prompt {
        tokens: Vec<u32>,
        /// How the answer's tokens are drawn, and the text before it; `None`: no token is drawn.
        answer: Option<Box<(decode::Sampling, Vec<u32>)>>,
    },
    /// Add the token that was drawn last, and draw the next one.
    Pass,
    /// The same, [`PASSES`](crate::model::PASSES) times by one launch.
    Several,
}

/// What a rank has of a session.
#[derive(Debug)]
pub(crate) struct Engine<'a> {
    model: &'a Model,
    pub(crate) cache: Cache,
    pub(crate) step: Step<'a>,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(model: &'a Model, mut cache: Cache) -> Result<Self> {
        cache.truncate(0);
        let tables = SampleTables { counts: true, chances: true, ring: 0 };
        let step = Step::new(model, std::slice::from_ref(&cache), tables)?;
        Ok(Self { model, cache, step })
    }

    pub(crate) fn run(&mut self, command: &Command) -> Result<()> {
        let done = self.try_to(command);
        // The other ranks get an error instead of waiting for this one.
        if let (Err(error), Some(ranks)) = (&done, self.model.ranks())
            && !is_refused(error)
        {
            ranks.abort();
        }
        done
    }

    fn try_to(&mut self, command: &Command) -> Result<()> {
        match command {
            Command::Truncate(len) => self.cache.truncate(*len),
            Command::Pass => self.step.run(std::slice::from_mut(&mut self.cache))?,
            Command::Several => self.step.run_several(std::slice::from_mut(&mut self.cache))?,
            Command::Prompt { tokens, answer } => {
                let logits = self.model.prefill(tokens, &mut self.cache, PIECE)?;
                if let Some((sampling, text)) = answer.as_deref() {
                    self.step.state().set(0, sampling, text)?;
                    decode::sample(logits.into_primitive().tensor(), self.step.state())?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a command was refused before anything happened, on all ranks alike.
fn is_refused(error: &Error) -> bool {
    matches!(error, Error::TooLong { .. } | Error::Token { .. } | Error::Argument { .. })
}

/// The ranks that a session leads. When it is dropped, they end.
#[derive(Debug)]
pub struct Followers(Vec<Sender<Command>>);

/// The leader's commands to one rank.
#[derive(Debug)]
pub struct Commands(Receiver<Command>);

/// The channels from a leader to `count` other ranks: the leader's ends, and theirs.
pub fn followers(count: usize) -> (Followers, Vec<Commands>) {
    let (leader, others) = (0..count).map(|_| channel()).unzip::<_, _, Vec<_>, Vec<_>>();
    (Followers(leader), others.into_iter().map(Commands).collect())
}

impl Followers {
    pub(crate) fn tell(&self, command: &Command) {
        for follower in &self.0 {
            // A rank that has ended has aborted the group, so this rank's next call fails.
            let _ = follower.send(command.clone());
        }
    }
}

/// Does what the leader does, until the leader's session is dropped. The cache is like that of the
/// leader.
///
/// # Errors
/// The first error of this rank, which then aborts the group.
pub fn follow(model: &Model, cache: Cache, commands: &Commands) -> Result<()> {
    let mut engine = Engine::new(model, cache)?;
    while let Ok(command) = commands.0.recv() {
        match engine.run(&command) {
            Err(error) if !is_refused(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
