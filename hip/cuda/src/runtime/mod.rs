//! The HIP runtime over the CUDA driver: devices, memory, streams, events, modules and launches.
//!
//! Streams, events, modules and functions are the driver's own handles. Each device uses its
//! primary context, which NVIDIA's libraries share. The first use of the device retains the
//! context, and it is never released.

mod copy;
mod device;
mod error;
mod graph;
mod launch;
mod memory;
mod order;
mod overlap;

pub(crate) use device::ensure;
pub(crate) use error::from_cuda;
pub(crate) use memory::is_device_memory;
pub(crate) use order::{capturing, uncaptured};

pub(crate) use hip_provider::runtime::Status;
use hip_provider::runtime::table;
use hip_sys::Hip;

/// Implements the runtime's traits by the CUDA driver.
struct Driver;

/// HIP for NVIDIA GPUs.
pub fn hip_table() -> Hip {
    table::<Driver>()
}
