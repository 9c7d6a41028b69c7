//! Text to tokens and back.

mod chat;
mod json;
mod stream;
mod tokenizer;

pub use chat::{Chat, Message};
pub use stream::Stream;
pub use tokenizer::Tokens;
