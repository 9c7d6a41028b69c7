//! The map of a GPU's allocations, to the byte.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How many ranges a hint remembers. Kernels seldom read and write more buffers in one loop.
const REMEMBERED: usize = 4;
/// How many freed ranges are remembered for reports.
const FREED: usize = 256;

/// Bytes that a GPU may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first byte's address.
    pub start: u64,
    /// The address after the last byte.
    pub end: u64,
    /// Whether the GPU may also write.
    pub writable: bool,
    /// Whether it is the host's memory.
    pub host: bool,
}

impl Range {
    const EMPTY: Self = Self { start: u64::MAX, end: 0, writable: false, host: false };

    /// Whether the `len` bytes at `at` lie in the range.
    #[inline(always)]
    fn contains(&self, at: u64, len: u64) -> bool {
        at >= self.start && at <= self.end && len <= self.end - at
    }
}

/// Why a GPU may not access an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Some byte lies in no allocation.
    #[error("outside every allocation")]
    Outside,
    /// The allocation is for reading only.
    #[error("a write to read-only memory")]
    ReadOnly,
}

/// The ranges that one wave found last.
#[derive(Clone, Debug)]
pub struct Hint {
    ranges: [Range; REMEMBERED],
    /// The range to forget next.
    oldest: usize,
    /// The map's generation when the ranges were found.
    generation: u64,
}

impl Default for Hint {
    fn default() -> Self {
        Self { ranges: [Range::EMPTY; REMEMBERED], oldest: 0, generation: 0 }
    }
}

/// What lies nearest to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// The allocation.
    pub range: Range,
    /// Whether it was freed before.
    pub freed: bool,
}

#[derive(Debug, Default)]
struct Ranges {
    /// Memory of pools, by first address. No two overlap.
    owned: BTreeMap<u64, Range>,
    /// Pinned host memory as it was registered: how often, by start and end. It may overlap.
    pinned: BTreeMap<(u64, u64), usize>,
    /// The union of `pinned`.
    merged: BTreeMap<u64, Range>,
    freed: VecDeque<Range>,
}

/// The allocations that one GPU may access.
///
/// Any thread may check while another one allocates. An allocation that is freed is refused from then on.
#[derive(Debug)]
pub struct AllocationMap {
    ranges: RwLock<Ranges>,
    /// Counts removals, because a removal makes all earlier hints invalid. It begins at 1, so that
    /// a new hint, which has 0, counts as outdated.
    generation: AtomicU64,
}

impl Default for AllocationMap {
    fn default() -> Self {
        Self::new()
    }
}

impl AllocationMap {
    /// A map without allocations.
    pub fn new() -> Self {
        Self { ranges: RwLock::default(), generation: AtomicU64::new(1) }
    }

    /// Whether `len` bytes at `at` may be read or, with `write`, written. They must lie in one allocation.
    ///
    /// # Errors
    /// [`AccessError`] if not.
    #[inline(always)]
    pub fn check(&self, at: u64, len: u64, write: bool, hint: &mut Hint) -> Result<(), AccessError> {
        if hint.generation == self.generation.load(Ordering::Relaxed) {
            for range in &hint.ranges {
                if range.contains(at, len) && (range.writable || !write) {
                    return Ok(());
                }
            }
        }
        self.look_up(at, len, write, hint)
    }

    #[cold]
    fn look_up(&self, at: u64, len: u64, write: bool, hint: &mut Hint) -> Result<(), AccessError> {
        let ranges = self.read();
        let generation = self.generation.load(Ordering::Acquire);
        let range = ranges.find(at, len).ok_or(AccessError::Outside)?;
        if write && !range.writable {
            return Err(AccessError::ReadOnly);
        }
        if hint.generation != generation {
            *hint = Hint { generation, ..Hint::default() };
        }
        hint.ranges[hint.oldest] = range;
        hint.oldest = (hint.oldest + 1) % REMEMBERED;
        Ok(())
    }

    /// Whether the byte at `at` is the host's memory.
    pub fn is_host(&self, at: u64, hint: &Hint) -> bool {
        let known = (hint.generation == self.generation.load(Ordering::Relaxed))
            .then(|| hint.ranges.iter().copied().find(|range| range.contains(at, 1)));
        known.flatten().or_else(|| self.read().find(at, 1)).is_some_and(|range| range.host)
    }

    /// Adds an allocation, which must not overlap another one.
    pub fn insert(&self, range: Range) {
        self.write().owned.insert(range.start, range);
    }

    /// Removes the allocation that starts at `start`, if there is one.
    pub fn remove(&self, start: u64) -> Option<Range> {
        let mut ranges = self.write();
        let range = ranges.owned.remove(&start)?;
        ranges.freed.push_back(range);
        if ranges.freed.len() > FREED {
            ranges.freed.pop_front();
        }
        self.generation.fetch_add(1, Ordering::Release);
        Some(range)
    }

    /// Adds pinned host memory, which may overlap other pinned memory.
    pub fn pin(&self, start: u64, end: u64) {
        let mut ranges = self.write();
        *ranges.pinned.entry((start, end)).or_default() += 1;
        ranges.merge();
    }

    /// Undoes one [`AllocationMap::pin`] of the same range.
    pub fn unpin(&self, start: u64, end: u64) {
        let mut ranges = self.write();
        if let Some(count) = ranges.pinned.get_mut(&(start, end)) {
            *count -= 1;
            if *count == 0 {
                ranges.pinned.remove(&(start, end));
            }
            ranges.merge();
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// The allocation nearest to `at`. This is a freed one if `at` lies inside it.
    pub fn nearest(&self, at: u64) -> Option<Nearest> {
        let ranges = self.read();
        if let Some(&range) = ranges.freed.iter().rev().find(|range| range.contains(at, 1)) {
            return Some(Nearest { range, freed: true });
        }
        let neighbours = |map: &BTreeMap<u64, Range>| {
            let before = map.range(..=at).next_back().map(|(_, &range)| range);
            [before, map.range(at..).next().map(|(_, &range)| range)]
        };
        let distance = |range: &Range| {
            if at < range.start { range.start - at } else { at.saturating_sub(range.end - 1) }
        };
        let all = neighbours(&ranges.owned).into_iter().chain(neighbours(&ranges.merged));
        all.flatten().min_by_key(distance).map(|range| Nearest { range, freed: false })
    }

    fn read(&self) -> RwLockReadGuard<'_, Ranges> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Ranges> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ranges {
    /// The range that holds all of the `len` bytes at `at`.
    fn find(&self, at: u64, len: u64) -> Option<Range> {
        let within = |map: &BTreeMap<u64, Range>| {
            map.range(..=at).next_back().map(|(_, &range)| range).filter(|range| range.contains(at, len))
        };
        within(&self.owned).or_else(|| within(&self.merged))
    }

    /// Computes `merged`: pinned ranges that touch or overlap are one.
    fn merge(&mut self) {
        self.merged.clear();
        let mut last: Option<Range> = None;
        for &(start, end) in self.pinned.keys() {
            match &mut last {
                Some(range) if start <= range.end => range.end = range.end.max(end),
                _ => {
                    self.merged.extend(last.map(|range| (range.start, range)));
                    last = Some(Range { start, end, writable: true, host: true });
                }
            }
        }
        self.merged.extend(last.map(|range| (range.start, range)));
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
