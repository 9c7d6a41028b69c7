//! The memory that a step takes, with Burn 0.22.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../burn-rocm/nn/tests/shared/memory.rs"]
mod memory;
mod world;
