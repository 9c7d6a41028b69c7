//! Losses, and their gradients.

pub(crate) mod classes;
pub(crate) mod ctc;
pub(crate) mod elements;
