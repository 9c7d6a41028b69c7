//! Memory that runs out at each allocation of a training step, with Burn 0.21.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "shared/alloc_faults.rs"]
mod alloc_faults;
#[path = "shared/small.rs"]
mod small;
#[path = "shared/world.rs"]
mod world;
