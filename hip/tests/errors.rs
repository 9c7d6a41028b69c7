//! When errors are reported, what is counted, and what is given back. These tests have their own
//! process and run one at a time, because all tests of a process share the device.
#![allow(clippy::unwrap_used, reason = "tests")]

use hip::{Buffer, DType, Device, Error, Fault, Functor, Program, Template};
use serial_test::serial;

const PROGRAM: Program<'static> = Program {
    name: "flag.hip",
    source: r#"
#include "prelude.h"
__global__ void raise_flag(i32 index, u64 *flag) {
    for_each(1, [=](u64) {
        if (index != 0) raise_index(flag, index, 2u);
    });
}
__global__ void raise_beside(i32 index, const u32 *in, u64 *flag, u32 *out) {
    for_each(1, [=](u64) {
        if (index != 0) raise_index(flag, index, 2u);
        out[0] = in[0];
    });
}
"#,
    headers: &[],
    options: &[],
};

#[test]
#[serial]
fn cleanup_gives_memory_back_to_the_driver() {
    let device = Device::get(0).expect("a provider with a device");
    device.memory_cleanup().unwrap();
    let reserved = device.pool().stats().reserved;
    let buffer = device.alloc(200 << 20).unwrap();
    drop(buffer);
    // The driver's free memory is not compared: for the CPU device it is that of the whole machine.
    assert_eq!(device.pool().stats().reserved, reserved + (200 << 20));
    device.memory_cleanup().unwrap();
    assert_eq!(device.pool().stats().reserved, reserved);
    assert!(device.memory_info().unwrap().0 > 0);
}

#[test]
#[serial]
fn the_pool_is_steady_over_equal_steps() {
    let device = Device::get(0).expect("a provider with a device");
    let step = || {
        let batch = device.upload(&vec![1; 300_000]).unwrap();
        let kept: Vec<_> = (1..40usize).map(|i| device.alloc(i * i * 1000).unwrap()).collect();
        device.fill_bytes(&kept[3], 0, 0, 10).unwrap();
        drop(batch);
    };
    for _ in 0..3 {
        step();
    }
    let before = device.pool().stats();
    for _ in 0..200 {
        step();
    }
    let after = device.pool().stats();
    assert_eq!((after.peak, after.reserved, after.misses), (before.peak, before.reserved, before.misses));
    assert_eq!(after.allocated, before.allocated);
    device.sync().unwrap();
}

#[test]
#[serial]
fn kernels_used_longest_ago_are_unloaded() {
    let device = Device::get(0).expect("a provider with a device");
    device.forget_kernels();
    device.kernel(&PROGRAM, "raise_flag").unwrap();
    let (count, one) = device.loaded_kernels();
    assert_eq!(count, 1);
    device.set_loaded_kernels_limit(one * 3);
    let buffer = device.upload(&[0; 8]).unwrap();
    for options in [&["-DTEST=1"], &["-DTEST=2"], &["-DTEST=3"], &["-DTEST=4"], &["-DTEST=5"]] {
        let kernel = device.kernel(&Program { options, ..PROGRAM }, "raise_flag").unwrap();
        let launch = device.launch_kernel(&kernel).unwrap().value(0i32).buffer(&buffer, 0);
        // SAFETY: the parameters are an i32 and a pointer to a u64.
        unsafe { launch.submit(device.grid(1), 0).unwrap() };
        assert!(device.loaded_kernels().0 <= 3, "{:?}", device.loaded_kernels());
    }
    device.sync().unwrap();
    device.set_loaded_kernels_limit(256 << 20);
    device.kernel(&PROGRAM, "raise_flag").unwrap();
}

#[test]
#[serial]
fn kernels_that_come_and_go_are_unloaded_without_a_sync() {
    let device = Device::get(0).expect("a provider with a device");
    device.forget_kernels();
    device.sync().unwrap();
    assert_eq!(device.retired_kernels(), 0);
    let x = device.upload(&[0; 64]).unwrap();
    let add = Template::binary_contiguous.functor(Functor::Add).ty(DType::F32);
    let mut out = [0; 64];
    for reads in [true, false] {
        for round in 0..40 {
            device.forget_kernels();
            let launch = device.launch(add).unwrap().value(16u64).buffer(&x, 0).buffer(&x, 0).buffer(&x, 0);
            // SAFETY: the parameters are the count and three pointers to so many f32.
            unsafe { launch.submit(device.grid(16), 0).unwrap() };
            if reads {
                device.read(&x, 0, &mut out).unwrap();
                // The previous round's modules may wait until the next kernel is loaded.
                assert!(device.retired_kernels() <= 2, "{} in round {round}", device.retired_kernels());
            }
        }
    }
    device.forget_kernels();
    device.memory_cleanup().unwrap();
    assert_eq!(device.retired_kernels(), 0, "a cleanup unloads them too");
}

#[test]
#[serial]
fn errors_are_reported_once_and_only_reads_wait() {
    let device = Device::get(0).expect("a provider with a device");
    let kernel = device.kernel(&PROGRAM, "raise_flag").unwrap();
    let buffer = device.upload(&[7; 4]).unwrap();
    let mut out = [0; 4];

    let launch = device.launch_kernel(&kernel).unwrap().value(3i32).flag("pick", Fault::Index);
    // SAFETY: the parameters are an i32 and a pointer to a u64.
    unsafe { launch.submit(device.grid(1), 0).unwrap() };
    device.read(&buffer, 0, &mut out).expect("it is no fault of this buffer's");
    assert_eq!(out, [7; 4]);
    match device.sync() {
        Err(Error::Invalid { op, found, .. }) => assert_eq!((op, found.as_str()), ("pick", "index 3")),
        other => panic!("{other:?}"),
    }
    device.sync().expect("reported once");

    let error = Error::Unsupported { op: "test", dtype: Some("f32"), what: None };
    device.record(error.clone());
    device.record(Error::Unsupported { op: "later", dtype: None, what: None });
    assert_eq!(device.sync(), Err(error));
    assert_eq!(device.sync(), Ok(()));

    let before = device.counters();
    let large = device.upload(&vec![1; 10 << 20]).unwrap();
    for _ in 0..10 {
        let launch = device.launch_kernel(&kernel).unwrap().value(0i32).flag("pick", Fault::Index);
        // SAFETY: as above.
        unsafe { launch.submit(device.grid(1), 0).unwrap() };
        device.fill_bytes(&large, 0, 1, 100).unwrap();
        drop(device.upload(&[0; 100]).unwrap());
    }
    let after = device.counters();
    assert_eq!(after.launches - before.launches, 10);
    assert_eq!((after.waits, after.device_to_host), (before.waits, before.device_to_host));
    device.read(&large, 0, &mut out).unwrap();
    assert_eq!(device.counters().device_to_host, before.device_to_host + 1);
    assert_eq!(device.counters().waits, before.waits + 1);
}

/// A kernel that copies a word from `input` to `out`, and reports an index unless it is 0.
fn raise_beside(index: i32, input: &Buffer, out: &Buffer) {
    let device = out.device();
    let kernel = device.kernel(&PROGRAM, "raise_beside").unwrap();
    let launch = device.launch_kernel(&kernel).unwrap().value(index).buffer(input, 0);
    // SAFETY: the parameters are an i32 and pointers to a u32, a u64 and a u32.
    unsafe { launch.flag("pick", Fault::Index).output(out, 0).submit(device.grid(1), 0).unwrap() };
}

fn fault(buffer: &Buffer) -> Option<String> {
    let mut out = [0; 4];
    match buffer.device().read(buffer, 0, &mut out) {
        Ok(()) => None,
        Err(Error::Invalid { op: "pick", found, .. }) => Some(found),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
#[serial]
fn a_fault_is_in_what_the_launch_writes_and_what_is_made_of_it() {
    let device = Device::get(0).expect("a provider with a device");
    let words = device.fault_words();
    let buffer = || device.upload(&[7; 4]).unwrap();
    let (input, out, next, copied) = (buffer(), buffer(), buffer(), buffer());
    raise_beside(3, &input, &out);
    raise_beside(0, &out, &next);
    device.copy(&next, 0, &copied, 0, 4).unwrap();
    for _ in 0..2 {
        for faulty in [&out, &next, &copied] {
            assert_eq!(fault(faulty).as_deref(), Some("index 3"));
        }
        assert_eq!(fault(&input), None);
    }
    // Two faults. Overwriting the whole buffer clears them; overwriting a part does not.
    raise_beside(5, &copied, &copied);
    assert!(fault(&copied).unwrap().starts_with("index 3"));
    device.fill_bytes(&copied, 0, 0, 3).unwrap();
    assert!(fault(&copied).is_some());
    device.fill_bytes(&copied, 0, 0, 4).unwrap();
    assert_eq!(fault(&copied), None);
    device.copy(&input, 0, &next, 0, 4).unwrap();
    assert_eq!(fault(&next), None);
    assert_eq!(fault(&out).as_deref(), Some("index 3"));
    let mut bytes = [0; 4];
    let beside = device.read_with_fault(&out, 0, &mut bytes).unwrap();
    assert_eq!((bytes, beside.is_some()), ([7; 4], true));
    device.sync().expect("reads have reported both");
    drop((input, out, next, copied));
    device.sync().unwrap();
    assert_eq!(device.fault_words(), words);
}

/// A launch that is dropped without being submitted leaves no fault, and its word is free again.
#[test]
#[serial]
fn a_launch_that_is_not_made_leaves_no_fault() {
    let device = Device::get(0).expect("a provider with a device");
    let words = device.fault_words();
    let buffer = device.upload(&[7; 4]).unwrap();
    let kernel = device.kernel(&PROGRAM, "raise_flag").unwrap();
    drop(device.launch_kernel(&kernel).unwrap().value(3i32).flag("pick", Fault::Index).output(&buffer, 0));
    assert_eq!(fault(&buffer), None);
    let behind = device.launch_kernel(&kernel).unwrap().output(&buffer, 0).flag("pick", Fault::Index);
    // SAFETY: nothing is launched.
    let refused = unsafe { behind.submit(device.grid(1), 0) };
    assert!(matches!(refused, Err(Error::Invalid { op: "launch", .. })), "a flag behind the outputs");
    device.sync().unwrap();
    drop(buffer);
    assert_eq!(device.fault_words(), words);
}
