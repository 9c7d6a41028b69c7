//! The bell: threads sleep on it until a signal or a queue may have changed.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Kernels write signals without ringing the bell, so a thread that waits for a signal also checks
/// it at this interval.
pub(super) const GLANCE: Duration = Duration::from_micros(300);

/// A single bell for everything is enough, because it rings only a few times per packet and few
/// threads wait.
#[derive(Debug, Default)]
pub(super) struct Bell {
    lock: Mutex<()>,
    rung: Condvar,
    sleepers: AtomicUsize,
}

impl Bell {
    /// Wakes all waiting threads. Call it after the change.
    pub(super) fn ring(&self) {
        // Orders the change before the read of `sleepers`; `wait` has the matching fence.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.rung.notify_all();
        }
    }

    /// Waits until `test` returns a value, or until the deadline. `test` runs after each ring and
    /// each `glance`.
    pub(super) fn wait<T>(
        &self,
        deadline: Option<Instant>,
        glance: Duration,
        mut test: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = test() {
            return Some(found);
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let found = loop {
            let found = test();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if found.is_some() || left == Some(Duration::ZERO) {
                break found;
            }
            let pause = left.map_or(glance, |left| left.min(glance));
            guard = self.rung.wait_timeout(guard, pause).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        found
    }
}
