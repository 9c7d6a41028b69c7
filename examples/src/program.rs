//! Code that the example programs share: parsers of their arguments, and the way they end.

use std::error::Error as StdError;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

/// Parses a whole number above 0.
pub(crate) fn at_least_1(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("expected a whole number: {error}")),
    }
}

/// Parses a learning rate.
pub(crate) fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && rate <= 1.0 => Ok(rate),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}

/// Runs a program. An error is printed as its text alone.
pub(crate) fn ends(run: impl FnOnce() -> Result<(), Box<dyn StdError>>) -> ExitCode {
    // A device that fails in the middle of an op panics with the error's text, which is all a user
    // wants to see. RUST_BACKTRACE shows the rest.
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        panic::set_hook(Box::new(|_| {}));
    }
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            eprintln!("error: {}", text.unwrap_or("unknown"));
            ExitCode::FAILURE
        }
    }
}
