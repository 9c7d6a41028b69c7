//! What a request asks of the engine, and what it gets back.

use burn_rocm::fused::decode::Sampling;

/// Prompts to continue.
#[derive(Clone, Debug)]
pub struct Job {
    /// The prompts, each of at least one token.
    pub prompts: Vec<Vec<u32>>,
    /// The texts to generate for each prompt. Text `c` of prompt `p` is choice `p * choices + c`.
    pub choices: usize,
    /// The most tokens of a text.
    pub tokens: usize,
    /// How tokens are drawn. Choice `i` has the seed plus `i`.
    pub sampling: Sampling,
    /// Tokens that end a text and are not part of it.
    pub stop: Vec<u32>,
    /// Whether to say each token's probability, and those of so many most likely tokens.
    pub chances: Option<usize>,
}

/// The natural logarithms of probabilities in the softmax of the logits: before penalties,
/// temperature and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct Chances {
    /// Of the token that was drawn.
    pub drawn: f32,
    /// The most likely tokens, the most likely one first.
    pub best: Vec<(u32, f32)>,
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The model chose a stop token.
    Stop,
    /// It has as many tokens as were asked for.
    Length,
    /// The model can't go on.
    Failed(String),
}

/// What happened to a choice.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It is in the batch for the first time.
    Begun {
        /// The choice.
        choice: usize,
        /// The tokens of its prompt that the cache had.
        reused: usize,
    },
    /// A token was drawn.
    Token {
        /// The choice.
        choice: usize,
        /// The token.
        token: u32,
        /// Its probability, if the job asks for it.
        chances: Option<Chances>,
    },
    /// Nothing follows.
    End {
        /// The choice.
        choice: usize,
        /// Why.
        why: End,
    },
}

/// The events of a choice that are not tokens: its begin and its end.
const OTHERS: usize = 2;

impl Job {
    /// The texts of all prompts.
    pub fn texts(&self) -> usize {
        self.prompts.len().saturating_mul(self.choices)
    }

    /// The most events. A channel with room for them never makes the engine wait for its reader.
    pub(super) fn events(&self) -> usize {
        self.texts().saturating_mul(self.tokens.saturating_add(OTHERS))
    }
}
