//! Faults that only kernels can detect: indices out of range, division by zero and, if they are
//! looked for, results that are not finite. A kernel can't return an error, so it stores one word
//! in pinned host memory. That takes no atomic, copy or wait.
//!
//! Each launch that may find a fault has a word of its own, and a [`Ticket`] for it. The buffers
//! that the launch writes hold the ticket, and so do those that are computed from them
//! ([`crate::memory::marks`]). The word is free again once the ticket is dropped and the device is
//! past the launch.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::context::Context;
use crate::device::event::Event;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::memory::pinned::PinnedBlock;

/// The kinds of faults that a kernel may find in the values that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An index outside its axis. The kernel writes the word by `raise_index` of
    /// `prelude_device.h`.
    Index,
    /// An offset of packed sequences that breaks the ascent from 0 to the number of rows. The
    /// kernel writes the word by `raise_index`.
    Offset,
    /// An integer divided by zero.
    Division,
    /// A result that is NaN or infinite. Only `check.hip` looks for it.
    NotFinite,
}

/// The words that are allocated together: a page of memory.
const WORDS: usize = 512;

/// The launch number of a ticket whose launch is not enqueued yet.
const NOT_YET: u64 = u64::MAX;

/// An event is recorded after at least this many launches that have a word. The events tell the
/// host which of these launches have finished.
const EVENT_EVERY: u64 = 4;

/// Increases whenever the host learns that a device has passed more launches. While it stays the
/// same, checking a ticket again gives the same answer.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// The value of [`PROGRESS`].
pub(crate) fn progress() -> u64 {
    PROGRESS.load(Ordering::Acquire)
}

/// The fault word of one launch.
pub(crate) struct Ticket {
    /// Its place in the order of all tickets of the process.
    id: u64,
    home: Arc<Faults>,
    word: u32,
    address: usize,
    /// The launch's number among its device's launches with a word; 0 if it was cancelled.
    launch: AtomicU64,
}

impl Ticket {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The word's address, for the kernel.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Records that the launch is enqueued.
    pub(crate) fn launched(&self) {
        // The number is set only now, so that a thread that sees it knows that the launch is
        // enqueued.
        let number = self.home.launched.fetch_add(1, Ordering::AcqRel) + 1;
        self.launch.store(number, Ordering::Release);
    }

    /// Records that there will be no launch.
    pub(crate) fn cancelled(&self) {
        self.launch.store(0, Ordering::Release);
    }

    /// What the kernel has stored so far; 0 if it has found nothing wrong.
    pub(crate) fn value(&self) -> u64 {
        // SAFETY: `home` keeps the page that holds the word, which is aligned. Device and host
        // access each word as a whole. The page is `PinnedBlock::coherent`: HIP guarantees that the
        // host sees a kernel's store to such memory. After a wait for the launch it sees the last.
        unsafe { AtomicU64::from_ptr(self.address as *mut u64) }.load(Ordering::Acquire)
    }

    /// Whether the launch is known to have finished without a fault.
    pub(crate) fn is_good(&self) -> bool {
        // In this order, because the word is final once the launch has finished.
        self.is_over() && self.value() == 0
    }

    fn is_over(&self) -> bool {
        self.home.passed.load(Ordering::Acquire) >= self.launch.load(Ordering::Acquire)
    }

    /// Finds out which launches the device has passed.
    pub(crate) fn poll(&self) {
        self.home.poll();
    }

    /// Waits until the launch has finished, if it is enqueued.
    pub(crate) fn wait(&self) {
        let launch = self.launch.load(Ordering::Acquire);
        if launch != NOT_YET
            && !self.is_over()
            && let Err(error) = self.home.wait_for(launch)
        {
            self.home.context.record(error);
        }
    }

    /// The fault. It counts as reported from now on.
    fn told(&self) -> Complaint {
        let mut state = self.home.state();
        let slot = &mut state.slots[self.word as usize];
        slot.told = true;
        Complaint { id: self.id, op: slot.op, fault: slot.fault, value: self.value() }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let launch = *self.launch.get_mut();
        let mut state = self.home.state();
        if launch == NOT_YET || self.is_over() {
            state.settle(self.word);
        } else {
            state.retired.push((launch, self.word));
        }
    }
}

/// One device's words.
pub(crate) struct Faults {
    context: Arc<Context>,
    stream: Arc<Stream>,
    /// How many launches with a word were enqueued.
    launched: AtomicU64,
    /// How many of these the device is known to have passed.
    passed: AtomicU64,
    /// The value of `launched` when `poll` last ran.
    polled: AtomicU64,
    state: Mutex<State>,
}

struct State {
    pages: Vec<PinnedBlock>,
    /// The launch that each word belongs to.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Words whose tickets are dropped, each with the number of the launch that may still write it.
    retired: Vec<(u64, u32)>,
    /// Numbers of launches, each with an event after it, oldest first.
    events: VecDeque<(u64, Event)>,
    /// Unreported faults of results that were dropped: the last one for each op.
    untold: Vec<Complaint>,
}

#[derive(Clone, Copy)]
struct Slot {
    /// The ticket's.
    id: u64,
    op: &'static str,
    fault: Fault,
    /// Whether a read or sync has reported it.
    told: bool,
}

#[derive(Clone, Copy)]
struct Complaint {
    /// The ticket's place in the order of all tickets.
    id: u64,
    op: &'static str,
    fault: Fault,
    value: u64,
}

impl Faults {
    pub(crate) fn new(context: &Arc<Context>, stream: &Arc<Stream>) -> Result<Arc<Self>> {
        let mut state = State {
            pages: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            retired: Vec::new(),
            events: VecDeque::new(),
            untold: Vec::new(),
        };
        state.grow(context)?;
        Ok(Arc::new(Self {
            context: context.clone(),
            stream: stream.clone(),
            launched: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            state: Mutex::new(state),
        }))
    }

    /// A word for a launch of `op` that is about to be enqueued.
    pub(crate) fn issue(self: &Arc<Self>, op: &'static str, fault: Fault) -> Result<Arc<Ticket>> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let mut state = self.state();
        if state.free.is_empty() {
            drop(state);
            self.poll();
            state = self.state();
        }
        if state.free.is_empty() {
            state.grow(&self.context)?;
        }
        let Some(word) = state.free.pop() else { unreachable!("grown above") };
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        state.slots[word as usize] = Slot { id, op, fault, told: false };
        Ok(Arc::new(Ticket {
            id,
            home: self.clone(),
            word,
            address: state.address(word),
            launch: AtomicU64::new(NOT_YET),
        }))
    }

    /// The number of the last enqueued launch with a word. Work that is enqueued from now on comes
    /// after that launch.
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::Acquire)
    }

    /// Records that the device has passed this launch and all launches before it.
    pub(crate) fn pass(&self, launch: u64) {
        if self.passed.fetch_max(launch, Ordering::AcqRel) >= launch {
            return;
        }
        PROGRESS.fetch_add(1, Ordering::AcqRel);
        let mut state = self.state();
        let mut at = 0;
        while let Some(&(number, word)) = state.retired.get(at) {
            if number <= launch {
                state.retired.swap_remove(at);
                state.settle(word);
            } else {
                at += 1;
            }
        }
    }

    /// Finds out which launches the device has passed: queries the events, and records one after
    /// the newly enqueued launches.
    fn poll(&self) {
        let launched = self.launched();
        let polled = self.polled.load(Ordering::Relaxed);
        if launched < polled.saturating_add(EVENT_EVERY)
            // If the exchange fails, another thread is polling.
            || self.polled.compare_exchange(polled, launched, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        // Outside the lock, because recording an event launches the deferred ops.
        let event = match self.stream.mark() {
            Ok(event) => event,
            Err(error) => return self.context.record(error),
        };
        let mut state = self.state();
        state.events.push_back((launched, event));
        let mut passed = 0;
        while state.events.front().is_some_and(|(_, event)| event.query().unwrap_or(false)) {
            if let Some((number, _)) = state.events.pop_front() {
                passed = passed.max(number);
            }
        }
        drop(state);
        self.pass(passed);
    }

    fn wait_for(&self, launch: u64) -> Result<()> {
        let mut state = self.state();
        let behind = state.events.iter().position(|&(number, _)| number >= launch);
        let event = behind.and_then(|at| state.events.drain(..=at).next_back());
        drop(state);
        let (number, event) = match event {
            Some(event) => event,
            None => (self.launched(), self.stream.mark()?),
        };
        event.synchronize()?;
        self.pass(number);
        Ok(())
    }

    /// One error for all unreported faults, with the first one's op. Reads of faulty buffers still
    /// fail.
    pub(crate) fn report(&self) -> Option<Error> {
        let mut state = self.state();
        let mut found = std::mem::take(&mut state.untold);
        for word in 0..state.slots.len() {
            let Slot { id, op, fault, told } = state.slots[word];
            let value = state.word(word as u32).load(Ordering::Acquire);
            if value != 0 && !told {
                state.slots[word].told = true;
                found.push(Complaint { id, op, fault, value });
            }
        }
        joined(found)
    }

    /// The number of words in use.
    pub(crate) fn words(&self) -> usize {
        let state = self.state();
        state.slots.len() - state.free.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic can't leave it broken: the state consists of plain values, and every statement
        // that changes them leaves them consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a page of words.
    fn grow(&mut self, context: &Arc<Context>) -> Result<()> {
        self.pages.push(PinnedBlock::coherent(context, WORDS * size_of::<u64>())?);
        let (from, to) = (self.slots.len(), self.pages.len() * WORDS);
        self.slots.resize(to, Slot { id: 0, op: "", fault: Fault::Index, told: false });
        self.free.extend((from as u32..to as u32).rev());
        Ok(())
    }

    fn address(&self, word: u32) -> usize {
        let (page, at) = (word as usize / WORDS, word as usize % WORDS);
        self.pages[page].address() as usize + at * size_of::<u64>()
    }

    fn word(&self, word: u32) -> &AtomicU64 {
        // SAFETY: `self` keeps the page that holds the word, which is aligned. Device and host
        // access each word as a whole. The page is `PinnedBlock::coherent`: HIP guarantees that the
        // host sees a kernel's store to such memory. After a wait for the launch it sees the last.
        unsafe { AtomicU64::from_ptr(self.address(word) as *mut u64) }
    }

    /// Frees a word whose ticket is dropped and that no launch can write any more.
    fn settle(&mut self, word: u32) {
        let value = self.word(word).swap(0, Ordering::AcqRel);
        let Slot { id, op, fault, told } = self.slots[word as usize];
        if value != 0 && !told {
            let complaint = Complaint { id, op, fault, value };
            let same = |other: &Complaint| (other.op, other.fault) == (op, fault);
            // Of results that are not finite the first one tells where they come from.
            match self.untold.iter_mut().find(|other| same(other)) {
                Some(other) if fault == Fault::NotFinite && other.id < id => {}
                Some(other) => *other = complaint,
                None => self.untold.push(complaint),
            }
        }
        self.free.push(word);
    }
}

/// One error for all tickets whose launches found a fault. These faults then count as reported.
pub(crate) fn tell<'a>(tickets: impl IntoIterator<Item = &'a Arc<Ticket>>) -> Option<Error> {
    let bad = tickets.into_iter().filter(|ticket| ticket.value() != 0);
    joined(bad.map(|ticket| ticket.told()).collect())
}

/// One error with the first fault's op. It names each op's faults once per kind. Of results that
/// are not finite it names only the first, because the others are mostly computed from it.
fn joined(mut complaints: Vec<Complaint>) -> Option<Error> {
    complaints.sort_by_key(|complaint| complaint.id);
    let mut said: Vec<(&'static str, Fault)> = Vec::new();
    let mut first: Option<Error> = None;
    for Complaint { op, fault, value, .. } in complaints {
        let before =
            |&(other, kind): &(&str, Fault)| kind == fault && (other == op || fault == Fault::NotFinite);
        if said.iter().any(before) {
            continue;
        }
        said.push((op, fault));
        let (expected, found) = describe(fault, value);
        match &mut first {
            Some(Error::Invalid { found: all, .. }) => {
                all.push_str(&format!("; {op}: expected {expected}, found {found}"));
            }
            _ => first = Some(Error::invalid(op, expected, found)),
        }
    }
    first
}

/// What was expected and what was found. `raise_index` stores the axis' size in bits 32 to 62 and
/// the index in bits 0 to 31, both saturated.
fn describe(fault: Fault, value: u64) -> (String, String) {
    match fault {
        Fault::Division => return ("divisors other than 0".into(), "division by zero".into()),
        Fault::NotFinite => {
            let what = if value >> 62 & 1 == 1 { "NaN" } else { "an infinity" };
            let at = value & ((1 << 62) - 1);
            return ("finite results".into(), format!("{what} at element {at} in memory"));
        }
        Fault::Index | Fault::Offset => {}
    }
    let size = (value >> 32) & 0x7fff_ffff;
    let index = match value as u32 as i32 {
        i32::MAX => format!("{} or more", i32::MAX),
        i32::MIN => format!("{} or less", i32::MIN),
        index => index.to_string(),
    };
    let axis = if size == 0x7fff_ffff { format!("at least {size}") } else { size.to_string() };
    if fault == Fault::Offset {
        return (
            format!("offsets that ascend from 0 to the number of rows, {axis}"),
            format!("offset {index}"),
        );
    }
    (format!("indices from 0 to below the axis' size, {axis}"), format!("index {index}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_op_is_said_once() {
        let complaint = |op, fault, value| Complaint { id: 0, op, fault, value };
        let index = 1 << 63 | 4 << 32;
        let said = joined(vec![
            complaint("a", Fault::Index, index | 7),
            complaint("b", Fault::Division, 1),
            complaint("a", Fault::Index, index | 8),
            complaint("a", Fault::Division, 1),
        ]);
        let Some(Error::Invalid { op: "a", found, .. }) = said else { panic!("{said:?}") };
        assert!(found.starts_with("index 7; b: ") && found.contains("; a: "), "{found}");
        assert!(!found.contains("index 8"), "{found}");
        assert!(joined(Vec::new()).is_none());
    }

    #[test]
    fn of_results_that_are_not_finite_the_first_is_said() {
        let complaint = |id, op, value| Complaint { id, op, fault: Fault::NotFinite, value };
        let said = joined(vec![complaint(9, "b", 3 << 62), complaint(4, "a", 1 << 63 | 17)]);
        let Some(Error::Invalid { op: "a", expected, found }) = said else { panic!("{said:?}") };
        assert_eq!((&*expected, &*found), ("finite results", "an infinity at element 17 in memory"));
        assert_eq!(describe(Fault::NotFinite, 3 << 62 | 5).1, "NaN at element 5 in memory");
    }

    #[test]
    fn words_in_words() {
        let index =
            |size: u64, index: i32| describe(Fault::Index, 1 << 63 | size << 32 | u64::from(index as u32));
        assert_eq!(index(10, 12).1, "index 12");
        assert_eq!(index(10, -3).1, "index -3");
        assert!(index(10, -3).0.ends_with("size, 10"));
        assert_eq!(index(0, i32::MAX).1, "index 2147483647 or more");
        assert!(index(0x7fff_ffff, 0).0.ends_with("at least 2147483647"));
    }
}
