//! What a warm-up leaves as it was, with Burn 0.22.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../burn-rocm/nn/tests/shared/small.rs"]
mod small;
#[path = "../../../burn-rocm/nn/tests/shared/warm_up.rs"]
mod warm_up;
mod world;
