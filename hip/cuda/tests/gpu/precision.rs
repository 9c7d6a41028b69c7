use std::process::Command;
use std::ptr::null_mut;

use hip_cuda::{Library, rocblas_table};
use rocblas_sys::*;

use crate::{Memory, gpu};

/// Rows, columns and terms.
const N: i32 = 256;

/// An f32 product by `gemm` or `gemm_ex`: sums of 256 products of 1 + 2^-11, which takes 12 bits,
/// and 1.
fn product(extended: bool) -> f32 {
    let hip = gpu(&[Library::Cublas]);
    let rocblas = rocblas_table();
    let elements = (N * N) as usize;
    let a = Memory::of(&hip, &vec![1.0f32 + 2f32.powi(-11); elements]);
    let b = Memory::of(&hip, &vec![1.0f32; elements]);
    let c = Memory::of(&hip, &vec![0.0f32; elements]);
    let (alpha, beta) = (1.0f32, 0.0f32);
    let none = rocblas_operation_none;
    let mut handle = null_mut();
    // SAFETY: the table's functions; a live handle, scalars of the host, buffers of as many
    // elements as said.
    unsafe {
        assert_eq!((rocblas.rocblas_create_handle)(&mut handle), rocblas_status_success);
        let status = if extended {
            let f32_r = rocblas_datatype_f32_r;
            (rocblas.rocblas_gemm_ex)(
                handle,
                none,
                none,
                N,
                N,
                N,
                (&raw const alpha).cast(),
                a.address,
                f32_r,
                N,
                b.address,
                f32_r,
                N,
                (&raw const beta).cast(),
                c.address,
                f32_r,
                N,
                c.address,
                f32_r,
                N,
                f32_r,
                rocblas_gemm_algo_standard,
                0,
                0,
            )
        } else {
            let (a, b, c) = (a.address.cast(), b.address.cast(), c.address.cast());
            (rocblas.rocblas_sgemm)(handle, none, none, N, N, N, &alpha, a, N, b, N, &beta, c, N)
        };
        assert_eq!(status, rocblas_status_success);
        let values = c.read::<f32>();
        assert_eq!((rocblas.rocblas_destroy_handle)(handle), rocblas_status_success);
        assert!(values.iter().all(|value| *value == values[0]), "one sum everywhere");
        values[0]
    }
}

/// The exact product, and the products of TF32's 11 bits, with the operand rounded down or up.
const EXACT: f32 = 256.125;
const ROUNDED: [f32; 2] = [256.0, 256.25];

/// The test below runs this in a child process with the setting in the environment.
pub(crate) fn products() {
    let allowed = std::env::var("BURN_ROCM_TEST_TF32").as_deref() == Ok("1");
    hip_cuda::allow_tf32(allowed);
    let expected = if allowed { &ROUNDED[..] } else { &[EXACT] };
    for extended in [false, true] {
        let found = product(extended);
        assert!(expected.contains(&found), "gemm_ex {extended}: {found}, not one of {expected:?}");
    }
    println!("computed");
}

pub(crate) fn f32_is_rounded_to_tf32_where_that_is_asked_for() {
    gpu(&[Library::Cublas]);
    for setting in ["0", "1"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "precision::products", "--nocapture"])
            .env("BURN_ROCM_TEST_TF32", setting)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("computed"), "`{setting}`:\n{text}\n{errors}");
    }
}
