//! Shared parts of the examples: the data, the models, the training loop and the plots.

pub mod data;
pub mod epochs;
pub mod error;
pub mod machine;
pub mod mixed;
pub mod mnist;
pub mod model;
pub mod plots;
mod program;
pub mod progress;
#[cfg(feature = "devices")]
pub mod ranks;
pub mod rng;
pub mod show;
pub mod train;
