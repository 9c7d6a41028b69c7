//! The functions of `libamdhip64`.

use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::{
    function_table, hipDevice_t, hipDeviceAttribute_t, hipDeviceProp_tR0000, hipDeviceProp_tR0600,
    hipDeviceptr_t, hipError_t, hipEvent_t, hipFunction_t, hipGraph_t, hipGraphExec_t, hipMemcpyKind,
    hipModule_t, hipStream_t, hipStreamCaptureMode,
};

function_table! {
    /// The functions of `libamdhip64` that this project calls.
    pub struct Hip {
        required {
            /// Initialises the runtime.
            fn hipInit(flags: c_uint) -> hipError_t;
            /// Counts the devices.
            fn hipGetDeviceCount(count: *mut c_int) -> hipError_t;
            /// Makes a device current for the calling thread.
            fn hipSetDevice(device: c_int) -> hipError_t;
            /// Gives the calling thread's current device.
            fn hipGetDevice(device: *mut c_int) -> hipError_t;
            /// Gives one integer fact about a device.
            fn hipDeviceGetAttribute(value: *mut c_int, attr: hipDeviceAttribute_t, device: c_int) -> hipError_t;
            /// Gives a device's name.
            fn hipDeviceGetName(name: *mut c_char, len: c_int, device: hipDevice_t) -> hipError_t;
            /// Gives a device's memory in bytes.
            fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t;
            /// Gives the current device's free and total memory in bytes.
            fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t;
            /// Gives the driver's version.
            fn hipDriverGetVersion(version: *mut c_int) -> hipError_t;
            /// Gives the runtime's version.
            fn hipRuntimeGetVersion(version: *mut c_int) -> hipError_t;
            /// Allocates device memory.
            fn hipMalloc(ptr: *mut *mut c_void, size: usize) -> hipError_t;
            /// Frees device memory.
            fn hipFree(ptr: *mut c_void) -> hipError_t;
            /// Allocates pinned host memory.
            fn hipHostMalloc(ptr: *mut *mut c_void, size: usize, flags: c_uint) -> hipError_t;
            /// Frees pinned host memory.
            fn hipHostFree(ptr: *mut c_void) -> hipError_t;
            /// Lets devices access host memory that something else allocated.
            fn hipHostRegister(ptr: *mut c_void, size: usize, flags: c_uint) -> hipError_t;
            /// Ends the access that `hipHostRegister` gave.
            fn hipHostUnregister(ptr: *mut c_void) -> hipError_t;
            /// Copies in stream order.
            fn hipMemcpyAsync(
                dst: *mut c_void, src: *const c_void, size: usize, kind: hipMemcpyKind, stream: hipStream_t,
            ) -> hipError_t;
            /// Copies between two devices in stream order.
            fn hipMemcpyPeerAsync(
                dst: *mut c_void, dst_device: c_int, src: *const c_void, src_device: c_int, size: usize,
                stream: hipStream_t,
            ) -> hipError_t;
            /// Fills bytes in stream order.
            fn hipMemsetAsync(dst: *mut c_void, value: c_int, size: usize, stream: hipStream_t) -> hipError_t;
            /// Fills 32-bit words in stream order.
            fn hipMemsetD32Async(dst: hipDeviceptr_t, value: c_int, count: usize, stream: hipStream_t) -> hipError_t;
            /// Creates a stream on the current device.
            fn hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: c_uint) -> hipError_t;
            /// Creates a stream of a priority on the current device. A lower number goes first.
            fn hipStreamCreateWithPriority(stream: *mut hipStream_t, flags: c_uint, priority: c_int) -> hipError_t;
            /// Gives the current device's range of priorities; both are 0 if it has only one.
            fn hipDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> hipError_t;
            /// Destroys a stream once its work is done.
            fn hipStreamDestroy(stream: hipStream_t) -> hipError_t;
            /// Waits for a stream's work.
            fn hipStreamSynchronize(stream: hipStream_t) -> hipError_t;
            /// Makes a stream wait for an event.
            fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint) -> hipError_t;
            /// Creates an event on the current device.
            fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) -> hipError_t;
            /// Destroys an event.
            fn hipEventDestroy(event: hipEvent_t) -> hipError_t;
            /// Records an event in a stream.
            fn hipEventRecord(event: hipEvent_t, stream: hipStream_t) -> hipError_t;
            /// Says whether the stream has passed an event.
            fn hipEventQuery(event: hipEvent_t) -> hipError_t;
            /// Waits for an event.
            fn hipEventSynchronize(event: hipEvent_t) -> hipError_t;
            /// Gives the time between two events in milliseconds.
            fn hipEventElapsedTime(ms: *mut f32, start: hipEvent_t, stop: hipEvent_t) -> hipError_t;
            /// Loads a code object onto the current device.
            fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void) -> hipError_t;
            /// Unloads a code object.
            fn hipModuleUnload(module: hipModule_t) -> hipError_t;
            /// Finds a kernel in a module.
            fn hipModuleGetFunction(
                function: *mut hipFunction_t, module: hipModule_t, name: *const c_char,
            ) -> hipError_t;
            /// Launches a kernel.
            fn hipModuleLaunchKernel(
                function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
                block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: hipStream_t,
                params: *mut *mut c_void, extra: *mut *mut c_void,
            ) -> hipError_t;
            /// Names a status.
            fn hipGetErrorName(error: hipError_t) -> *const c_char;
            /// Describes a status.
            fn hipGetErrorString(error: hipError_t) -> *const c_char;
            /// Gives the calling thread's last error and clears it.
            fn hipGetLastError() -> hipError_t;
            /// Waits for all of the current device's work.
            fn hipDeviceSynchronize() -> hipError_t;
            /// Says whether one device can reach another's memory.
            fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> hipError_t;
            /// Lets the current device reach a peer's memory.
            fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> hipError_t;
        }
        optional {
            /// Properties in the layout of HIP 6.0 and later.
            fn hipGetDevicePropertiesR0600(prop: *mut hipDeviceProp_tR0600, device: c_int) -> hipError_t;
            /// Properties in the layout before HIP 6.0, which this symbol has in every version.
            fn hipGetDeviceProperties(prop: *mut hipDeviceProp_tR0000, device: c_int) -> hipError_t;
            /// Counts a kernel's blocks that fit on one compute unit.
            fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
                blocks: *mut c_int, function: hipFunction_t, block_size: c_int, shared_bytes: usize,
            ) -> hipError_t;
            /// Allocates memory that the host and all devices share.
            fn hipMallocManaged(ptr: *mut *mut c_void, size: usize, flags: c_uint) -> hipError_t;
            /// Begins to capture a stream's work instead of running it.
            fn hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode) -> hipError_t;
            /// Ends a capture and gives the captured work as a graph.
            fn hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t) -> hipError_t;
            /// Makes a graph ready to be launched.
            fn hipGraphInstantiateWithFlags(
                exec: *mut hipGraphExec_t, graph: hipGraph_t, flags: c_ulonglong,
            ) -> hipError_t;
            /// Runs a graph in stream order.
            fn hipGraphLaunch(exec: hipGraphExec_t, stream: hipStream_t) -> hipError_t;
            /// Destroys an executable graph, but not the graph that it was made from.
            fn hipGraphExecDestroy(exec: hipGraphExec_t) -> hipError_t;
            /// Destroys a graph.
            fn hipGraphDestroy(graph: hipGraph_t) -> hipError_t;
        }
    }
}
