//! Lockstep: correct kernels give correct results in any order, and each kind of mistake is found.
//! This program uses waves of 32; `lockstep64.rs` runs the same cases with waves of 64.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod common;

const WAVE: usize = 32;

include!("common/lockstep_cases.rs");
