//! The wire format of OpenAI's API: what requests may ask, answers, and errors.

mod answer;
mod ask;
mod error;
mod fields;
mod messages;

pub use answer::{Answering, Choice, Finish, Scored, Usage};
pub use ask::{Ask, Defaults, Prompt, Route, chat, completion};
pub use error::{ApiError, Kind};
