//! Which pieces of work share an event, and how the time between two events is divided among the
//! pieces in it.
//!
//! An event between two kernels costs a GPU 2 to 3 us, so an event after each short piece would
//! slow the program down. Once a stream's pieces have been timed by events of their own, short ones
//! share: the next event comes when they are expected to have taken [`MOST_SHARED`] together. Their
//! time is divided in proportion to what each took alone. Every [`TURN`]th piece still has events
//! of its own, so that these times stay current.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::profile::work::Key;

/// The most nanoseconds that pieces with one event are expected to take together. An event of 3 us
/// for each 200 us is 1.5 % of the device's time.
pub(crate) const MOST_SHARED: u64 = 200_000;

/// How many pieces have events of their own after one whose time alone is not known: about two
/// training steps of a transformer of four layers.
const AFTER_NEW: u32 = 256;

/// A prime, so that in a loop each piece has its turn.
const TURN: u32 = 61;

/// The most kinds of pieces whose times alone are kept. Others always have events of their own.
const MOST: usize = 1 << 16;

/// Of how many calls a time alone is the mean. Of later ones each counts as much as one of so many,
/// so that it follows a device whose clock changes.
const MEAN_OF: u64 = 16;

/// What a stream's pieces take if they have events of their own.
#[derive(Default)]
pub(crate) struct Alone {
    numbers: HashMap<Key, usize, FixedState>,
    /// By number.
    means: Vec<Mean>,
    /// The profiles that had begun when the first of these was measured.
    generation: u64,
    /// How many more pieces have events of their own.
    left: u32,
    turn: u32,
}

#[derive(Clone, Default)]
struct Mean {
    /// 0 if none was measured.
    calls: u64,
    time: u64,
}

/// What is known about a piece when it is enqueued.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    /// What it takes alone, if that was measured.
    pub(crate) time: Option<u64>,
    /// The number of its kind; `None` if there are too many kinds.
    kind: Option<usize>,
}

impl Alone {
    /// Whether the next piece has events of its own. Each new profile measures each piece anew.
    pub(crate) fn is_next(&mut self, generation: u64) -> bool {
        if self.generation != generation {
            self.means.fill(Mean::default());
            (self.generation, self.left) = (generation, AFTER_NEW);
        }
        self.turn = (self.turn + 1) % TURN;
        let is_next = self.left > 0 || self.turn == 0;
        self.left = self.left.saturating_sub(1);
        is_next
    }

    /// What a piece is expected to take.
    pub(crate) fn expected(&mut self, key: &Key) -> Expected {
        let next = self.means.len();
        let kind = match self.numbers.get(key) {
            Some(&number) => Some(number),
            None if next == MOST => None,
            None => {
                self.numbers.insert(*key, next);
                self.means.push(Mean::default());
                Some(next)
            }
        };
        let time = kind.map(|number| &self.means[number]).filter(|mean| mean.calls > 0).map(|mean| mean.time);
        if time.is_none() {
            self.left = AFTER_NEW;
        }
        Expected { time, kind }
    }

    /// Adds the time of a piece that had events of its own.
    pub(crate) fn measured(&mut self, expected: Expected, time: u64) {
        let Some(mean) = expected.kind.map(|number| &mut self.means[number]) else { return };
        mean.calls = (mean.calls + 1).min(MEAN_OF);
        let change = (time as i64 - mean.time as i64) / mean.calls as i64;
        mean.time = mean.time.saturating_add_signed(change);
    }
}

/// Divides `total` among pieces in proportion to their expected times. Those without one share what
/// the others leave. The parts add up to `total`, unless no piece is expected to take any time.
pub(crate) fn divide(total: u64, expected: &[Option<u64>]) -> Vec<u64> {
    let known: u64 = expected.iter().flatten().sum();
    let unknown = expected.iter().filter(|time| time.is_none()).count() as u64;
    let (for_known, for_each_unknown) = match unknown {
        0 => (total, 0),
        _ => (known.min(total), total.saturating_sub(known) / unknown),
    };
    // Differences of a running sum, so that roundings don't add up.
    let (mut before, mut at) = (0u64, 0u64);
    let mut part = |time: u64| {
        before += time;
        let to = (u128::from(for_known) * u128::from(before)).checked_div(u128::from(known));
        let to = to.unwrap_or_default() as u64;
        to - std::mem::replace(&mut at, to)
    };
    expected.iter().map(|time| time.map_or(for_each_unknown, &mut part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::names;
    use crate::profile::work::{Who, WorkKind};

    fn key(name: &str) -> Key {
        Key { who: Who::NOBODY, kind: WorkKind::Kernel, name: names::text(name), device: 0 }
    }

    #[test]
    fn parts_add_up_and_have_the_proportions() {
        assert_eq!(divide(90, &[Some(10), Some(20)]), [30, 60]);
        assert_eq!(divide(10, &[Some(1), Some(1), Some(1)]), [3, 3, 4]);
        assert_eq!(divide(100, &[Some(10), None, Some(30)]), [10, 60, 30]);
        assert_eq!(divide(100, &[Some(300), None]), [100, 0], "nothing is left");
        assert_eq!(divide(7, &[None]), [7]);
        assert_eq!(divide(7, &[Some(0)]), [0]);
        assert_eq!(divide(u64::MAX, &[Some(1 << 40), Some(1 << 40)]).iter().sum::<u64>(), u64::MAX);
    }

    #[test]
    fn a_new_piece_and_each_turn_have_events_of_their_own() {
        let (mut alone, a) = (Alone::default(), key("share::a"));
        assert!(alone.is_next(1));
        let first = alone.expected(&a);
        assert_eq!(first.time, None);
        alone.measured(first, 500);
        assert_eq!(alone.expected(&a).time, Some(500));
        assert_eq!(alone.expected(&key("share::another")).time, None);
        let own = (0..AFTER_NEW).filter(|_| alone.is_next(1)).count();
        assert_eq!(own as u32, AFTER_NEW);
        let own = (0..100 * TURN).filter(|_| alone.is_next(1)).count();
        assert_eq!(own, 100);
        // The next profile measures anew.
        assert!(alone.is_next(2));
        assert_eq!(alone.expected(&a).time, None);
        // A piece of the profile before is passed late.
        alone.measured(first, 700);
        assert_eq!(alone.expected(&a).time, Some(700));
    }

    #[test]
    fn a_mean_follows_a_change() {
        let (mut alone, a) = (Alone::default(), key("share::b"));
        alone.is_next(1);
        let expected = alone.expected(&a);
        [100, 300].iter().for_each(|&time| alone.measured(expected, time));
        assert_eq!(alone.expected(&a).time, Some(200));
        (0..200).for_each(|_| alone.measured(expected, 1000));
        assert!((950..=1000).contains(&alone.expected(&a).time.unwrap()));
    }
}
