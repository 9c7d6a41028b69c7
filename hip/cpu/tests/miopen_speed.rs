//! What MIOpen's convolutions cost on one core: beside the product of their patches, and in halves beside f32.
#![allow(clippy::unwrap_used)]

mod library;

use core::ffi::c_void;
use half::{bf16, f16};
use library::conv::{Case, Descriptors, backward_data, backward_weights, forward};
use library::dnn::Typed;
use library::{Device, Random};
use miopen_sys::*;
use std::time::Instant;

/// The least seconds of several rounds of each body, in turns, so that a slow spell of the machine meets all.
fn race<const N: usize>(mut bodies: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut least = [f64::INFINITY; N];
    for _ in 0..40 {
        for (body, least) in bodies.iter_mut().zip(&mut least) {
            let start = Instant::now();
            body();
            *least = least.min(start.elapsed().as_secs_f64());
        }
    }
    least
}

/// Seconds of one direction of `case` in f32, f16 and bf16.
fn by_type(case: &Case, direction: fn(&Descriptors, *mut c_void, *mut c_void, *mut c_void)) -> [f64; 3] {
    let mut random = Random::new("convolution, types");
    let [x, w, y] = [&case.x, &case.w, &case.y].map(|dims| dims.iter().product::<usize>());
    fn buffers<T: Typed>(random: &mut Random, sizes: [usize; 3]) -> [Device<T>; 3] {
        sizes.map(|size| Device::new(&random.values::<T>(size)))
    }
    let f = buffers::<f32>(&mut random, [x, w, y]);
    let h = buffers::<f16>(&mut random, [x, w, y]);
    let b = buffers::<bf16>(&mut random, [x, w, y]);
    let [df, dh, db] =
        [miopenFloat, miopenHalf, miopenBFloat16].map(|data| Descriptors::new(case, data, miopenConvolution));
    race([
        &mut || direction(&df, f[0].void(), f[1].void(), f[2].void()),
        &mut || direction(&dh, h[0].void(), h[1].void(), h[2].void()),
        &mut || direction(&db, b[0].void(), b[1].void(), b[2].void()),
    ])
}

fn check_types() {
    for case in [
        Case::new(&[4, 64, 28, 28], &[64, 64, 3, 3], &[1; 2], &[1; 2], &[1; 2], 1).unwrap(),
        Case::new(&[4, 96, 28, 28], &[96, 1, 3, 3], &[1; 2], &[1; 2], &[1; 2], 96).unwrap(),
    ] {
        let [f, h, b] = by_type(&case, |d, x, w, y| {
            forward(d, x, w, y);
            backward_data(d, y, w, x);
            backward_weights(d, y, x, w);
        });
        // 1.3 on a machine with nothing else to do.
        assert!(h < 1.6 * f && b < 1.6 * f, "{:?}: f32 {f:.2e}, f16 {h:.2e}, bf16 {b:.2e} s", case.w);
    }
}

fn check_products() {
    use rocblas_sys::*;
    let blas = hip_cpu::rocblas_table();
    let mut handle = core::ptr::null_mut();
    // SAFETY: an out-pointer.
    assert_eq!(unsafe { (blas.rocblas_create_handle)(&mut handle) }, rocblas_status_success);
    // 1x1: the input is its own patches. Channels, filters, pixels.
    for (c, k, side) in [(128, 128, 28), (256, 512, 14)] {
        let case = Case::new(&[2, c, side, side], &[k, c, 1, 1], &[1; 2], &[0; 2], &[1; 2], 1).unwrap();
        let mut random = Random::new("convolution, products");
        let n = side * side;
        let x = Device::new(&random.values::<f32>(2 * c * n));
        let w = Device::new(&random.values::<f32>(k * c));
        let y = Device::new(&random.values::<f32>(2 * k * n));
        let d = Descriptors::new(&case, miopenFloat, miopenConvolution);
        let (one, zero) = (1f32, 0f32);
        let product = |ta,
                       tb,
                       m: usize,
                       n: usize,
                       k: usize,
                       a: (*const f32, usize, usize),
                       b: (*const f32, usize, usize),
                       c: (*mut f32, usize, usize)| {
            // SAFETY: operands of these sizes, two of each.
            let status = unsafe {
                (blas.rocblas_sgemm_strided_batched)(
                    handle, ta, tb, m as i32, n as i32, k as i32, &one, a.0, a.1 as i32, a.2 as i64, b.0,
                    b.1 as i32, b.2 as i64, &zero, c.0, c.1 as i32, c.2 as i64, 2,
                )
            };
            assert_eq!(status, rocblas_status_success);
        };
        let (none, turned) = (rocblas_operation_none, rocblas_operation_transpose);
        let parts = Device::new(&vec![0f32; 2 * k * c]);
        let times = race([
            &mut || forward(&d, x.void(), w.void(), y.void()),
            &mut || product(none, none, n, k, c, (x.ptr(), n, c * n), (w.ptr(), c, 0), (y.ptr(), n, k * n)),
            &mut || backward_data(&d, y.void(), w.void(), x.void()),
            &mut || product(none, turned, n, c, k, (y.ptr(), n, k * n), (w.ptr(), c, 0), (x.ptr(), n, c * n)),
            &mut || backward_weights(&d, y.void(), x.void(), w.void()),
            &mut || {
                product(
                    turned,
                    none,
                    c,
                    k,
                    n,
                    (x.ptr(), n, c * n),
                    (y.ptr(), n, k * n),
                    (parts.ptr(), c, k * c),
                )
            },
        ]);
        for (at, direction) in ["forward", "backward data", "backward weights"].into_iter().enumerate() {
            let (ours, product) = (times[2 * at], times[2 * at + 1]);
            assert!(
                ours < 2.0 * product,
                "{direction} {:?}: {ours:.2e} s, its product {product:.2e} s",
                case.w
            );
        }
    }
    // SAFETY: created above, destroyed once.
    unsafe { (blas.rocblas_destroy_handle)(handle) };
}

#[test]
#[cfg_attr(debug_assertions, ignore = "times optimised code")]
fn dense_convolutions_and_halves_are_as_fast_as_they_should_be() {
    // SAFETY: the only test of its program: nobody else reads the environment meanwhile.
    unsafe { std::env::set_var("BURN_ROCM_CPU_THREADS", "1") };
    check_products();
    check_types();
}
