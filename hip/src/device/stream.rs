//! Streams: queues of a device's work.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hip_sys::{hipStream_t, ihipStream_t};

use crate::device::context::{Context, EventKind, count};
use crate::device::event::Event;
use crate::device::recording::{Recording, Template, no_graphs};
use crate::error::{Error, Result};
use crate::launch::grid::Grid;
use crate::launch::kernel::Kernel;
use crate::launch::steps::{Chain, Pending};
use crate::profile::correlate::Open;
use crate::profile::lane::{Lane, Started};
use crate::profile::names::{self, Text};
use crate::profile::session::{self, Contents};
use crate::profile::work::{Key, Load, Who, WorkKind};
use crate::trace;
use crate::watch::profiled;

/// Which of a device's streams goes first, if the device has the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// After the backend's stream.
    Low,
    /// As the backend's stream.
    #[default]
    Normal,
    /// Before the backend's stream.
    High,
}

/// The priority of ranks' streams. Otherwise a collective's blocks would wait until all blocks of the
/// product beside it have begun, for a different time on each rank.
pub(crate) const COLLECTIVES: Priority = Priority::High;

/// HIP's number of a priority.
fn number_of(context: &Context, priority: Priority) -> Result<c_int> {
    context.bind()?;
    let [mut least, mut greatest] = [0; 2];
    // SAFETY: the function is HIP's; it writes two ints.
    let status = unsafe { (context.hip().hipDeviceGetStreamPriorityRange)(&mut least, &mut greatest) };
    context.check("hipDeviceGetStreamPriorityRange", status)?;
    Ok(match priority {
        Priority::Low => least,
        // A lower number goes first, and 0 is the default. Both ends are 0 if there is no choice.
        Priority::Normal => 0.clamp(greatest.min(least), least.max(greatest)),
        Priority::High => greatest,
    })
}

/// A queue of a device's work, which runs in order.
pub struct Stream {
    context: Arc<Context>,
    /// A captured stream gets another one after a capture that HIP could not end.
    raw: AtomicPtr<ihipStream_t>,
    /// Deferred ops, which are launched before any other work is enqueued.
    pub(crate) chain: Chain,
    /// The capture in progress; `None` for a stream that is never captured.
    recording: Option<Mutex<Recording>>,
    /// In a capture, the streams of ranks whose collectives are captured, by the ranks' numbers.
    forks: Mutex<BTreeMap<u64, Fork>>,
    /// The times of its work, for the profile.
    lane: Arc<Lane>,
}

/// A stream that is captured because it waited for the capture's own.
struct Fork {
    stream: Arc<Stream>,
    /// Behind all that it was given.
    end: Option<Event>,
}

// SAFETY: "HIP APIs are thread safe" (HIP programming guide): several threads may enqueue on one
// stream.
unsafe impl Send for Stream {}
// SAFETY: as above; every method takes the handle by value.
unsafe impl Sync for Stream {}

impl Stream {
    /// `label` is its name in profiles.
    pub(crate) fn new(context: &Arc<Context>, label: &str) -> Result<Self> {
        Self::with(context, label, None, None)
    }

    /// A stream that is not captured.
    pub(crate) fn of_priority(context: &Arc<Context>, label: &str, priority: Priority) -> Result<Self> {
        Self::with(context, label, None, Some(number_of(context, priority)?))
    }

    /// A stream for captures, of which there is one at a time.
    pub(crate) fn to_capture(context: &Arc<Context>) -> Result<Self> {
        Self::with(context, "captured", Some(Mutex::default()), None)
    }

    /// A stream for a rank's captured calls.
    fn to_fork(context: &Arc<Context>) -> Result<Self> {
        Self::with(context, "captured", Some(Mutex::default()), Some(number_of(context, COLLECTIVES)?))
    }

    fn with(
        context: &Arc<Context>,
        label: &str,
        recording: Option<Mutex<Recording>>,
        priority: Option<c_int>,
    ) -> Result<Self> {
        let raw = AtomicPtr::new(new_handle(context, priority)?);
        let (lane, context, chain) = (Lane::new(context, label), context.clone(), Chain::default());
        Ok(Self { context, raw, chain, recording, forks: Mutex::default(), lane })
    }

    /// Launches the deferred ops and returns the handle, so that work enqueued on it comes after
    /// all earlier work.
    #[inline]
    pub(crate) fn raw(&self) -> hipStream_t {
        self.catch_up();
        self.handle()
    }

    /// The handle, a `hipStream_t`, for other libraries. Launches the deferred ops, so that work
    /// which is enqueued on it comes after all earlier work.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    /// The handle, for code that launches the deferred ops itself or has launched them.
    #[inline]
    pub(crate) fn handle(&self) -> hipStream_t {
        // Relaxed: only the thread that captures uses a handle that changes, and `Captures` orders these
        // threads.
        self.raw.load(Ordering::Relaxed)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Records an event after the work enqueued so far.
    ///
    /// # Errors
    ///
    /// `Device` if HIP fails. The functions below return it too.
    pub fn record(&self, event: &Event) -> Result<()> {
        event.record_on(self.raw())
    }

    /// Records a new event after the work enqueued so far, for streams to wait for. In a captured
    /// stream it is a point of the capture.
    pub(crate) fn mark(&self) -> Result<Event> {
        let event = match &self.recording {
            None => Event::new(&self.context, EventKind::Ordering)?,
            Some(_) => Event::of_capture(&self.context)?,
        };
        self.record(&event)?;
        Ok(event)
    }

    /// Records a new event after the work enqueued so far. After a wait for the event, the host may
    /// read what that work wrote into host memory.
    pub(crate) fn mark_for_host(&self) -> Result<Event> {
        let event = Event::new(&self.context, EventKind::ToHost)?;
        self.record(&event)?;
        Ok(event)
    }

    /// Records a new event after the work that HIP has received so far, without launching the
    /// deferred ops.
    pub(crate) fn mark_queued(&self) -> Result<Event> {
        let event = Event::new(&self.context, EventKind::Ordering)?;
        event.record_on(self.handle())?;
        Ok(event)
    }

    /// Makes later work of this stream wait for the event, which may belong to another stream or
    /// device. The host does not wait.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        let raw = self.raw();
        let _waiting = profiled().then(|| self.lane.waits());
        // SAFETY: the function is HIP's, both handles are alive.
        let status = unsafe { (self.context.hip().hipStreamWaitEvent)(raw, event.raw(), 0) };
        self.context.check("hipStreamWaitEvent", status)
    }

    /// Makes later work of this stream wait for the work that `other` has received so far. The host
    /// does not wait.
    pub fn wait_for(&self, other: &Self) -> Result<()> {
        self.wait(&other.mark()?)
    }

    /// Gives the handle to `enqueue`, which enqueues work of another library on it. Profiles show
    /// the work by this name.
    pub fn enqueue<T>(&self, name: &str, enqueue: impl FnOnce(*mut c_void) -> T) -> T {
        let handle = self.as_raw();
        let timed = self.begin_work();
        let result = enqueue(handle);
        self.end_work(timed, WorkKind::Library, || name, Load::bytes(0));
        result
    }

    /// Waits for the work enqueued so far.
    pub fn synchronize(&self) -> Result<()> {
        count(&self.context.counters.waits);
        self.context.bind()?;
        // SAFETY: the function is HIP's, the handle is ours.
        let status = unsafe { (self.context.hip().hipStreamSynchronize)(self.raw()) };
        self.context.check("hipStreamSynchronize", status)
    }
}

/// A piece of work that is profiled, from before it is enqueued.
pub(crate) struct Timed {
    /// `None` if it is captured, so it has no time.
    started: Option<Started>,
    open: Open,
}

/// The profile's part.
impl Stream {
    /// Begins a piece of work, which the caller enqueues next; `None` if nothing is profiled, or on
    /// a dry device, which does no work. Drop the result if the work was refused.
    #[inline]
    pub(crate) fn begin_work(&self) -> Option<Timed> {
        if profiled() { self.begin_timed() } else { None }
    }

    /// As [`begin_work`](Self::begin_work), if the caller knows that something is profiled.
    #[cold]
    pub(crate) fn begin_timed(&self) -> Option<Timed> {
        match self.recording {
            _ if self.context.provider.is_dry() => None,
            None => {
                let started = Some(self.lane.begin(self.handle()));
                Some(Timed { started, open: Open::begin() })
            }
            Some(_) => Some(Timed { started: None, open: Open::NONE }),
        }
    }

    /// Ends a piece of work that was enqueued, on behalf of the calling thread's op.
    #[inline]
    pub(crate) fn end_work<N: AsRef<str>>(
        &self,
        timed: Option<Timed>,
        kind: WorkKind,
        name: impl FnOnce() -> N,
        load: Load,
    ) {
        if let Some(timed) = timed {
            self.end_timed(timed, Who::here(), kind, names::text(name().as_ref()), load);
        }
    }

    /// As [`end_work`](Self::end_work), on behalf of others.
    #[cold]
    pub(crate) fn end_timed(&self, timed: Timed, who: Who, kind: WorkKind, name: Text, load: Load) {
        let key = Key { who, kind, name, device: self.context.index };
        let Timed { started, open } = timed;
        let number = open.end();
        match started {
            Some(started) => self.lane.end(started, key, load, number),
            None => {
                if let Some(mut recording) = self.recording() {
                    *recording.work.entry(key).or_default() += 1;
                }
            }
        }
    }

    /// Adds what a graph runs to the profiles in progress, before the graph's launch ends.
    pub(crate) fn graph_runs(&self, name: &str, contents: &Contents) {
        let name = names::text(name);
        for session in session::open().iter() {
            session.collected().graphs.entry(name).or_insert_with(|| contents.clone());
        }
    }
}

/// The methods of a captured stream.
impl Stream {
    /// Makes HIP record the stream's work instead of running it. The mode is "relaxed", because the
    /// other modes refuse `hipMalloc` and the loading of modules. These are safe here: neither
    /// waits for the stream or becomes part of the graph.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        let Some(begin) = self.context.hip().hipStreamBeginCapture else { return Err(no_graphs()) };
        if let Some(mut recording) = self.recording() {
            static LAST: AtomicU64 = AtomicU64::new(0);
            let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            *recording = Recording { number, before: trace::captured(), ..Recording::default() };
        }
        self.context.bind()?;
        // SAFETY: the function is HIP's, the handle is ours.
        let status = unsafe { begin(self.handle(), hip_sys::hipStreamCaptureModeRelaxed) };
        self.context.check("hipStreamBeginCapture", status)
    }

    /// Ends the capture. The capture has ended even if this fails.
    pub(crate) fn end_capture(&self) -> (Recording, Result<Template<'_>>) {
        self.catch_up();
        let forks = std::mem::take(&mut *self.forks());
        for end in forks.values().filter_map(|fork| fork.end.as_ref()) {
            // HIP can't end a capture while it has streams that the captured stream does not wait for.
            if let Err(error) = self.wait(end) {
                self.spoil(error);
            }
        }
        let template = self.end_recording();
        // Before the handle of the stream from which they forked.
        drop(forks);
        if template.is_err()
            && let Err(error) = self.renew()
        {
            // The next capture can't begin, and says so.
            log::debug!("the handle of a capture that failed stays: {error}");
        }
        let recording = self.recording().map(|mut recording| std::mem::take(&mut *recording));
        (recording.unwrap_or_default(), template)
    }

    fn end_recording(&self) -> Result<Template<'_>> {
        let Some(end) = self.context.hip().hipStreamEndCapture else { return Err(no_graphs()) };
        self.context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the function is HIP's, the handle is ours; it writes one handle or null.
        let status = unsafe { end(self.handle(), &mut raw) };
        let template = Template::new(&self.context, raw);
        self.context.check("hipStreamEndCapture", status)?;
        Ok(template)
    }

    /// Replaces the handle. If HIP's function fails, the handle may still be in its capture: that of
    /// AMD's clr then returns before it resets anything.
    fn renew(&self) -> Result<()> {
        let new = new_handle(&self.context, None)?;
        destroy_handle(&self.context, self.raw.swap(new, Ordering::Relaxed));
        Ok(())
    }

    /// On a captured stream, keeps what the captured work uses until the graph is dropped. On
    /// another stream, drops it at once.
    pub(crate) fn keep<T: Send + 'static>(&self, used: T) {
        if let Some(mut recording) = self.recording() {
            recording.kept.push(Box::new(used));
        }
    }

    /// As [`keep`](Self::keep), while the capture with this number is in progress.
    pub(crate) fn keep_in<T: Send + 'static>(&self, capture: u64, used: T) {
        if let Some(mut recording) = self.recording().filter(|recording| recording.number == capture) {
            recording.kept.push(Box::new(used));
        }
    }

    /// On a captured stream, the stream of the captured calls of the rank with this number. It lives
    /// until the capture's end. The rank's other stream runs calls of other threads meanwhile.
    pub(crate) fn fork(&self, rank: u64) -> Result<Arc<Self>> {
        let mut forks = self.forks();
        if let Some(fork) = forks.get(&rank) {
            return Ok(fork.stream.clone());
        }
        let stream = Arc::new(Self::to_fork(&self.context)?);
        forks.insert(rank, Fork { stream: stream.clone(), end: None });
        Ok(stream)
    }

    /// The number of the capture in progress.
    pub(crate) fn capture_number(&self) -> Option<u64> {
        Some(self.recording()?.number)
    }

    /// Adds collectives to the capture. The rank with this number enqueued them on `fork`, which joined
    /// the capture by waiting for this stream, or on this stream itself; then `fork` has waited for
    /// them. Takes over what `fork` has recorded.
    pub(crate) fn captured_on(
        &self,
        fork: &Self,
        rank: u64,
        collectives: Vec<Box<dyn Any + Send>>,
    ) -> Result<()> {
        let end = fork.mark();
        let taken = fork.recording().map(|mut recording| std::mem::take(&mut *recording));
        if let (Some(mut own), Some(taken)) = (self.recording(), taken) {
            own.kept.extend(taken.kept);
            own.collectives.extend(collectives);
            taken.work.into_iter().for_each(|(key, count)| *own.work.entry(key).or_default() += count);
            if let Some(error) = taken.spoiled {
                own.spoiled.get_or_insert(error);
            }
        }
        let end = end.inspect_err(|error| self.spoil(error.clone()))?;
        if let Some(fork) = self.forks().get_mut(&rank) {
            fork.end = Some(end);
        }
        Ok(())
    }

    /// Keeps the error for the end of the capture, which then gives no graph. Only the first error
    /// is kept.
    pub(crate) fn spoil(&self, error: Error) {
        if let Some(mut recording) = self.recording() {
            recording.spoiled.get_or_insert(error);
        }
    }

    fn forks(&self) -> MutexGuard<'_, BTreeMap<u64, Fork>> {
        self.forks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recording(&self) -> Option<MutexGuard<'_, Recording>> {
        // Every statement that changes the lists leaves them whole.
        Some(self.recording.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Stream {
    /// Whether there are deferred ops.
    #[inline]
    pub(crate) fn defers(&self) -> bool {
        self.chain.any.load(Ordering::Acquire)
    }

    /// Launches the deferred ops. An error is kept for the next read or sync, or for the end of the
    /// capture.
    #[inline]
    pub(crate) fn catch_up(&self) {
        if self.defers() {
            self.launch_all_pending();
        }
    }

    #[cold]
    fn launch_all_pending(&self) {
        let mut lists = self.chain.pending();
        lists.iter_mut().for_each(|list| self.launch_pending(list));
        // Cleared after the launches, so that a caller that finds the lists empty knows that its
        // own work comes after these steps.
        self.chain.any.store(false, Ordering::Release);
    }

    /// Launches one list and empties it. The caller sets `Chain::any`.
    #[cold]
    pub(crate) fn launch_pending(&self, pending: &mut Pending) {
        if let Some(kernel) = pending.kernel.take() {
            let (grid, mut steps) = (pending.grid, pending.argument());
            self.launch_as(pending, &kernel, grid, 0, std::ptr::from_mut(&mut steps).cast());
        }
        pending.clear();
    }

    /// Launches a list by this kernel and empties the list. The kernel's one argument begins with
    /// the list's steps. The kernel writes `more` bytes besides their results.
    pub(crate) fn launch_as(
        &self,
        pending: &mut Pending,
        kernel: &Arc<Kernel>,
        grid: Grid,
        more: usize,
        argument: *mut c_void,
    ) {
        let (timed, bytes) = (self.begin_work(), pending.bytes() + more);
        // SAFETY: the argument is laid out as the kernel's parameter; `put_off` and
        // `reduce_deferred` checked that the tensors lie inside their buffers, whose memory the pool
        // gives out again only to work that comes later in this stream.
        match unsafe { self.launch(kernel, grid, 0, &mut [argument]) } {
            Ok(()) => {
                if let Some(timed) = timed {
                    let (who, load) = (Who::joined(&pending.ops), Load::bytes(bytes));
                    self.end_timed(timed, who, WorkKind::Kernel, kernel.text(), load);
                }
            }
            Err(error) => match &self.recording {
                None => self.context().record(error),
                Some(_) => self.spoil(error),
            },
        }
        pending.clear();
    }

    /// Tells the deferred ops that nobody will read their results from the memory between `start`
    /// and `end`, so that they need not store them there, unless it `is_read_again`.
    #[inline]
    pub(crate) fn forget(&self, start: usize, end: usize, is_read_again: impl FnOnce() -> bool) {
        if self.defers() && !is_read_again() {
            let mut lists = self.chain.pending();
            lists.iter_mut().for_each(|list| list.forget(start as u64, end as u64));
        }
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
        match &self.recording {
            None => count(&context.counters.launches),
            // Its module stays loaded for as long as the graph may run.
            Some(_) => self.keep(kernel.clone()),
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

impl Drop for Stream {
    fn drop(&mut self) {
        self.lane.stream_ends(profiled());
        destroy_handle(&self.context, self.handle());
    }
}

/// A handle, which the caller owns.
fn new_handle(context: &Context, priority: Option<c_int>) -> Result<hipStream_t> {
    context.bind()?;
    let (mut raw, flags) = (std::ptr::null_mut(), hip_sys::hipStreamNonBlocking);
    let Some(priority) = priority else {
        // SAFETY: the function is HIP's; it writes one handle.
        let status = unsafe { (context.hip().hipStreamCreateWithFlags)(&mut raw, flags) };
        return context.check("hipStreamCreateWithFlags", status).map(|()| raw);
    };
    // SAFETY: as above.
    let status = unsafe { (context.hip().hipStreamCreateWithPriority)(&mut raw, flags, priority) };
    context.check("hipStreamCreateWithPriority", status).map(|()| raw)
}

/// The caller owns the handle, and nobody else uses it.
fn destroy_handle(context: &Context, raw: hipStream_t) {
    // SAFETY: the function is HIP's; the caller gives the handle up.
    let status = unsafe { (context.hip().hipStreamDestroy)(raw) };
    context.record_status("hipStreamDestroy", status);
}
