//! Memory that runs out at each allocation of a training step, with Burn 0.22.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../burn-rocm/nn/tests/shared/alloc_faults.rs"]
mod alloc_faults;
#[path = "../../../burn-rocm/nn/tests/shared/small.rs"]
mod small;
mod world;
