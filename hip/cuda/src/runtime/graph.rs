//! Graphs by the CUDA driver: a stream's captured work, which can be launched many times.

use super::{device::ensure, error::from_cuda};
use cudarc::driver::sys as cuda;
use cudarc::driver::sys::CUstreamCaptureMode_enum as Mode;
use hip_provider::runtime::{api, put};
use hip_sys::*;
use std::{ffi::c_ulonglong, ptr};

pub(super) unsafe extern "C" fn hipStreamBeginCapture(
    stream: hipStream_t,
    mode: hipStreamCaptureMode,
) -> hipError_t {
    api(|| {
        // The default stream can't be captured.
        if stream.is_null() {
            return Err(hipErrorStreamCaptureUnsupported);
        }
        let mode = match mode {
            hipStreamCaptureModeGlobal => Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            hipStreamCaptureModeThreadLocal => Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            hipStreamCaptureModeRelaxed => Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
            _ => return Err(hipErrorInvalidValue),
        };
        ensure()?;
        // SAFETY: the caller's stream, by HIP's contract.
        from_cuda(unsafe { cuda::cuStreamBeginCapture_v2(stream.cast(), mode) })
    })
}

pub(super) unsafe extern "C" fn hipStreamEndCapture(
    stream: hipStream_t,
    graph: *mut hipGraph_t,
) -> hipError_t {
    api(|| {
        if graph.is_null() {
            return Err(hipErrorInvalidValue);
        }
        if stream.is_null() {
            return Err(hipErrorIllegalState);
        }
        ensure()?;
        let mut made = ptr::null_mut();
        // SAFETY: the caller's stream, by HIP's contract.
        let ended = from_cuda(unsafe { cuda::cuStreamEndCapture(stream.cast(), &mut made) });
        // `made` is null if the capture failed.
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(graph, made.cast()) }?;
        ended
    })
}

pub(super) unsafe extern "C" fn hipGraphInstantiateWithFlags(
    exec: *mut hipGraphExec_t,
    graph: hipGraph_t,
    flags: c_ulonglong,
) -> hipError_t {
    api(|| {
        if exec.is_null() || graph.is_null() {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        let mut made = ptr::null_mut();
        // SAFETY: the caller's graph, by HIP's contract; HIP's flags are CUDA's.
        from_cuda(unsafe { cuda::cuGraphInstantiateWithFlags(&mut made, graph.cast(), flags) })?;
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(exec, made.cast()) }
    })
}

pub(super) unsafe extern "C" fn hipGraphLaunch(exec: hipGraphExec_t, stream: hipStream_t) -> hipError_t {
    api(|| {
        if exec.is_null() {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        // SAFETY: the caller's graph and stream, by HIP's contract.
        from_cuda(unsafe { cuda::cuGraphLaunch(exec.cast(), stream.cast()) })
    })
}

pub(super) unsafe extern "C" fn hipGraphExecDestroy(exec: hipGraphExec_t) -> hipError_t {
    api(|| {
        if exec.is_null() {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        // SAFETY: the caller's graph, by HIP's contract.
        from_cuda(unsafe { cuda::cuGraphExecDestroy(exec.cast()) })
    })
}

pub(super) unsafe extern "C" fn hipGraphDestroy(graph: hipGraph_t) -> hipError_t {
    api(|| {
        if graph.is_null() {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        // SAFETY: the caller's graph, by HIP's contract.
        from_cuda(unsafe { cuda::cuGraphDestroy(graph.cast()) })
    })
}
