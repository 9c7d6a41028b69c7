//! Numbers of pieces of work, for profilers that record what the driver does.
//!
//! CUPTI and rocprofiler-sdk keep a stack of the program's numbers for each thread, and write the
//! topmost one beside each call of the driver that launches something. So each kernel in their
//! records leads to the piece of work that launched it, whatever their clocks show.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// Where a profiler is told of pieces of work; see [`correlate`].
#[derive(Clone, Copy, Debug)]
pub struct Correlator {
    /// The calling thread will enqueue the piece of this number next. Numbers count from 1, and
    /// repeat after 2^32 pieces.
    pub begins: fn(u64),
    /// The calling thread has enqueued what `begins` was called for last, or could not. A call for
    /// each of `begins`, in the opposite order unless pieces of several devices are enqueued
    /// together.
    pub ends: fn(),
}

static CORRELATOR: OnceLock<Correlator> = OnceLock::new();

/// From now on, tells `correlator` of each piece of work that a profile times, from before it is
/// enqueued until after that. In the timeline
/// ([`Profile::chrome_trace`](crate::Profile::chrome_trace)), the piece has the same number as the
/// argument `piece`.
///
/// For `cuptiActivityPushExternalCorrelationId` and
/// `rocprofiler_push_external_correlation_id`, which link a profiler's records with the piece that
/// launched them. Captured work has no number, but the launch of its graph has.
///
/// # Errors
/// `Invalid` if the process has a correlator.
pub fn correlate(correlator: Correlator) -> Result<()> {
    let second = |_| Error::invalid("profile::correlate", "the first correlator of the process", "another");
    CORRELATOR.set(correlator).map_err(second)
}

/// A piece of work that its thread enqueues now.
pub(crate) struct Open {
    /// 0 if nobody is told.
    number: u32,
}

impl Open {
    /// Of work that is not timed.
    pub(crate) const NONE: Self = Self { number: 0 };

    pub(crate) fn begin() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let Some(correlator) = CORRELATOR.get() else { return Self::NONE };
        // Relaxed: only the numbers differ. 0 is nobody's.
        let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        (correlator.begins)(u64::from(number));
        Self { number }
    }

    /// Its number, or 0, and it has been enqueued.
    pub(crate) fn end(self) -> u32 {
        self.number
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.number != 0
            && let Some(correlator) = CORRELATOR.get()
        {
            (correlator.ends)();
        }
    }
}
