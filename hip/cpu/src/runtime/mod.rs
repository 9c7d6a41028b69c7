//! The HIP runtime: devices, memory, streams, events, modules and launches, by AMD's C API.
//!
//! Work runs in the calling thread when it is issued, under the device's lock: every stream is always idle, and
//! whatever order AMD's runtime promises holds. Errors are AMD's (checked against its runtime's source, `hipamd` of
//! ROCm 7.1).

mod copy;
mod device;
mod error;
mod event;
mod handles;
mod launch;
mod machine;
mod memory;
mod module;
mod pool;
mod stream;

pub(crate) use device::device;
#[cfg(lockstep)]
pub(crate) use error::Fault;
pub use error::last_fault;
pub(crate) use handles::Handles;
#[allow(unused_imports, reason = "rocBLAS and MIOpen call these")]
pub(crate) use {
    memory::check_range,
    pool::{parallel, parallel_ranges, threads},
    stream::on_stream,
};

use hip_provider::runtime::table;
use hip_sys::{Hip, hipError_t, hipErrorNotInitialized};

/// The settings, or the status of a runtime that can't start.
pub(crate) fn settings() -> Result<&'static crate::settings::Settings, hipError_t> {
    crate::settings::settings().map_err(|problem| {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| log::error!("hip-cpu: {problem}"));
        hipErrorNotInitialized
    })
}

/// The runtime of this process.
struct Host;

/// The CPU device's HIP. Nothing above asks for graphs; a launch costs no more here than one in a graph would.
pub fn hip_table() -> Hip {
    table::<Host>()
}
