//! Targets that are not classes, and indices outside the input, with Burn 0.21.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "shared/faults.rs"]
mod faults;
#[path = "shared/world.rs"]
mod world;
