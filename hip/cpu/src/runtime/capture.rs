//! Captures: the work that a captured stream is given is recorded instead of run.
//!
//! A stream that waits for an event of a captured stream is captured too, until the capture ends. The
//! graph then has branches. It runs them one after the other, and each as late as its order allows: a
//! branch's work runs when the capture's own stream waits for it. So work that lacks a wait for
//! another branch runs before that branch.

use hip_provider::require;
use hip_provider::runtime::Status;
use hip_sys::*;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    mem::{self, ManuallyDrop},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
};

/// A piece of work with all that it needs.
pub(super) struct Work {
    run: Box<dyn Fn() -> bool>,
    /// Whether it waits for other devices.
    waits: bool,
}

// SAFETY: the callers of `enqueue` guarantee that any thread may use what the work holds.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

/// A stream's part in a capture.
#[derive(Default)]
pub(super) struct Capture {
    /// Whether the stream is captured. Read without the lock, so that a stream without a capture takes
    /// no lock.
    on: AtomicBool,
    part: Mutex<Option<Part>>,
}

struct Part {
    recording: Arc<Recording>,
    /// Whether the capture began in this stream.
    began: bool,
}

/// What the streams of a capture record.
pub(super) struct Recording {
    /// The only thread that may end the capture.
    thread: Option<ThreadId>,
    state: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    /// By the streams' handles.
    streams: BTreeMap<usize, Vec<Item>>,
    /// Whether there was a call that can't be captured.
    spoiled: bool,
    /// Whether the capture has ended.
    over: bool,
}

enum Item {
    Run(Work),
    Wait(Point),
}

/// A place in a captured stream: behind this many items.
#[derive(Clone, Copy)]
pub(super) struct Point {
    stream: usize,
    behind: usize,
}

/// An event's place in a capture.
pub(super) type Mark = (Arc<Recording>, Point);

thread_local! {
    /// The work that the current call in a captured stream has recorded so far; `None` outside such
    /// a call. `ManuallyDrop`: a value without a destructor stays usable while the thread ends.
    /// Nothing leaks, because each such call takes the work out again.
    static TAKEN_DOWN: RefCell<ManuallyDrop<Option<Vec<Work>>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
    /// Whether this work is for a stream's queue.
    static IS_LATE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread's call is in a captured stream. If so, what it enqueues does not run now.
pub(crate) fn is_captured() -> bool {
    TAKEN_DOWN.with_borrow(|taken| taken.is_some())
}

/// Whether this thread's call is in a stream whose work becomes a graph.
pub(crate) fn is_graph() -> bool {
    is_captured() && !IS_LATE.get()
}

/// Runs work while [`on_stream`](super::on_stream) holds the device for this thread. If the stream
/// is captured, records the work instead, to be run at each launch of the graph.
///
/// # Safety
/// The work holds plain values, things that any thread may use, and addresses of memory that the
/// caller of the C function keeps for as long as a graph with it is launched.
pub(crate) unsafe fn enqueue<E>(work: impl Fn() -> Result<(), E> + 'static) -> Result<(), E> {
    TAKEN_DOWN
        .with_borrow_mut(|taken| match &mut **taken {
            Some(taken) => {
                taken.push(Work { run: Box::new(move || work().is_ok()), waits: false });
                Ok(())
            }
            None => Err(work),
        })
        // Runs outside the borrow, because the work may ask whether it is captured.
        .or_else(|work| work())
}

/// What a call enqueues, for a graph or for a stream's queue.
pub(super) fn take_down(late: bool, call: impl FnOnce() -> Status) -> Status<Vec<Work>> {
    /// Replaces what this thread has recorded.
    fn exchange(taken: Option<Vec<Work>>) -> Option<Vec<Work>> {
        TAKEN_DOWN.with_borrow_mut(|current| mem::replace(&mut **current, taken))
    }
    /// Ends the recording of this call, even if the call panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            exchange(None);
            IS_LATE.set(false);
        }
    }
    exchange(Some(Vec::new()));
    IS_LATE.set(late);
    let _end = End;
    call()?;
    Ok(exchange(None).unwrap_or_default())
}

impl Work {
    /// Work that waits for other devices.
    ///
    /// # Safety
    /// As for [`enqueue`].
    pub(super) unsafe fn waiting(run: impl Fn() -> bool + 'static) -> Self {
        Self { run: Box::new(run), waits: true }
    }

    /// Runs the work. Returns whether it succeeded.
    pub(super) fn run(&self) -> bool {
        (self.run)()
    }

    pub(super) fn waits(&self) -> bool {
        self.waits
    }
}

impl Recording {
    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorded {
    fn push(&mut self, stream: hipStream_t, items: impl IntoIterator<Item = Item>) {
        self.streams.entry(stream as usize).or_default().extend(items);
    }

    /// The work in the order in which the graph runs it. `None` if the capture's own stream does not
    /// wait for all of it.
    fn in_order(self, origin: hipStream_t) -> Option<Vec<Work>> {
        let end = Point { stream: origin as usize, behind: usize::MAX };
        let mut rest: BTreeMap<usize, _> =
            self.streams.into_iter().map(|(stream, items)| (stream, (0, items.into_iter()))).collect();
        let (mut work, mut points) = (Vec::new(), vec![end]);
        while let Some(&point) = points.last() {
            let next = rest.get_mut(&point.stream).filter(|(past, _)| *past < point.behind);
            match next.and_then(|(past, items)| items.next().inspect(|_| *past += 1)) {
                Some(Item::Run(next)) => work.push(next),
                // Work waits only for what was recorded before it, so this terminates.
                Some(Item::Wait(other)) => points.push(other),
                None => drop(points.pop()),
            }
        }
        let is_left = |item| matches!(item, Item::Run(_));
        let all = !rest.into_values().any(|(_, mut items)| items.any(is_left));
        all.then_some(work)
    }
}

impl Capture {
    /// All that a mode forbids here is that another thread ends the capture, because every other
    /// call is safe during a capture.
    pub(super) fn begin(&self, mode: hipStreamCaptureMode) -> Status {
        let mut part = self.lock();
        require(part.is_none(), hipErrorIllegalState)?;
        let thread = (mode != hipStreamCaptureModeRelaxed).then(|| thread::current().id());
        let recording = Arc::new(Recording { thread, state: Mutex::default() });
        *part = Some(Part { recording, began: true });
        self.on.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the capture that began in this stream. Returns the recorded work in the graph's order.
    /// `other` finds the other streams of the capture by their handles.
    pub(super) fn end(
        &self,
        stream: hipStream_t,
        other: impl Fn(usize, &dyn Fn(&Capture)),
    ) -> Status<Vec<Work>> {
        let mut own = self.lock();
        let part = own.as_ref().ok_or(hipErrorIllegalState)?;
        require(part.began, hipErrorStreamCaptureUnmatched)?;
        let thread = part.recording.thread;
        require(thread.is_none_or(|own| own == thread::current().id()), hipErrorStreamCaptureWrongThread)?;
        self.on.store(false, Ordering::Release);
        let Some(Part { recording, .. }) = own.take() else { return Err(hipErrorIllegalState) };
        drop(own);
        let over = Recorded { over: true, ..Recorded::default() };
        let recorded = mem::replace(&mut *recording.lock(), over);
        for &joined in recorded.streams.keys().filter(|&&joined| joined != stream as usize) {
            other(joined, &|capture: &Capture| capture.leave(&recording));
        }
        require(!recorded.spoiled, hipErrorStreamCaptureInvalidated)?;
        recorded.in_order(stream).ok_or(hipErrorStreamCaptureUnjoined)
    }

    /// Ends the part of a stream that has joined this capture.
    fn leave(&self, recording: &Arc<Recording>) {
        let mut part = self.lock();
        if part.as_ref().is_some_and(|part| Arc::ptr_eq(&part.recording, recording)) {
            *part = None;
            self.on.store(false, Ordering::Release);
        }
    }

    /// The place behind what the stream has recorded so far.
    pub(super) fn mark(&self, stream: hipStream_t) -> Option<Mark> {
        let part = self.lock();
        let recording = part.as_ref()?.recording.clone();
        let behind = recording.lock().streams.get(&(stream as usize)).map_or(0, Vec::len);
        Some((recording, Point { stream: stream as usize, behind }))
    }

    /// Makes the stream wait for a place in a capture. The stream joins the capture if it has no part
    /// in one.
    pub(super) fn wait(&self, stream: hipStream_t, (recording, point): &Mark) -> Status {
        let mut part = self.lock();
        let mut recorded = recording.lock();
        // The event's capture has ended, so there is nothing to wait for.
        require(!recorded.over, hipErrorCapturedEvent)?;
        match &*part {
            Some(own) if Arc::ptr_eq(&own.recording, recording) => {}
            Some(own) => {
                recorded.spoiled = true;
                own.recording.lock().spoiled = true;
                return Err(hipErrorStreamCaptureMerge);
            }
            None => {
                *part = Some(Part { recording: recording.clone(), began: false });
                self.on.store(true, Ordering::Release);
            }
        }
        recorded.push(stream, [Item::Wait(*point)]);
        Ok(())
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Refuses a call that can't be captured, with this status. The capture then fails.
    pub(super) fn refuse(&self, status: hipError_t) -> Status {
        match self.lock().as_ref() {
            Some(part) => {
                part.recording.lock().spoiled = true;
                Err(status)
            }
            None => Ok(()),
        }
    }

    /// Records what a call enqueues in the stream, if the call succeeds.
    pub(super) fn take_down(&self, stream: hipStream_t, call: impl FnOnce() -> Status) -> Status {
        let taken = take_down(false, call)?;
        self.record(stream, taken);
        Ok(())
    }

    pub(super) fn record(&self, stream: hipStream_t, work: Vec<Work>) {
        if let Some(part) = self.lock().as_ref() {
            part.recording.lock().push(stream, work.into_iter().map(Item::Run));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Part>> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
