//! rocBLAS's C functions.

use super::{Geam, Gemm, Gemv, Handle, Matrix, Outcome, Real, Sizes, Vector};
use crate::require;
use core::ffi::{CStr, c_char, c_void};
use hip_sys::hipStream_t;
use rocblas_sys::*;

/// rocBLAS's function table for a provider.
pub fn table<H: Handle>() -> Rocblas {
    Rocblas {
        rocblas_create_handle: rocblas_create_handle::<H>,
        rocblas_destroy_handle: rocblas_destroy_handle::<H>,
        rocblas_set_stream: rocblas_set_stream::<H>,
        rocblas_get_stream: rocblas_get_stream::<H>,
        rocblas_set_pointer_mode: rocblas_set_pointer_mode::<H>,
        rocblas_set_atomics_mode: rocblas_set_atomics_mode::<H>,
        rocblas_initialize,
        rocblas_status_to_string,
        rocblas_get_version_string_size: rocblas_get_version_string_size::<H>,
        rocblas_get_version_string: rocblas_get_version_string::<H>,
        rocblas_set_workspace: rocblas_set_workspace::<H>,
        rocblas_sgemm: gemm::<f32, H>,
        rocblas_dgemm: gemm::<f64, H>,
        rocblas_sgemm_strided_batched: gemm_strided_batched::<f32, H>,
        rocblas_dgemm_strided_batched: gemm_strided_batched::<f64, H>,
        rocblas_gemm_ex: rocblas_gemm_ex::<H>,
        rocblas_gemm_strided_batched_ex: rocblas_gemm_strided_batched_ex::<H>,
        rocblas_sgemv: gemv::<f32, H>,
        rocblas_dgemv: gemv::<f64, H>,
        rocblas_sgeam: geam::<f32, H>,
        rocblas_dgeam: geam::<f64, H>,
        rocblas_sgeam_strided_batched: geam_strided_batched::<f32, H>,
        rocblas_dgeam_strided_batched: geam_strided_batched::<f64, H>,
        rocblas_gemm_strided_batched_ex_get_solutions: Some(
            rocblas_gemm_strided_batched_ex_get_solutions::<H>,
        ),
    }
}

fn status(body: impl FnOnce() -> Outcome) -> rocblas_status {
    crate::boundary(rocblas_status_success, rocblas_status_internal_error, body)
}

/// Runs a call with its handle.
///
/// # Safety
/// A non-null `handle` came from `rocblas_create_handle` and is not destroyed.
unsafe fn with<H: Handle>(handle: rocblas_handle, body: impl FnOnce(&mut H) -> Outcome) -> rocblas_status {
    status(|| {
        // SAFETY: the caller vouches for the handle; rocBLAS allows one thread at a time to use it.
        let handle = unsafe { handle.cast::<H>().as_mut() }.ok_or(rocblas_status_invalid_handle)?;
        handle.ready()?;
        body(handle)
    })
}

unsafe extern "C" fn rocblas_create_handle<H: Handle>(handle: *mut rocblas_handle) -> rocblas_status {
    status(|| {
        require(!handle.is_null(), rocblas_status_invalid_handle)?;
        let own = Box::new(H::create()?);
        // SAFETY: the caller's out-pointer.
        unsafe { handle.write(Box::into_raw(own).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn rocblas_destroy_handle<H: Handle>(handle: rocblas_handle) -> rocblas_status {
    status(|| {
        require(!handle.is_null(), rocblas_status_invalid_handle)?;
        // SAFETY: `rocblas_create_handle` made the handle, and the caller uses it in no other
        // thread meanwhile.
        unsafe { &mut *handle.cast::<H>() }.ready()?;
        // SAFETY: as above; the caller does not use the handle after this succeeds.
        let own = unsafe { Box::from_raw(handle.cast::<H>()) };
        own.destroy()
    })
}

unsafe extern "C" fn rocblas_set_stream<H: Handle>(
    handle: rocblas_handle,
    stream: hipStream_t,
) -> rocblas_status {
    // SAFETY: the caller's handle and stream.
    unsafe { with::<H>(handle, |handle| handle.set_stream(stream)) }
}

unsafe extern "C" fn rocblas_get_stream<H: Handle>(
    handle: rocblas_handle,
    stream: *mut hipStream_t,
) -> rocblas_status {
    // SAFETY: the caller's handle and out-pointer.
    unsafe {
        with::<H>(handle, |handle| {
            require(!stream.is_null(), rocblas_status_invalid_pointer)?;
            stream.write(handle.stream());
            Ok(())
        })
    }
}

unsafe extern "C" fn rocblas_set_pointer_mode<H: Handle>(
    handle: rocblas_handle,
    pointer_mode: rocblas_pointer_mode,
) -> rocblas_status {
    // SAFETY: the caller's handle.
    unsafe {
        with::<H>(handle, |handle| {
            require(pointer_mode.name().is_some(), rocblas_status_invalid_value)?;
            handle.set_scalars_on_host(pointer_mode == rocblas_pointer_mode_host)
        })
    }
}

unsafe extern "C" fn rocblas_set_atomics_mode<H: Handle>(
    handle: rocblas_handle,
    atomics_mode: rocblas_atomics_mode,
) -> rocblas_status {
    // SAFETY: the caller's handle.
    unsafe {
        with::<H>(handle, |handle| {
            require(atomics_mode.name().is_some(), rocblas_status_invalid_value)?;
            handle.allow_atomics(atomics_mode == rocblas_atomics_allowed)
        })
    }
}

unsafe extern "C" fn rocblas_set_workspace<H: Handle>(
    handle: rocblas_handle,
    addr: *mut c_void,
    size: usize,
) -> rocblas_status {
    // SAFETY: the caller's handle and memory.
    unsafe {
        with::<H>(handle, |handle| {
            // Without an address or a size the library manages its own workspace.
            let own = addr.is_null() || size == 0;
            if own {
                handle.set_workspace(core::ptr::null_mut(), 0)
            } else {
                handle.set_workspace(addr, size)
            }
        })
    }
}

unsafe extern "C" fn rocblas_initialize() {}

unsafe extern "C" fn rocblas_status_to_string(status: rocblas_status) -> *const c_char {
    let text: &CStr = match status {
        rocblas_status_success => c"rocblas_status_success",
        rocblas_status_invalid_handle => c"rocblas_status_invalid_handle",
        rocblas_status_not_implemented => c"rocblas_status_not_implemented",
        rocblas_status_invalid_pointer => c"rocblas_status_invalid_pointer",
        rocblas_status_invalid_size => c"rocblas_status_invalid_size",
        rocblas_status_memory_error => c"rocblas_status_memory_error",
        rocblas_status_internal_error => c"rocblas_status_internal_error",
        rocblas_status_perf_degraded => c"rocblas_status_perf_degraded",
        rocblas_status_size_query_mismatch => c"rocblas_status_size_query_mismatch",
        rocblas_status_size_increased => c"rocblas_status_size_increased",
        rocblas_status_size_unchanged => c"rocblas_status_size_unchanged",
        rocblas_status_invalid_value => c"rocblas_status_invalid_value",
        rocblas_status_continue => c"rocblas_status_continue",
        rocblas_status_check_numerics_fail => c"rocblas_status_check_numerics_fail",
        rocblas_status_excluded_from_build => c"rocblas_status_excluded_from_build",
        rocblas_status_arch_mismatch => c"rocblas_status_arch_mismatch",
        _ => c"<undefined rocblas_status value>",
    };
    text.as_ptr()
}

unsafe extern "C" fn rocblas_get_version_string_size<H: Handle>(len: *mut usize) -> rocblas_status {
    status(|| {
        require(!len.is_null(), rocblas_status_invalid_pointer)?;
        // SAFETY: the caller's out-pointer.
        unsafe { len.write(H::version().to_bytes_with_nul().len()) };
        Ok(())
    })
}

unsafe extern "C" fn rocblas_get_version_string<H: Handle>(buf: *mut c_char, len: usize) -> rocblas_status {
    status(|| {
        let text = H::version().to_bytes_with_nul();
        require(!buf.is_null(), rocblas_status_invalid_pointer)?;
        require(len >= text.len(), rocblas_status_invalid_size)?;
        // SAFETY: the caller's buffer of `len` bytes.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), text.len()) };
        Ok(())
    })
}

/// The types of plain BLAS functions: f32 and f64.
trait Float: Copy + PartialEq + From<i8> {}
impl Float for f32 {}
impl Float for f64 {}

#[rustfmt::skip] // One line of arguments a matrix.
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn gemm<T: Float, H: Handle + Real<T>>(
    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: i32, n: i32, k: i32,
    alpha: *const T, A: *const T, lda: i32, B: *const T, ldb: i32, beta: *const T, C: *mut T, ldc: i32,
) -> rocblas_status {
    // SAFETY: the caller's handle, scalars and buffers.
    unsafe {
        gemm_strided_batched::<T, H>(
            handle, transA, transB, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta, C, ldc, 0, 1,
        )
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn gemm_strided_batched<T: Float, H: Handle + Real<T>>(
    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: i32, n: i32, k: i32,
    alpha: *const T, A: *const T, lda: i32, stride_a: i64, B: *const T, ldb: i32, stride_b: i64,
    beta: *const T, C: *mut T, ldc: i32, stride_c: i64, batch_count: i32,
) -> rocblas_status {
    let sizes = Sizes {
        a: transA, b: transB, m, n, k, lda, ldb, ldc, ldd: ldc, stride_a, stride_b, stride_c,
        stride_d: stride_c, batch: batch_count,
    };
    let mut call = Gemm {
        sizes, alpha: alpha.cast(), a: A.cast(), b: B.cast(), beta: beta.cast(), c: C.cast_const().cast(),
        d: C.cast(), flags: 0, solution: 0, reads: false, keeps: false,
    };
    // SAFETY: the caller's handle, scalars and buffers, which are checked.
    unsafe {
        with::<H>(handle, |handle| {
            handle.compute(|handle| match call.check_plain::<T, H>(handle)? {
                true => Real::<T>::gemm(handle, &call),
                false => Ok(()),
            })
        })
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn rocblas_gemm_ex<H: Handle>(
    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: i32, n: i32, k: i32,
    alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype, lda: i32,
    b: *const c_void, b_type: rocblas_datatype, ldb: i32, beta: *const c_void,
    c: *const c_void, c_type: rocblas_datatype, ldc: i32, d: *mut c_void, d_type: rocblas_datatype, ldd: i32,
    compute_type: rocblas_datatype, algo: rocblas_gemm_algo, solution_index: i32, flags: u32,
) -> rocblas_status {
    // SAFETY: the caller's handle, scalars and buffers.
    unsafe {
        rocblas_gemm_strided_batched_ex::<H>(
            handle, transA, transB, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0, beta, c, c_type, ldc, 0,
            d, d_type, ldd, 0, 1, compute_type, algo, solution_index, flags,
        )
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn rocblas_gemm_strided_batched_ex<H: Handle>(
    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: i32, n: i32, k: i32,
    alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype, lda: i32, stride_a: i64,
    b: *const c_void, b_type: rocblas_datatype, ldb: i32, stride_b: i64, beta: *const c_void,
    c: *const c_void, c_type: rocblas_datatype, ldc: i32, stride_c: i64,
    d: *mut c_void, d_type: rocblas_datatype, ldd: i32, stride_d: i64, batch_count: i32,
    compute_type: rocblas_datatype, algo: rocblas_gemm_algo, solution_index: i32, flags: u32,
) -> rocblas_status {
    let sizes = Sizes {
        a: transA, b: transB, m, n, k, lda, ldb, ldc, ldd, stride_a, stride_b, stride_c, stride_d,
        batch: batch_count,
    };
    let mut call = Gemm { sizes, alpha, a, b, beta, c, d, flags, solution: 0, reads: false, keeps: false };
    // SAFETY: the caller's handle, scalars and buffers, which are checked.
    unsafe {
        with::<H>(handle, |handle| {
            handle.compute(|handle| {
                require(algo.name().is_some(), rocblas_status_invalid_value)?;
                let Some(types) = call.check_ex(handle, [a_type, b_type, c_type, d_type, compute_type])? else {
                    return Ok(());
                };
                if algo == rocblas_gemm_algo_solution_index && ![0, -1].contains(&solution_index) {
                    let known = H::solutions(&call, types).contains(&solution_index);
                    require(known, rocblas_status_invalid_value)?;
                    call.solution = solution_index;
                }
                handle.gemm_ex(&call, types)
            })
        })
    }
}

/// Fills in the number of solutions, or as many of them as there is room for.
#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn rocblas_gemm_strided_batched_ex_get_solutions<H: Handle>(
    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: i32, n: i32, k: i32,
    alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype, lda: i32, stride_a: i64,
    b: *const c_void, b_type: rocblas_datatype, ldb: i32, stride_b: i64, beta: *const c_void,
    c: *const c_void, c_type: rocblas_datatype, ldc: i32, stride_c: i64,
    d: *mut c_void, d_type: rocblas_datatype, ldd: i32, stride_d: i64, batch_count: i32,
    compute_type: rocblas_datatype, algo: rocblas_gemm_algo, flags: u32,
    list_array: *mut i32, list_size: *mut i32,
) -> rocblas_status {
    let sizes = Sizes {
        a: transA, b: transB, m, n, k, lda, ldb, ldc, ldd, stride_a, stride_b, stride_c, stride_d,
        batch: batch_count,
    };
    let mut call = Gemm { sizes, alpha, a, b, beta, c, d, flags, solution: 0, reads: false, keeps: false };
    // SAFETY: the caller's handle, scalars and buffers, which are checked, and its list.
    unsafe {
        with::<H>(handle, |handle| {
            require(!list_size.is_null(), rocblas_status_invalid_pointer)?;
            require(algo.name().is_some(), rocblas_status_invalid_value)?;
            let types = call.check_ex(handle, [a_type, b_type, c_type, d_type, compute_type])?;
            let all = types.map_or(&[][..], |types| H::solutions(&call, types));
            if list_array.is_null() {
                list_size.write(all.len() as i32);
                return Ok(());
            }
            let room = usize::try_from(list_size.read()).map_err(|_| rocblas_status_invalid_size)?;
            for (at, &solution) in all.iter().take(room).enumerate() {
                list_array.add(at).write(solution);
            }
            Ok(())
        })
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn gemv<T: Float, H: Handle + Real<T>>(
    handle: rocblas_handle, trans: rocblas_operation, m: i32, n: i32, alpha: *const T, A: *const T, lda: i32,
    x: *const T, incx: i32, beta: *const T, y: *mut T, incy: i32,
) -> rocblas_status {
    let (x, y) = (Vector { at: x, increment: incx }, Vector { at: y, increment: incy });
    let mut call = Gemv { trans, m, n, alpha, a: A, lda, x, beta, y, reads: false };
    // SAFETY: the caller's handle, scalars and buffers, which are checked.
    unsafe {
        with::<H>(handle, |handle| {
            handle.compute(|handle| match call.check(handle)? {
                true => handle.gemv(&call),
                false => Ok(()),
            })
        })
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn geam<T: Float, H: Handle + Real<T>>(
    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: i32, n: i32,
    alpha: *const T, A: *const T, lda: i32, beta: *const T, B: *const T, ldb: i32, C: *mut T, ldc: i32,
) -> rocblas_status {
    // SAFETY: the caller's handle, scalars and buffers.
    unsafe {
        geam_strided_batched::<T, H>(
            handle, transA, transB, m, n, alpha, A, lda, 0, beta, B, ldb, 0, C, ldc, 0, 1,
        )
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
unsafe extern "C" fn geam_strided_batched<T: Float, H: Handle + Real<T>>(
    handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: i32, n: i32,
    alpha: *const T, A: *const T, lda: i32, stride_A: i64, beta: *const T, B: *const T, ldb: i32, stride_B: i64,
    C: *mut T, ldc: i32, stride_C: i64, batch_count: i32,
) -> rocblas_status {
    let mut call = Geam {
        trans: [transA, transB],
        m,
        n,
        factors: [alpha, beta],
        operands: [Matrix { at: A, ld: lda, stride: stride_A }, Matrix { at: B, ld: ldb, stride: stride_B }],
        c: Matrix { at: C, ld: ldc, stride: stride_C },
        batch: batch_count,
        reads: [false; 2],
    };
    // SAFETY: the caller's handle, scalars and buffers, which are checked.
    unsafe {
        with::<H>(handle, |handle| {
            handle.compute(|handle| match call.check(handle)? {
                true => handle.geam(&call),
                false => Ok(()),
            })
        })
    }
}
