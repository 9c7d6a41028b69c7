//! Find mode's first use of a convolution, without memory for the algorithms' workspace. This test has
//! its own binary, because it installs the process's settings and makes an allocation fail.
#![allow(clippy::unwrap_used)] // A test may.

mod common;

use common::{close, device, output, random_tensor, read, tolerance};
use hip::{Config, ConvDesc, DType, FindMode, TensorArg, tuning_store};

#[test]
fn a_solution_that_was_not_timed_is_taken() {
    let config = Config::from_env().unwrap().conv_find(FindMode::Find);
    config.tuning(false).deterministic(false).install().unwrap();
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
