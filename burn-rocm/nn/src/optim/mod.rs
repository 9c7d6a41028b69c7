//! Optimizers that take the step of all parameters in a few launches, in the place of [`burn::optim`]'s.
//!
//! Everything else of `burn::optim` is here too, so that an app changes the path alone.
//!
//! A parameter, and what is kept of it, is updated in place where nobody else holds it; a clone of the module or a
//! record keeps its values. Launches are shared by parameters of one dtype, device and number of steps taken, up to
//! 62 each.

mod adam;
mod adamw;
pub mod adaptor;
mod sgd;

pub use adam::{Adam, AdamConfig};
pub use adamw::{AdamW, AdamWConfig};
pub use burn::optim::*;
pub use sgd::{Sgd, SgdConfig};

use adaptor::Rules;
