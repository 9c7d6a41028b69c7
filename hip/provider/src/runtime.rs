//! The HIP runtime's C functions, over a provider's devices, memory, streams, events, modules and
//! graphs.

mod copies;
mod devices;
mod graphs;
mod memory;
mod modules;
mod status;
mod streams;

pub use copies::Copies;
pub use devices::{Devices, device};
pub use graphs::Graphs;
pub use memory::{Allocations, Memory, Place};
pub use modules::{Launch, Modules};
pub use status::{Status, api, is_named, put};
pub use streams::Streams;

use hip_sys::*;

/// HIP's function table for a provider.
pub fn table<R: Devices + Memory + Copies + Streams + Modules + Graphs>() -> Hip {
    Hip {
        hipInit: devices::hipInit::<R>,
        hipGetDeviceCount: devices::hipGetDeviceCount::<R>,
        hipSetDevice: devices::hipSetDevice::<R>,
        hipGetDevice: devices::hipGetDevice::<R>,
        hipDeviceGetAttribute: devices::hipDeviceGetAttribute::<R>,
        hipDeviceGetName: devices::hipDeviceGetName::<R>,
        hipDeviceTotalMem: devices::hipDeviceTotalMem::<R>,
        hipMemGetInfo: devices::hipMemGetInfo::<R>,
        hipDriverGetVersion: devices::hipDriverGetVersion::<R>,
        hipRuntimeGetVersion: devices::hipDriverGetVersion::<R>,
        hipMalloc: memory::hipMalloc::<R>,
        hipFree: memory::hipFree::<R>,
        hipHostMalloc: memory::hipHostMalloc::<R>,
        hipHostFree: memory::hipHostFree::<R>,
        hipHostRegister: memory::hipHostRegister::<R>,
        hipHostUnregister: memory::hipHostUnregister::<R>,
        hipMemcpyAsync: copies::hipMemcpyAsync::<R>,
        hipMemcpyPeerAsync: copies::hipMemcpyPeerAsync::<R>,
        hipMemsetAsync: copies::hipMemsetAsync::<R>,
        hipMemsetD32Async: copies::hipMemsetD32Async::<R>,
        hipStreamCreateWithFlags: streams::hipStreamCreateWithFlags::<R>,
        hipStreamCreateWithPriority: streams::hipStreamCreateWithPriority::<R>,
        hipDeviceGetStreamPriorityRange: streams::hipDeviceGetStreamPriorityRange::<R>,
        hipStreamDestroy: streams::hipStreamDestroy::<R>,
        hipStreamSynchronize: streams::hipStreamSynchronize::<R>,
        hipStreamWaitEvent: streams::hipStreamWaitEvent::<R>,
        hipEventCreateWithFlags: streams::hipEventCreateWithFlags::<R>,
        hipEventDestroy: streams::hipEventDestroy::<R>,
        hipEventRecord: streams::hipEventRecord::<R>,
        hipEventQuery: streams::hipEventQuery::<R>,
        hipEventSynchronize: streams::hipEventSynchronize::<R>,
        hipEventElapsedTime: streams::hipEventElapsedTime::<R>,
        hipModuleLoadData: modules::hipModuleLoadData::<R>,
        hipModuleUnload: modules::hipModuleUnload::<R>,
        hipModuleGetFunction: modules::hipModuleGetFunction::<R>,
        hipModuleLaunchKernel: modules::hipModuleLaunchKernel::<R>,
        hipGetErrorName: status::hipGetErrorName,
        hipGetErrorString: status::hipGetErrorString,
        hipGetLastError: status::hipGetLastError,
        hipDeviceSynchronize: streams::hipDeviceSynchronize::<R>,
        hipDeviceCanAccessPeer: devices::hipDeviceCanAccessPeer::<R>,
        hipDeviceEnablePeerAccess: devices::hipDeviceEnablePeerAccess::<R>,
        hipGetDevicePropertiesR0600: Some(devices::hipGetDevicePropertiesR0600::<R>),
        hipGetDeviceProperties: Some(devices::hipGetDeviceProperties::<R>),
        hipModuleOccupancyMaxActiveBlocksPerMultiprocessor: Some(
            modules::hipModuleOccupancyMaxActiveBlocksPerMultiprocessor::<R>,
        ),
        hipMallocManaged: Some(memory::hipMallocManaged::<R>),
        hipStreamBeginCapture: Some(graphs::hipStreamBeginCapture::<R>),
        hipStreamEndCapture: Some(graphs::hipStreamEndCapture::<R>),
        hipGraphInstantiateWithFlags: Some(graphs::hipGraphInstantiateWithFlags::<R>),
        hipGraphLaunch: Some(graphs::hipGraphLaunch::<R>),
        hipGraphExecDestroy: Some(graphs::hipGraphExecDestroy::<R>),
        hipGraphDestroy: Some(graphs::hipGraphDestroy::<R>),
    }
}
