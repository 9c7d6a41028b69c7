//! Profiles in progress. All of a process's work counts in each of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::fast::FixedState;

use crate::profile::names::Text;
use crate::profile::work::{Key, Load, Who};
use crate::settings::{ProfileOutput, settings};
use crate::watch::{self, PROFILE, Running, now, thread_number};

/// The most entries of a profile's timeline: each piece of work, op, region and change of memory is
/// one of at most 96 bytes.
const MOST: usize = 1 << 20;

/// One thing that is profiled: the profile of a call, or that of the whole process.
pub(crate) struct Session {
    /// On the clock of [`now`].
    pub(crate) begun: u64,
    /// Whether it keeps each entry of its timeline beside the sums.
    timeline: bool,
    collected: Mutex<Collected>,
}

/// The sums of equal pieces of work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) calls: u64,
    /// Those whose time is known.
    pub(crate) timed: u64,
    /// Those of them that shared events with others.
    pub(crate) shared: u64,
    /// Nanoseconds.
    pub(crate) total: u64,
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// Of the calls whose load is known.
    pub(crate) load: Load,
    /// Nanoseconds of the calls whose bytes, and whose operations, are known.
    pub(crate) bytes_time: u64,
    pub(crate) flops_time: u64,
}

impl Sums {
    /// Adds a piece of work; its `time` is `None` if it is not known.
    fn add(&mut self, time: Option<u64>, done: &Done) {
        self.calls += 1;
        let Some(time) = time else { return };
        let load = done.load;
        self.shared += u64::from(done.shared);
        self.least = if self.timed == 0 { time } else { self.least.min(time) };
        self.most = self.most.max(time);
        self.timed += 1;
        self.total += time;
        self.load.bytes += load.bytes;
        self.load.flops += load.flops;
        self.bytes_time += if load.bytes > 0 { time } else { 0 };
        self.flops_time += if load.flops > 0 { time } else { 0 };
    }
}

/// Work on a stream, in nanoseconds of the stream's own clock.
#[derive(Clone, Copy)]
pub(crate) struct Done {
    pub(crate) key: Key,
    pub(crate) lane: u32,
    pub(crate) thread: u32,
    /// The correlator's, or 0.
    pub(crate) number: u32,
    pub(crate) start: u64,
    pub(crate) stop: u64,
    pub(crate) load: Load,
    /// Whether the times are a part of what several pieces took together.
    pub(crate) shared: bool,
}

const _: () = assert!(size_of::<Done>() <= 96);

/// An op or a region on the host.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) who: Who,
    pub(crate) is_region: bool,
    pub(crate) thread: u32,
    pub(crate) start: u64,
    pub(crate) stop: u64,
}

/// The bytes of a device's pool at a time.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) device: usize,
    pub(crate) at: u64,
    pub(crate) used: usize,
    pub(crate) reserved: usize,
}

/// A stream, for the timeline.
#[derive(Clone)]
pub(crate) struct LaneInfo {
    pub(crate) device: usize,
    pub(crate) label: Arc<str>,
    /// What the host's clock shows when the stream's own shows 0, as far as that is known.
    pub(crate) zero: i64,
}

/// How often a region ran, and the host's nanoseconds in it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Visits {
    pub(crate) calls: u64,
    pub(crate) host: u64,
}

/// What one launch of a graph runs: each piece with how often.
pub(crate) type Contents = Arc<[(Key, u64)]>;

#[derive(Clone, Default)]
pub(crate) struct Collected {
    pub(crate) rows: HashMap<Key, Sums, FixedState>,
    pub(crate) regions: BTreeMap<Text, Visits>,
    pub(crate) graphs: BTreeMap<Text, Contents>,
    pub(crate) lanes: BTreeMap<u32, LaneInfo>,
    pub(crate) done: Vec<Done>,
    pub(crate) spans: Vec<Span>,
    pub(crate) memory: Vec<Sample>,
    /// How many entries the timeline lacks, because it was full.
    pub(crate) left_out: u64,
}

impl Collected {
    fn has_room(&mut self) -> bool {
        let room = self.done.len() + self.spans.len() + self.memory.len() < MOST;
        self.left_out += u64::from(!room);
        room
    }
}

/// The sessions in progress. Replaced as a whole, so that a piece of work can keep those of its
/// beginning.
pub(crate) type Sessions = Arc<Vec<Arc<Session>>>;

/// The profile of the whole process, if the settings ask for one.
static PROCESS: LazyLock<Option<Arc<Session>>> = LazyLock::new(|| {
    let output = settings().map(|settings| settings.profile.clone()).unwrap_or_default();
    (output != ProfileOutput::None).then(|| Session::new(matches!(output, ProfileOutput::Trace(_))))
});

static OPEN: LazyLock<RwLock<Sessions>> =
    LazyLock::new(|| RwLock::new(Arc::new(PROCESS.iter().cloned().collect())));

/// The sessions in progress.
pub(crate) fn open() -> Sessions {
    OPEN.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// How many profiles have begun by a call.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// A number that grows when a profile begins.
pub(crate) fn generation() -> u64 {
    BEGUN.load(Ordering::Relaxed)
}

/// The profile of the whole process, if the settings ask for one.
pub(crate) fn of_process() -> Option<&'static Arc<Session>> {
    PROCESS.as_ref()
}

impl Session {
    fn new(timeline: bool) -> Arc<Self> {
        Arc::new(Self { begun: now(), timeline, collected: Mutex::default() })
    }

    /// Begins one with a timeline.
    pub(crate) fn begin() -> Arc<Self> {
        let session = Self::new(true);
        // Relaxed: a stream that sees it late measures less.
        BEGUN.fetch_add(1, Ordering::Relaxed);
        change(|open| open.push(session.clone()));
        session
    }

    /// Takes it out of the sessions in progress. Work that was enqueued before still counts in it.
    pub(crate) fn end(self: &Arc<Self>) {
        change(|open| open.retain(|other| !Arc::ptr_eq(other, self)));
    }

    pub(crate) fn collected(&self) -> MutexGuard<'_, Collected> {
        // Sums and lists; a panic leaves none of them broken.
        self.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece of work; `time` is `None` if its time is not known.
    pub(crate) fn add(&self, lane: &LaneInfo, done: &Done, time: Option<u64>) {
        let mut collected = self.collected();
        collected.rows.entry(done.key).or_default().add(time, done);
        match collected.lanes.get_mut(&done.lane) {
            Some(known) => known.zero = lane.zero,
            None => drop(collected.lanes.insert(done.lane, lane.clone())),
        }
        if self.timeline && time.is_some() && collected.has_room() {
            collected.done.push(*done);
        }
    }

    fn add_span(&self, span: Span) {
        if !self.timeline {
            return;
        }
        let mut collected = self.collected();
        if collected.has_room() {
            collected.spans.push(span);
        }
    }
}

fn change(change: impl FnOnce(&mut Vec<Arc<Session>>)) {
    let mut open = OPEN.write().unwrap_or_else(PoisonError::into_inner);
    let mut next = (**open).clone();
    change(&mut next);
    watch::switch(PROFILE, !next.is_empty());
    *open = Arc::new(next);
}

/// Adds an op that has ended to the sessions that had begun before it.
pub(crate) fn op_ended(running: &Running, since: u64) {
    let who = Who::of(running);
    let span = Span { who, is_region: false, thread: thread_number(), start: since, stop: now() };
    for session in open().iter().filter(|session| session.begun <= since) {
        session.add_span(span);
    }
}

/// Adds a region that has ended to the sessions that had begun before it.
pub(crate) fn region_ended(region: Text, since: u64) {
    let who = Who { region, ..Who::NOBODY };
    let span = Span { who, is_region: true, thread: thread_number(), start: since, stop: now() };
    for session in open().iter().filter(|session| session.begun <= since) {
        let mut collected = session.collected();
        let visits = collected.regions.entry(region).or_default();
        visits.calls += 1;
        visits.host += span.stop - since;
        drop(collected);
        session.add_span(span);
    }
}

/// Notes the bytes of a device's pool after a change.
pub(crate) fn memory(device: usize, used: usize, reserved: usize) {
    for session in open().iter().filter(|session| session.timeline) {
        let mut collected = session.collected();
        if collected.has_room() {
            collected.memory.push(Sample { device, at: now(), used, reserved });
        }
    }
}

/// The number of a graph among those that were captured.
pub(crate) fn next_graph() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the numbers differ.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
