//! Tests that count as ignored, with a line that says why, if something they need is absent.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial, run};

/// A requirement of a test that is absent.
struct Absent(String);

/// Ends the calling test as ignored, because `what` is absent.
pub(crate) fn absent(what: impl Into<String>) -> ! {
    resume_unwind(Box::new(Absent(what.into())))
}

fn completion(ended: Result<(), Box<dyn Any + Send>>) -> Result<Completion, Failed> {
    let panic = match ended {
        Ok(()) => return Ok(Completion::Completed),
        Err(panic) => panic,
    };
    match panic.downcast::<Absent>() {
        Ok(absent) => Ok(Completion::ignored_with(format!("no {}", absent.0))),
        Err(panic) => Err(panic.downcast_ref::<String>().map_or_else(Failed::without_message, Failed::from)),
    }
}

/// A test's path and body.
pub(crate) type Test = (&'static str, fn());

/// Runs the tests that the command line asks for. Other tests run the `children` in processes of
/// their own; here those count as ignored.
pub(crate) fn main(tests: &[Test], children: &[Test]) -> ExitCode {
    let trial = |&(name, test): &Test| {
        Trial::ignorable_test(name, move || completion(catch_unwind(AssertUnwindSafe(test))))
    };
    let children = children.iter().map(|child| trial(child).with_ignored_flag(true));
    // One after the other: while one thread's stream is captured, CUDA refuses many calls of
    // others.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    run(&arguments, tests.iter().map(trial).chain(children).collect()).exit_code()
}

/// The functions by their paths, for [`main`].
macro_rules! tests {
    ($($test:path),* $(,)?) => {
        &[$((stringify!($test), $test as fn())),*]
    };
}
pub(crate) use tests;
