//! The times of a stream's work, by events that nobody waits for.
//!
//! A piece of work begins where the one before it ended, if the stream is still busy when the piece
//! is enqueued, and it has an event after it. Otherwise the stream is idle, and the piece also has
//! an event before it. So no piece's time includes the time that the stream was idle. If the stream
//! is far behind, short pieces share one event (`share.rs`). The events wait in a ring until the
//! stream has passed them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hip_sys::hipStream_t;

use crate::device::context::{Context, EventKind};
use crate::device::event::Event;
use crate::error::{Error, Result};
use crate::profile::session::{self, Done, LaneInfo, Sessions};
use crate::profile::share::{self, Alone, Expected};
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
    /// Whether the next piece does not begin where the last one ended. There are three reasons: the
    /// stream was told to wait for another one, it did work that has no event, or an event marks the
    /// beginning of a piece that has not ended and may be refused.
    apart: bool,
    /// How many threads are telling the stream to wait now.
    waiting: u32,
    /// How often a thread began or ended to tell the stream to wait.
    waits: u64,
    /// The last event that was recorded, and the one before it.
    events: [Option<Arc<Event>>; 2],
    /// The expected nanoseconds of the pieces since the last event.
    open: u64,
    alone: Alone,
    /// The last piece whose time is known: its end's event, and the stream's time then.
    last: Option<(Arc<Event>, u64)>,
    stream: Option<Handle>,
    /// Events that nobody needs any more.
    spare: Vec<Arc<Event>>,
}

/// The stream, from its first piece until it is destroyed.
#[derive(Clone, Copy)]
struct Handle(hipStream_t);

// SAFETY: "HIP APIs are thread safe" (HIP programming guide): a stream's handle may be used from
// any thread.
unsafe impl Send for Handle {}

/// Work that was enqueued.
struct Piece {
    key: Key,
    load: Load,
    thread: u32,
    number: u32,
    sessions: Sessions,
    /// The host's time before it was enqueued.
    enqueued: u64,
    expected: Expected,
    /// `None` if it begins where the piece before it ends.
    start: Option<Arc<Event>>,
    /// `None` if a later piece has the event.
    stop: Option<Stop>,
}

struct Stop {
    event: Arc<Event>,
    /// Whether the stream was still busy with the piece when the event was recorded. Otherwise it
    /// may have been idle before it passed the event.
    exact: bool,
}

/// The beginning of a piece of work.
pub(crate) struct Started {
    enqueued: u64,
    from: From,
    /// Whether a later piece may have the event.
    may_share: bool,
    /// The stream's `waits` when the piece began.
    waits: u64,
}

/// While this lives, a thread tells the stream to wait for another one.
pub(crate) struct Waiting<'a>(&'a Lane);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.apart = true;
        state.waiting -= 1;
        state.waits += 1;
    }
}

enum From {
    /// The end of the stream's last piece.
    Last,
    Own(Arc<Event>),
    /// No event could be recorded.
    Nowhere,
}

/// How far the stream is with the work that it has received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It has passed the last event, so it may be idle.
    Idle,
    /// It has not passed the last event.
    Busy,
    /// It has not passed the event before the last one.
    Behind,
}

static LANES: Mutex<Vec<Weak<Lane>>> = Mutex::new(Vec::new());

impl State {
    fn progress(&self) -> Progress {
        let pending = |event: &Option<Arc<Event>>| {
            event.as_ref().is_some_and(|event| matches!(event.query(), Ok(false)))
        };
        let [last, before] = &self.events;
        match (pending(last), before) {
            (false, _) => Progress::Idle,
            (true, before) if pending(before) => Progress::Behind,
            (true, _) => Progress::Busy,
        }
    }

    /// Keeps an event for later if nobody else has it.
    fn spare(&mut self, event: Arc<Event>) {
        if Arc::strong_count(&event) == 1 {
            self.spare.push(event);
        }
    }

    /// The last piece, if no event was recorded after it.
    fn open_piece(&mut self) -> Option<&mut Piece> {
        self.ring.back_mut().filter(|piece| piece.stop.is_none())
    }
}

impl Lane {
    pub(crate) fn new(context: &Arc<Context>, label: &str) -> Arc<Self> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let state = State {
            info: LaneInfo { device: context.index, label: label.into(), zero: 0 },
            aligned: false,
            ring: VecDeque::new(),
            added: 0,
            apart: false,
            waiting: 0,
            waits: 0,
            events: [None, None],
            open: 0,
            alone: Alone::default(),
            last: None,
            stream: None,
            spare: Vec::new(),
        };
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let lane = Arc::new(Self { number, context: context.clone(), state: Mutex::new(state) });
        let mut lanes = LANES.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&lane));
        lane
    }

    /// Notes that the caller tells the stream to wait for another one, until the result is dropped.
    /// The next piece does not begin where the last one ended. If another thread enqueues a piece
    /// in that time, the wait may come before or after it, so the piece has no time.
    pub(crate) fn waits(&self) -> Waiting<'_> {
        let mut state = self.state();
        self.close(&mut state);
        state.apart = true;
        state.waiting += 1;
        state.waits += 1;
        Waiting(self)
    }

    /// Begins a piece of work, which the caller enqueues next.
    pub(crate) fn begin(&self, stream: hipStream_t) -> Started {
        let mut state = self.state();
        let enqueued = now();
        let waits = state.waits;
        let nowhere = Started { enqueued, from: From::Nowhere, may_share: false, waits };
        state.stream = Some(Handle(stream));
        if state.ring.len() >= MOST {
            self.look(&mut state);
            if state.ring.len() >= MOST {
                self.close(&mut state);
                state.apart = true;
                return nowhere;
            }
        }
        let is_alone = state.alone.is_next(session::generation());
        let progress = state.progress();
        if state.apart || progress == Progress::Idle {
            state.apart = true;
            let Some(start) = self.mark(&mut state) else { return nowhere };
            if let Some(open) = state.open_piece() {
                open.stop = Some(Stop { event: start.clone(), exact: false });
            }
            return Started { enqueued, from: From::Own(start), may_share: false, waits };
        }
        if is_alone {
            self.close(&mut state);
        }
        let may_share = progress == Progress::Behind && !is_alone;
        Started { enqueued, from: From::Last, may_share, waits }
    }

    /// Ends a piece of work that was enqueued; `number` is the correlator's, or 0.
    pub(crate) fn end(&self, started: Started, key: Key, load: Load, number: u32) {
        let sessions = session::open();
        let mut state = self.state();
        if sessions.is_empty() {
            state.apart = true;
            return;
        }
        let Started { enqueued, mut from, may_share, waits } = started;
        if state.waiting > 0 || state.waits != waits {
            from = From::Nowhere;
        }
        let thread = thread_number();
        let expected = state.alone.expected(&key);
        let joined = expected.time.map_or(u64::MAX, |time| state.open.saturating_add(time));
        let shares = may_share && joined < share::MOST_SHARED;
        let event = match (&from, shares) {
            (From::Nowhere, _) | (_, true) => None,
            (_, false) => self.mark(&mut state),
        };
        let start = match (from, &event) {
            (From::Last, _) => None,
            (From::Own(start), Some(_)) => {
                state.apart = false;
                Some(start)
            }
            (From::Own(_) | From::Nowhere, _) => {
                state.apart = true;
                let done =
                    Done { key, lane: self.number, thread, number, start: 0, stop: 0, load, shared: false };
                sessions.iter().for_each(|session| session.add(&state.info, &done, None));
                return;
            }
        };
        if event.is_none() {
            state.open = joined;
        }
        let stop = event.map(|event| Stop { event, exact: true });
        state.ring.push_back(Piece { key, load, thread, number, sessions, enqueued, expected, start, stop });
        state.added += 1;
        if state.added >= LOOK {
            self.look(&mut state);
        }
    }

    /// Records an event. A failure does not fail the work that it would have timed. If it is a
    /// failure of earlier work, the next read or sync returns it.
    fn mark(&self, state: &mut State) -> Option<Arc<Event>> {
        let Handle(stream) = state.stream?;
        let event = match state.spare.pop() {
            Some(event) => Ok(event),
            None => Event::new(&self.context, EventKind::Timing).map(Arc::new),
        };
        match event.and_then(|event| event.record_on(stream).map(|()| event)) {
            Ok(event) => {
                state.events.swap(0, 1);
                if let Some(oldest) = state.events[0].replace(event.clone()) {
                    state.spare(oldest);
                }
                state.open = 0;
                Some(event)
            }
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

    /// Records an event after the last piece, if it has none. Returns whether it has one then.
    fn close(&self, state: &mut State) -> bool {
        if state.open_piece().is_none() {
            return true;
        }
        let exact = state.progress() != Progress::Idle;
        let Some(event) = self.mark(state) else { return false };
        if let Some(open) = state.open_piece() {
            open.stop = Some(Stop { event, exact });
        }
        true
    }

    /// Moves the pieces that the stream has passed from the ring to their sessions.
    fn look(&self, state: &mut State) {
        state.added = 0;
        // The events are passed in their order.
        while let Some(at) = state.ring.iter().position(|piece| piece.stop.is_some()) {
            let stop = state.ring[at].stop.take_if(|stop| !matches!(stop.event.query(), Ok(false)));
            let Some(stop) = stop else { return };
            if at == 0 {
                let Some(mut piece) = state.ring.pop_front() else { return };
                self.passed(state, std::slice::from_mut(&mut piece), stop);
            } else {
                let mut pieces: Vec<Piece> = state.ring.drain(..=at).collect();
                self.passed(state, &mut pieces, stop);
            }
        }
    }

    /// Adds pieces that were enqueued one after the other, up to the one with the event, to their
    /// sessions.
    fn passed(&self, state: &mut State, pieces: &mut [Piece], stop: Stop) {
        let Some(first) = pieces.first_mut() else { return };
        let own_start = first.start.take();
        let times = times(state.last.as_ref(), own_start.as_deref(), &stop.event);
        if let Some(start) = own_start {
            state.spare(start);
        }
        let Ok((start, end)) =
            times.inspect_err(|why| log::debug!("work is profiled without its time: {why}"))
        else {
            return self.passed_untimed(state, pieces);
        };
        // Work can't begin before it was enqueued. Work that an idle stream gets begins right then,
        // which aligns the clocks.
        let zero = first.enqueued as i64 - start as i64;
        if !state.aligned || zero > state.info.zero {
            state.info.zero = zero;
            state.aligned = true;
        }
        if let Some((event, _)) = state.last.replace((stop.event, end)) {
            state.spare(event);
        }
        let mut time = end - start;
        if let ([piece], true) = (&*pieces, stop.exact) {
            state.alone.measured(piece.expected, time);
            self.add(state, piece, [start, end], false);
            return;
        }
        let expected: Vec<_> = pieces.iter().map(|piece| piece.expected.time).collect();
        if !stop.exact {
            // The stream may have been idle before the event.
            time = time.min(expected.iter().flatten().sum());
        }
        let mut start = start;
        for (piece, time) in pieces.iter().zip(share::divide(time, &expected)) {
            self.add(state, piece, [start, start + time], true);
            start += time;
        }
    }

    /// Adds a piece to its sessions.
    fn add(&self, state: &State, piece: &Piece, [start, stop]: [u64; 2], shared: bool) {
        let done = Done { start, stop, shared, ..self.done(piece) };
        piece.sessions.iter().for_each(|session| session.add(&state.info, &done, Some(stop - start)));
    }

    /// Adds pieces whose times are not known to their sessions.
    fn passed_untimed(&self, state: &mut State, pieces: &[Piece]) {
        for piece in pieces {
            let done = self.done(piece);
            piece.sessions.iter().for_each(|session| session.add(&state.info, &done, None));
        }
    }

    /// A piece without its times.
    fn done(&self, piece: &Piece) -> Done {
        let &Piece { key, thread, number, load, .. } = piece;
        Done { key, lane: self.number, thread, number, start: 0, stop: 0, load, shared: false }
    }

    /// Waits for the pieces that are in the ring now, and moves them to their sessions.
    pub(crate) fn finish(&self) {
        let last = {
            let mut state = self.state();
            if !self.close(&mut state) {
                let with_event = state.ring.iter().rposition(|piece| piece.stop.is_some());
                let rest: Vec<Piece> = state.ring.drain(with_event.map_or(0, |at| at + 1)..).collect();
                self.passed_untimed(&mut state, &rest);
                state.apart = true;
            }
            state.ring.back().and_then(|piece| piece.stop.as_ref()).map(|stop| stop.event.clone())
        };
        // Waits without the lock: other threads go on enqueueing, and this stream's work may need
        // theirs.
        if let Some(last) = last {
            // A failure of the device's work stays with the device; the times then stay unknown.
            if let Err(error) = last.synchronize() {
                log::debug!("the profile's work did not end well: {error}");
            }
        }
        self.look(&mut self.state());
    }

    /// Forgets the stream, which its owner destroys next. If `profiled`, first waits for its work,
    /// which profiles in progress would lose otherwise.
    pub(crate) fn stream_ends(&self, profiled: bool) {
        if profiled {
            self.finish();
        }
        self.state().stream = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A ring and plain values; a panic leaves none of them broken.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When pieces began and ended, in nanoseconds of their stream's clock. That clock shows 0 at the
/// first piece's beginning. They begin at `start`, or else where the `last` ones ended.
fn times(last: Option<&(Arc<Event>, u64)>, start: Option<&Event>, stop: &Event) -> Result<(u64, u64)> {
    let nanoseconds = |to: &Event, from: &Event| {
        to.elapsed_since(from).map(|milliseconds| (f64::from(milliseconds) * 1e6).round())
    };
    let own = |start: &Event, at: u64| Ok((at, at + nanoseconds(stop, start)?.max(0.0) as u64));
    match (last, start) {
        (None, Some(start)) => own(start, 0),
        (None, None) => Err(Error::invalid("a profile", "an event before the work", "none")),
        (Some((before, at)), start) => {
            let gap = start.map(|start| nanoseconds(start, before)).transpose()?;
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
