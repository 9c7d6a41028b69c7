//! Graphs by the CUDA driver: a stream's captured work, which can be launched many times.

use super::{Driver, device::ensure, error::from_cuda, overlap};
use cudarc::driver::sys as cuda;
use cudarc::driver::sys::CUstreamCaptureMode_enum as Mode;
use hip_provider::runtime::{Graphs, Status};
use hip_sys::*;
use std::{ffi::c_ulonglong, ptr};

impl Graphs for Driver {
    unsafe fn begin_capture(stream: hipStream_t, mode: hipStreamCaptureMode) -> Status {
        let mode = match mode {
            hipStreamCaptureModeGlobal => Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            hipStreamCaptureModeThreadLocal => Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            _ => Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        ensure()?;
        overlap::captures();
        // SAFETY: the caller's stream and graphs, by HIP's contract, here and below.
        from_cuda(unsafe { cuda::cuStreamBeginCapture_v2(stream.cast(), mode) })
    }

    unsafe fn end_capture(stream: hipStream_t) -> Status<hipGraph_t> {
        ensure()?;
        let mut made = ptr::null_mut();
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuStreamEndCapture(stream.cast(), &mut made) })?;
        Ok(made.cast())
    }

    /// HIP's flags are CUDA's.
    unsafe fn instantiate(graph: hipGraph_t, flags: c_ulonglong) -> Status<hipGraphExec_t> {
        ensure()?;
        let mut made = ptr::null_mut();
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuGraphInstantiateWithFlags(&mut made, graph.cast(), flags) })?;
        Ok(made.cast())
    }

    unsafe fn launch_graph(exec: hipGraphExec_t, stream: hipStream_t) -> Status {
        ensure()?;
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuGraphLaunch(exec.cast(), stream.cast()) })
    }

    unsafe fn destroy_exec(exec: hipGraphExec_t) -> Status {
        ensure()?;
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuGraphExecDestroy(exec.cast()) })
    }

    unsafe fn destroy_graph(graph: hipGraph_t) -> Status {
        ensure()?;
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuGraphDestroy(graph.cast()) })
    }
}
