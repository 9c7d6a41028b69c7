//! What a server is: a model, its engine, and limits.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, HOST, HeaderMap};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use crate::rng::Rng;
use crate::serve::api::{ApiError, Ask, Defaults, Kind, Prompt};
use crate::serve::engine::{Handle, Job, Ticket};
use crate::serve::text::Vocabulary;
use crate::text::{Chat, Stream};

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
    /// Whether only programs of this machine can connect.
    pub local: bool,
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
    /// Fails unless a request has the key, if there is one. If there is none, and only programs of
    /// this machine can connect, fails for other hosts' names: a page whose name leads here is the
    /// same site for a browser, and might use the server.
    pub(super) fn check_access(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(key) = &self.key else {
            let host = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
            return match host.filter(|host| self.local && !is_local(host)) {
                Some(host) => {
                    let message =
                        format!("expected a Host that is localhost or an IP address, found {host:?}");
                    Err(ApiError::new(Kind::Host, message))
                }
                None => Ok(()),
            };
        };
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

    /// Gives the request to the engine, and forgets its prompts. Returns how many tokens these
    /// have, and the last ones of each, which an answer may continue.
    pub(super) fn start(&self, ask: &mut Ask) -> Result<(Ticket, usize, Vec<Vec<u32>>), ApiError> {
        let prompts = std::mem::take(&mut ask.prompts);
        let prompts = prompts.iter().map(|prompt| self.tokens(prompt));
        let prompts = prompts.collect::<Result<Vec<_>, ApiError>>()?;
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let room = self.engine.limits().context.saturating_sub(longest).max(1);
        let count = prompts.iter().map(Vec::len).sum();
        let last = |prompt: &Vec<u32>| prompt[prompt.len().saturating_sub(Stream::CONTEXT)..].to_vec();
        let last = prompts.iter().map(last).collect();
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
        Ok((self.engine.submit(job)?, count, last))
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

/// Whether a `Host` names no other machine: `localhost` or an IP address, with a port or without.
fn is_local(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        // The end of an IPv6 address is no port.
        Some((name, port)) if is_port(port) && (name.ends_with(']') || !name.starts_with('[')) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn hosts_of_other_names_are_not_local() {
        for host in
            ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:80", "10.0.0.7"]
        {
            assert!(is_local(host), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil:80", ":80"]
        {
            assert!(!is_local(host), "{host}");
        }
    }
}
