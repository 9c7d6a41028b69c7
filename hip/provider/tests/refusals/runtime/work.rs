//! Streams, events, modules, launches and graphs.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};

use hip_sys::*;

use super::{at, check_null, check_out, hip};
use crate::{Fails, Runs, check, dangling, looked};

#[test]
fn streams_and_events() {
    let t = hip();
    let bad = Fails(hipErrorInvalidValue);
    let mut stream = null_mut();
    let create =
        |(to, flags): &mut (*mut hipStream_t, c_uint)| unsafe { (t.hipStreamCreateWithFlags)(*to, *flags) };
    check(
        "hipStreamCreateWithFlags",
        (&raw mut stream, hipStreamNonBlocking),
        create,
        &[("null", &|call| call.0 = null_mut(), bad), ("unknown flags", &|call| call.1 = 2, bad)],
    );
    let create = |call: &mut (*mut hipStream_t, c_uint)| unsafe {
        (t.hipStreamCreateWithPriority)(call.0, call.1, -1)
    };
    check(
        "hipStreamCreateWithPriority",
        (&raw mut stream, hipStreamNonBlocking),
        create,
        &[("null", &|call| call.0 = null_mut(), bad), ("unknown flags", &|call| call.1 = 2, bad)],
    );
    let [mut least, mut greatest] = [7; 2];
    assert_eq!(unsafe { (t.hipDeviceGetStreamPriorityRange)(&mut least, null_mut()) }, hipSuccess);
    assert_eq!(unsafe { (t.hipDeviceGetStreamPriorityRange)(null_mut(), &mut greatest) }, hipSuccess);
    assert_eq!((least, greatest, looked().len()), (1, -1, 2));
    check_null("hipStreamDestroy", hipErrorInvalidHandle, t.hipStreamDestroy);
    // Null is the default stream.
    assert_eq!(unsafe { (t.hipStreamSynchronize)(null_mut()) }, hipSuccess);
    assert_eq!(unsafe { (t.hipDeviceSynchronize)() }, hipSuccess);
    assert_eq!(looked(), ["synchronize_stream", "synchronize_device"]);
    let wait = |(event, flags): &mut (hipEvent_t, c_uint)| unsafe {
        (t.hipStreamWaitEvent)(null_mut(), *event, *flags)
    };
    check(
        "hipStreamWaitEvent",
        (dangling(), 1),
        wait,
        &[
            ("null", &|call| call.0 = null_mut(), Fails(hipErrorInvalidHandle)),
            ("unknown flags", &|call| call.1 = 2, bad),
            ("the event comes first", &|call| *call = (null_mut(), 2), Fails(hipErrorInvalidHandle)),
        ],
    );
    let mut event = null_mut();
    let create =
        |(to, flags): &mut (*mut hipEvent_t, c_uint)| unsafe { (t.hipEventCreateWithFlags)(*to, *flags) };
    check(
        "hipEventCreateWithFlags",
        (&raw mut event, 0xe000_0007),
        create,
        &[
            ("null", &|call| call.0 = null_mut(), bad),
            ("the next flag", &|call| call.1 = 8, bad),
            ("a high bit that is no flag", &|call| call.1 = 0x1000_0000, bad),
        ],
    );
    check_null("hipEventDestroy", hipErrorInvalidHandle, t.hipEventDestroy);
    check_null("hipEventQuery", hipErrorInvalidHandle, t.hipEventQuery);
    check_null("hipEventSynchronize", hipErrorInvalidHandle, t.hipEventSynchronize);
    let record = |event: &mut hipEvent_t| unsafe { (t.hipEventRecord)(*event, null_mut()) };
    check(
        "hipEventRecord",
        dangling(),
        record,
        &[("null", &|at| *at = null_mut(), Fails(hipErrorInvalidHandle))],
    );
    let mut ms = 0.0;
    type Elapsed = (*mut f32, hipEvent_t, hipEvent_t);
    let elapsed = |(ms, start, stop): &mut Elapsed| unsafe { (t.hipEventElapsedTime)(*ms, *start, *stop) };
    check(
        "hipEventElapsedTime",
        (&raw mut ms, dangling(), dangling()),
        elapsed,
        &[
            ("null", &|call| call.0 = null_mut(), bad),
            ("no start", &|call| call.1 = null_mut(), Fails(hipErrorInvalidHandle)),
            ("no stop", &|call| call.2 = null_mut(), Fails(hipErrorInvalidHandle)),
            ("the answer comes first", &|call| *call = (null_mut(), null_mut(), null_mut()), bad),
        ],
    );
}

#[test]
fn modules() {
    let t = hip();
    let bad = Fails(hipErrorInvalidValue);
    let (mut module, mut function) = (null_mut(), null_mut());
    let load =
        |(to, image): &mut (*mut hipModule_t, *const c_void)| unsafe { (t.hipModuleLoadData)(*to, *image) };
    check(
        "hipModuleLoadData",
        (&raw mut module, dangling::<c_void>().cast_const()),
        load,
        &[("null", &|call| call.0 = null_mut(), bad), ("no image", &|call| call.1 = null(), bad)],
    );
    check_null("hipModuleUnload", hipErrorInvalidHandle, t.hipModuleUnload);
    type Find = (*mut hipFunction_t, hipModule_t, *const c_char);
    let find = |(to, module, name): &mut Find| unsafe { (t.hipModuleGetFunction)(*to, *module, *name) };
    check(
        "hipModuleGetFunction",
        (&raw mut function, dangling(), c"k".as_ptr()),
        find,
        &[
            ("null", &|call| call.0 = null_mut(), bad),
            ("no name", &|call| call.2 = null(), bad),
            ("an empty name", &|call| call.2 = c"".as_ptr(), bad),
            ("no module", &|call| call.1 = null_mut(), Fails(hipErrorInvalidHandle)),
            ("the name comes first", &|call| (call.1, call.2) = (null_mut(), c"".as_ptr()), bad),
        ],
    );
    let mut blocks = 0;
    type Occupancy = (*mut c_int, hipFunction_t, c_int);
    let occupancy = |(to, function, threads): &mut Occupancy| unsafe {
        (t.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor.unwrap())(*to, *function, *threads, 0)
    };
    check(
        "occupancy",
        (&raw mut blocks, dangling(), 1),
        occupancy,
        &[
            ("no kernel", &|call| call.1 = null_mut(), Fails(hipErrorInvalidDeviceFunction)),
            ("no threads", &|call| call.2 = 0, bad),
            ("a negative number of threads", &|call| call.2 = -1, bad),
            (
                "the kernel comes first",
                &|call| (call.1, call.2) = (null_mut(), 0),
                Fails(hipErrorInvalidDeviceFunction),
            ),
        ],
    );
    assert_eq!(check_out("occupancy", 0, true, |to| occupancy(&mut (to, dangling(), 1))), 2);
}

#[derive(Clone, Copy)]
struct Call {
    function: hipFunction_t,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    params: *mut *mut c_void,
    /// What `extra` points to, if anything.
    extra: Option<[*mut c_void; 5]>,
}

#[test]
fn launches() {
    let t = hip();
    let launch = |c: &mut Call| unsafe {
        let extra = c.extra.as_mut().map_or(null_mut(), |list| list.as_mut_ptr());
        let ([gx, gy, gz], [bx, by, bz]) = (c.grid, c.block);
        (t.hipModuleLaunchKernel)(c.function, gx, gy, gz, bx, by, bz, 0, null_mut(), c.params, extra)
    };
    let good =
        Call { function: dangling(), grid: [1; 3], block: [256, 1, 1], params: dangling(), extra: None };
    let (value, configuration) = (Fails(hipErrorInvalidValue), Fails(hipErrorInvalidConfiguration));
    let mut size = 8usize;
    let end = (&raw mut size).cast();
    let packed = [at(1), dangling(), at(2), end, at(3)];
    check(
        "hipModuleLaunchKernel",
        good,
        launch,
        &[
            ("no kernel", &|c| c.function = null_mut(), Fails(hipErrorInvalidHandle)),
            ("the longest grid", &|c| (c.grid, c.block) = ([i32::MAX as u32, 65535, 65535], [1; 3]), Runs),
            ("a longer grid", &|c| (c.grid[0], c.block) = (1 << 31, [1; 3]), value),
            ("a higher grid", &|c| c.grid[1] = 65536, value),
            ("a deeper grid", &|c| c.grid[2] = 65536, value),
            ("as many threads as fit 32 bits", &|c| (c.grid[0], c.block[0]) = (65535, 65537), Runs),
            ("more threads", &|c| (c.grid[0], c.block[0]) = (65536, 65536), configuration),
            ("no blocks", &|c| c.grid[0] = 0, value),
            ("no blocks", &|c| c.grid[1] = 0, value),
            ("no blocks", &|c| c.grid[2] = 0, value),
            ("no threads", &|c| c.block[0] = 0, configuration),
            ("no threads", &|c| c.block[1] = 0, configuration),
            ("no threads", &|c| c.block[2] = 0, configuration),
            ("the grid comes first", &|c| (c.grid[0], c.block[0]) = (0, 0), value),
            ("packed arguments", &|c| (c.params, c.extra) = (null_mut(), Some(packed)), Runs),
            ("packed arguments and others", &|c| c.extra = Some(packed), value),
            (
                "another first mark",
                &|c| (c.params, c.extra) = (null_mut(), Some([at(2), packed[1], at(2), end, at(3)])),
                value,
            ),
            (
                "another second mark",
                &|c| (c.params, c.extra) = (null_mut(), Some([at(1), packed[1], at(3), end, at(3)])),
                value,
            ),
            (
                "another end",
                &|c| (c.params, c.extra) = (null_mut(), Some([at(1), packed[1], at(2), end, at(0)])),
                value,
            ),
            (
                "no size",
                &|c| (c.params, c.extra) = (null_mut(), Some([at(1), packed[1], at(2), at(0), at(3)])),
                value,
            ),
        ],
    );
}

#[test]
fn graphs() {
    let t = hip();
    let bad = Fails(hipErrorInvalidValue);
    let begin = |(stream, mode): &mut (hipStream_t, c_uint)| unsafe {
        (t.hipStreamBeginCapture.unwrap())(*stream, *mode)
    };
    check(
        "hipStreamBeginCapture",
        (dangling(), hipStreamCaptureModeRelaxed),
        begin,
        &[
            ("the default stream", &|call| call.0 = null_mut(), Fails(hipErrorStreamCaptureUnsupported)),
            ("an unknown mode", &|call| call.1 = 3, bad),
            (
                "the stream comes first",
                &|call| *call = (null_mut(), 3),
                Fails(hipErrorStreamCaptureUnsupported),
            ),
        ],
    );
    let (mut graph, mut exec) = (null_mut(), null_mut());
    type End = (hipStream_t, *mut hipGraph_t);
    let end = |(stream, to): &mut End| unsafe { (t.hipStreamEndCapture.unwrap())(*stream, *to) };
    check(
        "hipStreamEndCapture",
        (dangling(), &raw mut graph),
        end,
        &[
            ("null", &|call| call.1 = null_mut(), bad),
            ("the default stream", &|call| call.0 = null_mut(), Fails(hipErrorIllegalState)),
            ("null comes first", &|call| *call = (null_mut(), null_mut()), bad),
        ],
    );
    assert!(!graph.is_null());
    let failed = end(&mut (without_provenance_mut(2), &raw mut graph));
    assert_eq!(
        (failed, graph),
        (hipErrorStreamCaptureInvalidated, null_mut()),
        "no graph of a failed capture"
    );
    let make = |(to, graph): &mut (*mut hipGraphExec_t, hipGraph_t)| unsafe {
        (t.hipGraphInstantiateWithFlags.unwrap())(*to, *graph, 0)
    };
    check(
        "hipGraphInstantiateWithFlags",
        (&raw mut exec, dangling()),
        make,
        &[("null", &|call| call.0 = null_mut(), bad), ("no graph", &|call| call.1 = null_mut(), bad)],
    );
    let launch = |exec: &mut hipGraphExec_t| unsafe { (t.hipGraphLaunch.unwrap())(*exec, null_mut()) };
    check("hipGraphLaunch", dangling(), launch, &[("null", &|exec| *exec = null_mut(), bad)]);
    check_null("hipGraphExecDestroy", hipErrorInvalidValue, t.hipGraphExecDestroy.unwrap());
    check_null("hipGraphDestroy", hipErrorInvalidValue, t.hipGraphDestroy.unwrap());
}
