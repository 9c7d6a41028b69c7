//! The HIP runtime: devices, memory, streams, events, modules and launches.
//!
//! Each call does its work at once, under the device's lock. So every stream is always idle, and
//! every order that AMD's runtime guarantees holds. A captured stream records the work instead,
//! with copies of its arguments, and each launch of the graph runs it. In late mode, streams keep
//! their work until somebody waits for it ([`late`]). Errors are AMD's (checked
//! against the source of its runtime, `hipamd` of ROCm 7.1).

mod capture;
#[cfg(not(windows))]
mod control_group;
mod copy;
mod device;
mod error;
mod event;
mod graph;
mod handles;
mod late;
mod launch;
mod machine;
mod memory;
mod module;
mod order;
mod pool;
mod stream;

pub(crate) use device::{current_index, device};
#[cfg(lockstep)]
pub(crate) use error::Fault;
pub use error::last_fault;
pub(crate) use handles::Handles;
#[allow(unused_imports, reason = "rocBLAS and MIOpen call these")]
pub(crate) use {
    capture::{enqueue, is_captured, is_graph},
    late::run_first,
    memory::check_range,
    pool::{parallel, parallel_ranges, threads},
    stream::{Captured, in_order, on_stream},
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

/// Implements the runtime's traits in this process.
struct Host;

/// The CPU device's HIP.
pub fn hip_table() -> Hip {
    table::<Host>()
}
