//! The result of what may fail for any reason.

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
