//! Graphs: a thread's work on a device, captured and launched again as a whole.
//!
//! A capture has a stream of its own (`device/capture.rs`), so other threads work on meanwhile.
//! Launches go to the compute stream, in order with everything else.
//!
//! What a graph's work uses stays for as long as the graph: the memory (`memory/pool.rs`), the
//! kernels' modules, the words for their faults, and the host memory that its uploads read. So a
//! launch is safe whatever was dropped since. It computes on the same addresses: tensors that lived
//! before the capture are read as they are at the launch, and the capture's results are written
//! again.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hip_sys::hipGraphExec_t;

use crate::device::Device;
use crate::device::context::count;
use crate::device::recording::{Recording, no_graphs};
use crate::error::Result;
use crate::trace::{self, Counts};

/// Captured work, ready to be launched again and again; see [`Device::start_capture`]. Not `Clone`:
/// share an `Arc`.
pub struct Graph {
    device: Arc<Device>,
    recorded: Counts,
    /// HIP does not say that two threads may launch one graph at a time.
    exec: Mutex<Exec>,
    /// The pool's number of its memory.
    memory: usize,
    /// Never looked at, only dropped.
    _kept: Mutex<Vec<Box<dyn Send>>>,
}

struct Exec {
    raw: hipGraphExec_t,
    launched: bool,
}

// SAFETY: "HIP APIs are thread safe" (HIP programming guide): a graph's handle may be used from any
// thread; the mutex around it lets in one at a time.
unsafe impl Send for Exec {}

/// A capture under way, in the hands of its thread. One that is dropped before its end gives no
/// graph.
struct Capture {
    device: Arc<Device>,
    memory: usize,
    over: bool,
}

thread_local! {
    /// What the thread captures, one capture a device. If the thread ends first they end with it.
    static CAPTURES: RefCell<Vec<Capture>> = const { RefCell::new(Vec::new()) };
}

impl Device {
    /// Records what this thread gives the device from now on, instead of running it, until
    /// [`stop_capture`](Self::stop_capture). Other threads' work runs meanwhile. They can't use what
    /// the captured work computes: their next read or [`sync`](Self::sync) returns
    /// [`Error::Capture`](crate::Error::Capture).
    ///
    /// Reads, `sync` and copies between devices are refused with `Error::Capture`; no graph comes of
    /// a capture in which something was refused. Run the work once before: that compiles its kernels
    /// and lets MIOpen choose its algorithms, which a capture does not time.
    ///
    /// # Errors
    /// `Capture` if this or another thread captures already; `Unsupported` if the driver has no
    /// graphs; `Device` where HIP refuses.
    pub fn start_capture(self: &Arc<Self>) -> Result<()> {
        self.refuse_captured("a capture", "another one is under way")?;
        // The libraries' handles, which allocate and wait when they are made. If one can't be had,
        // the op that needs it says so.
        let missing = [self.blas().map(|_| ()), self.dnn().map(|_| ())].into_iter().filter_map(Result::err);
        missing.for_each(|error| log::debug!("a graph is captured without a library: {error}"));
        let memory = self.captures.begin(&self.context, |stream| {
            let memory = self.pool.begin_graph();
            match stream.begin_capture() {
                Ok(()) => Ok(memory),
                Err(error) => {
                    self.pool.end_capture();
                    self.pool.end_graph(memory);
                    Err(error)
                }
            }
        })?;
        let capture = Capture { device: self.clone(), memory, over: false };
        CAPTURES.with_borrow_mut(|all| all.push(capture));
        Ok(())
    }

    /// Ends what [`start_capture`](Self::start_capture) began. None of the captured work has run.
    /// Where this fails the device works on as if there had been no capture, and what the captured
    /// work was to write is undefined.
    ///
    /// # Errors
    /// `Invalid` where nothing is captured, `Capture` where another thread captures: neither ends
    /// anything. `Capture` or another error of the captured work, the first; what HIP reports.
    pub fn stop_capture(self: &Arc<Self>) -> Result<Graph> {
        let found = CAPTURES.with_borrow_mut(|all| {
            let at = all.iter().position(|capture| Arc::ptr_eq(&capture.device, self))?;
            Some(all.swap_remove(at))
        });
        let Some(mut capture) = found else {
            return Err(self.captures.others("stop_capture"));
        };
        let graph = capture.end()?;
        trace::said(|| format!("captured {}", Recorded(graph.recorded)));
        Ok(graph)
    }

    /// Ends a capture of this thread's that was never stopped, as after a panic of the captured
    /// work. Its error is that of the work, which has been reported.
    pub fn abandon_capture(self: &Arc<Self>) {
        if let Err(error) = self.stop_capture() {
            log::debug!("no capture is left behind: {error}");
        }
    }
}

/// Ends all captures of this thread that were never stopped, as
/// [`abandon_capture`](Device::abandon_capture) does.
pub fn abandon_captures() {
    let last = |all: &RefCell<Vec<Capture>>| all.borrow().last().map(|capture| capture.device.clone());
    // `try_with` fails only when the thread is ending and its captures are over.
    while let Ok(Some(device)) = CAPTURES.try_with(last) {
        device.abandon_capture();
    }
}

impl Capture {
    fn end(&mut self) -> Result<Graph> {
        self.over = true;
        let (device, memory) = (&self.device, self.memory);
        let ended = device.captures.end(|| device.pool.end_capture());
        let made = ended.and_then(|(recording, template)| match recording.spoiled {
            Some(error) => Err(error),
            None => Ok((template?.instantiate()?, recording)),
        });
        match made {
            Ok((raw, Recording { kept, before, .. })) => {
                let exec = Mutex::new(Exec { raw, launched: false });
                let (device, recorded) = (device.clone(), trace::captured().since(&before));
                Ok(Graph { device, recorded, exec, memory, _kept: Mutex::new(kept) })
            }
            Err(error) => {
                device.pool.end_graph(memory);
                Err(error)
            }
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.over
            && let Err(error) = self.end()
        {
            log::warn!("a thread ended while it captured a graph: {error}");
        }
    }
}

impl Graph {
    /// Queues the captured work on the compute stream, by one launch, on the memory that it was
    /// captured with. A fault that a kernel of it finds makes reads of the capture's results fail
    /// from then on, as long as the graph lives; faults in what it reads are reported by
    /// [`Device::sync`] alone.
    ///
    /// # Errors
    /// `Capture` where this thread captures; `Device` where HIP refuses.
    pub fn replay(&self) -> Result<()> {
        let Device { context, compute, .. } = &*self.device;
        self.device.refuse_captured("a graph's launch", "graphs are not nested")?;
        let Some(launch) = context.hip().hipGraphLaunch else { return Err(no_graphs()) };
        context.bind()?;
        let mut exec = self.exec.lock().unwrap_or_else(PoisonError::into_inner);
        exec.launched = true;
        // SAFETY: the function is HIP's. The graph keeps what its work uses until the stream is
        // past this launch.
        let status = unsafe { launch(exec.raw, compute.raw()) };
        context.check("hipGraphLaunch", status)?;
        count(&context.counters.graphs);
        trace::served(trace::Kind::Graph, || format!("replay of {}", Recorded(self.recorded)));
        Ok(())
    }

    /// What was captured: a replay runs as many kernels, library calls and copies, and is none of
    /// them.
    pub fn recorded(&self) -> Counts {
        self.recorded
    }

    /// The device that it was captured on, and is launched on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Device { context, compute, .. } = &*self.device;
        let exec = self.exec.get_mut().unwrap_or_else(PoisonError::into_inner);
        // HIP does not say what becomes of a graph that is destroyed while it runs.
        if exec.launched
            && let Err(error) = compute.synchronize()
        {
            context.record(error);
        }
        if let Some(destroy) = context.hip().hipGraphExecDestroy {
            // SAFETY: the function is HIP's; nobody else has the handle, and the stream is past it.
            let status = unsafe { destroy(exec.raw) };
            context.record_status("hipGraphExecDestroy", status);
        }
        self.device.pool.end_graph(self.memory);
    }
}

/// What was captured, in words.
struct Recorded(Counts);

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { kernels, library_calls, copies, transfers, .. } = self.0;
        write!(
            f,
            "a graph of {kernels} kernels, {library_calls} library calls, {copies} copies and {transfers} uploads"
        )
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("device", &self.device.info().index)
            .field("recorded", &self.recorded)
            .finish_non_exhaustive()
    }
}
