//! Graphs: what a stream was given while it was captured, to be launched as often as wanted.

use super::{Status, api, put};
use crate::require;
use core::ffi::c_ulonglong;
use core::ptr;
use hip_sys::*;

/// A provider's graphs. Streams and graphs passed to these methods are not null, except the stream
/// of a launch.
pub trait Graphs {
    /// Takes down what the stream is given from now on, instead of running it.
    ///
    /// # Safety
    /// Streams and graphs are live, by HIP's contract, here and below.
    unsafe fn begin_capture(stream: hipStream_t, mode: hipStreamCaptureMode) -> Status;

    /// Ends a capture, also one that failed.
    ///
    /// # Safety
    /// As [`Graphs::begin_capture`].
    unsafe fn end_capture(stream: hipStream_t) -> Status<hipGraph_t>;

    /// Makes what can be launched of a graph.
    ///
    /// # Safety
    /// As [`Graphs::begin_capture`].
    unsafe fn instantiate(graph: hipGraph_t, flags: c_ulonglong) -> Status<hipGraphExec_t>;

    /// Runs a graph in stream order.
    ///
    /// # Safety
    /// As [`Graphs::begin_capture`]; the memory that the graph uses may still be accessed.
    unsafe fn launch_graph(exec: hipGraphExec_t, stream: hipStream_t) -> Status;

    /// Ends what is launched.
    ///
    /// # Safety
    /// As [`Graphs::begin_capture`].
    unsafe fn destroy_exec(exec: hipGraphExec_t) -> Status;

    /// Ends a graph.
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
        // Null where the capture failed.
        // SAFETY: as above.
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
