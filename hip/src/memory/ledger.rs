//! What a pool knows about its blocks in use: who allocated each, and sums by label and by size.

use std::time::Duration;

use crate::memory::label::{self, Label};
use crate::memory::record::{MemoryEvent, MemoryRecord};
use crate::memory::summary::{MemoryBlock, MemoryHolder, MemoryRow, MemoryUse, bytes_of};
use crate::watch::{self, DRY, MEMORY, RUNNING, watched};

/// A block's place in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(u32);

impl Entry {
    /// A block that the ledger does not list.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// A block in use. An unused place has size 0.
#[derive(Clone, Copy)]
struct Live {
    size: usize,
    requested: usize,
    /// When it was allocated, if ops are tracked.
    since: Option<u64>,
    /// Empty if ops are not tracked, or outside any op.
    op: &'static str,
    label: Label,
    thread: u32,
}

/// The size classes: up to this many bytes.
const CLASSES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, usize::MAX];

/// How many labels, and how many ops, the error of a failed allocation names.
const NAMED: usize = 4;

/// The most events that records keep.
const EVENTS: usize = 1 << 20;

/// A block that was handed out or handed back.
#[derive(Clone, Copy)]
struct Event {
    /// The block's place in the ledger.
    entry: u32,
    at: u64,
    size: usize,
    allocated: bool,
    label: Label,
    op: &'static str,
}

/// The beginning of a record.
pub(crate) struct Start {
    at: u64,
    /// How many events were kept, and how many lost, before.
    events: usize,
    lost: u64,
    before: Vec<Event>,
}

/// The end of a record.
pub(crate) struct End {
    at: u64,
    events: Vec<Event>,
    lost: u64,
}

/// What happened between the two. It looks up the names of all labels, so call it without the
/// pool's lock.
pub(crate) fn record(start: &Start, end: &End) -> MemoryRecord {
    let show = |event: &Event| MemoryEvent {
        block: event.entry,
        at: Duration::from_nanos(event.at.saturating_sub(start.at)),
        bytes: event.size,
        allocated: event.allocated,
        label: label::path(event.label),
        op: op_name(event.op),
    };
    MemoryRecord {
        before: start.before.iter().map(show).collect(),
        events: end.events.iter().map(show).collect(),
        time: Duration::from_nanos(end.at.saturating_sub(start.at)),
        lost: end.lost,
    }
}

#[derive(Default)]
pub(crate) struct Ledger {
    live: Vec<Live>,
    unused: Vec<u32>,
    /// By the label's number, with the label outside it.
    labels: Vec<(MemoryUse, Label)>,
    classes: [MemoryUse; CLASSES.len()],
    all: MemoryUse,
    /// Records in progress. Without any, no event is kept.
    records: usize,
    events: Vec<Event>,
    lost: u64,
}

fn event(entry: u32, live: &Live, at: u64, allocated: bool) -> Event {
    Event { entry, at, size: live.size, allocated, label: live.label, op: live.op }
}

fn op_name(op: &'static str) -> &'static str {
    if op.is_empty() { "(not tracked)" } else { op }
}

impl Ledger {
    /// Lists a block that the calling thread allocates.
    pub(crate) fn add(&mut self, size: usize, requested: usize) -> Entry {
        let (since, op) = match watched() & (MEMORY | DRY) {
            0 => (None, ""),
            _ => (Some(watch::now()), RUNNING.get().op),
        };
        let (label, thread) = (label::current(), watch::thread_number());
        let live = Live { size, requested, since, op, label, thread };
        let number = match self.unused.pop() {
            Some(number) => {
                self.live[number as usize] = live;
                number
            }
            None => {
                self.live.push(live);
                (self.live.len() - 1) as u32
            }
        };
        while self.labels.len() <= label.0 as usize {
            let next = Label(self.labels.len() as u32);
            self.labels.push((MemoryUse::default(), label::outer(next)));
        }
        self.each(label, size, |used| used.add(size));
        if self.records > 0 {
            self.note(number, &live, true);
        }
        Entry(number)
    }

    /// Removes a block that is freed.
    pub(crate) fn remove(&mut self, entry: Entry) {
        let Some(live) = self.live.get_mut(entry.0 as usize) else { return };
        let freed = *live;
        live.size = 0;
        self.unused.push(entry.0);
        self.each(freed.label, freed.size, |used| used.remove(freed.size));
        if self.records > 0 {
            self.note(entry.0, &freed, false);
        }
    }

    #[cold]
    fn note(&mut self, entry: u32, live: &Live, allocated: bool) {
        if self.events.len() >= EVENTS {
            self.lost += 1;
            return;
        }
        self.events.push(event(entry, live, watch::now(), allocated));
    }

    /// Begins a record. End it by [`end_record`](Self::end_record).
    pub(crate) fn begin_record(&mut self) -> Start {
        self.records += 1;
        let at = watch::now();
        let numbered = (0..).zip(&self.live).filter(|(_, live)| live.size != 0);
        let before = numbered.map(|(entry, live)| event(entry, live, at, true)).collect();
        Start { at, events: self.events.len(), lost: self.lost, before }
    }

    pub(crate) fn end_record(&mut self, start: &Start) -> End {
        let lost = self.lost - start.lost;
        self.records -= 1;
        let events = if self.records == 0 {
            self.lost = 0;
            std::mem::take(&mut self.events).split_off(start.events)
        } else {
            self.events[start.events..].to_vec()
        };
        End { at: watch::now(), events, lost }
    }

    /// Calls `f` with every sum that has a block of this label and size. A label's sum has the
    /// blocks of the labels inside it too.
    #[inline]
    fn each(&mut self, label: Label, size: usize, f: impl Fn(&mut MemoryUse)) {
        f(&mut self.all);
        f(&mut self.classes[CLASSES.iter().position(|&most| size <= most).unwrap_or(CLASSES.len() - 1)]);
        let mut label = label;
        loop {
            let (used, outer) = &mut self.labels[label.0 as usize];
            f(used);
            if outer.0 == 0 {
                return;
            }
            label = *outer;
        }
    }

    pub(crate) fn reset_peaks(&mut self) {
        let labels = self.labels.iter_mut().map(|(used, _)| used);
        for used in labels.chain(&mut self.classes).chain([&mut self.all]) {
            used.peak = used.bytes;
        }
    }

    pub(crate) fn all(&self) -> MemoryUse {
        self.all
    }

    pub(crate) fn classes(&self) -> Vec<MemoryRow> {
        let name = |most: usize| match most {
            usize::MAX => "more".into(),
            most => format!("up to {}", bytes_of(most)),
        };
        CLASSES.iter().zip(self.classes).map(|(&most, used)| MemoryRow { name: name(most), used }).collect()
    }

    /// The labels under which something was allocated, the empty one first, then by path.
    pub(crate) fn labels(&self) -> Vec<MemoryRow> {
        let used = self.labels.iter().enumerate().filter(|(_, (used, _))| used.allocations > 0);
        let mut rows: Vec<_> = used
            .map(|(number, &(used, _))| {
                let name = label::path(Label(number as u32)).to_string();
                (number != 0, MemoryRow { name, used })
            })
            .collect();
        rows.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Blocks in use by the thread that allocated them, most bytes first.
    pub(crate) fn threads(&self) -> Vec<MemoryHolder> {
        self.holders(|live| watch::thread_name(live.thread))
    }

    /// Blocks in use by the op that allocated them, most bytes first.
    pub(crate) fn ops(&self) -> Vec<MemoryHolder> {
        self.holders(|live| op_name(live.op).to_owned())
    }

    fn in_use(&self) -> impl Iterator<Item = &Live> {
        self.live.iter().filter(|live| live.size != 0)
    }

    fn holders(&self, name: impl Fn(&Live) -> String) -> Vec<MemoryHolder> {
        let mut by_name = std::collections::BTreeMap::<String, (usize, u64)>::new();
        for live in self.in_use() {
            let (bytes, blocks) = by_name.entry(name(live)).or_default();
            *bytes += live.size;
            *blocks += 1;
        }
        let mut all: Vec<_> =
            by_name.into_iter().map(|(name, (bytes, blocks))| MemoryHolder { name, bytes, blocks }).collect();
        // Stable, so equal ones stay in the order of their names.
        all.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        all
    }

    /// Every block in use, the largest first.
    pub(crate) fn blocks(&self) -> Vec<MemoryBlock> {
        let now = watch::now();
        let block = |live: &Live| MemoryBlock {
            bytes: live.size,
            requested: live.requested,
            age: live.since.map(|since| Duration::from_nanos(now.saturating_sub(since))),
            op: (!live.op.is_empty()).then_some(live.op),
            label: (live.label.0 != 0).then(|| label::path(live.label).to_string()),
            thread: watch::thread_name(live.thread),
        };
        let mut blocks: Vec<_> = self.in_use().map(block).collect();
        blocks.sort_by_key(|block| std::cmp::Reverse(block.bytes));
        blocks
    }

    /// What holds the memory, for the error of a failed allocation.
    pub(crate) fn blame(&self) -> String {
        let few = |all: Vec<MemoryHolder>| {
            let left = all.len().saturating_sub(NAMED);
            let mut texts: Vec<_> =
                all.iter().take(NAMED).map(|one| format!("{} {}", one.name, bytes_of(one.bytes))).collect();
            if left > 0 {
                texts.push(format!("{left} more"));
            }
            texts.join(", ")
        };
        let labels = self.holders(|live| label::path(live.label).to_string());
        let largest = self.in_use().map(|live| live.size).max().unwrap_or(0);
        let mut text = format!("{} in {} blocks", bytes_of(self.all.bytes), self.all.blocks());
        if largest > 0 {
            text += &format!(", the largest {}; by label: {}", bytes_of(largest), few(labels));
            text += &match self.in_use().any(|live| !live.op.is_empty()) {
                true => format!("; by op: {}", few(self.ops())),
                false => "; memory_track_ops(true) also names the ops".into(),
            };
        }
        text
    }
}
