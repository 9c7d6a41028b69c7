//! Answers, whole or in pieces.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::ask::Route;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// By a stop token or a stop string.
    Stop,
    /// It has as many tokens as were asked for.
    Length,
}

/// A token with its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Its text. Bytes that are no whole character are U+FFFD.
    pub token: String,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens, the most likely one first.
    pub best: Vec<(String, f32)>,
    /// The characters before it in the answer. For a token within a character, those before that
    /// character.
    pub offset: usize,
}

/// The tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompts.
    pub prompt: usize,
    /// Those of them that the cache had.
    pub reused: usize,
    /// Of the answers.
    pub completion: usize,
}

/// A text of an answer, or a piece of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Which of the answers.
    pub index: usize,
    /// The text.
    pub text: String,
    /// The tokens' probabilities, if the request asks for them.
    pub scored: Option<Vec<Scored>>,
    /// Why it ended, in its last piece.
    pub finish: Option<Finish>,
}

/// What all pieces of an answer have in common.
#[derive(Clone, Debug)]
pub struct Answering {
    route: Route,
    id: String,
    created: u64,
    model: String,
    /// Whether a last piece says how many tokens there were.
    usage: bool,
}

/// The seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Usage {
    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.reused},
        })
    }
}

impl Answering {
    /// The answer to a request. `usage`: whether a last piece says how many tokens there were.
    pub fn new(route: Route, model: &str, usage: bool) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let kind = match route {
            Route::Completion => "cmpl",
            Route::Chat => "chatcmpl",
        };
        let created = now();
        let id = format!("{kind}-{created:x}{:08x}", LAST.fetch_add(1, Ordering::Relaxed));
        Self { route, id, created, model: model.to_owned(), usage }
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".to_owned(), json!(self.id));
        map.insert("object".to_owned(), json!(object));
        map.insert("created".to_owned(), json!(self.created));
        map.insert("model".to_owned(), json!(self.model));
        map.insert("choices".to_owned(), Value::Array(choices));
        map
    }

    fn piece_of(&self, choices: Vec<Value>) -> Map<String, Value> {
        let object = match self.route {
            Route::Completion => "text_completion",
            Route::Chat => "chat.completion.chunk",
        };
        let mut map = self.object(object, choices);
        if self.usage {
            // The last piece has numbers.
            map.insert("usage".to_owned(), Value::Null);
        }
        map
    }

    /// The whole answer.
    pub fn whole(&self, choices: &[Choice], usage: Usage) -> Value {
        let choice = |choice: &Choice| {
            let Choice { index, text, scored, finish } = choice;
            let logprobs = scored.as_deref().map(|scored| self.logprobs(scored));
            match self.route {
                Route::Completion => {
                    json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
                }
                Route::Chat => {
                    let message = json!({"role": "assistant", "content": text, "refusal": null});
                    json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish})
                }
            }
        };
        let object = match self.route {
            Route::Completion => "text_completion",
            Route::Chat => "chat.completion",
        };
        let mut map = self.object(object, choices.iter().map(choice).collect());
        map.insert("usage".to_owned(), usage.json());
        Value::Object(map)
    }

    /// The piece before the first text of a choice, if the format has one.
    pub fn first(&self, index: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        (self.route == Route::Chat).then(|| Value::Object(self.piece_of(vec![choice])))
    }

    /// A piece of a choice.
    pub fn piece(&self, choice: &Choice) -> Value {
        let Choice { index, text, scored, finish } = choice;
        let logprobs = scored.as_deref().map(|scored| self.logprobs(scored));
        let choice = match self.route {
            Route::Completion => {
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
            }
            Route::Chat => {
                let delta = if text.is_empty() { json!({}) } else { json!({"content": text}) };
                json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})
            }
        };
        Value::Object(self.piece_of(vec![choice]))
    }

    /// The last piece, if the request wants to know how many tokens there were.
    pub fn usage(&self, usage: Usage) -> Option<Value> {
        self.usage.then(|| {
            let mut map = self.piece_of(Vec::new());
            map.insert("usage".to_owned(), usage.json());
            Value::Object(map)
        })
    }

    fn logprobs(&self, scored: &[Scored]) -> Value {
        match self.route {
            Route::Completion => {
                let best = |scored: &Scored| {
                    let mut best = Map::new();
                    for (token, logprob) in &scored.best {
                        // Tokens may show alike. The most likely one comes first.
                        best.entry(token.as_str()).or_insert_with(|| json!(logprob));
                    }
                    best
                };
                json!({
                    "tokens": scored.iter().map(|scored| &scored.token).collect::<Vec<_>>(),
                    "token_logprobs": scored.iter().map(|scored| scored.logprob).collect::<Vec<_>>(),
                    "top_logprobs": scored.iter().map(best).collect::<Vec<_>>(),
                    "text_offset": scored.iter().map(|scored| scored.offset).collect::<Vec<_>>(),
                })
            }
            Route::Chat => {
                let bytes = |token: &str| {
                    // The bytes of a token that is no whole character are not known.
                    (!token.contains(char::REPLACEMENT_CHARACTER)).then(|| token.as_bytes().to_vec())
                };
                let of = |token: &str, logprob: f32| json!({"token": token, "logprob": logprob, "bytes": bytes(token)});
                let content = scored.iter().map(|scored| {
                    let best: Vec<_> = scored.best.iter().map(|(token, chance)| of(token, *chance)).collect();
                    let mut entry = of(&scored.token, scored.logprob);
                    entry["top_logprobs"] = Value::Array(best);
                    entry
                });
                json!({"content": content.collect::<Vec<_>>(), "refusal": null})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_tokens_that_show_alike_the_most_likely_one_counts() {
        let best = [("\u{fffd}", -0.5), ("a", -1.5), ("\u{fffd}", -2.5)];
        let best: Vec<_> = best.map(|(token, logprob)| (token.to_owned(), logprob)).into();
        let scored = vec![Scored { token: "\u{fffd}".to_owned(), logprob: -0.5, best, offset: 0 }];
        let choice = Choice { scored: Some(scored), ..Choice::default() };
        let logprobs = |route| {
            let choices = std::slice::from_ref(&choice);
            let answer = Answering::new(route, "small", false).whole(choices, Usage::default());
            answer["choices"][0]["logprobs"].clone()
        };
        let found = logprobs(Route::Completion);
        assert_eq!(found["top_logprobs"], json!([{"\u{fffd}": -0.5, "a": -1.5}]));
        // A chat's answer has a list of them.
        let found = logprobs(Route::Chat);
        let of = |entry: &Value| entry["logprob"].as_f64();
        let best = found["content"][0]["top_logprobs"].as_array().expect("a list");
        assert_eq!(best.iter().map(of).collect::<Vec<_>>(), [-0.5, -1.5, -2.5].map(Some));
    }
}
