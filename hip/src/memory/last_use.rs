//! When a buffer was last used during a [`Pass`](crate::Pass).
//!
//! Every use of a buffer needs its address, and [`Buffer`](crate::Buffer) notes it there: one place
//! for kernels, library calls, copies and deferred ops, so no kind of op can be forgotten. A use is
//! noted with the number of the op that the thread runs. Uses whose work may be enqueued later than
//! in the op are noted as unknown, for good: those outside a pass's ops, by other threads, for
//! other libraries, and by collectives. A buffer that nobody used is as good as unknown.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nobody used the buffer.
const NEVER: u64 = 0;
/// The work of a use may be enqueued at any time. Larger than every other value, so it stays.
const UNKNOWN: u64 = u64::MAX;

/// No device has this address. In [`NOW`], uses are not noted.
const ANY: usize = usize::MAX;

thread_local! {
    /// The device of the pass whose op the thread runs, by address, and the value that uses of its
    /// buffers get; zeros outside. A plain `Cell` without a destructor is still there while the
    /// thread ends.
    static NOW: Cell<(usize, u64)> = const { Cell::new((0, NEVER)) };
}

/// An op of a pass begins on this thread. Uses of buffers of the device, given by its address, are
/// noted with its number from here on. Passes count from 1, ops too.
pub(crate) fn op_begins(device: usize, pass: u32, op: u32) {
    NOW.set((device, u64::from(pass) << 32 | u64::from(op)));
}

/// The op ends, or the thread was in none.
pub(crate) fn op_ends() {
    NOW.set((0, NEVER));
}

/// Runs `enqueue`, whose uses of buffers are not noted: it enqueues them on another stream, and the
/// caller answers for their order.
pub(crate) fn not_noted<T>(enqueue: impl FnOnce() -> T) -> T {
    struct Before((usize, u64));
    impl Drop for Before {
        fn drop(&mut self) {
            NOW.set(self.0);
        }
    }
    let _before = Before(NOW.replace((ANY, NEVER)));
    enqueue()
}

/// When a buffer was last used.
pub(crate) struct LastUse(AtomicU64);

impl LastUse {
    /// For memory that only this crate's work uses.
    pub(crate) fn never() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// For memory that others may use at any time.
    pub(crate) fn unknown() -> Self {
        Self(AtomicU64::new(UNKNOWN))
    }

    /// Notes a use by the calling thread.
    #[inline]
    pub(crate) fn note(&self, device: usize) {
        match NOW.get() {
            (of, now) if of == device && now != NEVER => self.note_op(now),
            (ANY, _) => {}
            _ => self.note_unknown(),
        }
    }

    /// Notes a use whose work may be enqueued at any time.
    #[inline]
    pub(crate) fn note_unknown(&self) {
        // Relaxed: a thread that gets the buffer from another thread also sees what that thread has
        // noted before.
        self.0.store(UNKNOWN, Ordering::Relaxed);
    }

    #[cold]
    fn note_op(&self, now: u64) {
        // A maximum, so that an unknown use stays, also one that another thread notes meanwhile. A
        // use in an older pass is by another thread, whose work may come later.
        let joined = |old: u64| if old >> 32 > now >> 32 { UNKNOWN } else { old.max(now) };
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(joined(old)));
    }

    /// Whether nobody used the buffer.
    pub(crate) fn is_never(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NEVER
    }

    /// The number of the pass's op that was the last to use the buffer. `None` if the buffer was
    /// not used in the pass, or by others too.
    pub(crate) fn in_pass(&self, pass: u32) -> Option<u32> {
        let value = self.0.load(Ordering::Relaxed);
        (value != NEVER && value != UNKNOWN && (value >> 32) as u32 == pass).then_some(value as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_counts_for_its_pass_and_an_unknown_one_stays() {
        let buffer = LastUse::never();
        assert!(buffer.is_never() && buffer.in_pass(0).is_none());
        op_begins(8, 3, 1);
        buffer.note(8);
        assert_eq!((buffer.is_never(), buffer.in_pass(3), buffer.in_pass(2)), (false, Some(1), None));
        op_begins(8, 3, 7);
        buffer.note(8);
        assert_eq!(buffer.in_pass(3), Some(7));
        // A use of an earlier op that is noted later, as another thread may see it.
        op_begins(8, 3, 5);
        buffer.note(8);
        assert_eq!(buffer.in_pass(3), Some(7));
        op_ends();
        for spoil in [
            |buffer: &LastUse| buffer.note(8),
            |buffer: &LastUse| {
                op_begins(16, 3, 8);
                buffer.note(8);
            },
            |buffer: &LastUse| std::thread::scope(|scope| drop(scope.spawn(|| buffer.note(8)))),
            LastUse::note_unknown,
        ] {
            let buffer = LastUse::never();
            op_begins(8, 3, 7);
            buffer.note(8);
            op_ends();
            spoil(&buffer);
            op_begins(8, 3, 9);
            buffer.note(8);
            op_ends();
            assert_eq!((buffer.is_never(), buffer.in_pass(3)), (false, None));
        }
        // Two threads' passes: the older one's use may be the later one.
        let shared = LastUse::never();
        for (pass, op) in [(4, 1), (3, 9)] {
            op_begins(8, pass, op);
            shared.note(8);
        }
        op_ends();
        assert_eq!((shared.in_pass(4), shared.in_pass(3)), (None, None));
        assert_eq!(LastUse::unknown().in_pass(u32::MAX), None);
        op_begins(8, 3, 9);
        not_noted(|| buffer.note(8));
        assert_eq!(buffer.in_pass(3), Some(7));
        buffer.note(8);
        assert_eq!(buffer.in_pass(3), Some(9), "the op goes on");
        op_ends();
    }
}
