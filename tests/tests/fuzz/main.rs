//! Drawn cases: any op, in drawn shapes, layouts, dtypes and values, against `burn-flex`.
//!
//! `BURN_ROCM_FUZZ_CASES` sets the number of cases (10,000 without it), shared out over the families of ops;
//! `BURN_ROCM_TEST_SEED` repeats a run, and `BURN_ROCM_FUZZ_OP` keeps to the ops whose names contain it. A failure is
//! reduced to a plainer case before it is shown; with `BURN_ROCM_FUZZ_SURVEY=1` each is printed as it is drawn, and the run
//! goes on.
#![allow(missing_docs, clippy::unwrap_used)]

mod chain;
mod draw;
mod float;
mod index;
mod int;
mod module;
mod quantized;
mod run;
mod sequence;
mod sums;

// The numbers are shares of all cases, in hundredths.

#[test]
fn float_ops() {
    run::family(float::OPS, 40);
}

#[test]
fn int_and_bool_ops() {
    run::family(int::OPS, 20);
}

#[test]
fn indexing_ops() {
    run::family(index::OPS, 15);
}

#[test]
fn module_ops() {
    run::family(module::OPS, 15);
}

#[test]
fn quantized_ops() {
    run::family(quantized::OPS, 6);
}

#[test]
fn deformable_convolutions_and_sequences() {
    run::family(sequence::OPS, 4);
}
