//! HIP's functions.

mod devices;
mod memory;
mod work;

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use hip_provider::runtime::{
    Allocations, Copies, Devices, Graphs, Launch, Memory, Modules, Status, Streams, api, device, is_named,
    table,
};
use hip_sys::*;

use crate::{Fails, asked, check, dangling, looked, text};

thread_local! {
    /// The number of devices.
    static COUNT: Cell<usize> = const { Cell::new(2) };
}

/// Somebody else's memory for devices.
const OTHERS: usize = 0xa0000;

static LIVE: Allocations<()> = Allocations::new(|at, bytes| at as usize == OTHERS && bytes <= 0x80);

/// A provider with two devices, the first of which is current.
struct Imitation;

fn note<T>(what: &'static str, answer: T) -> Status<T> {
    asked(what);
    Ok(answer)
}

impl Devices for Imitation {
    fn count() -> Status<usize> {
        Ok(COUNT.get())
    }
    fn check(index: c_int) -> Status {
        device(&[(); 2][..COUNT.get()], index).copied()
    }
    fn choose(_: c_int) -> Status {
        note("choose", ())
    }
    fn current() -> Status<c_int> {
        Ok(0)
    }
    fn enable_peer(_: c_int) -> Status {
        note("enable_peer", ())
    }
    fn name(_: c_int) -> Status<String> {
        note("name", "Imitation".into())
    }
    fn attribute(_: c_int, _: hipDeviceAttribute_t) -> Status<c_int> {
        note("attribute", 7)
    }
    fn total_memory(_: c_int) -> Status<usize> {
        note("total_memory", 7)
    }
    fn memory() -> Status<(usize, usize)> {
        note("memory", (3, 7))
    }
    fn architecture(index: c_int) -> Status<String> {
        note("architecture", "gfx".repeat(if index == 0 { 2 } else { 100 }))
    }
    fn can_access(_: c_int, _: c_int) -> Status<bool> {
        note("can_access", true)
    }
    fn version() -> Status<c_int> {
        note("version", 7)
    }
}

impl Memory for Imitation {
    fn ready() -> Status {
        Ok(())
    }
    fn allocate(_: usize) -> Status<*mut c_void> {
        note("allocate", dangling())
    }
    fn allocate_managed(_: usize) -> Status<*mut c_void> {
        note("allocate_managed", dangling())
    }
    fn free(_: *mut c_void) -> Status {
        note("free", ())
    }
    fn allocate_host(_: usize) -> Status<*mut c_void> {
        note("allocate_host", dangling())
    }
    fn free_host(_: *mut c_void) -> Status {
        note("free_host", ())
    }
    unsafe fn register_host(_: *mut c_void, _: usize) -> Status {
        note("register_host", ())
    }
    fn unregister_host(_: *mut c_void) -> Status {
        note("unregister_host", ())
    }
}

impl Copies for Imitation {
    type Own = ();

    fn live() -> &'static Allocations<()> {
        &LIVE
    }
    fn ordered(_: hipStream_t, body: impl FnOnce() -> Status) -> Status {
        body()
    }
    fn check_devices(devices: [c_int; 2]) -> Status {
        devices.into_iter().try_for_each(Self::check)
    }
    unsafe fn copy(_: *mut c_void, _: *const c_void, _: usize, _: hipStream_t) -> Status {
        note("copy", ())
    }
    unsafe fn copy_between(
        _: [c_int; 2],
        _: *mut c_void,
        _: *const c_void,
        _: usize,
        _: hipStream_t,
    ) -> Status {
        note("copy_between", ())
    }
    unsafe fn fill(_: *mut c_void, _: u8, _: usize, _: hipStream_t) -> Status {
        note("fill", ())
    }
    unsafe fn fill_words(_: *mut c_void, _: u32, bytes: usize, _: hipStream_t) -> Status {
        assert_eq!(bytes % 4, 0);
        note("fill_words", ())
    }
}

impl Streams for Imitation {
    fn create_stream(_: c_uint) -> Status<hipStream_t> {
        note("create_stream", dangling())
    }
    fn create_stream_of(_: c_uint, _: c_int) -> Status<hipStream_t> {
        note("create_stream_of", dangling())
    }
    fn priorities() -> Status<[c_int; 2]> {
        note("priorities", [1, -1])
    }
    unsafe fn destroy_stream(_: hipStream_t) -> Status {
        note("destroy_stream", ())
    }
    unsafe fn synchronize_stream(_: hipStream_t) -> Status {
        note("synchronize_stream", ())
    }
    fn synchronize_device() -> Status {
        note("synchronize_device", ())
    }
    unsafe fn wait_for(_: hipStream_t, _: hipEvent_t) -> Status {
        note("wait_for", ())
    }
    fn create_event(_: c_uint) -> Status<hipEvent_t> {
        note("create_event", dangling())
    }
    unsafe fn destroy_event(_: hipEvent_t) -> Status {
        note("destroy_event", ())
    }
    unsafe fn record(_: hipEvent_t, _: hipStream_t) -> Status {
        note("record", ())
    }
    unsafe fn query(_: hipEvent_t) -> Status {
        note("query", ())
    }
    unsafe fn synchronize_event(_: hipEvent_t) -> Status {
        note("synchronize_event", ())
    }
    unsafe fn elapsed(_: hipEvent_t, _: hipEvent_t) -> Status<f32> {
        note("elapsed", 1.0)
    }
}

impl Modules for Imitation {
    unsafe fn load(_: *const c_void) -> Status<hipModule_t> {
        note("load", dangling())
    }
    unsafe fn unload(_: hipModule_t) -> Status {
        note("unload", ())
    }
    unsafe fn function(_: hipModule_t, _: &CStr) -> Status<hipFunction_t> {
        note("function", dangling())
    }
    unsafe fn launch(launch: &Launch) -> Status {
        launch.check(65535)?;
        launch.packed()?;
        note("launch", ())
    }
    unsafe fn occupancy(_: hipFunction_t, _: c_int, _: usize) -> Status<c_int> {
        note("occupancy", 2)
    }
}

impl Graphs for Imitation {
    unsafe fn begin_capture(_: hipStream_t, _: hipStreamCaptureMode) -> Status {
        note("begin_capture", ())
    }
    unsafe fn end_capture(stream: hipStream_t) -> Status<hipGraph_t> {
        match stream.addr() {
            2 => Err(hipErrorStreamCaptureInvalidated),
            _ => note("end_capture", dangling()),
        }
    }
    unsafe fn instantiate(_: hipGraph_t, _: c_ulonglong) -> Status<hipGraphExec_t> {
        note("instantiate", dangling())
    }
    unsafe fn launch_graph(_: hipGraphExec_t, _: hipStream_t) -> Status {
        note("launch_graph", ())
    }
    unsafe fn destroy_exec(_: hipGraphExec_t) -> Status {
        note("destroy_exec", ())
    }
    unsafe fn destroy_graph(_: hipGraph_t) -> Status {
        note("destroy_graph", ())
    }
}

fn hip() -> Hip {
    table::<Imitation>()
}

/// A call with one handle, which must not be null.
#[track_caller]
fn check_null<T>(function: &str, status: hipError_t, call: unsafe extern "C" fn(*mut T) -> hipError_t) {
    let call = |at: &mut *mut T| unsafe { call(*at) };
    check(function, dangling(), call, &[("null", &|at| *at = null_mut(), Fails(status))]);
}

/// A call with an out-pointer, which must not be null, whatever else it has.
#[track_caller]
fn check_out<T: Clone>(function: &str, good: T, asks: bool, call: impl Fn(*mut T) -> hipError_t) -> T {
    looked();
    let mut to = good;
    assert_eq!(call(&mut to), hipSuccess, "{function}");
    assert!(!looked().is_empty(), "{function}: the provider was not asked");
    assert_eq!(call(null_mut()), hipErrorInvalidValue, "{function}: null");
    assert_eq!(!looked().is_empty(), asks, "{function}: null");
    to
}

/// Addresses of no memory: the map only compares them.
fn at(address: usize) -> *mut c_void {
    without_provenance_mut(address)
}

/// The statuses that the providers return, as AMD's runtime names them.
#[test]
fn statuses() {
    let t = hip();
    let of = |status| unsafe { [(t.hipGetErrorName)(status), (t.hipGetErrorString)(status)] }.map(text);
    for (status, name, said) in [
        (0, "hipSuccess", "no error"),
        (1, "hipErrorInvalidValue", "invalid argument"),
        (2, "hipErrorOutOfMemory", "out of memory"),
        (9, "hipErrorInvalidConfiguration", "invalid configuration argument"),
        (21, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"),
        (98, "hipErrorInvalidDeviceFunction", "invalid device function"),
        (100, "hipErrorNoDevice", "no ROCm-capable device is detected"),
        (101, "hipErrorInvalidDevice", "invalid device ordinal"),
        (200, "hipErrorInvalidImage", "device kernel image is invalid"),
        (209, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"),
        (400, "hipErrorInvalidHandle", "invalid resource handle"),
        (401, "hipErrorIllegalState", "the operation cannot be performed in the present state"),
        (500, "hipErrorNotFound", "named symbol not found"),
        (600, "hipErrorNotReady", "device not ready"),
        (700, "hipErrorIllegalAddress", "an illegal memory access was encountered"),
        (701, "hipErrorLaunchOutOfResources", "too many resources requested for launch"),
        (704, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"),
        (719, "hipErrorLaunchFailure", "unspecified launch failure"),
        (900, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
        (901, "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"),
        (
            908,
            "hipErrorStreamCaptureWrongThread",
            "attempt to terminate a thread-local capture sequence from another thread",
        ),
        (999, "hipErrorUnknown", "unknown error"),
    ] {
        assert_eq!((of(status), is_named(status)), ([name, said], true), "{status}");
    }
    assert_eq!((of(12345), is_named(12345)), (["hipErrorUnknown", "unknown error"], false));
}

#[test]
fn a_failure_is_the_threads_last_error_once() {
    let t = hip();
    let last = || unsafe { (t.hipGetLastError)() };
    assert_eq!(api(|| Err(hipErrorInvalidValue)), hipErrorInvalidValue);
    assert_eq!(api(|| Ok(())), hipSuccess);
    // An answer, not a failure.
    assert_eq!(api(|| Err(hipErrorNotReady)), hipErrorNotReady);
    let others = std::thread::scope(|scope| scope.spawn(last).join().unwrap());
    assert_eq!((others, last(), last()), (hipSuccess, hipErrorInvalidValue, hipSuccess));
    assert_eq!(api(|| panic!("must not unwind into C")), hipErrorUnknown);
    assert_eq!(last(), hipErrorUnknown);
}
