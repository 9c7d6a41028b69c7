//! Whose turn it is to give a stream work: everybody's, or that of the one thread that captures it.
//!
//! All threads share a device's compute stream, and HIP takes down whatever a captured stream is
//! given, by whichever thread. So while a thread captures, the others wait before they give the
//! stream anything.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// One thread inside. The bits above [`OWNER`] are the number of the thread that captures, or 0.
const INSIDE: u64 = 1;
const OWNER: u32 = 32;

/// The calling thread's number, from 1.
fn thread_number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    // It has no destructor, so it is there in a thread that is ending too.
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

/// A stream's turns.
#[derive(Default)]
pub(crate) struct Turns {
    /// The threads inside, and the owner.
    state: AtomicU64,
    waiting: Mutex<()>,
    ended: Condvar,
}

/// The right to give the stream work, until it is dropped. A thread may have several. Take one
/// before any lock under which the stream is given work: the thread that captures may need that
/// lock.
#[must_use = "the turn ends where this is dropped"]
pub(crate) struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.state.fetch_sub(INSIDE, Ordering::Release);
    }
}

impl Turns {
    /// Takes a turn; waits while another thread captures.
    #[inline]
    pub(crate) fn take(&self) -> Turn<'_> {
        loop {
            let owner = (self.state.fetch_add(INSIDE, Ordering::Acquire) >> OWNER) as u32;
            let turn = Turn(self);
            if owner == 0 || owner == thread_number() {
                return turn;
            }
            drop(turn);
            self.wait();
        }
    }

    /// A turn if nobody captures.
    pub(crate) fn take_outside_capture(&self) -> Option<Turn<'_>> {
        let owner = self.state.fetch_add(INSIDE, Ordering::Acquire) >> OWNER;
        let turn = Turn(self);
        (owner == 0).then_some(turn)
    }

    /// Makes every turn the calling thread's, which has none now; waits for the others' to end.
    /// False where they are its own already.
    pub(crate) fn own(&self) -> bool {
        let me = thread_number();
        let owned = u64::from(me) << OWNER;
        while let Err(state) =
            self.state.compare_exchange_weak(0, owned, Ordering::Acquire, Ordering::Relaxed)
        {
            match (state >> OWNER) as u32 {
                // Turns are as long as a call of HIP's.
                0 => std::thread::yield_now(),
                owner if owner == me => return false,
                _ => self.wait(),
            }
        }
        true
    }

    /// Whether the calling thread captures.
    #[inline]
    pub(crate) fn are_own(&self) -> bool {
        // Relaxed: a thread sees what it wrote itself.
        match (self.state.load(Ordering::Relaxed) >> OWNER) as u32 {
            0 => false,
            owner => owner == thread_number(),
        }
    }

    /// Ends what [`Turns::own`] began.
    pub(crate) fn share(&self) {
        self.state.fetch_and((1 << OWNER) - 1, Ordering::Release);
        // Under the lock, so that nobody who has just seen an owner begins to wait after this.
        let _waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.ended.notify_all();
    }

    #[cold]
    fn wait(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while self.state.load(Ordering::Relaxed) >> OWNER != 0 {
            waiting = self.ended.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn the_owner_is_alone() {
        let turns = Turns::default();
        let (inside, owned) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let _turn = turns.take();
                        let _another = turns.take();
                        inside.fetch_add(1, Ordering::SeqCst);
                        assert!(!owned.load(Ordering::SeqCst) && !turns.are_own());
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert!(turns.own() && turns.are_own() && !turns.own());
                        assert!(!owned.swap(true, Ordering::SeqCst));
                        assert_eq!(inside.load(Ordering::SeqCst), 0);
                        drop(turns.take());
                        assert!(turns.take_outside_capture().is_none());
                        std::thread::sleep(Duration::from_micros(10));
                        owned.store(false, Ordering::SeqCst);
                        turns.share();
                    }
                });
            }
        });
        assert!(turns.take_outside_capture().is_some() && turns.state.into_inner() == 0);
    }
}
