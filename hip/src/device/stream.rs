//! Streams: queues of a device's work.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hip_sys::hipStream_t;

use crate::device::context::{Context, EventKind, count};
use crate::device::event::Event;
use crate::device::recording::{Recording, Template, no_graphs};
use crate::error::{Error, Result};
use crate::launch::grid::Grid;
use crate::launch::kernel::Kernel;
use crate::launch::steps::{Chain, Pending, Steps};
use crate::trace;

/// A queue of a device's work, which runs in order.
pub struct Stream {
    context: Arc<Context>,
    raw: hipStream_t,
    /// Deferred ops, which are launched before any other work is enqueued.
    pub(crate) chain: Chain,
    /// The capture in progress; `None` for a stream that is never captured.
    recording: Option<Mutex<Recording>>,
}

// SAFETY: "HIP APIs are thread safe" (HIP programming guide): several threads may enqueue on one
// stream.
unsafe impl Send for Stream {}
// SAFETY: as above; every method takes the handle by value.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        Self::with(context, None)
    }

    /// A stream for captures, of which there is one at a time.
    pub(crate) fn to_capture(context: &Arc<Context>) -> Result<Self> {
        Self::with(context, Some(Mutex::default()))
    }

    fn with(context: &Arc<Context>, recording: Option<Mutex<Recording>>) -> Result<Self> {
        context.bind()?;
        let (context, chain) = (context.clone(), Chain::default());
        let mut stream = Self { context, raw: std::ptr::null_mut(), chain, recording };
        let context = &stream.context;
        let flags = hip_sys::hipStreamNonBlocking;
        // SAFETY: the function is HIP's; it writes one handle, owned here from then on.
        let status = unsafe { (context.hip().hipStreamCreateWithFlags)(&mut stream.raw, flags) };
        context.check("hipStreamCreateWithFlags", status)?;
        Ok(stream)
    }

    /// Launches the deferred ops and returns the handle, so that work enqueued on it comes after
    /// all earlier work.
    #[inline]
    pub(crate) fn raw(&self) -> hipStream_t {
        self.catch_up();
        self.raw
    }

    /// The handle, for code that launches the deferred ops itself or has launched them.
    pub(crate) fn handle(&self) -> hipStream_t {
        self.raw
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
        self.record_on(event, self.raw())
    }

    fn record_on(&self, event: &Event, stream: hipStream_t) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the function is HIP's, both handles are alive.
        let status = unsafe { (self.context.hip().hipEventRecord)(event.raw(), stream) };
        self.context.check("hipEventRecord", status)
    }

    /// Records a new event after the work enqueued so far, for streams to wait for.
    pub(crate) fn mark(&self) -> Result<Event> {
        let event = Event::new(&self.context, EventKind::Ordering)?;
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
        self.record_on(&event, self.raw)?;
        Ok(event)
    }

    /// Makes later work of this stream wait for the event, which may belong to another stream or
    /// device. The host does not wait.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the function is HIP's, both handles are alive.
        let status = unsafe { (self.context.hip().hipStreamWaitEvent)(self.raw(), event.raw(), 0) };
        self.context.check("hipStreamWaitEvent", status)
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

/// The methods of a captured stream.
impl Stream {
    /// Makes HIP record the stream's work instead of running it. The mode is "relaxed", because the
    /// other modes refuse `hipMalloc` and the loading of modules. These are safe here: neither
    /// waits for the stream or becomes part of the graph.
    pub(crate) fn begin_capture(&self) -> Result<()> {
        let Some(begin) = self.context.hip().hipStreamBeginCapture else { return Err(no_graphs()) };
        if let Some(mut recording) = self.recording() {
            *recording = Recording { before: trace::captured(), ..Recording::default() };
        }
        self.context.bind()?;
        // SAFETY: the function is HIP's, the handle is ours.
        let status = unsafe { begin(self.raw, hip_sys::hipStreamCaptureModeRelaxed) };
        self.context.check("hipStreamBeginCapture", status)
    }

    /// Ends the capture. The capture has ended even if this fails.
    pub(crate) fn end_capture(&self) -> (Recording, Result<Template<'_>>) {
        self.catch_up();
        let template = self.end_recording();
        let recording = self.recording().map(|mut recording| std::mem::take(&mut *recording));
        (recording.unwrap_or_default(), template)
    }

    fn end_recording(&self) -> Result<Template<'_>> {
        let Some(end) = self.context.hip().hipStreamEndCapture else { return Err(no_graphs()) };
        self.context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the function is HIP's, the handle is ours; it writes one handle or null.
        let status = unsafe { end(self.raw, &mut raw) };
        let template = Template::new(&self.context, raw);
        self.context.check("hipStreamEndCapture", status)?;
        Ok(template)
    }

    /// On a captured stream, keeps what the captured work uses until the graph is dropped. On
    /// another stream, drops it at once.
    pub(crate) fn keep<T: Send + 'static>(&self, used: T) {
        if let Some(mut recording) = self.recording() {
            recording.kept.push(Box::new(used));
        }
    }

    /// Keeps the error for the end of the capture, which then gives no graph. Only the first error
    /// is kept.
    pub(crate) fn spoil(&self, error: Error) {
        if let Some(mut recording) = self.recording() {
            recording.spoiled.get_or_insert(error);
        }
    }

    fn recording(&self) -> Option<MutexGuard<'_, Recording>> {
        // Every statement that changes the lists leaves them whole.
        Some(self.recording.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Stream {
    /// Launches the deferred ops. An error is kept for the next read or sync, or for the end of the
    /// capture.
    #[inline]
    pub(crate) fn catch_up(&self) {
        if self.chain.any.load(Ordering::Acquire) {
            self.launch_pending(&mut self.chain.pending());
        }
    }

    #[cold]
    pub(crate) fn launch_pending(&self, pending: &mut Pending) {
        if let Some(kernel) = pending.kernel.take()
            && let Err(error) = self.launch_steps(&kernel, pending.grid, &mut pending.steps)
        {
            match &self.recording {
                None => self.context().record(error),
                Some(_) => self.spoil(error),
            }
        }
        pending.steps.count = 0;
        // Cleared after the launch, so that a caller that finds the list empty knows that its own
        // work comes after these steps.
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
        if !self.raw.is_null() {
            // SAFETY: the function is HIP's; nobody else has the handle.
            let status = unsafe { (self.context.hip().hipStreamDestroy)(self.raw) };
            self.context.record_status("hipStreamDestroy", status);
        }
    }
}
