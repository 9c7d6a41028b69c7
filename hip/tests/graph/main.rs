//! Graphs: what is captured, what a replay computes and keeps, what is refused, and how a capture
//! ends.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod libraries;
mod replays;
mod support;
mod threads;
