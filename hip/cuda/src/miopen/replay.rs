//! Replaces repeated cuDNN calls by graphs.
//!
//! A convolution function of cuDNN 9 takes 35 to 100 us of the host's time (H200, 64x32x14x14, see
//! `benches/README.md`), whatever it launches. A graph of the same launches takes 6 us. A training
//! loop repeats the same calls at every step. It also uses the same buffers, because the pool
//! answers the same requests in the same way. So the second of two equal calls is captured as a
//! graph, which this call and all later ones launch.

use super::status::answered;
use crate::runtime::{Status, capturing, from_cuda};
use cudarc::cudnn::sys as cudnn;
use cudarc::driver::sys as cuda;
use hip_provider::miopen::{Kind, Outcome};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// How many calls are remembered: many times those of a training step. Only a program with new
/// shapes at every step reaches this number, and then all calls are forgotten.
const MOST: usize = 4096;

/// The known calls and their graphs.
#[derive(Default)]
pub(super) struct Replays {
    known: Mutex<Known>,
}

/// The key of a call: equal keys mean equal work on the same memory.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Same {
    pub(super) kind: Kind,
    pub(super) algorithm: u32,
    /// Stamps of x, w, the convolution and y.
    pub(super) descriptors: [u64; 4],
    /// x, w, y and the workspace.
    pub(super) buffers: [*mut c_void; 4],
    pub(super) workspace_size: usize,
}

struct Known {
    calls: HashMap<Same, Seen>,
    /// The stream on which calls are captured. A capture on the handle's own stream would also
    /// capture other threads' launches. Null until the first capture.
    aside: cuda::CUstream,
}

// SAFETY: any thread may use the driver's streams and graphs, one thread at a time, which the mutex
// in `Replays` ensures. A key's pointers are compared, never read.
unsafe impl Send for Known {}

enum Seen {
    Once,
    Graph(Graph),
    /// The call can't be captured or its graph can't be launched.
    Uncapturable,
}

/// An executable graph, destroyed on drop.
struct Graph(cuda::CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `captured`; no other code launches it any more.
        let _ = unsafe { cuda::cuGraphExecDestroy(self.0) };
    }
}

impl Default for Known {
    fn default() -> Self {
        Self { calls: HashMap::new(), aside: ptr::null_mut() }
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if !self.aside.is_null() {
            // SAFETY: made by `aside`; nothing is captured now.
            let _ = unsafe { cuda::cuStreamDestroy_v2(self.aside) };
        }
    }
}

impl Replays {
    /// Runs `call` on `stream`, the stream of the handle `raw`, or launches the graph of an earlier
    /// call with this key.
    ///
    /// # Safety
    /// No other code uses the handle meanwhile, and `stream` is its stream. Calls of one key do the
    /// same work on the same memory.
    pub(super) unsafe fn run(
        &self,
        key: Same,
        raw: cudnn::cudnnHandle_t,
        stream: cuda::CUstream,
        call: impl Fn() -> Outcome,
    ) -> Outcome {
        // The default stream can't be captured. If the caller captures the stream itself, its
        // capture must receive the launches.
        if stream.is_null() || is_captured(stream) {
            return call();
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.calls.get(&key) {
            Some(Seen::Graph(graph)) => {
                // SAFETY: a graph and a stream of this context.
                if from_cuda(unsafe { cuda::cuGraphLaunch(graph.0, stream) }).is_ok() {
                    return Ok(());
                }
                known.calls.insert(key, Seen::Uncapturable);
                call()
            }
            Some(Seen::Uncapturable) => call(),
            Some(Seen::Once) => {
                // SAFETY: as the caller vouches.
                match unsafe { known.captured(raw, stream, &call) }? {
                    // SAFETY: as above.
                    Some(graph) if from_cuda(unsafe { cuda::cuGraphLaunch(graph.0, stream) }).is_ok() => {
                        known.calls.insert(key, Seen::Graph(graph));
                        Ok(())
                    }
                    _ => {
                        known.calls.insert(key, Seen::Uncapturable);
                        call()
                    }
                }
            }
            None => {
                call()?;
                if known.calls.len() >= MOST {
                    // Waits, because launched graphs may still be running. SAFETY: the caller's
                    // stream.
                    let _ = unsafe { cuda::cuStreamSynchronize(stream) };
                    known.calls.clear();
                }
                known.calls.insert(key, Seen::Once);
                Ok(())
            }
        }
    }
}

impl Known {
    /// Captures a call without running it; `None` if it can't be captured.
    ///
    /// # Errors
    /// If the handle could not be set back to its stream.
    ///
    /// # Safety
    /// As for [`Replays::run`].
    unsafe fn captured(
        &mut self,
        raw: cudnn::cudnnHandle_t,
        stream: cuda::CUstream,
        call: &impl Fn() -> Outcome,
    ) -> Outcome<Option<Graph>> {
        let Ok(aside) = self.aside() else { return Ok(None) };
        let _held = capturing();
        // SAFETY: this context's streams and the caller's handle; out-pointers are valid. Relaxed
        // mode, because cuDNN may allocate memory.
        unsafe {
            if answered(cudnn::cudnnSetStream(raw, aside.cast())).is_err() {
                answered(cudnn::cudnnSetStream(raw, stream.cast()))?;
                return Ok(None);
            }
            let mode = cuda::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
            let begun = from_cuda(cuda::cuStreamBeginCapture_v2(aside, mode)).is_ok();
            let called = begun && call().is_ok();
            let mut graph = ptr::null_mut();
            let ended = begun && from_cuda(cuda::cuStreamEndCapture(aside, &mut graph)).is_ok();
            let back = answered(cudnn::cudnnSetStream(raw, stream.cast()));
            let mut exec = ptr::null_mut();
            let made = called
                && ended
                && !graph.is_null()
                && from_cuda(cuda::cuGraphInstantiateWithFlags(&mut exec, graph, 0)).is_ok();
            if !graph.is_null() {
                let _ = cuda::cuGraphDestroy(graph);
            }
            let exec = made.then(|| Graph(exec));
            back.map(|()| exec)
        }
    }

    fn aside(&mut self) -> Status<cuda::CUstream> {
        if self.aside.is_null() {
            let mut made = ptr::null_mut();
            let non_blocking = cuda::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: the function is the driver's, the pointer valid.
            from_cuda(unsafe { cuda::cuStreamCreate(&mut made, non_blocking) })?;
            self.aside = made;
        }
        Ok(self.aside)
    }
}

/// Whether the stream is being captured.
fn is_captured(stream: cuda::CUstream) -> bool {
    let mut state = cuda::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a live stream and a valid pointer.
    let asked = from_cuda(unsafe { cuda::cuStreamIsCapturing(stream, &mut state) });
    asked.is_err() || state != cuda::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE
}
