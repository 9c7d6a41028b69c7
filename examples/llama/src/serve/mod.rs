//! The program `llama-serve`: OpenAI's completions and chat over HTTP, for many requests at once.
//! `docs/guide/language-models.md` describes it.
//!
//! A request becomes a [`Job`](engine::Job) for the [`engine`], which computes tokens. What turns
//! them into text, finds stop strings and writes the answer runs on other threads.

pub mod api;
mod bench;
pub mod engine;
pub mod http;
mod metrics;
mod program;
mod text;

pub use metrics::{Histogram, Metrics};
pub use program::main;
pub use text::{Answer, Part, Vocabulary};
