//! Optimizers that update all parameters in a few launches. They replace the optimizers of
//! [`burn::optim`].
//!
//! Everything else of `burn::optim` is re-exported, so an app changes only the path. The configs'
//! `init` returns this crate's [`ModuleOptimizer`], which has the methods and records of Burn's.
//!
//! A parameter and its state are updated in place if nobody else holds them. A clone of the module,
//! or a record, counts as a holder, so it keeps its values. Parameters of the same dtype, device,
//! learning rate and number of steps share launches, up to 62 in each.
//!
//! Code that needs Burn's own type, such as the `Learner` of burn-train, gets it by `into`. Burn's
//! `ModuleOptimizer` updates one parameter after the other, so each takes a launch of its own. The
//! function [`step`] takes the step of Burn's `ModuleOptimizer` in shared launches; a model's
//! `TrainStep::optimize` can call it.

mod adam;
mod adamw;
#[path = "../../../../burn-rocm/nn/src/optim/config.rs"]
mod config;
mod gather;
mod module;
mod sgd;

pub use adam::Adam;
pub use adamw::AdamW;
pub use burn::optim::*;
pub use config::{AdamConfig, AdamWConfig, OptimizerConfig, SgdConfig};
pub use module::{ModuleOptimizer, Optimize, step};
pub use sgd::{Sgd, SgdState};
