//! The HIP runtime over the CUDA driver: devices, memory, streams, events, modules and launches.
//!
//! Streams, events, modules and functions are the driver's own handles. A device's context is its primary one,
//! which the NVIDIA libraries share; it is retained when the device is first used and kept until the process ends.

mod copy;
mod device;
mod error;
mod graph;
mod launch;
mod memory;
mod order;

pub(crate) use device::ensure;
pub(crate) use error::from_cuda;
pub(crate) use memory::is_device_memory;
pub(crate) use order::{capturing, uncaptured};

pub(crate) use hip_provider::runtime::Status;
use hip_provider::runtime::table;
use hip_sys::Hip;

/// The driver's runtime.
struct Driver;

/// HIP for NVIDIA GPUs.
pub fn hip_table() -> Hip {
    Hip {
        hipStreamBeginCapture: Some(graph::hipStreamBeginCapture),
        hipStreamEndCapture: Some(graph::hipStreamEndCapture),
        hipGraphInstantiateWithFlags: Some(graph::hipGraphInstantiateWithFlags),
        hipGraphLaunch: Some(graph::hipGraphLaunch),
        hipGraphExecDestroy: Some(graph::hipGraphExecDestroy),
        hipGraphDestroy: Some(graph::hipGraphDestroy),
        ..table::<Driver>()
    }
}
