//! Targets that are not classes, and indices outside the input, with Burn 0.22.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../burn-rocm/nn/tests/shared/faults.rs"]
mod faults;
mod world;
