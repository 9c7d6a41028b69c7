//! Collectives of 2 and 4 ranks: as threads and as processes, what they compute, and what happens if
//! a rank dies, calls something else, or can't take part.
//!
//! The ranks are CPU devices, unless `BURN_ROCM_PROVIDER` names another provider. Then they are all
//! of its devices, of which there must be at least two.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

/// What the tests of the whole use too.
#[path = "../../../tests/src/again.rs"]
mod again;
mod computed;
mod drawn;
mod failures;
mod graphs;
mod processes;
#[path = "../../../tests/src/random.rs"]
mod random;
mod ranks;
mod refusals;
mod values;
