//! Lockstep with waves of 64: the cases of `lockstep.rs`.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod common;

const WAVE: usize = 64;

include!("common/lockstep_cases.rs");
