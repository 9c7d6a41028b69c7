//! Graphs: the work that a stream was given while it was captured. A graph can be launched any
//! number of times.

use super::{Status, api, put};
use crate::require;
use core::ffi::c_ulonglong;
use core::ptr;
use hip_sys::*;

/// A provider's graphs. Streams and graphs passed to these methods are not null, except the stream
/// of a launch.
pub trait Graphs {
    /// From now on, records the work that the stream is given instead of running it.
    ///
    /// # Safety
    /// By HIP's contract, streams and graphs are live. The same holds for the methods below.
    unsafe fn begin_capture(stream: hipStream_t, mode: hipStreamCaptureMode) -> Status;

    /// Ends a capture, even one that failed.
    ///
    /// # Safety
    /// As [`Graphs::begin_capture`].
    unsafe fn end_capture(stream: hipStream_t) -> Status<hipGraph_t>;

    /// Makes an executable graph, which can be launched.
    ///
    /// # Safety
    /// As [`Graphs::begin_capture`].
    unsafe fn instantiate(graph: hipGraph_t, flags: c_ulonglong) -> Status<hipGraphExec_t>;

    /// Runs a graph in stream order.
    ///
    /// # Safety
    /// As [`Graphs::begin_capture`]; the memory that the graph uses may still be accessed.
    unsafe fn launch_graph(exec: hipGraphExec_t, stream: hipStream_t) -> Status;

    /// Destroys an executable graph.
    ///
    /// # Safety
    /// As [`Graphs::begin_capture`].
    unsafe fn destroy_exec(exec: hipGraphExec_t) -> Status;

    /// Destroys a graph.
    ///
    /// # Safety
    /// As [`Graphs::begin_capture`].
    unsafe fn destroy_graph(graph: hipGraph_t) -> Status;
}

pub(super) unsafe extern "C" fn hipStreamBeginCapture<G: Graphs>(
    stream: hipStream_t,
    mode: hipStreamCaptureMode,
) -> hipError_t {
    api(|| {
        // The default stream can't be captured.
        require(!stream.is_null(), hipErrorStreamCaptureUnsupported)?;
        require(mode <= hipStreamCaptureModeRelaxed, hipErrorInvalidValue)?;
        // SAFETY: the caller's streams, graphs and out-pointers, by HIP's contract, here and below.
        unsafe { G::begin_capture(stream, mode) }
    })
}

pub(super) unsafe extern "C" fn hipStreamEndCapture<G: Graphs>(
    stream: hipStream_t,
    graph: *mut hipGraph_t,
) -> hipError_t {
    api(|| {
        require(!graph.is_null(), hipErrorInvalidValue)?;
        require(!stream.is_null(), hipErrorIllegalState)?;
        // SAFETY: as above.
        let ended = unsafe { G::end_capture(stream) };
        // Null if the capture failed. SAFETY: as above.
        unsafe { put(graph, *ended.as_ref().unwrap_or(&ptr::null_mut())) }?;
        ended.map(|_| ())
    })
}

pub(super) unsafe extern "C" fn hipGraphInstantiateWithFlags<G: Graphs>(
    exec: *mut hipGraphExec_t,
    graph: hipGraph_t,
    flags: c_ulonglong,
) -> hipError_t {
    api(|| {
        require(!exec.is_null() && !graph.is_null(), hipErrorInvalidValue)?;
        // SAFETY: as above.
        unsafe { put(exec, G::instantiate(graph, flags)?) }
    })
}

pub(super) unsafe extern "C" fn hipGraphLaunch<G: Graphs>(
    exec: hipGraphExec_t,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        require(!exec.is_null(), hipErrorInvalidValue)?;
        // SAFETY: as above.
        unsafe { G::launch_graph(exec, stream) }
    })
}

pub(super) unsafe extern "C" fn hipGraphExecDestroy<G: Graphs>(exec: hipGraphExec_t) -> hipError_t {
    api(|| {
        require(!exec.is_null(), hipErrorInvalidValue)?;
        // SAFETY: as above.
        unsafe { G::destroy_exec(exec) }
    })
}

pub(super) unsafe extern "C" fn hipGraphDestroy<G: Graphs>(graph: hipGraph_t) -> hipError_t {
    api(|| {
        require(!graph.is_null(), hipErrorInvalidValue)?;
        // SAFETY: as above.
        unsafe { G::destroy_graph(graph) }
    })
}
