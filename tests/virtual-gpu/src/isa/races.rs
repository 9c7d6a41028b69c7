//! Races in global memory between the waves of a launch.
//!
//! Two waves race if both access a byte, at least one of them stores to it, and nothing orders the two accesses.
//! Machine code does not show which accesses the source meant as atomic, so in doubt no race is reported:
//!
//! - A wave *acquires* when it executes a load with GLC, SLC or DLC, or an atomic that returns something. The
//!   wave may have read a flag, so all earlier accesses of other waves are ordered before its later ones,
//!   whatever value it read.
//! - A barrier, an atomic on LDS and `buffer_gl0_inv` do the same among the waves of one workgroup. They also
//!   pass on what one wave of the workgroup has acquired: in the last workgroup to arrive, one wave reads the
//!   counter, and all of them reduce the other workgroups' results.
//! - Acquiring accesses are never compared. gfx1030 does not mark stores as atomic, so any store may release
//!   a lock or set a flag that others poll.
//! - Plain loads are not compared with atomics: the compiler turns `atomicAdd` of floats into a loop around
//!   `cmpswap` that begins with a plain load.
//! - A store that changes none of its bytes is ignored, and two stores of the same value are not compared: several
//!   waves may set the same flag. The value of the last store is remembered, because waves on several threads may all
//!   see the old bytes.
//! - Stores to the host's memory are not compared with each other: kernels report faults there, and any of the reports
//!   may remain.
//! - The compiler widens scalar loads of bytes, so these are not compared with stores of less than a dword. Neither are
//!   atomics, which may update a byte of a dword.
//!
//! What remains are plain loads against stores, stores of different values, and stores against atomics without a
//! result. Of each byte the last store and two waves that read it last are remembered.
//!
//! Some reports are not of faults:
//!
//! - Stores of different values of which any may remain.
//! - In CU mode (`-mcumode`), atomic loads of workgroup scope have no GLC and look plain.
//! - The compiler may widen a scalar load of 3 dwords to 4. Another wave may store to the fourth.
//!
//! The shadow takes 10 times the memory that a launch touches, in pages of 1 KiB. It takes 20 times where the launch
//! accesses halves of dwords, and 40 times where it accesses bytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a page of the shadow.
const PAGE: u64 = 1024;
/// Bytes of a cell at first. An access to a part of one halves the cells of its page.
const DWORD: usize = 4;
/// Pages that a wave remembers.
const REMEMBERED: usize = 8;

/// Who accessed what in global memory, for one launch.
#[derive(Debug)]
pub struct GlobalRaces {
    /// The waves of a workgroup.
    waves: u32,
    /// Counts what orders accesses.
    clock: AtomicU64,
    pages: Mutex<HashMap<u64, Arc<Mutex<Page>>>>,
}

/// A wave's access to memory, if it is of a kind that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GlobalAccess {
    Read,
    ScalarRead,
    Store,
    /// An atomic without a result.
    Update,
}

/// A lane's access: its first byte and its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) lane: usize,
    pub(crate) at: u64,
    pub(crate) bytes: u32,
    /// What a store stores.
    pub(crate) stored: Stored,
    /// Of a store: whether it is to the host's memory.
    pub(crate) host: bool,
}

/// What a lane stores.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stored {
    /// The first byte lowest.
    pub(crate) value: u128,
    /// The bytes that differ from what was there, one bit each.
    pub(crate) changes: u16,
}

impl Stored {
    /// What is left after the first bytes.
    fn skip(self, bytes: u32) -> Self {
        Self {
            value: self.value.checked_shr(8 * bytes).unwrap_or_default(),
            changes: self.changes.checked_shr(bytes).unwrap_or_default(),
        }
    }

    /// What a cell of so many bytes gets, and whether that changes it.
    fn cell(self, offset: usize, size: usize) -> (u32, bool) {
        let rest = self.skip(offset as u32);
        (rest.value as u32 & low_bytes(size), rest.changes & ((1 << size) - 1) != 0)
    }
}

/// The mask of a number's lowest bytes, at most 4.
fn low_bytes(size: usize) -> u32 {
    u32::MAX >> (32 - 8 * size)
}

/// A conflict with another wave's access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub(crate) lane: usize,
    pub(crate) address: u64,
    pub(crate) wrote: bool,
    pub(crate) group: u64,
    pub(crate) wave: u32,
    pub(crate) pc: u64,
}

/// An access.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// The launch's waves are numbered from 1; 0 for no access.
    wave: u32,
    /// The clock at the access, or the largest number.
    time: u32,
    /// The lower half of the instruction's address, and flags in the bits that are 0 there.
    place: u32,
}

impl Mark {
    /// Of a store: an atomic.
    const UPDATE: u32 = 1;
    /// Of a store: less than a dword.
    const NARROW: u32 = 2;
    /// Of a read: a scalar one.
    const SCALAR: u32 = 1;

    fn is(&self, flag: u32) -> bool {
        self.place & flag != 0
    }
}

/// A dword, a half of one, or a byte.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    store: Mark,
    /// What the last store stored, unless it was an atomic.
    value: u32,
    reads: [Mark; 2],
}

#[derive(Debug)]
struct Page {
    cells: Vec<Cell>,
    /// The bytes of a cell.
    size: usize,
}

/// The waves of a workgroup.
#[derive(Debug)]
pub struct GroupRaces {
    races: Arc<GlobalRaces>,
    /// The first wave's number among those of the launch, from 1.
    first: u32,
    /// When one of the waves acquired last.
    acquired: AtomicU64,
}

/// A wave that is tracked.
#[derive(Debug)]
pub(crate) struct Tracker {
    group: Arc<GroupRaces>,
    wave: u32,
    /// Accesses of all waves before this time are ordered before the wave's next one.
    acquired: u64,
    /// Accesses of its workgroup before this time are ordered before the wave's next one.
    joined: u64,
    pages: [Option<(u64, Arc<Mutex<Page>>)>; REMEMBERED],
}

impl GlobalRaces {
    /// For a launch with so many waves in a workgroup.
    pub fn new(waves: u32) -> Self {
        Self { waves: waves.max(1), clock: AtomicU64::new(0), pages: Mutex::default() }
    }

    /// For the workgroup with this number; `None` beyond 2^32 waves.
    pub fn group(self: &Arc<Self>, number: u64) -> Option<Arc<GroupRaces>> {
        let first = number.checked_mul(self.waves.into())?.checked_add(1)?;
        let end = first.checked_add(self.waves.into())?;
        u32::try_from(end).ok()?;
        let (races, first) = (Arc::clone(self), first as u32);
        Some(Arc::new(GroupRaces { races, first, acquired: AtomicU64::new(0) }))
    }

    fn page(&self, number: u64) -> Arc<Mutex<Page>> {
        let new = || Page { cells: vec![Cell::default(); PAGE as usize / DWORD], size: DWORD };
        Arc::clone(lock(&self.pages).entry(number).or_insert_with(|| Arc::new(Mutex::new(new()))))
    }

    /// Begins a new time: whatever has happened, happened before it.
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tracker {
    /// Of a wave by its number in its workgroup.
    pub(crate) fn new(group: &Arc<GroupRaces>, wave: u32) -> Self {
        let (group, wave) = (Arc::clone(group), group.first + wave);
        Self { group, wave, acquired: 0, joined: 0, pages: Default::default() }
    }

    fn races(&self) -> &GlobalRaces {
        &self.group.races
    }

    /// The wave has read what another wave may have released.
    pub(crate) fn acquire(&mut self) {
        self.acquired = self.races().tick();
        self.group.acquired.fetch_max(self.acquired, Ordering::SeqCst);
    }

    /// The same among the waves of its workgroup. What one of them has acquired, the wave gets too.
    pub(crate) fn join(&mut self) {
        self.joined = self.races().tick();
        self.acquired = self.group.acquired.load(Ordering::SeqCst);
    }

    /// Whether another wave made this access, and nothing orders it before the wave's next one.
    fn races_with(&self, mark: &Mark) -> bool {
        let time = u64::from(mark.time);
        mark.wave != 0
            && mark.wave != self.wave
            && time >= self.acquired
            && !(self.is_own_group(mark) && time < self.joined)
    }

    fn is_own_group(&self, mark: &Mark) -> bool {
        (self.group.first..self.group.first + self.races().waves).contains(&mark.wave)
    }

    /// Compares the accesses of an instruction at `pc` with those of other waves, and records them.
    pub(crate) fn access(
        &mut self,
        pc: u64,
        access: GlobalAccess,
        spans: impl Iterator<Item = Span>,
    ) -> Result<(), Conflict> {
        let mut pieces = spans.flat_map(Span::by_page).peekable();
        while let Some(number) = pieces.peek().map(Span::page) {
            let page = self.page(number);
            let mut page = lock(&page);
            while let Some(piece) = pieces.next_if(|piece| piece.page() == number) {
                self.access_page(&mut page, pc, access, &piece)?;
            }
        }
        Ok(())
    }

    fn page(&mut self, number: u64) -> Arc<Mutex<Page>> {
        match &mut self.pages[number as usize % REMEMBERED] {
            Some((known, page)) if *known == number => Arc::clone(page),
            place => {
                let page = self.group.races.page(number);
                *place = Some((number, Arc::clone(&page)));
                page
            }
        }
    }

    fn access_page(
        &self,
        page: &mut Page,
        pc: u64,
        access: GlobalAccess,
        span: &Span,
    ) -> Result<(), Conflict> {
        let (from, bytes) = ((span.at % PAGE) as usize, span.bytes as usize);
        while !(from.is_multiple_of(page.size) && bytes.is_multiple_of(page.size)) {
            page.split();
        }
        let size = page.size;
        let time = self.races().clock.load(Ordering::SeqCst).min(u32::MAX.into()) as u32;
        let flags = match access {
            GlobalAccess::Read => 0,
            GlobalAccess::ScalarRead => Mark::SCALAR,
            GlobalAccess::Store if bytes < DWORD => Mark::NARROW,
            GlobalAccess::Store => 0,
            GlobalAccess::Update => Mark::UPDATE,
        };
        let mark = Mark { wave: self.wave, time, place: pc as u32 & !3 | flags };
        for (number, cell) in page.cells[from / size..(from + bytes) / size].iter_mut().enumerate() {
            let offset = number * size;
            let (value, changes) = span.stored.cell(offset, size);
            if access == GlobalAccess::Store && !changes {
                continue;
            }
            let free = span.host || value == cell.value;
            if let Some((other, wrote)) = self.conflict(cell, access, &mark, free) {
                return Err(self.report(span, offset, pc, &other, wrote));
            }
            cell.record(access, mark, value);
        }
        Ok(())
    }

    /// The access that this one races with, and whether that one wrote. `free`: this one may be a store beside the
    /// cell's last store.
    fn conflict(&self, cell: &Cell, access: GlobalAccess, mark: &Mark, free: bool) -> Option<(Mark, bool)> {
        let store = &cell.store;
        let compared = match access {
            GlobalAccess::Read => !store.is(Mark::UPDATE),
            GlobalAccess::ScalarRead | GlobalAccess::Update => !store.is(Mark::UPDATE | Mark::NARROW),
            GlobalAccess::Store if store.is(Mark::UPDATE) => !mark.is(Mark::NARROW),
            GlobalAccess::Store => !free,
        };
        if compared && self.races_with(store) {
            return Some((*store, true));
        }
        if access != GlobalAccess::Store {
            return None;
        }
        let compared = |read: &Mark| !(read.is(Mark::SCALAR) && mark.is(Mark::NARROW));
        let read = cell.reads.iter().find(|read| compared(read) && self.races_with(read))?;
        Some((*read, false))
    }

    #[cold]
    fn report(&self, span: &Span, offset: usize, pc: u64, other: &Mark, wrote: bool) -> Conflict {
        let (number, waves) = (other.wave - 1, self.races().waves);
        // Code objects are smaller than 2 GiB.
        let distance = (other.place & !3).wrapping_sub(pc as u32) as i32;
        Conflict {
            lane: span.lane,
            address: span.at + offset as u64,
            wrote,
            group: (number / waves).into(),
            wave: number % waves,
            pc: pc.wrapping_add_signed(distance.into()),
        }
    }
}

impl Span {
    fn page(&self) -> u64 {
        self.at / PAGE
    }

    /// Its parts in one page each: a lane has 64 bytes at most.
    fn by_page(self) -> impl Iterator<Item = Self> {
        let room = (PAGE - self.at % PAGE).min(self.bytes.into()) as u32;
        let first = Self { bytes: room, ..self };
        let rest = Self {
            at: self.at + u64::from(room),
            bytes: self.bytes - room,
            stored: self.stored.skip(room),
            ..self
        };
        [first, rest].into_iter().filter(|part| part.bytes > 0)
    }
}

impl Cell {
    fn record(&mut self, access: GlobalAccess, mark: Mark, value: u32) {
        match access {
            GlobalAccess::Store | GlobalAccess::Update => (self.store, self.value) = (mark, value),
            GlobalAccess::Read | GlobalAccess::ScalarRead => {
                let [last, earlier] = &mut self.reads;
                if last.wave != mark.wave {
                    *earlier = *last;
                }
                *last = mark;
            }
        }
    }
}

impl Page {
    /// Tracks halves of the cells from now on.
    fn split(&mut self) {
        let size = self.size / 2;
        let part = |cell: &Cell, k| Cell { value: cell.value >> (8 * size * k) & low_bytes(size), ..*cell };
        self.cells = self.cells.iter().flat_map(|cell| [part(cell, 0), part(cell, 1)]).collect();
        self.size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wave in each of two workgroups.
    fn two_waves() -> [Tracker; 2] {
        let races = Arc::new(GlobalRaces::new(1));
        [0, 1].map(|group| Tracker::new(&races.group(group).expect("few waves"), 0))
    }

    /// Stores the first bytes of a value, of which all differ from what is there.
    fn store(wave: &mut Tracker, at: u64, bytes: u32, value: u128) -> Result<(), Conflict> {
        let stored = Stored { value, changes: ((1u32 << bytes) - 1) as u16 };
        let span = Span { lane: 0, at, bytes, stored, host: false };
        wave.access(0, GlobalAccess::Store, [span].into_iter())
    }

    fn load(wave: &mut Tracker, at: u64, bytes: u32) -> Result<(), Conflict> {
        let span = Span { lane: 0, at, bytes, stored: Stored::default(), host: false };
        wave.access(0, GlobalAccess::Read, [span].into_iter())
    }

    /// Waves on two threads may both see the old bytes.
    #[test]
    fn equal_stores_do_not_race() {
        let [mut a, mut b] = two_waves();
        store(&mut a, 64, 4, 0x0403_0201).expect("the first store");
        store(&mut b, 64, 4, 0x0403_0201).expect("the same value");
        let other = store(&mut a, 64, 4, 0x0403_0202).expect_err("another value");
        assert_eq!((other.address, other.wrote, other.group), (64, true, 1));
        assert!(load(&mut a, 64, 4).is_err(), "reads are compared");
        let [mut a, mut b] = two_waves();
        load(&mut a, 64, 4).expect("the first access");
        assert!(store(&mut b, 64, 4, 0).is_err(), "so are reads that came before");
    }

    #[test]
    fn an_atomic_has_no_value() {
        let [mut a, mut b] = two_waves();
        let span = Span { lane: 0, at: 64, bytes: 4, stored: Stored::default(), host: false };
        a.access(0, GlobalAccess::Update, [span].into_iter()).expect("the first access");
        assert!(store(&mut b, 64, 4, 0).is_err());
    }

    #[test]
    fn parts_of_a_value_are_told_apart() {
        // 16 bytes, 10 of which lie in the second page.
        let (at, value) = (PAGE - 6, u128::from_le_bytes(std::array::from_fn(|k| k as u8 + 1)));
        for bytes in [1, 2, 4, 8] {
            for offset in (0..16 - bytes + 1).step_by(2) {
                let [mut a, mut b] = two_waves();
                store(&mut a, at, 16, value).expect("the first store");
                let start = at + u64::from(offset);
                store(&mut b, start, bytes, value >> (8 * offset)).expect("the same bytes");
                // Only the last byte differs.
                let last = value >> (8 * offset) ^ 0x80 << (8 * (bytes - 1));
                let conflict = store(&mut a, start, bytes, last).expect_err("another byte");
                let address = start + u64::from(bytes) - 1;
                assert!((address - 1..=address).contains(&conflict.address), "{conflict:?}");
            }
        }
    }

    #[test]
    fn cells_are_halved_as_far_as_needed() {
        let [mut a, _] = two_waves();
        let size = |wave: &mut Tracker| lock(&wave.page(0)).size;
        for (at, bytes, cell) in [(0, 16, 4), (8, 4, 4), (6, 2, 2), (0, 4, 2), (3, 1, 1), (0, 16, 1)] {
            load(&mut a, at, bytes).expect("only loads");
            assert_eq!(size(&mut a), cell);
        }
        let [mut a, mut b] = two_waves();
        store(&mut a, 0, 4, 0x0403_0201).expect("the first store");
        for byte in 0..4 {
            store(&mut b, byte, 1, u128::from(byte) + 1).expect("the same byte");
        }
    }

    #[test]
    fn stores_to_host_memory_are_compared_with_reads_only() {
        let [mut a, mut b] = two_waves();
        let host = |wave: &mut Tracker, value| {
            let span = Span { lane: 0, at: 0, bytes: 4, stored: Stored { value, changes: 15 }, host: true };
            wave.access(0, GlobalAccess::Store, [span].into_iter())
        };
        host(&mut a, 1).expect("the first store");
        host(&mut b, 2).expect("another value");
        assert!(load(&mut a, 0, 4).is_err());
    }
}
