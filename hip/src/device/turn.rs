//! Whose turn it is to give a stream work: everybody's, or that of the one thread that captures it.
//!
//! All threads share a device's compute stream, and HIP records whatever a captured stream is
//! given, by whichever thread. So while a thread captures, the others wait before they give the
//! stream anything.
//!
//! The capturing thread may itself wait for one of the others, so they wait for [`PATIENCE`] only.
//! After that, a thread that needs the stream ends HIP's capture, and the others work on. The
//! capturing thread's next turn begins another capture of HIP's, so that its work still does not
//! run. No graph comes of either.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How old a capture may become before other threads stop waiting for it. A capture launches
/// nothing, so it takes the host's time for one step: far below a second after a warm-up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// One turn. Bits 0 to 29 count the turns, bits 30 and 31 are the phase, and the bits from [`OWNER`]
/// on the number of the thread that captures. If no thread captures, owner and phase are 0.
const INSIDE: u64 = 1;
const PHASE: u32 = 30;
const OWNER: u32 = 32;

/// The others have stopped waiting, and the owner has not had a turn since.
const LAPSED: u64 = 0;
/// HIP captures; only the owner takes turns.
const ALONE: u64 = 1;
/// The owner waits for the others' turns to end. Only threads that have a turn take another.
const CLOSING: u64 = 2;
/// Another thread waits for the owner's turns to end. Only the owner takes turns, if it has one.
const OPENING: u64 = 3;

thread_local! {
    /// The turns that this thread has, of all streams. Without a destructor, like the number below,
    /// so that a thread that is ending has it too.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread's number, from 1.
fn thread_number() -> u64 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        u64::from(number.get())
    })
}

fn phase(state: u64) -> u64 {
    state >> PHASE & 3
}

fn with(state: u64, owner: u64, phase: u64) -> u64 {
    state & ((1 << PHASE) - 1) | owner << OWNER | phase << PHASE
}

/// A stream's turns.
#[derive(Default)]
pub(crate) struct Turns {
    state: AtomicU64,
    /// When the others stop waiting for the owner. Locked while the owner or the phase changes.
    deadline: Mutex<Option<Instant>>,
    changed: Condvar,
}

/// The right to give the stream work, until it is dropped. A thread may have several. Take one
/// before any lock under which the stream is given work: the thread that captures may need that
/// lock.
#[must_use = "the turn ends where this is dropped"]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    /// It ends in the thread that counts it.
    _not_send: PhantomData<*const ()>,
}

impl<'a> Turn<'a> {
    /// A turn that `state` counts already.
    #[inline]
    fn counted(turns: &'a Turns) -> Self {
        HELD.set(HELD.get() + 1);
        Self { turns, _not_send: PhantomData }
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        self.turns.state.fetch_sub(INSIDE, Ordering::Release);
    }
}

impl Turns {
    /// A turn, unless the caller has to [`wait`](Self::wait) for one.
    #[inline]
    pub(crate) fn take(&self) -> Option<Turn<'_>> {
        let nested = HELD.get() > 0;
        let state = self.state.fetch_add(INSIDE, Ordering::Acquire);
        let turn = Turn::counted(self);
        (state >> PHASE == 0 || Self::is_open(state, nested)).then_some(turn)
    }

    /// Whether this thread may take a turn while some thread captures.
    fn is_open(state: u64, nested: bool) -> bool {
        let own = state >> OWNER == thread_number();
        match phase(state) {
            LAPSED => !own,
            ALONE => own,
            CLOSING => nested,
            _ => own && nested,
        }
    }

    /// Waits for a turn. `lapse` ends HIP's capture of another thread that has gone on for too
    /// long; `resume` begins one again for the calling thread. While they run no other thread has a
    /// turn.
    #[cold]
    pub(crate) fn wait(&self, lapse: impl FnOnce(), resume: impl FnOnce()) -> Turn<'_> {
        let mut deadline = self.lock();
        loop {
            if let Some(turn) = self.take() {
                return turn;
            }
            let owner = self.owner();
            if owner == thread_number() {
                let turn = self.drain(owner, CLOSING);
                resume();
                self.change(owner, ALONE);
                return turn;
            }
            let left = left(*deadline);
            if left.is_zero() {
                let turn = self.drain(owner, OPENING);
                lapse();
                self.change(owner, LAPSED);
                return turn;
            }
            deadline = self.sleep(deadline, left);
        }
    }

    /// A turn if nobody captures.
    pub(crate) fn take_outside_capture(&self) -> Option<Turn<'_>> {
        let owner = self.state.fetch_add(INSIDE, Ordering::Acquire) >> OWNER;
        let turn = Turn::counted(self);
        (owner == 0).then_some(turn)
    }

    /// Makes every turn the calling thread's, which has none now, if `begin` succeeds. Waits for
    /// the others' turns to end first; `begin` may take turns. `None` if another thread captures
    /// and does not end it in time.
    pub(crate) fn own<T, E>(&self, begin: impl FnOnce() -> Result<T, E>) -> Option<Result<T, E>> {
        let mut deadline = self.lock();
        while self.owner() != 0 {
            let left = left(*deadline);
            if left.is_zero() {
                return None;
            }
            deadline = self.sleep(deadline, left);
        }
        let me = thread_number();
        let _turn = self.drain(me, CLOSING);
        let begun = begin();
        match begun.is_ok() {
            true => self.change(me, ALONE),
            false => self.change(0, 0),
        }
        *deadline = Some(Instant::now() + PATIENCE);
        Some(begun)
    }

    /// Whether the calling thread captures. HIP may have stopped to.
    #[inline]
    pub(crate) fn are_own(&self) -> bool {
        // Relaxed, here and below: a thread sees what it wrote itself.
        match self.state.load(Ordering::Relaxed) >> OWNER {
            0 => false,
            owner => owner == thread_number(),
        }
    }

    /// Whether HIP captures what the calling thread, which has a turn, gives the stream.
    #[inline]
    pub(crate) fn are_recorded(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state >> PHASE == thread_number() << (OWNER - PHASE) | ALONE
    }

    /// Ends what [`Turns::own`] began. `end` is told whether HIP still captures.
    pub(crate) fn share<T>(&self, end: impl FnOnce(bool) -> T) -> T {
        let _deadline = self.lock();
        let ended = end(self.are_recorded());
        self.change(0, 0);
        ended
    }

    fn owner(&self) -> u64 {
        self.state.load(Ordering::Relaxed) >> OWNER
    }

    /// Announces a phase in which no turns begin but within others, and waits for those that there
    /// are. Then the caller has the only one.
    fn drain(&self, owner: u64, phase: u64) -> Turn<'_> {
        self.change(owner, phase);
        let none = with(0, owner, phase);
        while self
            .state
            .compare_exchange_weak(none, none + INSIDE, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            // Turns are as long as a call of HIP's.
            std::thread::yield_now();
        }
        Turn::counted(self)
    }

    /// Sets owner and phase. The caller has the lock.
    fn change(&self, owner: u64, phase: u64) {
        let set = |state| Some(with(state, owner, phase));
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, set);
        self.changed.notify_all();
    }

    fn sleep<'a>(
        &self,
        deadline: MutexGuard<'a, Option<Instant>>,
        left: Duration,
    ) -> MutexGuard<'a, Option<Instant>> {
        self.changed.wait_timeout(deadline, left).unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn own(turns: &Turns) {
        assert_eq!(turns.own(|| Ok::<_, ()>(())), Some(Ok(())));
    }

    fn take(turns: &Turns) -> Turn<'_> {
        turns.take().unwrap_or_else(|| turns.wait(|| panic!("too early"), || panic!("not lapsed")))
    }

    #[test]
    fn the_owner_is_alone() {
        let turns = Turns::default();
        let (inside, owned) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let _turn = take(&turns);
                        let _another = turns.take().expect("a thread with a turn does not wait");
                        inside.fetch_add(1, Ordering::SeqCst);
                        assert!(!owned.load(Ordering::SeqCst) && !turns.are_own());
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        own(&turns);
                        assert!(turns.are_own() && turns.are_recorded());
                        assert!(!owned.swap(true, Ordering::SeqCst));
                        assert_eq!(inside.load(Ordering::SeqCst), 0);
                        drop(take(&turns));
                        assert!(turns.take_outside_capture().is_none());
                        std::thread::sleep(Duration::from_micros(10));
                        owned.store(false, Ordering::SeqCst);
                        assert!(turns.share(|recorded| recorded));
                    }
                });
            }
        });
        assert!(turns.take_outside_capture().is_some() && turns.state.into_inner() == 0);
    }

    /// Threads whose turns overlap, so that there is practically always one.
    #[test]
    fn an_owner_does_not_starve() {
        let (turns, owned) = (Turns::default(), AtomicBool::new(false));
        let enough = Duration::from_secs(5);
        let start = Instant::now();
        let took = std::thread::scope(|scope| {
            for number in 0..8 {
                let (turns, owned) = (&turns, &owned);
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_micros(500 * number));
                    while !owned.load(Ordering::SeqCst) && start.elapsed() < enough {
                        let _turn = take(turns);
                        std::thread::sleep(Duration::from_millis(4));
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            own(&turns);
            let took = start.elapsed();
            owned.store(true, Ordering::SeqCst);
            turns.share(|_| ());
            took
        });
        assert!(took < enough, "{took:?}");
    }

    #[test]
    fn a_capture_that_lasts_lapses_and_resumes() {
        let turns = Turns::default();
        let (recording, lapses) = (AtomicBool::new(true), AtomicU32::new(0));
        let lapse = || {
            assert!(recording.swap(false, Ordering::SeqCst));
            lapses.fetch_add(1, Ordering::SeqCst);
        };
        let resume = || assert!(!recording.swap(true, Ordering::SeqCst));
        own(&turns);
        *turns.lock() = Some(Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let _turn =
                            turns.take().unwrap_or_else(|| turns.wait(lapse, || panic!("not its own")));
                        assert!(!turns.are_own() && !turns.are_recorded());
                        let _another = turns.take().expect("a thread with a turn does not wait");
                        assert!(!recording.load(Ordering::SeqCst));
                    }
                });
            }
            scope.spawn(|| assert_eq!(turns.own(|| Ok::<_, ()>(())), None, "the first has not ended"));
            for _ in 0..2000 {
                assert!(turns.are_own());
                let _turn = turns.take().unwrap_or_else(|| turns.wait(|| panic!("its own"), resume));
                assert!(turns.are_recorded());
                let _another = turns.take().expect("a thread with a turn does not wait");
                assert!(recording.load(Ordering::SeqCst));
            }
        });
        assert!(lapses.into_inner() > 0);
        assert_eq!(turns.share(|recorded| recorded), recording.into_inner());
        assert_eq!(turns.state.into_inner(), 0);
    }
}
