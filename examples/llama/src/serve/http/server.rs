//! What a server is: a model, its engine, and limits.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, HeaderMap};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use crate::rng::Rng;
use crate::serve::api::{ApiError, Ask, Defaults, Kind, Prompt};
use crate::serve::engine::{Handle, Job, Ticket};
use crate::serve::text::Vocabulary;
use crate::text::Chat;

/// What the routes need.
#[derive(Debug)]
pub struct Server {
    /// The engine.
    pub engine: Handle,
    /// The model's tokens.
    pub vocabulary: Vocabulary,
    /// The chat template, if the model has one.
    pub chat: Option<Chat>,
    /// Tokens that end an answer.
    pub stop: Vec<u32>,
    /// How tokens are drawn if a request doesn't say.
    pub defaults: Defaults,
    /// The model's name.
    pub model: String,
    /// When the server started, in seconds since 1970.
    pub created: u64,
    /// The key that requests must have.
    pub key: Option<String>,
    /// The most bytes of a body.
    pub body: usize,
    /// How long a request's body may take.
    pub slow: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Gives requests without a seed one.
    pub seeds: Mutex<Rng>,
}

impl Server {
    /// Fails unless a request has the key, if there is one.
    pub(super) fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(key) = &self.key else { return Ok(()) };
        let given = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, given) = value.as_bytes().split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(given)
        });
        match given {
            // Takes as long for each key of this length.
            Some(given) if bool::from(given.ct_eq(key.as_bytes())) => Ok(()),
            Some(_) => Err(ApiError::new(Kind::Key, "Incorrect API key provided")),
            None => Err(ApiError::new(Kind::Key, "expected a header `Authorization: Bearer KEY`")),
        }
    }

    /// The model, as the routes of models describe it.
    pub(super) fn card(&self) -> Value {
        json!({
            "id": self.model, "object": "model", "created": self.created, "owned_by": "llama-serve",
            "max_model_len": self.engine.limits().context,
        })
    }

    /// Gives the request to the engine. Returns the tokens of its prompts too.
    pub(super) fn start(&self, ask: &Ask) -> Result<(Ticket, usize), ApiError> {
        let prompts = ask.prompts.iter().map(|prompt| self.tokens(prompt));
        let prompts = prompts.collect::<Result<Vec<_>, ApiError>>()?;
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let room = self.engine.limits().context.saturating_sub(longest).max(1);
        let count = prompts.iter().map(Vec::len).sum();
        let mut sampling = ask.sampling;
        if !ask.seeded {
            let mut seeds = self.seeds.lock().unwrap_or_else(PoisonError::into_inner);
            sampling.seed = seeds.bits();
        }
        let job = Job {
            prompts,
            choices: ask.choices,
            tokens: ask.tokens.unwrap_or(room),
            sampling,
            stop: self.stop.clone(),
            chances: ask.logprobs,
        };
        Ok((self.engine.submit(job)?, count))
    }

    fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>, ApiError> {
        let (field, tokens) = match prompt {
            Prompt::Tokens(tokens) => ("prompt", tokens.clone()),
            Prompt::Text(text) => ("prompt", self.vocabulary.encode(text, true)?),
            Prompt::Messages(messages) => {
                let Some(chat) = &self.chat else {
                    let message = "the model has no chat template; /v1/completions continues texts";
                    return Err(ApiError::field("messages", message));
                };
                ("messages", self.vocabulary.encode(&chat.render(messages, true)?, false)?)
            }
        };
        if tokens.is_empty() {
            return Err(ApiError::field(field, format!("`{field}`: expected at least 1 token, found none")));
        }
        Ok(tokens)
    }
}
