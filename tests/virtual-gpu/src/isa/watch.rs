//! What is recorded of a wave that is watched.

use super::Counters;

/// The records of a wave.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Counts, if they are asked for.
    pub(crate) counters: Option<Box<Counters>>,
}
