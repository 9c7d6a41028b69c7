//! The code that the providers `cpu` and `cuda` share: AMD's C functions, their argument checks and
//! statuses, descriptors, and the map of allocations.
//!
//! Each library's `table` is generic over traits that a provider implements. The C functions check
//! arguments as strictly as AMD's libraries do, decode them, and call a method of such a trait.
#![allow(non_snake_case, non_upper_case_globals)] // AMD's names.

pub mod hipblaslt;
pub mod hiprtc;
pub mod miopen;
pub mod rocblas;
pub mod runtime;
mod settings;

pub use settings::Problem;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// `Err(status)` unless `condition`.
pub fn require<E>(condition: bool, status: E) -> Result<(), E> {
    if condition { Ok(()) } else { Err(status) }
}

/// Runs the body of a C function, so that no panic unwinds into the caller.
///
/// All that a panic can leave half-written are the caller's output buffers, whose content is
/// unspecified after any error.
fn boundary<E>(success: E, panicked: E, body: impl FnOnce() -> Result<(), E>) -> E {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => success,
        Ok(Err(status)) => status,
        Err(_) => panicked,
    }
}
