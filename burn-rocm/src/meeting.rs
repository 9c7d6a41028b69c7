//! A barrier for threads that gives up after a timeout.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hip::Error;

/// How often a waiting thread looks whether the others can still come.
const LOOK: Duration = Duration::from_millis(50);

/// Threads that wait for each other, again and again.
#[derive(Default)]
pub(crate) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many threads meet.
    members: usize,
    /// How many have come to the meeting that is next.
    here: usize,
    /// The number of meetings that have taken place.
    past: u64,
}

impl Meeting {
    pub(crate) fn of(members: usize) -> Self {
        Self { state: Mutex::new(State { members, ..State::default() }), changed: Condvar::new() }
    }

    /// Adds a member. Members must not meet before all were added.
    pub(crate) fn add(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).members += 1;
    }

    /// Removes a member that [`add`](Self::add) added and that will not meet.
    pub(crate) fn remove(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).members -= 1;
    }

    /// Waits until all members have called this. `check` fails if they can't come any more.
    ///
    /// # Errors
    /// `check`'s, and `Collective` if they have not come after `timeout`.
    pub(crate) fn meet(
        &self,
        what: &'static str,
        timeout: Duration,
        check: impl Fn() -> hip::Result<()>,
    ) -> hip::Result<()> {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.here += 1;
        if state.here >= state.members {
            state.here = 0;
            state.past += 1;
            self.changed.notify_all();
            return Ok(());
        }
        let past = state.past;
        while state.past == past {
            let left = until.saturating_duration_since(Instant::now());
            let problem = match left.is_zero() {
                true => Err(Error::Collective {
                    call: what,
                    name: "timeout".into(),
                    detail: format!("{} of {} threads came within {timeout:?}", state.here, state.members),
                }),
                false => check(),
            };
            if let Err(error) = problem {
                state.here -= 1;
                return Err(error);
            }
            let waited = self.changed.wait_timeout(state, left.min(LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn nobody_is_ahead() {
        let (meeting, rounds) = (Meeting::of(4), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..200 {
                        rounds.fetch_add(1, Ordering::Relaxed);
                        meeting.meet("test", Duration::from_secs(20), || Ok(())).expect("all come");
                        let seen = rounds.load(Ordering::Relaxed);
                        assert!((4 * (round + 1)..=4 * (round + 2)).contains(&seen), "{round}: {seen}");
                        meeting.meet("test", Duration::from_secs(20), || Ok(())).expect("all come");
                    }
                });
            }
        });
    }

    #[test]
    fn who_waits_in_vain_gets_an_error_and_may_come_again() {
        let meeting = Meeting::of(2);
        let alone = meeting.meet("test", Duration::from_millis(60), || Ok(()));
        assert!(matches!(alone, Err(Error::Collective { .. })), "{alone:?}");
        let gone = || Err(Error::Config { what: "x".into(), expected: "y".into(), found: "z".into() });
        let refused = meeting.meet("test", Duration::from_secs(20), gone);
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| meeting.meet("test", Duration::from_secs(20), || Ok(())));
            meeting.meet("test", Duration::from_secs(20), || Ok(())).expect("both come");
            other.join().expect("no panic").expect("both come");
        });
    }
}
