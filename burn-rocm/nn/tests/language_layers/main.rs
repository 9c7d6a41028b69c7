//! The parts of a language model's layer against formulas in f64: values and all gradients;
//! natively and in lockstep.
#![allow(missing_docs, clippy::unwrap_used)]

mod decoder;
mod frequencies;
mod gate;
mod lockstep;
mod norm;
mod rotary;
#[expect(dead_code, reason = "the file is a module of the program nn, too")]
#[path = "../nn/support.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_rocm::{RocmError, take_last_error};

/// Asserts that the body ends in an `Invalid` of this op, which names the found value.
fn refused<T>(op: &str, what: &str, body: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(|| drop(body()))).is_err(), "{op} took {what}");
    match take_last_error() {
        Some(RocmError::Invalid { op: of, expected, found }) => {
            assert_eq!(of, op);
            assert!(found.contains(what) && !expected.is_empty(), "{op}: {expected}, found {found}");
        }
        other => panic!("{op} of {what}: {other:?}"),
    }
}
