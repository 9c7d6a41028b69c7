//! Records of a pool's allocations over time, and their picture.

mod picture;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::whole_file;

/// How a [`MemoryRecord`] divides the bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBy {
    /// By the path of [labels](crate::memory_label).
    Label,
    /// By the op that allocated the block, if [ops were tracked](crate::memory_track_ops).
    Op,
}

/// A block that was handed out or handed back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEvent {
    /// The block's number. A block that is handed out later may get the number of one that was handed
    /// back.
    pub block: u32,
    /// The time since the record began.
    pub at: Duration,
    /// The block's bytes.
    pub bytes: usize,
    /// Whether the block was handed out. Otherwise it was handed back.
    pub allocated: bool,
    /// The path of labels under which the block was allocated; `(no label)` if there was none.
    pub label: Arc<str>,
    /// The op that allocated it; `(not tracked)` outside any op, or while
    /// [ops were not tracked](crate::memory_track_ops).
    pub op: &'static str,
}

impl MemoryEvent {
    fn key(&self, by: MemoryBy) -> &str {
        match by {
            MemoryBy::Label => &self.label,
            MemoryBy::Op => self.op,
        }
    }
}

/// The allocations of a pool over some time; see
/// [`MemoryPool::record`](crate::MemoryPool::record).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryRecord {
    /// The blocks that were in use when the record began, as if they were handed out then.
    pub before: Vec<MemoryEvent>,
    /// What happened since, in order.
    pub events: Vec<MemoryEvent>,
    /// The time from the record's beginning to its end.
    pub time: Duration,
    /// Events that were not kept, because the pool keeps up to 2^20 of them. They are the last ones.
    pub lost: u64,
}

impl MemoryRecord {
    /// The most bytes in use at once, and when.
    pub fn peak(&self) -> (usize, Duration) {
        let mut sums = Sums::new(&self.before, MemoryBy::Label);
        let mut peak = (sums.total, Duration::ZERO);
        for event in &self.events {
            sums.apply(event, MemoryBy::Label);
            if sums.total > peak.0 {
                peak = (sums.total, event.at);
            }
        }
        peak
    }

    /// The bytes in use by key at the peak, the largest first.
    pub fn at_peak(&self, by: MemoryBy) -> Vec<(String, usize)> {
        let (peak, _) = self.peak();
        let mut sums = Sums::new(&self.before, by);
        let mut events = self.events.iter();
        while sums.total < peak {
            let Some(event) = events.next() else { break };
            sums.apply(event, by);
        }
        let used = sums.by_key.iter().filter(|(_, bytes)| **bytes > 0);
        let mut all: Vec<_> = used.map(|(&key, &bytes)| (key.to_owned(), bytes)).collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.1));
        all
    }

    /// The bytes in use over time as an SVG picture, stacked by key, with the peak marked. The seven
    /// keys that used the most bytes have colours of their own. Those that held memory when the
    /// record began lie at the bottom. Each column of pixels shows the
    /// moment of its time with the most bytes in use, so no peak is lost.
    pub fn svg(&self, by: MemoryBy) -> String {
        picture::draw(self, by)
    }

    /// Writes [`svg`](Self::svg) to a file.
    ///
    /// # Errors
    /// The system's, if the file can't be written. What was there before stays then.
    pub fn write_svg(&self, path: impl AsRef<Path>, by: MemoryBy) -> io::Result<()> {
        whole_file::write(path.as_ref(), &self.svg(by))
    }

    /// The keys that used the most bytes at any time: those that held memory when the record began,
    /// then the others, each the largest first.
    fn largest(&self, by: MemoryBy, most: usize) -> Vec<&str> {
        let mut sums = Sums::new(&self.before, by);
        let before = sums.by_key.clone();
        let mut largest = before.clone();
        for event in &self.events {
            let bytes = sums.apply(event, by);
            let key = largest.entry(event.key(by)).or_default();
            *key = bytes.max(*key);
        }
        let mut all: Vec<_> = largest.into_iter().filter(|one| one.1 > 0).collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.1));
        let mut keys: Vec<_> = all.into_iter().map(|(key, _)| key).take(most).collect();
        // Stable, so the largest stay first.
        keys.sort_by_key(|key| std::cmp::Reverse(before.get(key).copied().unwrap_or(0)));
        keys
    }

    /// The time in `count` equal parts: for each the bytes of each key, then those of all others,
    /// when most bytes were in use.
    fn columns(&self, by: MemoryBy, keys: &[&str], count: usize) -> Vec<Vec<usize>> {
        let mut sums = Sums::new(&self.before, by);
        let mut events = self.events.iter().peekable();
        let of = |at: Duration| (self.share(at) * count as f64) as usize;
        let column = |column| {
            let mut most = sums.of(keys);
            let mut total = sums.total;
            while let Some(event) = events.next_if(|event| of(event.at) <= column || column + 1 == count) {
                sums.apply(event, by);
                if sums.total > total {
                    (most, total) = (sums.of(keys), sums.total);
                }
            }
            most
        };
        (0..count).map(column).collect()
    }

    /// The part of the record's time that had passed, from 0 to 1.
    fn share(&self, at: Duration) -> f64 {
        if self.time.is_zero() { 0.0 } else { (at.as_secs_f64() / self.time.as_secs_f64()).min(1.0) }
    }
}

/// Bytes in use by key.
struct Sums<'a> {
    by_key: BTreeMap<&'a str, usize>,
    total: usize,
}

impl<'a> Sums<'a> {
    fn new(before: &'a [MemoryEvent], by: MemoryBy) -> Self {
        let mut sums = Self { by_key: BTreeMap::new(), total: 0 };
        for event in before {
            sums.apply(event, by);
        }
        sums
    }

    /// Counts an event, and returns the bytes of its key then. Saturates, because the record's
    /// lists are public and an app may have taken events out.
    fn apply(&mut self, event: &'a MemoryEvent, by: MemoryBy) -> usize {
        let bytes = self.by_key.entry(event.key(by)).or_default();
        for sum in [&mut *bytes, &mut self.total] {
            *sum = match event.allocated {
                true => sum.saturating_add(event.bytes),
                false => sum.saturating_sub(event.bytes),
            };
        }
        *bytes
    }

    /// The bytes of each key, then those of all others.
    fn of(&self, keys: &[&str]) -> Vec<usize> {
        let mut all: Vec<usize> = keys.iter().map(|key| self.by_key.get(key).copied().unwrap_or(0)).collect();
        // Saturates, as `apply` does: an app may have put in any numbers of bytes.
        let named = all.iter().fold(0, |sum: usize, bytes| sum.saturating_add(*bytes));
        all.push(self.total.saturating_sub(named));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn event(at: u64, bytes: usize, allocated: bool, label: &str) -> MemoryEvent {
        MemoryEvent {
            block: 0,
            at: Duration::from_millis(at),
            bytes,
            allocated,
            label: label.into(),
            op: "op",
        }
    }

    pub(super) fn sample() -> MemoryRecord {
        let before = vec![event(0, 100, true, "a")];
        let events = vec![
            event(1, 50, true, "b<c>"),
            event(2, 100, false, "a"),
            event(3, 75, true, "b<c>"),
            event(4, 200, true, "d"),
            event(4, 200, false, "d"),
        ];
        MemoryRecord { before, events, time: Duration::from_millis(10), lost: 0 }
    }

    #[test]
    fn the_peak_is_where_most_bytes_were_in_use() {
        let record = sample();
        assert_eq!(record.peak(), (325, Duration::from_millis(4)));
        assert_eq!(record.at_peak(MemoryBy::Label), [("d".into(), 200), ("b<c>".into(), 125)]);
        assert_eq!(record.at_peak(MemoryBy::Op), [("op".into(), 325)]);
        // `a` used bytes too, although none at the peak.
        assert_eq!(record.largest(MemoryBy::Label, 7), ["a", "d", "b<c>"]);
        assert_eq!(record.largest(MemoryBy::Label, 1), ["d"]);
    }

    #[test]
    fn a_block_that_lives_for_no_time_is_in_its_column() {
        let columns = sample().columns(MemoryBy::Label, &["d"], 10);
        let expected = [
            [0, 100],
            [0, 150],
            [0, 150],
            [0, 125],
            [200, 125],
            [0, 125],
            [0, 125],
            [0, 125],
            [0, 125],
            [0, 125],
        ];
        assert_eq!(columns, expected);
    }

    #[test]
    fn bytes_that_an_app_put_in_do_no_harm() {
        let mut record = sample();
        for (at, label) in [(5, "a"), (6, "d"), (7, "e")] {
            record.events.push(event(at, usize::MAX, true, label));
        }
        assert_eq!(record.peak().0, usize::MAX);
        let columns = record.columns(MemoryBy::Label, &["a", "d"], 10);
        assert_eq!(columns[7], [usize::MAX, usize::MAX, 0]);
        for by in [MemoryBy::Label, MemoryBy::Op] {
            assert!(record.svg(by).ends_with("</svg>\n"));
        }
    }

    #[test]
    fn events_that_an_app_took_out_do_no_harm() {
        let mut record = sample();
        record.before.clear();
        assert_eq!(record.peak(), (275, Duration::from_millis(4)));
        assert_eq!(record.at_peak(MemoryBy::Label).len(), 2);
        assert!(record.svg(MemoryBy::Label).ends_with("</svg>\n"));
    }
}
