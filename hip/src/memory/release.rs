//! What must wait for the device's work before it is done: the release of memory that somebody else
//! owns, or still uses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::context::{Context, count};
use crate::device::event::Event;
use crate::device::stream::Stream;
use crate::error::Error;

/// What is done then, once. It may run on any thread that uses the device.
pub(crate) type Release = Box<dyn FnOnce() + Send>;

/// What a release waits for.
enum After {
    /// A point of the compute stream.
    Event(Event),
    /// All streams of the device, also those of other libraries.
    AllStreams,
}

/// A device's releases that wait.
pub(crate) struct Releases {
    context: Arc<Context>,
    compute: Arc<Stream>,
    /// The length of the list, to be read without the lock.
    count: AtomicUsize,
    list: Mutex<Vec<(After, Release)>>,
}

impl Releases {
    pub(crate) fn new(context: &Arc<Context>, compute: &Arc<Stream>) -> Self {
        let (count, list) = (AtomicUsize::new(0), Mutex::default());
        Self { context: context.clone(), compute: compute.clone(), count, list }
    }

    /// Runs `release` once the compute stream has passed the work that it has received so far: now,
    /// or in a later [`poll`](Self::poll).
    pub(crate) fn after_compute(&self, release: Release) {
        match self.compute.mark() {
            Ok(event) if event.query().unwrap_or(false) => self.run(release),
            Ok(event) => self.add(After::Event(event), release),
            Err(error) => {
                self.context.record(error);
                // Without an event, wait here. If that fails too, the device runs nothing more.
                let _ = self.compute.synchronize();
                self.run(release);
            }
        }
    }

    /// Runs `release` once all streams of the device have passed the work that they have received
    /// so far. Waits for that, unless a graph is `captured`: then a later [`poll`](Self::poll)
    /// waits.
    pub(crate) fn after_all(&self, release: Release, captured: bool) {
        match captured {
            true => self.add(After::AllStreams, release),
            // The thread may be another library's.
            false => self.context.restoring_device(|| match self.wait_for_all() {
                true => self.run(release),
                false => self.add(After::AllStreams, release),
            }),
        }
    }

    /// Runs what no longer has to wait. Call it without holding a lock.
    #[inline]
    pub(crate) fn poll(&self, captured: bool) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.run_ready(captured);
        }
    }

    #[cold]
    fn run_ready(&self, captured: bool) {
        let is_ready = |after: &After| match after {
            // An error means that the device has failed and runs nothing more.
            After::Event(event) => event.query().unwrap_or(true),
            After::AllStreams => !captured,
        };
        let mut list = self.list();
        let (ready, waiting): (Vec<_>, Vec<_>) = list.drain(..).partition(|(after, _)| is_ready(after));
        *list = waiting;
        self.count.store(list.len(), Ordering::Release);
        drop(list);
        let waits = ready.iter().any(|(after, _)| matches!(after, After::AllStreams));
        let waited = !waits || self.wait_for_all();
        for (after, release) in ready {
            match after {
                After::AllStreams if !waited => self.add(after, release),
                _ => self.run(release),
            }
        }
    }

    fn add(&self, after: After, release: Release) {
        let mut list = self.list();
        list.push((after, release));
        self.count.store(list.len(), Ordering::Release);
    }

    /// Runs a release, which may be another library's code. A panic in it becomes an error of the
    /// next read or sync.
    fn run(&self, release: Release) {
        if catch_unwind(AssertUnwindSafe(release)).is_err() {
            self.context.record(Error::invalid("a release of memory", "no panic", "a panic"));
        }
    }

    /// Waits for all streams of the device. Returns false if another library captures a graph, so
    /// that nobody can wait now.
    fn wait_for_all(&self) -> bool {
        self.compute.catch_up();
        count(&self.context.counters.waits);
        if let Err(error) = self.context.bind() {
            self.context.record(error);
            return true;
        }
        // SAFETY: the function is HIP's.
        let status = unsafe { (self.context.hip().hipDeviceSynchronize)() };
        // The errors of captures.
        if (900..=908).contains(&status) {
            return false;
        }
        // Any other error means that the device has failed and runs nothing more.
        if let Err(error) = self.context.check("hipDeviceSynchronize", status) {
            self.context.record(error);
        }
        true
    }

    fn list(&self) -> MutexGuard<'_, Vec<(After, Release)>> {
        // Every statement that changes the list leaves it whole.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Runs `work`, and afterwards makes the device current that is current for this thread now.
    fn restoring_device(&self, work: impl FnOnce()) {
        let mut before = -1;
        // SAFETY: the function is HIP's; it writes one int.
        let asked = unsafe { (self.hip().hipGetDevice)(&mut before) };
        work();
        if asked == hip_sys::hipSuccess && before != self.ordinal as i32 {
            // SAFETY: the function is HIP's.
            let status = unsafe { (self.hip().hipSetDevice)(before) };
            self.record_status("hipSetDevice", status);
        }
    }
}
