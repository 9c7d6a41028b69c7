//! Graphs: a thread's work on a device, captured and launched again as a whole.
//!
//! A capture has a stream of its own (`device/capture.rs`), so the work of other threads runs
//! meanwhile. A graph is launched on the compute stream, in order with all other work.
//!
//! A graph keeps everything that its work uses: the memory (`memory/pool.rs`), the kernels'
//! modules, the words for their faults, and the host memory that its uploads read. So a launch is
//! safe whatever was dropped since the capture. Every launch uses the same addresses: it reads
//! tensors that existed before the capture with the values they have at the launch, and it
//! overwrites the capture's results.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hip_sys::hipGraphExec_t;

use crate::collective::captured::Replays;
use crate::device::Device;
use crate::device::context::count;
use crate::device::recording::{Recording, no_graphs};
use crate::error::Result;
use crate::profile::session::{self, Contents};
use crate::profile::work::{Load, WorkKind};
use crate::settings::hipblaslt_asked;
use crate::spans;
use crate::trace::{self, Counts};

/// Captured work, ready to be launched again and again; see [`Device::start_capture`]. Not `Clone`:
/// share an `Arc`.
pub struct Graph {
    device: Arc<Device>,
    /// Tells it from other graphs, in profiles.
    number: u64,
    recorded: Counts,
    /// What it runs, if its capture was profiled.
    contents: Contents,
    /// A mutex, because HIP does not say that two threads may launch the same graph at the same
    /// time.
    exec: Mutex<Exec>,
    /// The number by which the pool knows the graph's memory.
    memory: usize,
    collectives: Replays,
    /// Kept alive for the graph's work, and never accessed.
    _kept: Mutex<Vec<Box<dyn Send>>>,
}

struct Exec {
    raw: hipGraphExec_t,
    launched: bool,
}

// SAFETY: "HIP APIs are thread safe" (HIP programming guide): a graph's handle may be used from any
// thread; the mutex around it admits one at a time.
unsafe impl Send for Exec {}

/// A capture in progress, owned by its thread. If it is dropped before its end, there is no graph.
struct Capture {
    device: Arc<Device>,
    memory: usize,
    over: bool,
}

thread_local! {
    /// The thread's captures, at most one for each device. If the thread ends first, they end with
    /// it.
    static CAPTURES: RefCell<Vec<Capture>> = const { RefCell::new(Vec::new()) };
}

impl Device {
    /// Starts to capture this thread's work on the device: until
    /// [`stop_capture`](Self::stop_capture), the work is recorded instead of run. Other threads'
    /// work runs meanwhile. Other threads can't use what the captured work computes: if one does,
    /// its next read or [`sync`](Self::sync) returns [`Error::Capture`](crate::Error::Capture).
    ///
    /// A rank's collectives are captured too. All ranks of the group capture theirs meanwhile, and
    /// then replay their graphs together.
    ///
    /// Reads, `sync` and copies between devices are refused with `Error::Capture`; a capture in
    /// which something was refused gives no graph. Run the work once before you capture it. That
    /// compiles its kernels and lets MIOpen time and choose its algorithms, which it can't do
    /// during a capture.
    ///
    /// # Errors
    /// `Capture` if this or another thread is already capturing; `Unsupported` if the driver has no
    /// graphs; `Device` if HIP fails.
    pub fn start_capture(self: &Arc<Self>) -> Result<()> {
        self.refuse_captured("a capture", "another capture is in progress")?;
        // Makes the libraries' handles now, because making one allocates memory and waits for the
        // device. If one can't be made, the op that needs it reports that.
        let lt = if hipblaslt_asked() { self.blas_lt().map(|_| ()) } else { Ok(()) };
        let missing = [self.blas().map(|_| ()), self.dnn().map(|_| ()), lt];
        missing
            .into_iter()
            .filter_map(Result::err)
            .for_each(|error| log::debug!("a graph is captured without a library: {error}"));
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
    /// If this fails, the device continues as if there had been no capture, and the tensors that
    /// the captured work should have written are undefined.
    ///
    /// # Errors
    /// `Invalid` if nothing is being captured and `Capture` if another thread is capturing; neither
    /// ends a capture. Otherwise the first error of the captured work, such as `Capture`, or
    /// `Device` if HIP fails.
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

    /// Ends a capture of this thread that was never stopped, for example because the captured work
    /// panicked. Returns no error, because that of the work has been reported.
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
            Ok((raw, Recording { kept, before, work, collectives, .. })) => {
                let exec = Mutex::new(Exec { raw, launched: false });
                let (device, recorded) = (device.clone(), trace::captured().since(&before));
                let (number, contents) = (session::next_graph(), work.into_iter().collect());
                let (collectives, _kept) = (Replays::of(collectives), Mutex::new(kept));
                Ok(Graph { device, number, recorded, contents, exec, memory, collectives, _kept })
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
    /// Enqueues the captured work on the compute stream by one launch. It uses the memory that it
    /// was captured with. If one of its kernels finds a fault, reads of the capture's results fail
    /// from then on for as long as the graph lives. A fault in a tensor that the graph reads is
    /// reported only by [`Device::sync`]. Blocks while another thread enqueues a read of a graph's
    /// memory, and for as long as it reads if that takes more than 64 MiB.
    ///
    /// # Errors
    /// `Capture` if this thread is capturing; `Device` if HIP fails; if the graph has collectives,
    /// also the errors of [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    pub fn replay(&self) -> Result<()> {
        let Device { context, compute, .. } = &*self.device;
        self.device.refuse_captured("a graph's launch", "graphs are not nested")?;
        let Some(launch) = context.hip().hipGraphLaunch else { return Err(no_graphs()) };
        context.bind()?;
        // Before every other lock: a read of more than 64 MiB waits for the device, and so for other
        // ranks, while it has this one.
        let _no_read = self.device.begin_replay();
        let mut exec = self.exec.lock().unwrap_or_else(PoisonError::into_inner);
        let Exec { raw, launched } = &mut *exec;
        let _span = spans::graph(self.number, &Recorded(self.recorded));
        let mut timed = None;
        self.collectives.launch(&self.device, || {
            let stream = compute.raw();
            timed = compute.begin_work();
            *launched = true;
            // SAFETY: the function is HIP's. The graph keeps what its work uses until the stream is
            // past this launch.
            let status = unsafe { launch(*raw, stream) };
            context.check("hipGraphLaunch", status)
        })?;
        if timed.is_some() {
            let name = format!("graph {}: {}", self.number, Recorded(self.recorded));
            compute.graph_runs(&name, &self.contents);
            compute.end_work(timed, WorkKind::Graph, || name, Load::UNKNOWN);
        }
        count(&context.counters.graphs);
        trace::served(WorkKind::Graph, || format!("replay of {}", Recorded(self.recorded)));
        Ok(())
    }

    /// The work that was captured. A replay runs that many kernels, library calls and copies, but
    /// itself counts as one graph. What the thread gave to other devices during the capture is
    /// counted too.
    pub fn recorded(&self) -> Counts {
        self.recorded
    }

    /// The device on which the graph was captured and is launched.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Device { context, compute, .. } = &*self.device;
        let exec = self.exec.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Waits, because HIP does not say what happens to a graph that is destroyed while it runs.
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

/// Shows what was captured, for the trace.
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
