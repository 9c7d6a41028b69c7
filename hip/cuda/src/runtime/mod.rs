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
use hip_provider::runtime::{self as shared, hipGetErrorName, hipGetErrorString, hipGetLastError};
use hip_sys::Hip;

/// HIP for NVIDIA GPUs.
pub fn hip_table() -> Hip {
    Hip {
        hipInit: shared::hipInit::<device::Gpus>,
        hipGetDeviceCount: shared::hipGetDeviceCount::<device::Gpus>,
        hipSetDevice: device::hipSetDevice,
        hipGetDevice: device::hipGetDevice,
        hipDeviceGetAttribute: shared::hipDeviceGetAttribute::<device::Gpus>,
        hipDeviceGetName: device::hipDeviceGetName,
        hipDeviceTotalMem: shared::hipDeviceTotalMem::<device::Gpus>,
        hipMemGetInfo: shared::hipMemGetInfo::<device::Gpus>,
        hipDriverGetVersion: shared::hipDriverGetVersion::<device::Gpus>,
        hipRuntimeGetVersion: shared::hipDriverGetVersion::<device::Gpus>,
        hipMalloc: memory::hipMalloc,
        hipFree: memory::hipFree,
        hipHostMalloc: memory::hipHostMalloc,
        hipHostFree: memory::hipHostFree,
        hipMemcpyAsync: shared::hipMemcpyAsync::<copy::Driver>,
        hipMemcpyPeerAsync: shared::hipMemcpyPeerAsync::<copy::Driver>,
        hipMemsetAsync: shared::hipMemsetAsync::<copy::Driver>,
        hipMemsetD32Async: shared::hipMemsetD32Async::<copy::Driver>,
        hipStreamCreateWithFlags: order::hipStreamCreateWithFlags,
        hipStreamDestroy: order::hipStreamDestroy,
        hipStreamSynchronize: order::hipStreamSynchronize,
        hipStreamWaitEvent: order::hipStreamWaitEvent,
        hipEventCreateWithFlags: order::hipEventCreateWithFlags,
        hipEventDestroy: order::hipEventDestroy,
        hipEventRecord: order::hipEventRecord,
        hipEventQuery: order::hipEventQuery,
        hipEventSynchronize: order::hipEventSynchronize,
        hipEventElapsedTime: order::hipEventElapsedTime,
        hipModuleLoadData: launch::hipModuleLoadData,
        hipModuleUnload: launch::hipModuleUnload,
        hipModuleGetFunction: launch::hipModuleGetFunction,
        hipModuleLaunchKernel: launch::hipModuleLaunchKernel,
        hipGetErrorName,
        hipGetErrorString,
        hipGetLastError,
        hipDeviceSynchronize: order::hipDeviceSynchronize,
        hipDeviceCanAccessPeer: shared::hipDeviceCanAccessPeer::<device::Gpus>,
        hipDeviceEnablePeerAccess: device::hipDeviceEnablePeerAccess,
        hipGetDevicePropertiesR0600: Some(shared::hipGetDevicePropertiesR0600::<device::Gpus>),
        hipGetDeviceProperties: Some(shared::hipGetDeviceProperties::<device::Gpus>),
        hipModuleOccupancyMaxActiveBlocksPerMultiprocessor: Some(
            launch::hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
        ),
        hipStreamBeginCapture: Some(graph::hipStreamBeginCapture),
        hipStreamEndCapture: Some(graph::hipStreamEndCapture),
        hipGraphInstantiateWithFlags: Some(graph::hipGraphInstantiateWithFlags),
        hipGraphLaunch: Some(graph::hipGraphLaunch),
        hipGraphExecDestroy: Some(graph::hipGraphExecDestroy),
        hipGraphDestroy: Some(graph::hipGraphDestroy),
    }
}
