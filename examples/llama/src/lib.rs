//! The example of language models: reads a checkpoint, generates text. The program `llama` is its
//! command line; `docs/guide/language-models.md` describes it.
//!
//! A [`Config`](config::Config) says what a model is, a [`Source`](weights::Source) has its
//! weights, a [`Model`](model::Model) computes logits with a [`Cache`](model::Cache).

pub mod config;
mod error;
pub mod generate;
pub mod gguf;
pub mod model;
pub mod program;
pub mod ranks;
mod rng;
pub mod sample;
pub mod serve;
pub mod text;
pub mod train;
pub mod weights;

pub use error::{Error, Result};
pub use rng::Rng;
