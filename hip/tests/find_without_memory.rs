//! Find mode's first use of a convolution: without memory for the algorithms' workspace, and on a dry
//! device. These tests have their own binary, because they install the process's settings and make an
//! allocation fail.
#![allow(clippy::unwrap_used)] // A test may.

mod common;

use std::sync::{Arc, Once};

use common::{close, output, random_tensor, read, tolerance};
use hip::{Config, ConvDesc, DType, Device, Dry, FindMode, TensorArg, tuning_store};
use serial_test::serial;

/// A device that times a convolution's algorithms at the first use.
fn device() -> Arc<Device> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let config = Config::from_env().unwrap().conv_find(FindMode::Find);
        config.tuning(false).deterministic(false).install().unwrap();
    });
    common::device()
}

#[test]
#[serial]
fn a_solution_that_was_not_timed_is_taken() {
    let device = device();
    let (dtype, n) = (DType::F32, 5 * 19 * 17);
    let desc = ConvDesc::new(dtype, &[1, 3, 19, 17], &[5, 3, 3, 3], &[1, 1], &[1, 1], &[1, 1], 1).unwrap();
    let x = random_tensor(&device, 1, dtype, 3 * 19 * 17);
    let w = random_tensor(&device, 2, dtype, 5 * 3 * 3 * 3);
    let y = output(&device, dtype, n);
    let run = |desc: &ConvDesc| -> hip::Result<()> {
        let [x, w, y] = [&x.buffer, &w.buffer, &y].map(TensorArg::new);
        device.dnn()?.conv_forward(desc, x, w, y)
    };
    // The same convolution, but the library prepares it on its own.
    run(&ConvDesc { gradient: true, ..desc.clone() }).unwrap();
    let want = read(&device, &y, dtype, n);
    // Otherwise the device gives cached pinned memory back, and tries again.
    device.sync().unwrap();
    device.memory_cleanup().unwrap();
    let trials = tuning_store().stats().trials;
    device.pool().fail_next(1);
    assert_eq!(run(&desc), Ok(()));
    assert_eq!(tuning_store().stats().trials, trials, "nothing was timed");
    assert_eq!(device.pool().failure(), None);
    close("not timed", &read(&device, &y, dtype, n), &want, tolerance(dtype));
}

/// The search needs memory for its hungriest algorithm.
#[test]
#[serial]
fn a_dry_device_takes_the_memory_of_the_search() {
    let device = device();
    let dry = Dry::new(&device, None).unwrap();
    let ones = [1, 1];
    let desc = ConvDesc::new(DType::F32, &[2, 3, 19, 17], &[5, 3, 3, 3], &ones, &ones, &ones, 1).unwrap();
    let blocks_of_a_first_use = |device: &Arc<Device>| {
        let sizes = [2 * 3 * 19 * 17, 5 * 3 * 3 * 3, 2 * 5 * 19 * 17];
        let [x, w, y] = sizes.map(|elements| device.alloc(4 * elements).unwrap());
        let before = device.pool().stats();
        let [x, w, y] = [&x, &w, &y].map(TensorArg::new);
        device.dnn().unwrap().conv_forward(&desc, x, w, y).unwrap();
        let after = device.pool().stats();
        (after.hits + after.misses) - (before.hits + before.misses)
    };
    assert_eq!(blocks_of_a_first_use(dry.device()), blocks_of_a_first_use(&device));
}
