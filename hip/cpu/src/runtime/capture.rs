//! Captures: what a stream is given is kept instead of run.

use hip_provider::require;
use hip_provider::runtime::Status;
use hip_sys::*;
use std::{
    cell::RefCell,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
};

/// A piece of work with all that it needs.
pub(super) struct Work(Box<dyn Fn() -> bool>);

// SAFETY: `enqueue`'s callers vouch for it.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

/// What a stream is captured into.
#[derive(Default)]
pub(super) struct Capture {
    /// Whether there is a recording: so that a stream without one takes no lock.
    on: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

struct Recording {
    work: Vec<Work>,
    /// A call came that can't be captured.
    spoiled: bool,
    /// The thread that alone may end it.
    thread: Option<ThreadId>,
}

thread_local! {
    /// The work that a call in a captured stream has issued so far.
    static TAKEN_DOWN: RefCell<Option<Vec<Work>>> = const { RefCell::new(None) };
}

/// Whether this thread's call is in a captured stream: what it enqueues does not run now.
pub(crate) fn is_captured() -> bool {
    TAKEN_DOWN.with_borrow(Option::is_some)
}

/// Runs work in the turn that [`on_stream`](super::on_stream) gave this thread, or takes it down
/// where the stream is captured: then it runs at each launch of the graph.
///
/// # Safety
/// The work holds plain values, things that any thread may use, and addresses of memory that the
/// caller of the C function keeps for as long as a graph with it is launched.
pub(crate) unsafe fn enqueue<E>(work: impl Fn() -> Result<(), E> + 'static) -> Result<(), E> {
    TAKEN_DOWN
        .with_borrow_mut(|taken| match taken {
            Some(taken) => {
                taken.push(Work(Box::new(move || work().is_ok())));
                Ok(())
            }
            None => Err(work),
        })
        // Outside the borrow: what runs now may ask whether it is captured.
        .or_else(|work| work())
}

impl Work {
    /// Whether it succeeded.
    pub(super) fn run(&self) -> bool {
        (self.0)()
    }
}

impl Capture {
    /// No mode forbids anything here but that another thread ends the capture: every call is safe
    /// beside one.
    pub(super) fn begin(&self, mode: hipStreamCaptureMode) -> Status {
        let mut recording = self.lock();
        require(recording.is_none(), hipErrorIllegalState)?;
        let thread = (mode != hipStreamCaptureModeRelaxed).then(|| thread::current().id());
        *recording = Some(Recording { work: Vec::new(), spoiled: false, thread });
        self.on.store(true, Ordering::Release);
        Ok(())
    }

    /// What was taken down.
    pub(super) fn end(&self) -> Status<Vec<Work>> {
        let mut recording = self.lock();
        let own = recording.as_ref().ok_or(hipErrorIllegalState)?.thread;
        require(own.is_none_or(|own| own == thread::current().id()), hipErrorStreamCaptureWrongThread)?;
        self.on.store(false, Ordering::Release);
        let ended = recording.take().filter(|recording| !recording.spoiled);
        ended.map(|recording| recording.work).ok_or(hipErrorStreamCaptureInvalidated)
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Refuses a call that can't be captured, with this status; the capture has failed then.
    pub(super) fn refuse(&self, status: hipError_t) -> Status {
        match self.lock().as_mut() {
            Some(recording) => {
                recording.spoiled = true;
                Err(status)
            }
            None => Ok(()),
        }
    }

    /// Takes down what a call enqueues, if it succeeds.
    pub(super) fn take_down(&self, call: impl FnOnce() -> Status) -> Status {
        /// Ends the taking down, also where the call panics.
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                TAKEN_DOWN.take();
            }
        }
        TAKEN_DOWN.set(Some(Vec::new()));
        let end = End;
        let status = call();
        let taken = TAKEN_DOWN.take().unwrap_or_default();
        drop(end);
        if status.is_ok()
            && let Some(recording) = self.lock().as_mut()
        {
            recording.work.extend(taken);
        }
        status
    }

    fn lock(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
