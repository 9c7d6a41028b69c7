//! Optimizers that update all parameters in a few launches. They replace the optimizers of
//! [`burn::optim`].
//!
//! Everything else of `burn::optim` is re-exported, so an app changes only the path.
//!
//! A parameter and its state are updated in place if nobody else holds them. A clone of the module,
//! or a record, counts as a holder, so it keeps its values. Parameters of the same dtype, device
//! and number of steps share launches, up to 62 in each.

mod adam;
mod adamw;
pub mod adaptor;
mod config;
mod sgd;

pub use adam::Adam;
pub use adamw::AdamW;
pub use burn::optim::*;
pub use config::{AdamConfig, AdamWConfig, OptimizerConfig, SgdConfig};
pub use sgd::Sgd;

use adaptor::Rules;
