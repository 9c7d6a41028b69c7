use std::process::Command;
use std::ptr::null_mut;

use half::{bf16, f16};
use hip_cuda::{Library, rocblas_table};
use rocblas_sys::*;

use crate::{Memory, gpu};

/// Rows, columns and terms.
const N: i32 = 256;

/// A product by `gemm_ex` of operands and results of one type, summed in f32: `m` rows, `n` columns,
/// `k` terms.
///
/// # Safety
/// The handle is alive, and each buffer has as many elements of the type as said.
unsafe fn multiply(
    rocblas: &Rocblas,
    handle: rocblas_handle,
    dtype: rocblas_datatype,
    [m, n, k]: [i32; 3],
    [a, b, c]: [&Memory; 3],
) -> rocblas_status {
    let (alpha, beta) = (1.0f32, 0.0f32);
    let none = rocblas_operation_none;
    // SAFETY: the table's function; the caller's handle and buffers, scalars of the host.
    unsafe {
        (rocblas.rocblas_gemm_ex)(
            handle,
            none,
            none,
            m,
            n,
            k,
            (&raw const alpha).cast(),
            a.address,
            dtype,
            m,
            b.address,
            dtype,
            k,
            (&raw const beta).cast(),
            c.address,
            dtype,
            m,
            c.address,
            dtype,
            m,
            rocblas_datatype_f32_r,
            rocblas_gemm_algo_standard,
            0,
            0,
        )
    }
}

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
            multiply(&rocblas, handle, rocblas_datatype_f32_r, [N; 3], [&a, &b, &c])
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

/// The terms of a sum that cuBLAS splits: a result of 64 x 64 alone gives too few blocks.
const LONG: usize = 1 << 15;

/// A product whose sums are 1: half of their terms are 5, the others -5, and the last is -4. In f32 all
/// partial sums are exact, in any order. The sum of the last few thousand terms needs more bits
/// than f16 and bf16 have.
fn long_product<T: Copy + Default + Into<f32>>(dtype: rocblas_datatype, of: impl Fn(f32) -> T) {
    let hip = gpu(&[Library::Cublas]);
    let rocblas = rocblas_table();
    let size = 64;
    let term = |at: usize| match at {
        _ if at < LONG / 2 => 5.0,
        _ if at == LONG - 1 => -4.0,
        _ => -5.0,
    };
    let column: Vec<T> = (0..LONG).map(|at| of(term(at))).collect();
    let a = Memory::of(&hip, &vec![of(1.0); size * LONG]);
    let b = Memory::of(&hip, &column.repeat(size));
    let c = Memory::of(&hip, &vec![of(0.0); size * size]);
    let sizes = [size as i32, size as i32, LONG as i32];
    let mut handle = null_mut();
    // SAFETY: the table's functions; a live handle, buffers of as many elements as said.
    let values: Vec<T> = unsafe {
        assert_eq!((rocblas.rocblas_create_handle)(&mut handle), rocblas_status_success);
        let status = multiply(&rocblas, handle, dtype, sizes, [&a, &b, &c]);
        assert_eq!(status, rocblas_status_success);
        let values = c.read();
        assert_eq!((rocblas.rocblas_destroy_handle)(handle), rocblas_status_success);
        values
    };
    let wrong = values.into_iter().map(|value| -> f32 { value.into() }).find(|value| *value != 1.0);
    assert_eq!(wrong, None, "{dtype:?}");
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
    // Parts of 16-bit products are summed in f32 in both cases.
    long_product(rocblas_datatype_f16_r, f16::from_f32);
    long_product(rocblas_datatype_bf16_r, bf16::from_f32);
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
