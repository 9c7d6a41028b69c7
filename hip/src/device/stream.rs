//! Streams: queues of a device's work.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hip_sys::hipStream_t;

use crate::device::capture::{self, Template};
use crate::device::context::{Context, EventKind, count};
use crate::device::event::Event;
use crate::device::turn::{PATIENCE, Turn, Turns};
use crate::error::{Error, Result};
use crate::launch::grid::Grid;
use crate::launch::kernel::Kernel;
use crate::launch::steps::{Chain, Pending, Steps};
use crate::trace;

/// Why a captured stream takes no events: its graph would depend on work that no launch of it
/// repeats.
const EVENTS: &str = "a graph has no events";

/// A queue of a device's work, which runs in order.
pub struct Stream {
    context: Arc<Context>,
    raw: hipStream_t,
    /// Deferred ops, which are launched before any other work is enqueued.
    pub(crate) chain: Chain,
    turns: Turns,
    /// What the thread that captures the stream has come to.
    recording: Mutex<Option<Recording>>,
}

/// A capture under way.
pub(crate) struct Recording {
    /// What the graph needs for as long as it may run: kernels, words for faults, host memory that
    /// it reads.
    pub(crate) kept: Vec<Box<dyn Send>>,
    /// What is dropped when the capture is over, because dropping it waits for the device.
    pub(crate) later: Vec<Box<dyn Send>>,
    /// Why there can be no graph.
    pub(crate) spoiled: Option<Error>,
    /// What the thread had asked of devices before.
    pub(crate) before: trace::Counts,
    /// The thread that captures, in words.
    thread: String,
}

/// The handle of a stream with the right to queue work on it, all that was put off launched.
pub(crate) struct Queue<'a> {
    raw: hipStream_t,
    _turn: Turn<'a>,
}

impl Queue<'_> {
    /// The handle, for one call that queues work.
    #[inline]
    pub(crate) fn raw(&self) -> hipStream_t {
        self.raw
    }
}

// SAFETY: "HIP APIs are thread safe" (HIP programming guide): several threads may enqueue on one
// stream.
unsafe impl Send for Stream {}
// SAFETY: as above; every method takes the handle by value.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let mut stream = Self {
            context: context.clone(),
            raw: std::ptr::null_mut(),
            chain: Chain::default(),
            turns: Turns::default(),
            recording: Mutex::new(None),
        };
        let flags = hip_sys::hipStreamNonBlocking;
        // SAFETY: the function is HIP's; it writes one handle, owned here from then on.
        let status = unsafe { (context.hip().hipStreamCreateWithFlags)(&mut stream.raw, flags) };
        context.check("hipStreamCreateWithFlags", status)?;
        Ok(stream)
    }

    /// Launches the deferred ops and returns the handle, so that work enqueued on it comes after
    /// all earlier work. Waits while another thread captures.
    #[inline]
    pub(crate) fn queue(&self) -> Queue<'_> {
        let turn = self.turn();
        self.catch_up();
        Queue { raw: self.raw, _turn: turn }
    }

    /// The handle, for libraries that keep it, and for code that launches the deferred ops itself
    /// or has launched them.
    pub(crate) fn handle(&self) -> hipStream_t {
        self.raw
    }

    /// The right to enqueue work. Waits while another thread captures, but not longer than until
    /// the capture is [`PATIENCE`] old.
    #[inline]
    pub(crate) fn turn(&self) -> Turn<'_> {
        match self.turns.take() {
            Some(turn) => turn,
            None => self.turns.wait(|| self.lapse(), || self.resume()),
        }
    }

    /// Ends HIP's capture for another thread, which may be waiting for this one.
    fn lapse(&self) {
        let (thread, age) = (this_thread(), PATIENCE.as_secs());
        let reason = format!("{thread} needed the device, and the capture was {age} s old");
        let error = Error::Capture { op: "another thread's work", reason };
        log::warn!("no graph comes of a capture: {error}");
        self.spoil(error);
        // These were to be captured.
        let mut pending = self.chain.pending();
        pending.kernel = None;
        pending.steps.count = 0;
        drop(pending);
        self.chain.any.store(false, Ordering::Release);
        if let Err(error) = Template::end(&self.context, self.raw) {
            log::debug!("the capture has failed already: {error}");
        }
    }

    /// Makes HIP capture this thread's work again, so that it does not run.
    fn resume(&self) {
        self.catch_up();
        if let Err(error) = capture::begin(&self.context, self.raw) {
            self.context.record(error);
        }
    }

    /// As [`Stream::turn`], but `None` while any thread captures.
    pub(crate) fn turn_outside_capture(&self) -> Option<Turn<'_>> {
        self.turns.take_outside_capture()
    }

    /// Whether this thread captures the stream. Then nothing that it enqueues from now on runs.
    #[inline]
    pub(crate) fn is_captured_here(&self) -> bool {
        self.turns.are_own()
    }

    /// Returns an error if this thread captures the stream, for what can't be captured. Such a
    /// capture gives no graph, because the graph would lack what was refused.
    pub(crate) fn refuse_captured(&self, op: &'static str, reason: &str) -> Result<()> {
        if !self.is_captured_here() {
            return Ok(());
        }
        let error = Error::Capture { op, reason: reason.into() };
        self.spoil(error.clone());
        Err(error)
    }

    /// Keeps what captured work uses until the graph is dropped. Does nothing but drop it if this
    /// thread captures nothing.
    pub(crate) fn keep<T: Send + 'static>(&self, used: T) {
        if let Some(recording) = self.recording().as_deref_mut().and_then(Option::as_mut) {
            recording.kept.push(Box::new(used));
        }
    }

    /// Drops something at the end of this thread's capture, or at once if there is none.
    pub(crate) fn drop_later<T: Send + 'static>(&self, ended: T) {
        if let Some(recording) = self.recording().as_deref_mut().and_then(Option::as_mut) {
            recording.later.push(Box::new(ended));
        }
    }

    /// Begins this thread's recording, and HIP's; first `prepare`, when it is sure that no other
    /// thread has one. What was put off before runs now.
    ///
    /// # Errors
    ///
    /// `Capture` if this thread has one already, or another thread for too long; what HIP reports.
    pub(crate) fn begin_recording(&self, prepare: impl FnOnce()) -> Result<()> {
        self.refuse_captured("a capture", "another one is under way")?;
        let begun = self.turns.own(|| {
            prepare();
            self.catch_up();
            capture::begin(&self.context, self.raw)?;
            let (kept, later, before) = (Vec::new(), Vec::new(), trace::counts());
            *self.lock() = Some(Recording { kept, later, spoiled: None, before, thread: this_thread() });
            Ok(())
        });
        begun.unwrap_or_else(|| Err(self.others("a capture")))
    }

    /// Ends this thread's recording. Other threads may enqueue work again. An error if HIP gives no
    /// graph.
    pub(crate) fn end_recording(&self) -> (Option<Recording>, Result<Template<'_>>) {
        self.catch_up();
        self.turns.share(|recorded| {
            let template = match recorded {
                true => Template::end(&self.context, self.raw),
                // Another thread has ended HIP's capture, and spoilt this one.
                false => Err(self.others("a capture")),
            };
            (self.lock().take(), template)
        })
    }

    /// Why this thread can't do what only a capturing thread may.
    pub(crate) fn others(&self, op: &'static str) -> Error {
        match &*self.lock() {
            Some(Recording { thread, .. }) => {
                Error::Capture { op, reason: format!("{thread} captures the device's work") }
            }
            None => Error::invalid(op, "a capture of this thread's under way", "none"),
        }
    }

    /// Keeps the error for the end of the capture, which then gives no graph. The first one counts.
    fn spoil(&self, error: Error) {
        if let Some(recording) = &mut *self.lock() {
            recording.spoiled.get_or_insert(error);
        }
    }

    fn recording(&self) -> Option<MutexGuard<'_, Option<Recording>>> {
        self.is_captured_here().then(|| self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Recording>> {
        // Every statement that changes the lists leaves them whole.
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Records an event behind the work enqueued so far.
    ///
    /// # Errors
    ///
    /// `Device` where HIP fails, `Capture` if this thread captures the stream, also for the
    /// functions below.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.refuse_captured("an event", EVENTS)?;
        let _turn = self.turn();
        self.catch_up();
        self.record_queued(event)
    }

    fn record_queued(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the function is HIP's, both handles are alive.
        let status = unsafe { (self.context.hip().hipEventRecord)(event.raw(), self.raw) };
        self.context.check("hipEventRecord", status)
    }

    /// Records a new event behind the work enqueued so far, for streams to wait for.
    pub(crate) fn mark(&self) -> Result<Event> {
        let event = Event::new(&self.context, EventKind::Ordering)?;
        self.record(&event)?;
        Ok(event)
    }

    /// Records a new event behind the work enqueued so far. After a wait for the event, the host
    /// may read what that work wrote into host memory.
    pub(crate) fn mark_for_host(&self) -> Result<Event> {
        let event = Event::new(&self.context, EventKind::ToHost)?;
        self.record(&event)?;
        Ok(event)
    }

    /// Records a new event behind the work that HIP has been given so far, without launching the
    /// deferred ops. The caller has a turn outside any capture.
    pub(crate) fn mark_queued(&self) -> Result<Event> {
        let event = Event::new(&self.context, EventKind::Ordering)?;
        self.record_queued(&event)?;
        Ok(event)
    }

    /// Makes later work of this stream wait for the event, which may be of another stream or
    /// device. The host does not wait.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.refuse_captured("a wait for another stream", EVENTS)?;
        self.context.bind()?;
        // SAFETY: the function is HIP's, both handles are alive.
        let status = unsafe { (self.context.hip().hipStreamWaitEvent)(self.queue().raw(), event.raw(), 0) };
        self.context.check("hipStreamWaitEvent", status)
    }

    /// Waits for the work enqueued so far.
    ///
    /// # Errors
    /// `Capture` where this thread captures the stream.
    pub fn synchronize(&self) -> Result<()> {
        self.refuse_captured("a wait for the device", "what is captured does not run yet")?;
        count(&self.context.counters.waits);
        self.context.bind()?;
        // SAFETY: the function is HIP's, the handle is ours.
        let status = unsafe { (self.context.hip().hipStreamSynchronize)(self.queue().raw()) };
        self.context.check("hipStreamSynchronize", status)
    }
}

impl Stream {
    /// Launches the deferred ops. An error is kept for the next read or sync, or for the end of
    /// this thread's capture.
    #[inline]
    pub(crate) fn catch_up(&self) {
        if self.chain.any.load(Ordering::Acquire) {
            let _turn = self.turn();
            self.launch_pending(&mut self.chain.pending());
        }
    }

    #[cold]
    pub(crate) fn launch_pending(&self, pending: &mut Pending) {
        if let Some(kernel) = pending.kernel.take()
            && let Err(error) = self.launch_steps(&kernel, pending.grid, &mut pending.steps)
        {
            if self.turns.are_recorded() {
                self.spoil(error);
            } else {
                self.context().record(error);
            }
        }
        pending.steps.count = 0;
        // After the launch: a caller that finds an empty list knows that its work comes after it.
        self.chain.any.store(false, Ordering::Release);
    }

    fn launch_steps(&self, kernel: &Arc<Kernel>, grid: Grid, steps: &mut Steps) -> Result<()> {
        let mut parameters = [std::ptr::from_mut(steps).cast::<c_void>()];
        // SAFETY: the one argument is laid out as the kernel's parameter; `put_off` checked that
        // the tensors lie inside their buffers, whose memory the pool gives out again only to work
        // that comes later in this stream.
        unsafe { self.launch(kernel, grid, 0, &mut parameters) }
    }

    /// Enqueues a kernel without launching the deferred ops first.
    ///
    /// # Safety
    /// `parameters` point to the kernel's arguments and match its parameters in number and type.
    /// Every access that the kernel makes with them stays inside memory that lives until the stream
    /// is past the kernel.
    #[inline]
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Arc<Kernel>,
        grid: Grid,
        shared_bytes: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        let context = kernel.context();
        context.bind()?;
        let _turn = self.turn();
        if self.turns.are_recorded() {
            // Its module stays loaded for as long as the graph may run.
            self.keep(kernel.clone());
        } else {
            count(&context.counters.launches);
        }
        // SAFETY: the function is HIP's; it copies the arguments before it returns. That they fit
        // the kernel is the caller's promise; the kernel's module stays loaded until the stream is
        // past this launch.
        let status = unsafe {
            (context.hip().hipModuleLaunchKernel)(
                kernel.function(),
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                shared_bytes,
                self.handle(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        context.check("hipModuleLaunchKernel", status)
    }
}

/// The calling thread in words.
fn this_thread() -> String {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) => format!("the thread `{name}`"),
        None => format!("the unnamed thread {:?}", thread.id()),
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the function is HIP's; nobody else has the handle.
            let status = unsafe { (self.context.hip().hipStreamDestroy)(self.raw) };
            self.context.record_status("hipStreamDestroy", status);
        }
    }
}
