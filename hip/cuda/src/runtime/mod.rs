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
use hip_provider::runtime::{hipGetErrorName, hipGetErrorString, hipGetLastError};
use hip_sys::Hip;

/// HIP for NVIDIA GPUs.
pub fn hip_table() -> Hip {
    Hip {
        hipInit: device::hipInit,
        hipGetDeviceCount: device::hipGetDeviceCount,
        hipSetDevice: device::hipSetDevice,
        hipGetDevice: device::hipGetDevice,
        hipDeviceGetAttribute: device::hipDeviceGetAttribute,
        hipDeviceGetName: device::hipDeviceGetName,
        hipDeviceTotalMem: device::hipDeviceTotalMem,
        hipMemGetInfo: memory::hipMemGetInfo,
        hipDriverGetVersion: device::hipDriverGetVersion,
        hipRuntimeGetVersion: device::hipDriverGetVersion,
        hipMalloc: memory::hipMalloc,
        hipFree: memory::hipFree,
        hipHostMalloc: memory::hipHostMalloc,
        hipHostFree: memory::hipHostFree,
        hipMemcpyAsync: copy::hipMemcpyAsync,
        hipMemcpyPeerAsync: copy::hipMemcpyPeerAsync,
        hipMemsetAsync: copy::hipMemsetAsync,
        hipMemsetD32Async: copy::hipMemsetD32Async,
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
        hipDeviceCanAccessPeer: device::hipDeviceCanAccessPeer,
        hipDeviceEnablePeerAccess: device::hipDeviceEnablePeerAccess,
        hipGetDevicePropertiesR0600: Some(device::hipGetDevicePropertiesR0600),
        hipGetDeviceProperties: Some(device::hipGetDeviceProperties),
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
