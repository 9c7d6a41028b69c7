use std::ffi::{CStr, CString};
use std::ptr::null_mut;

use hip_sys::*;

use crate::{Memory, architecture, gpu, kernel, launch, ok};

const ADD_ONE: &CStr = c"
__global__ void add_one(unsigned *x, unsigned *y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { x[i] += 1; y[i] += 1; }
}";

/// Step 0 takes at least 0.2 ms and counts in `x`; step 1 copies `x` to `y`. `times` gets the
/// nanoseconds at which each step begins and ends.
const STEP: &str = "
#if __CUDA_ARCH__ >= 900 && OVERLAPS
extern \"C\" __device__ unsigned overlapping_launches = 1;
__device__ void meet() { asm volatile(\"griddepcontrol.launch_dependents; griddepcontrol.wait;\" : : : \"memory\"); }
#else
__device__ void meet() {}
#endif
__device__ unsigned long long now() {
    unsigned long long time;
    asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(time) : : \"memory\");
    return time;
}
__global__ void step(unsigned long long *times, unsigned *x, unsigned *y, unsigned at) {
    unsigned long long begin = now();
    meet();
    if (threadIdx.x > 0) return;
    times[2 * at] = begin;
    if (at == 1) *y = *x;
    else {
        while (now() - begin < 200000) {}
        *x += 1;
    }
    times[2 * at + 1] = now();
}";

pub(crate) fn what_was_captured_runs_at_each_launch() {
    let hip = gpu(&[]);
    let function = kernel(&hip, ADD_ONE, c"add_one");
    let count = 1000u32;
    let (x, y) = (Memory::of(&hip, &[9u32; 1000]), Memory::of(&hip, &[0u32; 1000]));
    let (mut stream, mut graph, mut exec) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the table's functions; the pointers are to what the header says, and the buffers have
    // `count` words.
    unsafe {
        ok((hip.hipStreamCreateWithFlags)(&mut stream, hipStreamNonBlocking));
        // Captures only this thread, because other tests allocate meanwhile.
        ok(hip.hipStreamBeginCapture.unwrap()(stream, hipStreamCaptureModeThreadLocal));
        ok((hip.hipMemsetD32Async)(x.address, 5, count as usize, stream));
        for _ in 0..2 {
            let (mut to, mut too, mut n) = (x.address, y.address, count);
            let parameters = &mut [(&raw mut to).cast(), (&raw mut too).cast(), (&raw mut n).cast()];
            ok(launch(&hip, function, [4, 256], stream, parameters));
        }
        ok(hip.hipStreamEndCapture.unwrap()(stream, &mut graph));
        assert_eq!(x.read::<u32>(), [9; 1000], "nothing ran yet");
        ok(hip.hipGraphInstantiateWithFlags.unwrap()(&mut exec, graph, 0));
        ok(hip.hipGraphDestroy.unwrap()(graph));
        for _ in 0..2 {
            ok(hip.hipGraphLaunch.unwrap()(exec, stream));
        }
        ok((hip.hipStreamSynchronize)(stream));
        ok(hip.hipGraphExecDestroy.unwrap()(exec));
        ok((hip.hipStreamDestroy)(stream));
    }
    assert_eq!(x.read::<u32>(), [7; 1000], "filled with 5, and two launches, in this order");
    assert_eq!(y.read::<u32>(), [4; 1000], "two launches, twice");
}

pub(crate) fn a_capture_that_fails_gives_no_graph() {
    let hip = gpu(&[]);
    let (begin, end) = (hip.hipStreamBeginCapture.unwrap(), hip.hipStreamEndCapture.unwrap());
    let (mut stream, mut graph) = (null_mut(), std::ptr::dangling_mut());
    // SAFETY: the table's functions; null handles are refused, the others are live.
    unsafe {
        assert_eq!(begin(null_mut(), hipStreamCaptureModeRelaxed), hipErrorStreamCaptureUnsupported);
        assert_eq!(end(null_mut(), &mut graph), hipErrorIllegalState);
        ok((hip.hipStreamCreateWithFlags)(&mut stream, hipStreamNonBlocking));
        assert_eq!(begin(stream, 3), hipErrorInvalidValue);
        assert_eq!(end(stream, null_mut()), hipErrorInvalidValue);
        assert_ne!(end(stream, &mut graph), hipSuccess, "nothing was begun");
        ok(begin(stream, hipStreamCaptureModeThreadLocal));
        // Captured work does not run, so no thread can wait for it.
        assert_eq!((hip.hipStreamSynchronize)(stream), hipErrorStreamCaptureUnsupported);
        assert_eq!(end(stream, &mut graph), hipErrorStreamCaptureInvalidated);
        assert!(graph.is_null());
        ok((hip.hipStreamDestroy)(stream));
        let mut exec = null_mut();
        assert_eq!(hip.hipGraphInstantiateWithFlags.unwrap()(&mut exec, null_mut(), 0), hipErrorInvalidValue);
        assert_eq!(hip.hipGraphLaunch.unwrap()(null_mut(), null_mut()), hipErrorInvalidValue);
        assert_eq!(hip.hipGraphExecDestroy.unwrap()(null_mut()), hipErrorInvalidValue);
        assert_eq!(hip.hipGraphDestroy.unwrap()(null_mut()), hipErrorInvalidValue);
    }
}

pub(crate) fn kernels_overlap_where_their_modules_say_so() {
    let hip = gpu(&[]);
    let name = architecture(&hip);
    let has_such_launches = name.trim_start_matches("sm_").parse::<u32>().unwrap() >= 90;
    for overlaps in [false, true] {
        let source = CString::new(format!("#define OVERLAPS {}\n{STEP}", u32::from(overlaps))).unwrap();
        let function = kernel(&hip, &source, c"step");
        let (x, y) = (Memory::of(&hip, &[0u32]), Memory::of(&hip, &[0u32]));
        let times = Memory::of(&hip, &[0u64; 4]);
        let (mut stream, mut graph, mut exec) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the table's functions; the pointers are to what the header says, and the buffers
        // have the words that the kernel uses.
        unsafe {
            ok((hip.hipStreamCreateWithFlags)(&mut stream, hipStreamNonBlocking));
            ok(hip.hipStreamBeginCapture.unwrap()(stream, hipStreamCaptureModeThreadLocal));
            for at in 0..2u32 {
                let (mut times, mut x, mut y, mut at) = (times.address, x.address, y.address, at);
                let parameters = &mut [
                    (&raw mut times).cast(),
                    (&raw mut x).cast(),
                    (&raw mut y).cast(),
                    (&raw mut at).cast(),
                ];
                ok(launch(&hip, function, [1, 32], stream, parameters));
            }
            ok(hip.hipStreamEndCapture.unwrap()(stream, &mut graph));
            ok(hip.hipGraphInstantiateWithFlags.unwrap()(&mut exec, graph, 0));
            ok(hip.hipGraphDestroy.unwrap()(graph));
            // A kernel may begin early but need not, so one early start in many replays is enough.
            let mut begins_early = false;
            for replay in 1..=100 {
                ok(hip.hipGraphLaunch.unwrap()(exec, stream));
                ok((hip.hipStreamSynchronize)(stream));
                assert_eq!((x.read::<u32>(), y.read::<u32>()), (vec![replay], vec![replay]), "in order");
                let times = times.read::<u64>();
                begins_early |= times[2] < times[1];
                if begins_early {
                    break;
                }
            }
            assert_eq!(begins_early, overlaps && has_such_launches, "{name}");
            ok(hip.hipGraphExecDestroy.unwrap()(exec));
            ok((hip.hipStreamDestroy)(stream));
        }
    }
}
