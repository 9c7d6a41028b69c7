//! What is reported when: errors that `Drop` or the device recorded, and the counters. A process of its own, one test, because
//! both belong to the device that all tests of a process share.

use hip::{Device, Error, Grid, Program};

const PROGRAM: Program<'static> = Program {
    name: "flag.hip",
    source: r#"
#include "prelude.h"
__global__ void raise_flag(u32 code, u32 *flag) {
    for_each(1, [=](u64) { *flag = code; });
}
"#,
    headers: &[],
    options: &[],
};

#[test]
fn errors_are_reported_once_and_only_reads_wait() {
    let device = Device::get(0).expect("a provider with a device");
    let kernel = device.kernel(&PROGRAM, "raise_flag").unwrap();
    let buffer = device.upload(&[7; 4]).unwrap();
    let mut out = [0; 4];

    let launch = device.launch_kernel(&kernel).unwrap().value(3u32).flag();
    // SAFETY: the parameters are a u32 and a pointer to one.
    unsafe { launch.submit(Grid { blocks: 1, threads: 1 }, 0).unwrap() };
    match device.read(&buffer, 0, &mut out) {
        Err(Error::Invalid { found, .. }) => assert_eq!(found, "device error flag 3"),
        other => panic!("{other:?}"),
    }
    device.read(&buffer, 0, &mut out).expect("reported once");
    assert_eq!(out, [7; 4]);

    let error = Error::Unsupported { op: "test", dtype: "f32".into() };
    device.record(error.clone());
    device.record(Error::Unsupported { op: "later", dtype: "f32".into() });
    assert_eq!(device.sync(), Err(error));
    assert_eq!(device.sync(), Ok(()));

    let before = device.counters();
    let large = device.upload(&vec![1; 10 << 20]).unwrap();
    for _ in 0..10 {
        let launch = device.launch_kernel(&kernel).unwrap().value(0u32).flag();
        // SAFETY: as above.
        unsafe { launch.submit(Grid { blocks: 1, threads: 1 }, 0).unwrap() };
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
