//! Memory, devices, streams, events and captures.

use crate::{call, common::*, ok, start};
use hip_sys::*;
use std::{
    ffi::{CStr, c_void},
    ptr::null_mut,
};

/// Ranges may overlap, and each registration counts for itself.
#[test]
fn registered_memory_is_the_devices_until_it_is_unregistered() {
    start();
    let memory = Memory::new(64);
    let mut local = [7u8; 64];
    let first = local.as_mut_ptr();
    let at = |offset: usize| -> *mut c_void { first.wrapping_add(offset).cast() };
    let copies = |offset: usize, bytes: usize| {
        let kind = hipMemcpyDeviceToDevice;
        call!(HIP, hipMemcpyAsync, memory.0, at(offset), bytes, kind, null_mut()) == hipSuccess
    };
    assert!(!copies(0, 1));
    ok!(HIP, hipHostRegister, at(8), 32, 0);
    assert!(copies(8, 32) && copies(39, 1) && !copies(7, 2) && !copies(8, 33) && !copies(40, 1));
    ok!(HIP, hipHostRegister, at(8), 16, 0);
    ok!(HIP, hipHostRegister, at(16), 40, 0);
    assert!(copies(8, 32) && copies(16, 40) && !copies(8, 48), "a range lies in one registration");
    ok!(HIP, hipHostUnregister, at(8));
    assert!(copies(8, 32), "the shorter one ended");
    ok!(HIP, hipHostUnregister, at(8));
    assert!(!copies(8, 1) && copies(16, 40));
    assert_eq!(call!(HIP, hipHostUnregister, at(8)), hipErrorInvalidValue);
    assert_eq!(call!(HIP, hipHostUnregister, at(20)), hipErrorInvalidValue);
    ok!(HIP, hipHostUnregister, at(16));
    assert!(!copies(16, 1));
    assert_eq!(call!(HIP, hipHostRegister, at(0), usize::MAX, 0), hipErrorInvalidValue);
}

#[test]
fn memory_is_checked() {
    start();
    let memory = Memory::of(&[1u8; 1000]);
    assert_eq!(memory.0 as usize % 256, 0);
    let inside = memory.0.wrapping_byte_add(8);
    assert_eq!(call!(HIP, hipFree, inside), hipErrorInvalidValue);
    let mut local = [0u8; 2000];
    let foreign: *mut c_void = local.as_mut_ptr().cast();
    assert_eq!(call!(HIP, hipFree, foreign), hipErrorInvalidValue);
    let copy = |to, from: *const c_void, n, kind| call!(HIP, hipMemcpyAsync, to, from, n, kind, null_mut());
    assert_eq!(copy(foreign, memory.0, 1000, hipMemcpyDeviceToHost), hipSuccess);
    assert_eq!(copy(foreign, memory.0, 1001, hipMemcpyDeviceToHost), hipErrorInvalidValue);
    assert_eq!(call!(HIP, hipMemsetAsync, memory.0, 7, 1001, null_mut()), hipErrorInvalidValue);
    ok!(HIP, hipMemsetAsync, memory.0, 7, 10, null_mut());
    ok!(HIP, hipMemsetD32Async, memory.0.wrapping_byte_add(12), -1, 2, null_mut());
    assert_eq!(
        memory.read::<u8>()[..22],
        [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1, 1, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1]
    );
    let mut pointer = memory.0;
    assert_eq!(call!(HIP, hipMalloc, &mut pointer, 1 << 45), hipErrorOutOfMemory);
    assert_eq!(call!(HIP, hipMalloc, &mut pointer, usize::MAX - 10), hipErrorOutOfMemory);
    ok!(HIP, hipMalloc, &mut pointer, 0);
    assert!(pointer.is_null());
    ok!(HIP, hipFree, pointer);
    let mut twice = null_mut();
    ok!(HIP, hipMalloc, &mut twice, 64);
    ok!(HIP, hipFree, twice);
    assert_eq!(call!(HIP, hipFree, twice), hipErrorInvalidValue);
    let mut pinned = null_mut();
    ok!(HIP, hipHostMalloc, &mut pinned, 64, 0);
    assert_eq!(call!(HIP, hipFree, pinned), hipErrorInvalidValue);
    ok!(HIP, hipHostFree, pinned);
    assert_eq!(call!(HIP, hipHostFree, pinned), hipErrorInvalidValue);
    let (mut free, mut total) = (0, 0);
    ok!(HIP, hipMemGetInfo, &mut free, &mut total);
    assert!(free > 0 && free <= total);
}

#[test]
fn large_copies_and_fills() {
    start();
    let words = (10 << 20) / 4 + 3;
    let data: Vec<u32> = (0..words as u32).collect();
    let one = Memory::of(&data);
    let two = Memory::new(4 * words);
    ok!(HIP, hipMemcpyAsync, two.0, one.0, one.1, hipMemcpyDeviceToDevice, null_mut());
    assert!(two.read::<u32>() == data);
    ok!(HIP, hipMemcpyPeerAsync, one.0, 0, two.0, 1, 4096, null_mut());
    assert_eq!(call!(HIP, hipMemcpyPeerAsync, one.0, 0, two.0, 2, 4096, null_mut()), hipErrorInvalidDevice);
    ok!(HIP, hipMemsetD32Async, two.0, 77, words, null_mut());
    assert!(two.read::<u32>().iter().all(|x| *x == 77));
}

#[test]
fn devices_streams_and_events() {
    start();
    ok!(HIP, hipInit, 0);
    let mut count = 0;
    ok!(HIP, hipGetDeviceCount, &mut count);
    assert_eq!(count, 2);
    assert_eq!(call!(HIP, hipSetDevice, 2), hipErrorInvalidDevice);
    assert_eq!(call!(HIP, hipSetDevice, -1), hipErrorInvalidDevice);
    let attribute = |which| {
        let mut value = 0;
        ok!(HIP, hipDeviceGetAttribute, &mut value, which, 0);
        value
    };
    assert_eq!(attribute(hipDeviceAttributeWarpSize), 1);
    assert_eq!(attribute(hipDeviceAttributeMaxThreadsPerBlock), 1);
    assert!(attribute(hipDeviceAttributeMultiprocessorCount) >= 1);
    let mut properties = hipDeviceProp_tR0600 { before: [1; 1160], gcnArchName: [1; 256], after: [1; 56] };
    ok!(HIP.hipGetDevicePropertiesR0600.as_ref().map(|f| Wrap { f: *f }).unwrap(), f, &mut properties, 0);
    let arch = unsafe { CStr::from_ptr(properties.gcnArchName.as_ptr()) }.to_str().unwrap();
    assert!(arch.starts_with("cpu-"), "{arch}");
    let mut can = 0;
    ok!(HIP, hipDeviceCanAccessPeer, &mut can, 0, 1);
    assert_eq!(can, 1);
    ok!(HIP, hipDeviceEnablePeerAccess, 1, 0);
    assert_eq!(call!(HIP, hipDeviceEnablePeerAccess, 1, 0), hipErrorPeerAccessAlreadyEnabled);

    let mut stream = null_mut();
    ok!(HIP, hipStreamCreateWithFlags, &mut stream, hipStreamNonBlocking);
    let event = |flags| {
        let mut event = null_mut();
        ok!(HIP, hipEventCreateWithFlags, &mut event, flags);
        event
    };
    let (start, stop, untimed) = (event(0), event(0), event(hipEventDisableTiming));
    let mut ms = 0.0;
    assert_eq!(call!(HIP, hipEventElapsedTime, &mut ms, start, stop), hipErrorInvalidHandle);
    ok!(HIP, hipEventRecord, start, stream);
    std::thread::sleep(std::time::Duration::from_millis(5));
    ok!(HIP, hipEventRecord, stop, stream);
    ok!(HIP, hipEventRecord, untimed, stream);
    ok!(HIP, hipStreamWaitEvent, stream, untimed, 0);
    ok!(HIP, hipEventQuery, stop);
    ok!(HIP, hipEventSynchronize, stop);
    ok!(HIP, hipEventElapsedTime, &mut ms, start, stop);
    assert!((5.0..1000.0).contains(&ms), "{ms}");
    assert_eq!(call!(HIP, hipEventElapsedTime, &mut ms, start, untimed), hipErrorInvalidHandle);
    ok!(HIP, hipEventDestroy, start);
    assert_ne!(call!(HIP, hipEventRecord, start, stream), hipSuccess);
    assert_ne!(call!(HIP, hipEventDestroy, start), hipSuccess);
    ok!(HIP, hipStreamSynchronize, stream);
    ok!(HIP, hipStreamDestroy, stream);
    assert_ne!(call!(HIP, hipStreamSynchronize, stream), hipSuccess);
    assert_ne!(call!(HIP, hipStreamDestroy, stream), hipSuccess);
    ok!(HIP, hipDeviceSynchronize);
}

struct Wrap {
    f: unsafe extern "C" fn(*mut hipDeviceProp_tR0600, i32) -> hipError_t,
}

/// Branches of a capture: a stream joins by an event, and must be waited for. Work of a branch runs no
/// earlier than where the capture's own stream waits for it.
#[test]
fn captures_have_branches() {
    start();
    let hip = hip_cpu::hip_table();
    let (begin, end) = (hip.hipStreamBeginCapture.unwrap(), hip.hipStreamEndCapture.unwrap());
    let [mut own, mut branch, mut other] = [null_mut(); 3];
    let [mut fork, mut join, mut later] = [null_mut(); 3];
    let (mut graph, mut exec) = (null_mut(), null_mut());
    let memory = Memory::of(&[1u32; 4]);
    let copied = Memory::of(&[0u32; 4]);
    unsafe {
        for stream in [&mut own, &mut branch, &mut other] {
            assert_eq!((hip.hipStreamCreateWithFlags)(stream, hipStreamNonBlocking), hipSuccess);
        }
        for event in [&mut fork, &mut join, &mut later] {
            assert_eq!((hip.hipEventCreateWithFlags)(event, hipEventDisableTiming), hipSuccess);
        }
        let set = |value, stream| (hip.hipMemsetD32Async)(memory.0, value, 4, stream);
        let copy = |stream| {
            (hip.hipMemcpyAsync)(copied.0.cast(), memory.0.cast(), 16, hipMemcpyDeviceToDevice, stream)
        };
        let forks = || {
            assert_eq!(begin(own, hipStreamCaptureModeRelaxed), hipSuccess);
            assert_eq!((hip.hipEventRecord)(fork, own), hipSuccess);
            assert_eq!((hip.hipStreamWaitEvent)(branch, fork, 0), hipSuccess);
        };

        // The copy is in the branch, and no earlier than the join. What the capture's own stream does
        // in between runs before.
        forks();
        assert_eq!(copy(branch), hipSuccess);
        assert_eq!((hip.hipEventRecord)(join, branch), hipSuccess);
        assert_eq!(set(7, own), hipSuccess);
        // The host can't ask for captured events.
        assert_eq!((hip.hipEventQuery)(join), hipErrorCapturedEvent);
        assert_eq!((hip.hipEventSynchronize)(fork), hipErrorCapturedEvent);
        assert_eq!((hip.hipStreamWaitEvent)(own, join, 0), hipSuccess);
        assert_eq!(set(8, own), hipSuccess);
        // Neither can a branch end the capture.
        assert_eq!(end(branch, &mut graph), hipErrorStreamCaptureUnmatched);
        assert_eq!(end(own, &mut graph), hipSuccess);
        assert_eq!((memory.read::<u32>(), copied.read::<u32>()), (vec![1; 4], vec![0; 4]));
        assert_eq!(hip.hipGraphInstantiateWithFlags.unwrap()(&mut exec, graph, 0), hipSuccess);
        assert_eq!(hip.hipGraphLaunch.unwrap()(exec, own), hipSuccess);
        assert_eq!((memory.read::<u32>(), copied.read::<u32>()), (vec![8; 4], vec![7; 4]));
        assert_eq!(hip.hipGraphExecDestroy.unwrap()(exec), hipSuccess);
        assert_eq!(hip.hipGraphDestroy.unwrap()(graph), hipSuccess);
        // The branch has left the capture, and runs its work again. Its events are stale.
        assert_eq!(set(3, branch), hipSuccess);
        assert_eq!(memory.read::<u32>(), [3; 4]);
        assert_eq!((hip.hipStreamWaitEvent)(branch, fork, 0), hipErrorCapturedEvent);
        assert_eq!((hip.hipEventRecord)(fork, branch), hipSuccess);
        assert_eq!((hip.hipEventQuery)(fork), hipSuccess);

        // Nobody waits for the branch.
        forks();
        assert_eq!(set(4, branch), hipSuccess);
        assert_eq!(end(own, &mut graph), hipErrorStreamCaptureUnjoined);
        assert_eq!(set(5, branch), hipSuccess);

        // Two captures don't mix, and work that runs is not waited for.
        forks();
        assert_eq!(begin(other, hipStreamCaptureModeRelaxed), hipSuccess);
        assert_eq!((hip.hipEventRecord)(later, other), hipSuccess);
        assert_eq!((hip.hipStreamWaitEvent)(branch, later, 0), hipErrorStreamCaptureMerge);
        assert_eq!(end(own, &mut graph), hipErrorStreamCaptureInvalidated);
        assert_eq!(end(other, &mut graph), hipErrorStreamCaptureInvalidated);
        assert_eq!(begin(own, hipStreamCaptureModeRelaxed), hipSuccess);
        assert_eq!((hip.hipEventRecord)(join, branch), hipSuccess);
        assert_eq!((hip.hipStreamWaitEvent)(own, join, 0), hipErrorStreamCaptureIsolation);
        assert_eq!(end(own, &mut graph), hipErrorStreamCaptureInvalidated);
        assert_eq!(memory.read::<u32>(), [5; 4]);
        for event in [fork, join, later] {
            assert_eq!((hip.hipEventDestroy)(event), hipSuccess);
        }
        for stream in [own, branch, other] {
            assert_eq!((hip.hipStreamDestroy)(stream), hipSuccess);
        }
    }
}

#[test]
fn captures_end_as_amds_do() {
    start();
    let hip = hip_cpu::hip_table();
    let (begin, end) = (hip.hipStreamBeginCapture.unwrap(), hip.hipStreamEndCapture.unwrap());
    let (mut stream, mut graph, mut exec) = (null_mut(), std::ptr::dangling_mut(), null_mut());
    let memory = Memory::of(&[1u32; 4]);
    unsafe {
        assert_eq!((hip.hipStreamCreateWithFlags)(&mut stream, hipStreamNonBlocking), hipSuccess);
        assert_eq!(end(stream, &mut graph), hipErrorIllegalState, "nothing was begun");
        assert_eq!(begin(stream, hipStreamCaptureModeThreadLocal), hipSuccess);
        assert_eq!(begin(stream, hipStreamCaptureModeRelaxed), hipErrorIllegalState);
        // Another thread can't end it.
        let address = stream as usize;
        let ended = std::thread::spawn(move || {
            let mut graph = null_mut();
            end(address as hipStream_t, &mut graph)
        });
        assert_eq!(ended.join().unwrap(), hipErrorStreamCaptureWrongThread);
        assert_eq!((hip.hipMemsetD32Async)(memory.0, 5, 4, stream), hipSuccess);
        // Captured work does not run, so nobody can wait for it.
        assert_eq!((hip.hipStreamSynchronize)(stream), hipErrorStreamCaptureUnsupported);
        assert_eq!(end(stream, &mut graph), hipErrorStreamCaptureInvalidated);
        assert!(graph.is_null());
        assert_eq!((hip.hipStreamSynchronize)(stream), hipSuccess);
        assert_eq!(memory.read::<u32>(), [1; 4]);
        // A call that is refused is not captured, and spoils nothing.
        assert_eq!(begin(stream, hipStreamCaptureModeRelaxed), hipSuccess);
        assert_ne!((hip.hipMemsetD32Async)(memory.0, 7, 400, stream), hipSuccess);
        assert_eq!((hip.hipMemsetD32Async)(memory.0, 6, 4, stream), hipSuccess);
        assert_eq!(end(stream, &mut graph), hipSuccess);
        assert_eq!(hip.hipGraphInstantiateWithFlags.unwrap()(&mut exec, graph, 0), hipSuccess);
        assert_eq!(hip.hipGraphDestroy.unwrap()(graph), hipSuccess);
        assert_eq!(hip.hipGraphDestroy.unwrap()(graph), hipErrorInvalidValue);
        assert_eq!(memory.read::<u32>(), [1; 4]);
        assert_eq!(hip.hipGraphLaunch.unwrap()(exec, stream), hipSuccess);
        assert_eq!(memory.read::<u32>(), [6; 4]);
        assert_eq!(hip.hipGraphExecDestroy.unwrap()(exec), hipSuccess);
        assert_eq!(hip.hipGraphLaunch.unwrap()(exec, stream), hipErrorInvalidValue);
        assert_eq!((hip.hipStreamDestroy)(stream), hipSuccess);
    }
}
