//! Tests of the argument checks that both providers share. A call that breaks a rule must return
//! the status that AMD's library returns, and must not reach the provider.
//!
//! The provider under the functions is an imitation that notes what it is asked to do. For each
//! function there is a call that succeeds, and a table of changes to it, each with its outcome.
#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "tests: the functions get valid arguments, or refuse invalid ones before they use them"
)]

mod hipblaslt;
mod hiprtc;
mod miopen;
mod rocblas;
mod runtime;

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::fmt::Debug;

thread_local! {
    static ASKED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Notes what the provider is asked to do.
fn asked(what: &'static str) {
    ASKED.with_borrow_mut(|asked| asked.push(what));
}

/// What the provider was asked to do since the last look.
fn looked() -> Vec<&'static str> {
    ASKED.take()
}

/// What a call does.
#[derive(Clone, Copy)]
enum Then<S> {
    /// It reaches the provider and succeeds.
    Runs,
    /// It succeeds without the provider: there is nothing to do.
    Nothing,
    /// It returns this status, and the provider is not asked.
    Fails(S),
}
use Then::*;

/// A rule: its text, a change to the good call's arguments, and what the changed call does.
type Rule<'a, A, S> = (&'a str, &'a dyn Fn(&mut A), Then<S>);

/// A library's statuses.
trait Status: Copy + PartialEq + Debug {
    const SUCCESS: Self;
}

/// Of HIP and hipRTC.
impl Status for u32 {
    const SUCCESS: Self = 0;
}

/// Checks the good call, then each rule.
#[track_caller]
fn check<A: Clone, S: Status>(function: &str, good: A, call: impl Fn(&mut A) -> S, rules: &[Rule<'_, A, S>]) {
    let unchanged: Rule<'_, A, S> = ("the good call", &|_| (), Runs);
    for (rule, change, then) in [&unchanged].into_iter().chain(rules) {
        let mut arguments = good.clone();
        change(&mut arguments);
        looked();
        let (status, asked) = (call(&mut arguments), looked());
        let (expected, runs) = match *then {
            Runs => (S::SUCCESS, true),
            Nothing => (S::SUCCESS, false),
            Fails(status) => (status, false),
        };
        assert_eq!(status, expected, "{function}: {rule}");
        assert_eq!(!asked.is_empty(), runs, "{function}: {rule}: the provider was asked for {asked:?}");
    }
}

/// The text of a static C string.
fn text(at: *const c_char) -> &'static str {
    assert!(!at.is_null());
    unsafe { CStr::from_ptr(at) }.to_str().unwrap()
}

/// A pointer that nobody may follow.
fn dangling<T>() -> *mut T {
    std::ptr::without_provenance_mut(0x1000)
}
