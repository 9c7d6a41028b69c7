//! Graphs: what is captured, what a replay computes and keeps, what is refused, and how a capture
//! ends.
#![allow(clippy::unwrap_used, reason = "tests")]

/// What the tests of the whole use too.
#[allow(unreachable_pub, reason = "public in its own crate")]
#[path = "../../../tests/src/again.rs"]
mod again;
#[path = "../common/mod.rs"]
mod common;
mod failures;
mod libraries;
mod replays;
mod support;
mod threads;
