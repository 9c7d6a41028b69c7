//! What is recorded of a wave that is watched.

use super::Counters;
use super::races::Tracker;

/// The records of a wave.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Counts, if they are asked for.
    pub(crate) counters: Option<Box<Counters>>,
    /// Finds the wave's races in global memory; `None` if the launch does not look for them.
    pub(crate) races: Option<Box<Tracker>>,
}
