//! Numbers of pieces of work, for profilers that record the driver's calls.
//!
//! CUPTI and rocprofiler-sdk keep a stack of the program's numbers for each thread. They write the
//! top number beside each driver call that launches something. So each kernel in their records
//! leads to the piece of work that launched it, without a comparison of clocks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// Two functions that a profile calls around each piece of work; see [`correlate`].
#[derive(Clone, Copy, Debug)]
pub struct Correlator {
    /// The calling thread will enqueue the piece of this number next. Numbers count from 1, and
    /// repeat after 2^32 pieces.
    pub begins: fn(u64),
    /// The calling thread has enqueued the piece, or could not. There is one call for each call of
    /// `begins`, the last begun first, unless pieces of several devices are enqueued together.
    pub ends: fn(),
}

static CORRELATOR: OnceLock<Correlator> = OnceLock::new();

/// Installs a correlator for the process: it is called before and after each piece of work that a
/// profile times is enqueued. In the timeline
/// ([`Profile::chrome_trace`](crate::Profile::chrome_trace)), the argument `piece` of the piece is
/// the same number.
///
/// The functions may call `cuptiActivityPushExternalCorrelationId` or
/// `rocprofiler_push_external_correlation_id`, which link a profiler's records with the piece that
/// launched them. Captured work has no number, but the launch of its graph has one.
///
/// # Errors
/// `Invalid` if the process has a correlator already.
pub fn correlate(correlator: Correlator) -> Result<()> {
    let second = |_| Error::invalid("profile::correlate", "the first correlator of the process", "another");
    CORRELATOR.set(correlator).map_err(second)
}

/// A piece of work that its thread is enqueuing.
pub(crate) struct Open {
    /// 0 without a correlator.
    number: u32,
}

impl Open {
    /// Work that is not timed.
    pub(crate) const NONE: Self = Self { number: 0 };

    pub(crate) fn begin() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let Some(correlator) = CORRELATOR.get() else { return Self::NONE };
        // Relaxed: numbers need only differ from one another. No piece has 0.
        let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        (correlator.begins)(u64::from(number));
        Self { number }
    }

    /// Ends the piece, which has been enqueued. Returns its number, or 0.
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
