//! The memory that a step takes, with Burn 0.21.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "shared/memory.rs"]
mod memory;
#[path = "shared/world.rs"]
mod world;
