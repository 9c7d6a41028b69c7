//! The models and the training loop of the examples, for Burn 0.22. Data, curves and the command line are those of
//! the examples for Burn 0.21.

pub mod amp;
pub mod model;
pub mod train;
