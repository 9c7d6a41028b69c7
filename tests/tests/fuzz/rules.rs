//! Tests of the rules by which cases count: with ops that are made up.

use crate::draw::Draw;
use crate::run::{Bound, Fate, Op, Tally, both, caught, check, family};
use burn_rocm_tests::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The tests by name.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_panic_without_a_typed_error_is_a_failure", a_panic_without_a_typed_error_is_a_failure),
    ("a_typed_error_counts_as_the_oracle_does", a_typed_error_counts_as_the_oracle_does),
    ("a_result_beside_a_typed_error_is_a_failure", a_result_beside_a_typed_error_is_a_failure),
    ("other_results_are_a_failure", other_results_are_a_failure),
    ("fewer_than_half_compared_is_too_low", fewer_than_half_compared_is_too_low),
    ("a_family_fails_for_an_op_that_is_mostly_known", a_family_fails_for_an_op_that_is_mostly_known),
    ("a_name_of_no_op_runs_nothing_and_says_so", a_name_of_no_op_runs_nothing_and_says_so),
];

fn op(ours: fn(&Draw) -> Vec<TensorData>, theirs: fn(&Draw) -> Vec<TensorData>) -> Op {
    Op { name: "made_up", ours, theirs, bound: Bound::Exact, known: |_| false }
}

fn known(op: Op) -> Op {
    Op { known: |_| true, ..op }
}

fn case() -> Draw {
    Draw::plain(&Random::new(), 0, 0, false)
}

fn one(_: &Draw) -> Vec<TensorData> {
    vec![TensorData::from([1.0f32])]
}

fn two(_: &Draw) -> Vec<TensorData> {
    vec![TensorData::from([2.0f32])]
}

fn panics(_: &Draw) -> Vec<TensorData> {
    panic!("an index is out of bounds")
}

/// A sum of shapes that do not broadcast, which this backend refuses.
fn refuses(_: &Draw) -> Vec<TensorData> {
    let device = Default::default();
    let ones = |n: usize| R::float_ones(Shape::from([n]), &device, FloatDType::F32);
    vec![read_float::<R>(R::float_add(ones(2), ones(3)))]
}

/// A result, after an error that nobody took.
fn hides_an_error(d: &Draw) -> Vec<TensorData> {
    assert!(caught(|| refuses(d)).is_err());
    one(d)
}

/// The text of a case's failure.
fn failure(op: &Op) -> String {
    check(op, &case()).expect_err("the case fails")
}

fn a_panic_without_a_typed_error_is_a_failure() {
    // Whatever the oracle does, and even if it is known to be wrong.
    for theirs in [one, panics] {
        for op in [op(panics, theirs), known(op(panics, theirs))] {
            let why = failure(&op);
            assert!(why.contains("without a typed error") && why.contains("out of bounds"), "{why}");
            assert!(both(&op, &case()).is_err());
        }
    }
}

fn a_typed_error_counts_as_the_oracle_does() {
    assert_eq!(check(&op(refuses, panics), &case()), Ok(Fate::Failed));
    assert_eq!(check(&known(op(refuses, one)), &case()), Ok(Fate::Known));
    let why = failure(&op(refuses, one));
    assert!(why.contains("made_up failed"), "{why}");
    let why = failure(&op(one, panics));
    assert!(why.contains("the oracle failed"), "{why}");
}

fn a_result_beside_a_typed_error_is_a_failure() {
    for op in [op(hides_an_error, one), known(op(hides_an_error, one))] {
        let why = failure(&op);
        assert!(why.contains("beside a typed error"), "{why}");
    }
    // An error that was there before the case is not the case's.
    assert!(caught(|| refuses(&case())).is_err());
    assert_eq!(check(&op(one, one), &case()), Ok(Fate::Compared));
}

fn other_results_are_a_failure() {
    assert_eq!(check(&op(one, one), &case()), Ok(Fate::Compared));
    let why = failure(&op(one, two));
    assert!(why.contains("1 instead of 2"), "{why}");
    let why = failure(&op(one, |_| Vec::new()));
    assert!(why.contains("number of results"), "{why}");
}

fn fewer_than_half_compared_is_too_low() {
    for (compared, known, failed, low) in [
        (0, 0, 0, true),
        (1, 0, 0, false),
        (5, 5, 0, false),
        (5, 0, 5, false),
        (5, 3, 2, false),
        (5, 3, 3, true),
        (4, 6, 0, true),
        (4, 0, 6, true),
    ] {
        let tally = Tally { compared, known, failed };
        assert_eq!(tally.is_too_low(), low, "{tally:?}");
    }
}

/// Whether a case is known, for `out_of_five` of five cases in turn.
fn in_turn(count: &AtomicUsize, out_of_five: usize) -> bool {
    count.fetch_add(1, Ordering::Relaxed) % 5 < out_of_five
}

fn a_family_fails_for_an_op_that_is_mostly_known() {
    static MOSTLY: AtomicUsize = AtomicUsize::new(0);
    static PARTLY: AtomicUsize = AtomicUsize::new(0);
    let partly = Op { known: |_| in_turn(&PARTLY, 2), ..op(one, one) };
    family(&[&partly], 1);
    let mostly = Op { name: "mostly_known", known: |_| in_turn(&MOSTLY, 3), ..op(one, one) };
    let why = caught(|| family(&[&partly, &mostly], 1)).expect_err("three of five are known");
    assert!(why.contains("mostly_known") && !why.contains("made_up"), "{why}");
    let refused = Op { name: "refused", ..op(refuses, panics) };
    let why = caught(|| family(&[&refused], 1)).expect_err("both sides fail in all cases");
    assert!(why.contains("compared: 0") && why.contains("refused"), "{why}");
}

/// In a process of its own, whose tests all count as ignored.
fn a_name_of_no_op_runs_nothing_and_says_so() {
    let text = again(&[], &[("BURN_ROCM_FUZZ_OP", "no_such_op")]);
    assert!(text.contains(" 0 passed; 0 failed; "), "{text}");
}
