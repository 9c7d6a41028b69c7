//! From a job's events to the answer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::listen::LONGEST;
use super::server::Server;
use crate::serve::api::{Answering, ApiError, Choice, Finish, Kind, Scored, Usage};
use crate::serve::engine::{Chances, End, Event, Ticket};
use crate::serve::text::{Answer, Part, Vocabulary};

/// A job that runs, and what its request asks for.
pub(super) struct Work {
    pub(super) ticket: Ticket,
    pub(super) answering: Answering,
    pub(super) stops: Vec<String>,
    pub(super) scored: bool,
    pub(super) choices: usize,
    /// The choices of each prompt.
    pub(super) each: usize,
    /// The last tokens of each prompt that an answer continues; empty for a chat, whose answer is a
    /// text of its own.
    pub(super) last: Vec<Vec<u32>>,
    /// The tokens of the prompts.
    pub(super) prompt: usize,
    pub(super) deadline: Instant,
}

/// The answers while they come.
struct Answers<'a> {
    vocabulary: &'a Vocabulary,
    ticket: &'a mut Ticket,
    deadline: Instant,
    /// `None` for those that have ended.
    answers: Vec<Option<Answer<'a>>>,
    /// The probabilities of tokens whose text waits, if they are wanted.
    scored: Vec<Option<Vec<Scored>>>,
    usage: Usage,
    /// The choices of each prompt.
    each: usize,
}

impl<'a> Answers<'a> {
    fn new(vocabulary: &'a Vocabulary, work: &'a mut Work) -> Self {
        let Work { ticket, stops, scored, choices, each, last, prompt, deadline, .. } = work;
        let stops: &'a [String] = stops;
        let last = |index: usize| last.get(index / *each).map(Vec::as_slice).unwrap_or_default();
        let answer = |index: usize| Some(Answer::new(vocabulary, stops, last(index)));
        Self {
            vocabulary,
            ticket,
            deadline: *deadline,
            answers: (0..*choices).map(answer).collect(),
            scored: vec![scored.then(Vec::new); *choices],
            usage: Usage { prompt: *prompt, ..Usage::default() },
            each: *each,
        }
    }

    /// The next piece of any answer; `None` after the last.
    async fn next(&mut self) -> Result<Option<Choice>, ApiError> {
        while self.answers.iter().any(Option::is_some) {
            let event = match timeout_at(self.deadline, self.ticket.events.recv()).await {
                Ok(Some(event)) => event,
                Ok(None) => return Err(ApiError::new(Kind::Failed, "the model's device has failed")),
                Err(_) => return Err(ApiError::new(Kind::Timeout, "the answer took too long")),
            };
            let piece = match event {
                Event::Begun { choice, reused } => {
                    // The usage has a prompt's tokens once.
                    if choice.is_multiple_of(self.each) {
                        self.usage.reused += reused;
                    }
                    None
                }
                Event::Token { choice, token, chances } => self.token(choice, token, chances)?,
                Event::End { choice, why } => self.end(choice, why)?,
            };
            if piece.is_some() {
                return Ok(piece);
            }
        }
        Ok(None)
    }

    fn token(
        &mut self,
        index: usize,
        token: u32,
        chances: Option<Chances>,
    ) -> Result<Option<Choice>, ApiError> {
        // Tokens that were drawn before the engine knew of the stop string.
        let Some(answer) = self.answers[index].as_mut() else { return Ok(None) };
        self.usage.completion += 1;
        let Part { text, stopped } = answer.push(token)?;
        if let (Some(scored), Some(Chances { drawn, best })) = (&mut self.scored[index], chances) {
            let shown = |id: u32| crate::Result::Ok(self.vocabulary.shown(id, self.vocabulary.decode(id)?));
            let best = best.into_iter().map(|(id, chance)| Ok((shown(id)?, chance)));
            let best = best.collect::<crate::Result<_>>()?;
            scored.push(Scored { token: shown(token)?, logprob: drawn, best, offset: answer.begin() });
        }
        if stopped {
            self.answers[index] = None;
            self.ticket.end(index);
        } else if text.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.piece(index, text, stopped.then_some(Finish::Stop))))
    }

    fn end(&mut self, index: usize, why: End) -> Result<Option<Choice>, ApiError> {
        let Some(answer) = self.answers[index].take() else { return Ok(None) };
        let finish = match why {
            End::Stop => Finish::Stop,
            End::Length => Finish::Length,
            End::Failed(why) => return Err(ApiError::new(Kind::Failed, why)),
        };
        let Part { text, stopped } = answer.finish()?;
        Ok(Some(self.piece(index, text, Some(if stopped { Finish::Stop } else { finish }))))
    }

    fn piece(&mut self, index: usize, text: String, finish: Option<Finish>) -> Choice {
        let scored = self.scored[index].as_mut().map(std::mem::take);
        Choice { index, text, scored, finish }
    }
}

/// Waits for the whole answer.
pub(super) async fn whole(server: &Server, mut work: Work) -> Result<Value, ApiError> {
    let answering = work.answering.clone();
    let mut choices: Vec<Choice> = (0..work.choices)
        .map(|index| Choice { index, scored: work.scored.then(Vec::new), ..Choice::default() })
        .collect();
    let mut answers = Answers::new(&server.vocabulary, &mut work);
    while let Some(piece) = answers.next().await? {
        let choice = &mut choices[piece.index];
        choice.text += &piece.text;
        if let (Some(all), Some(new)) = (&mut choice.scored, piece.scored) {
            all.extend(new);
        }
        choice.finish = piece.finish;
    }
    Ok(answering.whole(&choices, answers.usage))
}

/// The pieces that wait for a slow reader, beside those in the job's own channel.
const PIECES: usize = 16;

/// Answers in pieces, as server-sent events. The channel ends after the last, and if nobody reads
/// it, the job is cancelled.
pub(super) fn pieces(server: Arc<Server>, work: Work) -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::spawn(async move {
        tokio::select! {
            // Nobody reads: what follows is dropped with the ticket.
            () = sender.closed() => {}
            () = send_all(&server, work, &sender) => {}
        }
    });
    receiver
}

async fn send_all(server: &Server, mut work: Work, sender: &mpsc::Sender<Bytes>) {
    let (answering, choices) = (work.answering.clone(), work.choices);
    let mut answers = Answers::new(&server.vocabulary, &mut work);
    for first in (0..choices).filter_map(|index| answering.first(index)) {
        send(sender, &first).await;
    }
    loop {
        match answers.next().await {
            Ok(Some(piece)) => send(sender, &answering.piece(&piece)).await,
            Ok(None) => break,
            Err(error) => {
                // The status is long sent. Clients know this object.
                send(sender, &error.json()).await;
                return;
            }
        }
    }
    if let Some(last) = answering.usage(answers.usage) {
        send(sender, &last).await;
    }
    // A reader that is gone is noticed by `closed`.
    let _ = sender.send(Bytes::from_static(b"data: [DONE]\n\n")).await;
}

async fn send(sender: &mpsc::Sender<Bytes>, value: &Value) {
    let _ = sender.send(Bytes::from(format!("data: {value}\n\n"))).await;
}

/// The moment at which an answer that starts now has taken too long.
pub(super) fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}
