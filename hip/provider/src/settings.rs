//! The error for an invalid setting.

use std::fmt;

/// A setting that is invalid, or that the provider can't apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The environment variable.
    pub what: String,
    /// The values that it may have.
    pub expected: String,
    /// The value that it has.
    pub found: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.what, self.expected, self.found)
    }
}

impl std::error::Error for Problem {}
