//! Lockstep: right kernels give right results whatever the order, and each kind of mistake is
//! found. Runs with waves of 32 here; the same file runs again with waves of 64 (`lockstep64.rs`).
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod common;

const WAVE: usize = 32;

include!("common/lockstep_cases.rs");
