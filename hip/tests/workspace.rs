//! A convolution without memory for the workspace of the solution that was chosen first. This test
//! has its own binary, because the pool's limit holds for the whole process.
#![allow(clippy::unwrap_used)] // A test may.

mod common;

use common::{close, device, output, random_tensor, read, tolerance};
use hip::{ConvDesc, DType, Error, TensorArg};

#[test]
fn a_solution_that_needs_less_is_taken_or_the_error_is_typed() {
    let device = device();
    let (dtype, n) = (DType::F32, 32 * 32 * 32);
    let desc = ConvDesc::new(dtype, &[1, 32, 32, 32], &[32, 32, 3, 3], &[1, 1], &[1, 1], &[1, 1], 1).unwrap();
    let x = random_tensor(&device, 1, dtype, n);
    let w = random_tensor(&device, 2, dtype, 32 * 32 * 9);
    let run = || {
        let y = output(&device, dtype, n);
        device.dnn()?.conv_forward(
            &desc,
            TensorArg::new(&x.buffer),
            TensorArg::new(&w.buffer),
            TensorArg::new(&y),
        )?;
        Ok::<_, Error>(read(&device, &y, dtype, n))
    };
    let want = run().unwrap();
    // One block takes all memory that is left. The memory that `run` allocated for itself was
    // freed, and is in separate segments.
    device.sync().unwrap();
    let small = device.alloc(4 * n).unwrap();
    device.pool().clear().unwrap();
    device.pool().set_limit(Some(device.pool().stats().reserved));
    let mut hoard = Vec::new();
    let mut size = 64 << 20;
    while size >= 1 << 10 {
        match device.alloc(size) {
            Ok(buffer) => hoard.push(buffer),
            Err(Error::OutOfMemory { .. }) => size /= 2,
            Err(other) => panic!("{other}"),
        }
    }
    drop(small);
    match run() {
        Ok(got) => close("short of memory", &got, &want, tolerance(dtype)),
        Err(Error::OutOfMemory { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    // With memory again.
    drop(hoard);
    device.pool().set_limit(None);
    close("memory again", &run().unwrap(), &want, tolerance(dtype));
}
