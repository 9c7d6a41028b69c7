//! What a request asks for: the fields of OpenAI's API, checked.

use burn_rocm::fused::decode::Sampling;
use serde_json::{Value, json};

use super::error::{ApiError, Kind};
use super::fields::Fields;
use super::messages::{NO_TOOLS, messages};
use crate::config::Generation;
use crate::sample::{self, above_0};
use crate::text::Message;

type Result<T> = std::result::Result<T, ApiError>;

/// The most choices of a request.
const MOST_CHOICES: usize = 128;
/// The most likely tokens that a request may ask for.
const MOST_LOGPROBS: usize = 20;
/// The tokens of a completion that doesn't say how many.
const COMPLETION_TOKENS: usize = 16;

/// Which of the two formats an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
}

/// What is to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
    /// A conversation, for the model's template.
    Messages(Vec<Message>),
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The format.
    pub route: Route,
    /// The model's name, if the request has one.
    pub model: Option<String>,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// The answers to each prompt.
    pub choices: usize,
    /// The most tokens of an answer; `None`: as many as there is room for.
    pub tokens: Option<usize>,
    /// How tokens are drawn; its seed only if `seeded`.
    pub sampling: Sampling,
    /// Whether the request has a seed.
    pub seeded: bool,
    /// Strings that end an answer.
    pub stops: Vec<String>,
    /// Whether each token's probability is wanted, and those of so many others.
    pub logprobs: Option<usize>,
    /// Whether the answer comes in pieces.
    pub stream: bool,
    /// Whether the last piece says how many tokens there were.
    pub usage: bool,
}

/// What counts if a request says nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Defaults(Sampling);

impl Defaults {
    /// What the model's authors recommend; if they don't, what OpenAI's API says: temperature 1.
    pub fn new(generation: &Generation) -> Self {
        let recommended = sample::Sampling::recommended(generation).on_device(0);
        let temperature = if generation.sample { recommended.temperature } else { 1.0 };
        Self(Sampling { temperature, ..recommended })
    }
}

/// The body of `/v1/completions`.
///
/// # Errors
/// Which field is wrong.
pub fn completion(body: &[u8], defaults: &Defaults) -> Result<Ask> {
    let mut fields = Fields::of_body(body)?;
    let prompts = prompts(fields.take("prompt"))?;
    let logprobs = fields.count("logprobs", 0..=MOST_LOGPROBS)?;
    let tokens = Some(fields.count("max_tokens", 1..=usize::MAX)?.unwrap_or(COMPLETION_TOKENS));
    fields.refuse("suffix", &[json!("")], "")?;
    fields.refuse("echo", &[json!(false)], "")?;
    let ask = common(&mut fields, Route::Completion, prompts, (tokens, logprobs), defaults)?;
    let best_of = fields.count("best_of", 1..=MOST_CHOICES)?;
    if best_of.is_some_and(|best_of| best_of != ask.choices) {
        return Err(ApiError::field("best_of", "`best_of` other than `n` is not supported by this server"));
    }
    fields.finish()?;
    Ok(ask)
}

/// The body of `/v1/chat/completions`.
///
/// # Errors
/// Which field is wrong.
pub fn chat(body: &[u8], defaults: &Defaults) -> Result<Ask> {
    let mut fields = Fields::of_body(body)?;
    let messages = messages(fields.take("messages"))?;
    let wanted = fields.flag("logprobs")?;
    let best = fields.count("top_logprobs", 0..=MOST_LOGPROBS)?;
    if best.is_some() && !wanted {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs`: true"));
    }
    let logprobs = wanted.then_some(best.unwrap_or(0));
    let older = fields.count("max_tokens", 1..=usize::MAX)?;
    let tokens = fields.count("max_completion_tokens", 1..=usize::MAX)?.or(older);
    for name in ["tools", "functions"] {
        fields.refuse(name, &[], NO_TOOLS)?;
    }
    for name in ["tool_choice", "function_call"] {
        fields.refuse(name, &[json!("none"), json!("auto")], NO_TOOLS)?;
    }
    fields.take("parallel_tool_calls");
    let schemas = ": JSON schemas are not supported, answers are texts";
    fields.refuse("response_format", &[json!({"type": "text"})], schemas)?;
    fields.refuse("modalities", &[json!(["text"])], "")?;
    for name in ["audio", "prediction", "web_search_options", "reasoning_effort", "verbosity"] {
        fields.refuse(name, &[], "")?;
    }
    let prompts = vec![Prompt::Messages(messages)];
    let ask = common(&mut fields, Route::Chat, prompts, (tokens, logprobs), defaults)?;
    fields.finish()?;
    Ok(ask)
}

/// The fields that both routes have.
fn common(
    fields: &mut Fields,
    route: Route,
    prompts: Vec<Prompt>,
    (tokens, logprobs): (Option<usize>, Option<usize>),
    &Defaults(defaults): &Defaults,
) -> Result<Ask> {
    let model = fields.text("model")?;
    let choices = fields.count("n", 1..=MOST_CHOICES)?.unwrap_or(1);
    if prompts.len().saturating_mul(choices) > MOST_CHOICES {
        let found = format!("{} prompts and `n` = {choices}", prompts.len());
        return Err(ApiError::field("n", format!("expected at most {MOST_CHOICES} answers, found {found}")));
    }
    let seed = fields.seed("seed")?;
    let sampling = Sampling {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(defaults.temperature),
        top_k: fields.count("top_k", 0..=usize::MAX)?.unwrap_or(defaults.top_k),
        top_p: fields.number("top_p", 0.0..=1.0)?.map_or(defaults.top_p, above_0),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(defaults.min_p),
        repetition_penalty: fields
            .number("repetition_penalty", 0.01..=100.0)?
            .unwrap_or(defaults.repetition_penalty),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        seed: seed.unwrap_or(0),
    };
    let stops = fields.stops("stop")?;
    let stream = fields.flag("stream")?;
    let usage = match fields.take("stream_options") {
        None => false,
        Some(_) if !stream => {
            return Err(ApiError::field("stream_options", "`stream_options` needs `stream`: true"));
        }
        Some(options) => {
            let mut options = Fields::of_value("stream_options", options)?;
            options.take("include_obfuscation");
            let usage = options.flag("include_usage")?;
            options.finish()?;
            usage
        }
    };
    fields.refuse("logit_bias", &[], "")?;
    fields.refuse("store", &[json!(false)], "")?;
    // What is for OpenAI's accounts and machines.
    for name in ["user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"] {
        fields.take(name);
    }
    let seeded = seed.is_some();
    Ok(Ask { route, model, prompts, choices, tokens, sampling, seeded, stops, logprobs, stream, usage })
}

/// A text, tokens, or a list of either.
fn prompts(value: Option<Value>) -> Result<Vec<Prompt>> {
    let wrong = || {
        let expected = "a string, an array of strings, of token ids, or of arrays of token ids";
        ApiError::field("prompt", format!("`prompt`: expected {expected}, none of them empty"))
    };
    let tokens = |list: &[Value]| {
        let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens: Option<Vec<u32>> = list.iter().map(token).collect();
        tokens.filter(|tokens| !tokens.is_empty()).map(Prompt::Tokens)
    };
    let prompts = match value {
        Some(Value::String(text)) => Some(vec![Prompt::Text(text)]),
        Some(Value::Array(list)) => match list.first() {
            Some(Value::Number(_)) => tokens(&list).map(|prompt| vec![prompt]),
            Some(_) => {
                let prompt = |value: &Value| match value {
                    Value::String(text) => Some(Prompt::Text(text.clone())),
                    Value::Array(list) => tokens(list),
                    _ => None,
                };
                list.iter().map(prompt).collect()
            }
            None => None,
        },
        _ => None,
    };
    prompts.ok_or_else(wrong)
}

impl Ask {
    /// Fails unless the request is for this model, or for none.
    ///
    /// # Errors
    /// `Model`.
    pub fn check_model(&self, name: &str) -> Result<()> {
        match &self.model {
            Some(other) if other != name => {
                let message = format!("The model `{other}` does not exist. This server has `{name}`.");
                Err(ApiError { kind: Kind::Model, message, param: Some("model".to_owned()) })
            }
            _ => Ok(()),
        }
    }
}
