//! Shared parts of the benches.
