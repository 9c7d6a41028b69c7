//! The times of a stream's work, by events that nobody waits for.
//!
//! Each piece of work has an event after it. If the stream is still busy when a piece is enqueued,
//! the piece begins where the one before it ended. Otherwise the stream is idle, and the piece also
//! has an event before it. So a busy stream has one event for each piece, and no piece's time
//! includes the time that the stream was idle. The events wait in a ring until the stream has
//! passed them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hip_sys::hipStream_t;

use crate::device::context::{Context, EventKind};
use crate::device::event::Event;
use crate::error::{Error, Result};
use crate::profile::session::{self, Done, LaneInfo, Sessions};
use crate::profile::work::{Key, Load};
use crate::watch::{now, thread_number};

/// The most pieces whose events may be pending: some training steps of a large model. A piece beyond
/// that is counted without its time.
const MOST: usize = 8192;

/// The ring is looked through each time that this many pieces were added, which keeps the number
/// of events small.
const LOOK: usize = 16;

/// The clock and the ring of one stream.
pub(crate) struct Lane {
    number: u32,
    context: Arc<Context>,
    state: Mutex<State>,
}

struct State {
    info: LaneInfo,
    /// Whether `info.zero` was found from some piece yet.
    aligned: bool,
    ring: VecDeque<Piece>,
    /// How many pieces were added since the ring was looked through.
    added: usize,
    /// Whether the stream was told to wait for another one since the last piece.
    waited: bool,
    /// The last piece whose time is known: its end's event, and the stream's time then.
    last: Option<(Arc<Event>, u64)>,
}

/// Work that was enqueued.
struct Piece {
    key: Key,
    load: Load,
    thread: u32,
    sessions: Sessions,
    /// The host's time before it was enqueued.
    enqueued: u64,
    /// `None` if it begins where the piece before it ends.
    start: Option<Event>,
    stop: Arc<Event>,
}

/// The beginning of a piece of work.
pub(crate) struct Started {
    enqueued: u64,
    from: From,
}

enum From {
    /// The end of the stream's last piece.
    Last,
    Own(Event),
    /// No event could be recorded.
    Nowhere,
}

static LANES: Mutex<Vec<Weak<Lane>>> = Mutex::new(Vec::new());

impl Lane {
    pub(crate) fn new(context: &Arc<Context>, label: &str) -> Arc<Self> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let info = LaneInfo { device: context.index, label: label.into(), zero: 0 };
        let state =
            State { info, aligned: false, ring: VecDeque::new(), added: 0, waited: false, last: None };
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let lane = Arc::new(Self { number, context: context.clone(), state: Mutex::new(state) });
        let mut lanes = LANES.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&lane));
        lane
    }

    /// Notes that the stream waits for another one, so that its next piece does not begin where the
    /// last one ended.
    pub(crate) fn waits(&self) {
        self.state().waited = true;
    }

    /// Begins a piece of work, which the caller enqueues next.
    pub(crate) fn begin(&self, stream: hipStream_t) -> Started {
        let mut state = self.state();
        let enqueued = now();
        if state.ring.len() >= MOST {
            self.look(&mut state);
            if state.ring.len() >= MOST {
                return Started { enqueued, from: From::Nowhere };
            }
        }
        let waited = std::mem::take(&mut state.waited);
        let busy = state.ring.back().is_some_and(|last| matches!(last.stop.query(), Ok(false)));
        let from = match busy && !waited {
            true => From::Last,
            false => self.mark(stream).map_or(From::Nowhere, From::Own),
        };
        Started { enqueued, from }
    }

    /// Ends a piece of work that was enqueued.
    pub(crate) fn end(&self, stream: hipStream_t, started: Started, key: Key, load: Load) {
        let sessions = session::open();
        if sessions.is_empty() {
            return;
        }
        let mut state = self.state();
        let Started { enqueued, from } = started;
        let thread = thread_number();
        let stop = if matches!(from, From::Nowhere) { None } else { self.mark(stream) };
        let start = match (from, stop) {
            (From::Own(start), Some(stop)) => Some((Some(start), stop)),
            (From::Last, Some(stop)) => Some((None, stop)),
            _ => None,
        };
        let Some((start, stop)) = start else {
            let done = Done { key, lane: self.number, thread, start: 0, stop: 0, load };
            sessions.iter().for_each(|session| session.add(&state.info, &done, None));
            return;
        };
        let stop = Arc::new(stop);
        state.ring.push_back(Piece { key, load, thread, sessions, enqueued, start, stop });
        state.added += 1;
        if state.added >= LOOK {
            self.look(&mut state);
        }
    }

    /// Records an event. A failure does not fail the work that it would have timed. If it is a
    /// failure of earlier work, the next read or sync returns it.
    fn mark(&self, stream: hipStream_t) -> Option<Event> {
        let event = Event::new(&self.context, EventKind::Timing);
        let marked = event.and_then(|event| event.record_on(stream).map(|()| event));
        match marked {
            Ok(event) => Some(event),
            Err(error) if is_short_of_memory(&error) => {
                log::debug!("work is profiled without its time: {error}");
                None
            }
            Err(error) => {
                self.context.record(error);
                None
            }
        }
    }

    /// Moves the pieces that the stream has passed from the ring to their sessions.
    fn look(&self, state: &mut State) {
        state.added = 0;
        // The events are passed in their order.
        while state.ring.front().is_some_and(|piece| !matches!(piece.stop.query(), Ok(false))) {
            let Some(piece) = state.ring.pop_front() else { return };
            self.passed(state, piece);
        }
    }

    fn passed(&self, state: &mut State, piece: Piece) {
        let times = times(state.last.as_ref(), &piece)
            .inspect_err(|why| log::debug!("work is profiled without its time: {why}"))
            .ok();
        let Piece { key, load, thread, sessions, enqueued, stop: end, .. } = piece;
        if let Some((start, stop)) = times {
            // Work can't begin before it was enqueued. Work that an idle stream gets begins right
            // then, which aligns the clocks.
            let zero = enqueued as i64 - start as i64;
            if !state.aligned || zero > state.info.zero {
                state.info.zero = zero;
                state.aligned = true;
            }
            state.last = Some((end, stop));
        }
        let (start, stop) = times.unwrap_or_default();
        let done = Done { key, lane: self.number, thread, start, stop, load };
        let time = times.map(|(start, stop)| stop - start);
        sessions.iter().for_each(|session| session.add(&state.info, &done, time));
    }

    /// Waits for the pieces that are in the ring now, and moves them to their sessions.
    pub(crate) fn finish(&self) {
        // Waits without the lock: other threads go on enqueueing, and this stream's work may need
        // theirs.
        let last = self.state().ring.back().map(|piece| piece.stop.clone());
        if let Some(last) = last {
            // A failure of the device's work stays with the device; the times then stay unknown.
            if let Err(error) = last.synchronize() {
                log::debug!("the profile's work did not end well: {error}");
            }
        }
        self.look(&mut self.state());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A ring and plain values; a panic leaves none of them broken.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a piece began and ended, in nanoseconds of its stream's clock. That clock shows 0 at the
/// first piece's beginning.
fn times(last: Option<&(Arc<Event>, u64)>, piece: &Piece) -> Result<(u64, u64)> {
    let nanoseconds = |to: &Event, from: &Event| {
        to.elapsed_since(from).map(|milliseconds| (f64::from(milliseconds) * 1e6).round())
    };
    let own = |start: &Event, at: u64| Ok((at, at + nanoseconds(&piece.stop, start)?.max(0.0) as u64));
    match (last, &piece.start) {
        (None, Some(start)) => own(start, 0),
        (None, None) => Err(Error::invalid("a profile", "an event before the work", "none")),
        (Some((before, at)), start) => {
            let gap = start.as_ref().map(|start| nanoseconds(start, before)).transpose()?;
            match (gap, start) {
                (Some(gap), Some(start)) if gap > 0.0 => own(start, at + gap as u64),
                // Another thread's piece ended after this one's first event.
                _ => own(before, *at),
            }
        }
    }
}

fn is_short_of_memory(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory { .. })
        || matches!(error, Error::Device { code, .. } if *code == hip_sys::hipErrorOutOfMemory as i32)
}

/// Waits for all work that was enqueued so far and is profiled.
pub(crate) fn finish_all() {
    let lanes = LANES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    lanes.iter().filter_map(Weak::upgrade).for_each(|lane| lane.finish());
}
