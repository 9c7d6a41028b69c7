//! Compares the methods that Burn 0.22's traits added or changed with burn-flex 0.22.1 or a
//! reference in f64.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::useless_conversion)]

// What the shared files call the crate under test.
extern crate burn_rocm_022 as burn_rocm;

#[path = "../../../../tests/src/again.rs"]
mod again;
mod batch_norm;
mod harness;
#[path = "../../../../tests/src/input.rs"]
mod input;
mod methods;
mod modules;
mod quantized;
#[path = "../../../../tests/src/random.rs"]
mod random;
mod select;
mod semantics;
mod sums;
#[allow(dead_code)]
#[path = "../../../../tests/src/trace.rs"]
mod trace;

use random::Random;
