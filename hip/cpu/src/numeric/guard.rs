//! The C boundary: no panic leaves a function of the tables.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a C function; a panic in it becomes `on_panic`.
///
/// The bodies keep no state that a panic could leave half-changed except the caller's output buffers, whose
/// content is unspecified after any error.
pub(crate) fn guarded<R>(on_panic: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(on_panic)
}
