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

use hip_provider::runtime::{self as shared, hipGetErrorName, hipGetErrorString, hipGetLastError};
use hip_sys::{Hip, hipError_t, hipErrorNotInitialized};

/// The settings, or the status of a runtime that can't start.
pub(crate) fn settings() -> Result<&'static crate::settings::Settings, hipError_t> {
    crate::settings::settings().map_err(|problem| {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| log::error!("hip-cpu: {problem}"));
        hipErrorNotInitialized
    })
}

/// The CPU device's HIP.
pub fn hip_table() -> Hip {
    Hip {
        hipInit: shared::hipInit::<device::Cpus>,
        hipGetDeviceCount: shared::hipGetDeviceCount::<device::Cpus>,
        hipSetDevice: device::hipSetDevice,
        hipGetDevice: device::hipGetDevice,
        hipDeviceGetAttribute: shared::hipDeviceGetAttribute::<device::Cpus>,
        hipDeviceGetName: device::hipDeviceGetName,
        hipDeviceTotalMem: shared::hipDeviceTotalMem::<device::Cpus>,
        hipMemGetInfo: shared::hipMemGetInfo::<device::Cpus>,
        hipDriverGetVersion: shared::hipDriverGetVersion::<device::Cpus>,
        hipRuntimeGetVersion: shared::hipDriverGetVersion::<device::Cpus>,
        hipMalloc: memory::hipMalloc,
        hipFree: memory::hipFree,
        hipHostMalloc: memory::hipHostMalloc,
        hipHostFree: memory::hipHostFree,
        hipMemcpyAsync: shared::hipMemcpyAsync::<copy::Memory>,
        hipMemcpyPeerAsync: shared::hipMemcpyPeerAsync::<copy::Memory>,
        hipMemsetAsync: shared::hipMemsetAsync::<copy::Memory>,
        hipMemsetD32Async: shared::hipMemsetD32Async::<copy::Memory>,
        hipStreamCreateWithFlags: stream::hipStreamCreateWithFlags,
        hipStreamDestroy: stream::hipStreamDestroy,
        hipStreamSynchronize: stream::hipStreamSynchronize,
        hipStreamWaitEvent: event::hipStreamWaitEvent,
        hipEventCreateWithFlags: event::hipEventCreateWithFlags,
        hipEventDestroy: event::hipEventDestroy,
        hipEventRecord: event::hipEventRecord,
        hipEventQuery: event::hipEventQuery,
        hipEventSynchronize: event::hipEventSynchronize,
        hipEventElapsedTime: event::hipEventElapsedTime,
        hipModuleLoadData: module::hipModuleLoadData,
        hipModuleUnload: module::hipModuleUnload,
        hipModuleGetFunction: module::hipModuleGetFunction,
        hipModuleLaunchKernel: launch::hipModuleLaunchKernel,
        hipGetErrorName,
        hipGetErrorString,
        hipGetLastError,
        hipDeviceSynchronize: stream::hipDeviceSynchronize,
        hipDeviceCanAccessPeer: shared::hipDeviceCanAccessPeer::<device::Cpus>,
        hipDeviceEnablePeerAccess: device::hipDeviceEnablePeerAccess,
        hipGetDevicePropertiesR0600: Some(shared::hipGetDevicePropertiesR0600::<device::Cpus>),
        hipGetDeviceProperties: Some(shared::hipGetDeviceProperties::<device::Cpus>),
        hipModuleOccupancyMaxActiveBlocksPerMultiprocessor: Some(
            launch::hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
        ),
        // Nothing above asks for graphs; a launch costs no more here than one in a graph would.
        hipStreamBeginCapture: None,
        hipStreamEndCapture: None,
        hipGraphInstantiateWithFlags: None,
        hipGraphLaunch: None,
        hipGraphExecDestroy: None,
        hipGraphDestroy: None,
    }
}
