//! Graphs: the work that was recorded in captured streams. Each launch runs it in its order.

use super::{
    Handles, Host,
    capture::Work,
    device::Device,
    stream::{STREAMS, behind, place},
};
use crate::settings::Failure;
use hip_provider::require;
use hip_provider::runtime::{Graphs, Status};
use hip_sys::*;
use std::{ffi::c_ulonglong, sync::Arc};

/// A graph, executable or not.
struct Graph {
    device: &'static Device,
    work: Vec<Work>,
}

static GRAPHS: Handles<Graph> = Handles::new(0xa6);
static LAUNCHABLE: Handles<Graph> = Handles::new(0xa7);

impl Graphs for Host {
    unsafe fn begin_capture(stream: hipStream_t, mode: hipStreamCaptureMode) -> Status {
        let stream = STREAMS.get(stream as usize).ok_or(hipErrorContextIsDestroyed)?;
        require(!Failure::BeginCapture.is_asked(), hipErrorOutOfMemory)?;
        let _order = stream.device.lock();
        stream.capture.begin(mode)
    }

    unsafe fn end_capture(handle: hipStream_t) -> Status<hipGraph_t> {
        let stream = STREAMS.get(handle as usize).ok_or(hipErrorContextIsDestroyed)?;
        // As AMD's clr, which returns this error before it resets anything.
        require(!Failure::EndCapture.is_asked(), hipErrorStreamCaptureInvalidated)?;
        let _order = stream.device.lock();
        let work = stream.capture.end(handle, |other, leave| {
            if let Some(other) = STREAMS.get(other) {
                leave(&other.capture);
            }
        })?;
        Ok(GRAPHS.insert(Arc::new(Graph { device: stream.device, work })) as hipGraph_t)
    }

    unsafe fn instantiate(graph: hipGraph_t, _flags: c_ulonglong) -> Status<hipGraphExec_t> {
        let graph = GRAPHS.get(graph as usize).ok_or(hipErrorInvalidValue)?;
        require(!Failure::GraphInstantiate.is_asked(), hipErrorOutOfMemory)?;
        Ok(LAUNCHABLE.insert(graph) as hipGraphExec_t)
    }

    unsafe fn launch_graph(exec: hipGraphExec_t, stream: hipStream_t) -> Status {
        let graph = LAUNCHABLE.get(exec as usize).ok_or(hipErrorInvalidValue)?;
        let place = place(stream, hipErrorContextIsDestroyed)?;
        require(place.device.index == graph.device.index, hipErrorInvalidValue)?;
        // Graphs within graphs are not supported, because this project does not use them.
        place.refuse(hipErrorStreamCaptureUnsupported)?;
        let mut order = None;
        behind(&place, || Ok(()))?;
        for work in &graph.work {
            // Other ranks may need the lock before they come: it is all devices' in late mode, and a
            // thread of this device's may hold theirs.
            if work.waits() {
                order = None;
            } else if order.is_none() {
                order = Some(place.device.lock());
            }
            require(work.run(), hipErrorLaunchFailure)?;
        }
        Ok(())
    }

    unsafe fn destroy_exec(exec: hipGraphExec_t) -> Status {
        LAUNCHABLE.remove(exec as usize).map(drop).ok_or(hipErrorInvalidValue)
    }

    unsafe fn destroy_graph(graph: hipGraph_t) -> Status {
        GRAPHS.remove(graph as usize).map(drop).ok_or(hipErrorInvalidValue)
    }
}
