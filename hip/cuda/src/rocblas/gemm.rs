//! Products of matrices.

use super::handle::{Handle, Outcome, answer, require, with};
use crate::own_kernels;
use crate::runtime::{from_cuda, is_device_memory};
use core::ffi::c_void;
use cudarc::cublas::sys as cublas;
use cudarc::driver::sys as cuda;
use rocblas_sys::*;

/// The sizes of a call; `A` is `m x k` after its operation, `B` is `k x n`.
#[derive(Clone, Copy)]
struct Sizes {
    a: rocblas_operation,
    b: rocblas_operation,
    m: i32,
    n: i32,
    k: i32,
    lda: i32,
    ldb: i32,
    ldc: i32,
    ldd: i32,
    stride_a: i64,
    stride_b: i64,
    stride_c: i64,
    stride_d: i64,
    batch: i32,
}

/// cuBLAS's word for an operation.
pub(super) fn operation(operation: rocblas_operation) -> Outcome<cublas::cublasOperation_t> {
    Ok(match operation {
        rocblas_operation_none => cublas::cublasOperation_t::CUBLAS_OP_N,
        rocblas_operation_transpose => cublas::cublasOperation_t::CUBLAS_OP_T,
        rocblas_operation_conjugate_transpose => cublas::cublasOperation_t::CUBLAS_OP_C,
        _ => return Err(rocblas_status_invalid_value),
    })
}

/// Refuses a batch of matrices of `size`-byte elements that is not memory of the runtime's.
pub(super) fn check_memory(
    pointer: *const c_void,
    size: usize,
    (rows, columns): (i32, i32),
    ld: i32,
    stride: i64,
    batch: i32,
) -> Outcome {
    let overflow = || rocblas_status_invalid_size;
    let own = (i64::from(columns) - 1) * i64::from(ld) + i64::from(rows) - 1;
    let far = stride.checked_mul(i64::from(batch) - 1).ok_or_else(overflow)?;
    let last = own.checked_add(far.max(0)).ok_or_else(overflow)?;
    let first = far.min(0);
    let elements = usize::try_from(last - first + 1).unwrap_or(0);
    let start = pointer.cast::<u8>().wrapping_offset(first as isize * size as isize);
    let bytes = elements.checked_mul(size).ok_or_else(overflow)?;
    require(is_device_memory(start.cast(), bytes), rocblas_status_invalid_pointer)
}

impl Sizes {
    /// rocBLAS's checks that need no pointer; `false` where there is nothing to compute.
    fn check(&self) -> Outcome<bool> {
        require(self.a.name().is_some() && self.b.name().is_some(), rocblas_status_invalid_value)?;
        let sizes = [self.m, self.n, self.k, self.batch];
        require(sizes.iter().all(|&size| size >= 0), rocblas_status_invalid_size)?;
        let (a, b) = (self.stored_a(), self.stored_b());
        let fits = self.lda >= a.0 && self.ldb >= b.0 && self.ldc >= self.m && self.ldd >= self.m;
        require(fits, rocblas_status_invalid_size)?;
        Ok(self.m > 0 && self.n > 0 && self.batch > 0)
    }

    /// Rows and columns of `A` in memory.
    fn stored_a(&self) -> (i32, i32) {
        if self.a == rocblas_operation_none { (self.m, self.k) } else { (self.k, self.m) }
    }

    /// Rows and columns of `B` in memory.
    fn stored_b(&self) -> (i32, i32) {
        if self.b == rocblas_operation_none { (self.k, self.n) } else { (self.n, self.k) }
    }

    /// rocBLAS's checks of pointers. `false` where nothing changes. `zero` and `one` tell of a scalar in the call's
    /// type.
    ///
    /// # Safety
    /// Scalars on the host are readable where not null.
    #[allow(clippy::too_many_arguments, reason = "a call's pointers")]
    unsafe fn check_pointers(
        &self,
        handle: &Handle,
        alpha: *const c_void,
        a: *const c_void,
        b: *const c_void,
        beta: *const c_void,
        c: *const c_void,
        d: *const c_void,
        (input, output): (usize, usize),
        is: impl Fn(*const c_void, f32) -> bool,
    ) -> Outcome<bool> {
        require((self.k == 0 || !alpha.is_null()) && !beta.is_null(), rocblas_status_invalid_pointer)?;
        let on_host = handle.scalars_on_host;
        let reads = self.k > 0 && !(on_host && is(alpha, 0.0));
        let keeps = !(on_host && is(beta, 0.0));
        if !reads && on_host && is(beta, 1.0) && core::ptr::eq(c, d) {
            return Ok(false);
        }
        let present = (!reads || (!a.is_null() && !b.is_null())) && (!keeps || !c.is_null()) && !d.is_null();
        require(present, rocblas_status_invalid_pointer)?;
        if reads {
            check_memory(a, input, self.stored_a(), self.lda, self.stride_a, self.batch)?;
            check_memory(b, input, self.stored_b(), self.ldb, self.stride_b, self.batch)?;
        }
        if keeps {
            check_memory(c, output, (self.m, self.n), self.ldc, self.stride_c, self.batch)?;
        }
        check_memory(d, output, (self.m, self.n), self.ldd, self.stride_d, self.batch)?;
        Ok(true)
    }
}

macro_rules! gemms {
    ($($plain:ident $batched:ident $cublas:ident $cublas_batched:ident $t:ty;)+) => { $(
        pub(super) unsafe extern "C" fn $plain(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, k: rocblas_int, alpha: *const $t, A: *const $t, lda: rocblas_int, B: *const $t,
            ldb: rocblas_int, beta: *const $t, C: *mut $t, ldc: rocblas_int,
        ) -> rocblas_status {
            // SAFETY: the caller's handle, scalars and buffers.
            unsafe { $batched(handle, transA, transB, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta, C, ldc, 0, 1) }
        }

        pub(super) unsafe extern "C" fn $batched(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, k: rocblas_int, alpha: *const $t, A: *const $t, lda: rocblas_int,
            stride_a: rocblas_stride, B: *const $t, ldb: rocblas_int, stride_b: rocblas_stride, beta: *const $t,
            C: *mut $t, ldc: rocblas_int, stride_c: rocblas_stride, batch_count: rocblas_int,
        ) -> rocblas_status {
            let sizes = Sizes {
                a: transA, b: transB, m, n, k, lda, ldb, ldc, ldd: ldc, stride_a, stride_b, stride_c,
                stride_d: stride_c, batch: batch_count,
            };
            // SAFETY: the caller's handle, scalars and buffers, which were checked.
            unsafe { with(handle, |handle| {
                if !sizes.check()? {
                    return Ok(());
                }
                let is = |scalar: *const c_void, value: f32| *scalar.cast::<$t>() == <$t>::from(value);
                let bytes = (size_of::<$t>(), size_of::<$t>());
                let c = C.cast_const().cast();
                if !sizes.check_pointers(
                    handle, alpha.cast(), A.cast(), B.cast(), beta.cast(), c, c, bytes, is,
                )? {
                    return Ok(());
                }
                // Nothing is read through it where k is 0, but cuBLAS wants one.
                let unused: $t = 0.0;
                let alpha = if alpha.is_null() { &raw const unused } else { alpha };
                let (ta, tb) = (operation(transA)?, operation(transB)?);
                let (lda, ldb) = (lda.max(1), ldb.max(1));
                answer(if batch_count == 1 {
                    cublas::$cublas(handle.raw, ta, tb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc)
                } else {
                    cublas::$cublas_batched(
                        handle.raw, ta, tb, m, n, k, alpha, A, lda, stride_a, B, ldb, stride_b, beta, C, ldc,
                        stride_c, batch_count,
                    )
                })
            }) }
        }
    )+ };
}
gemms! {
    rocblas_sgemm rocblas_sgemm_strided_batched cublasSgemm_v2 cublasSgemmStridedBatched f32;
    rocblas_dgemm rocblas_dgemm_strided_batched cublasDgemm_v2 cublasDgemmStridedBatched f64;
}

/// What a scalar of a call is.
#[derive(Clone, Copy, PartialEq)]
enum Scalar {
    F16,
    F32,
    F64,
    I32,
}

/// The types of a call, for cuBLAS.
#[derive(Clone, Copy)]
struct Types {
    input: (cublas::cudaDataType, usize),
    output: (cublas::cudaDataType, usize),
    compute: cublas::cublasComputeType_t,
    scalar: Scalar,
}

impl Types {
    fn of(input: rocblas_datatype, output: rocblas_datatype, compute: rocblas_datatype) -> Outcome<Self> {
        use cublas::cublasComputeType_t::*;
        use cublas::cudaDataType_t::*;
        let (input, output, compute, scalar) = match (input, output, compute) {
            (rocblas_datatype_f32_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r) => {
                ((CUDA_R_32F, 4), (CUDA_R_32F, 4), CUBLAS_COMPUTE_32F, Scalar::F32)
            }
            (rocblas_datatype_f64_r, rocblas_datatype_f64_r, rocblas_datatype_f64_r) => {
                ((CUDA_R_64F, 8), (CUDA_R_64F, 8), CUBLAS_COMPUTE_64F, Scalar::F64)
            }
            (rocblas_datatype_f16_r, rocblas_datatype_f16_r, rocblas_datatype_f32_r) => {
                ((CUDA_R_16F, 2), (CUDA_R_16F, 2), CUBLAS_COMPUTE_32F, Scalar::F32)
            }
            (rocblas_datatype_f16_r, rocblas_datatype_f16_r, rocblas_datatype_f16_r) => {
                ((CUDA_R_16F, 2), (CUDA_R_16F, 2), CUBLAS_COMPUTE_16F, Scalar::F16)
            }
            (rocblas_datatype_f16_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r) => {
                ((CUDA_R_16F, 2), (CUDA_R_32F, 4), CUBLAS_COMPUTE_32F, Scalar::F32)
            }
            (rocblas_datatype_bf16_r, rocblas_datatype_bf16_r, rocblas_datatype_f32_r) => {
                ((CUDA_R_16BF, 2), (CUDA_R_16BF, 2), CUBLAS_COMPUTE_32F, Scalar::F32)
            }
            (rocblas_datatype_bf16_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r) => {
                ((CUDA_R_16BF, 2), (CUDA_R_32F, 4), CUBLAS_COMPUTE_32F, Scalar::F32)
            }
            (rocblas_datatype_i8_r, rocblas_datatype_i32_r, rocblas_datatype_i32_r) => {
                ((CUDA_R_8I, 1), (CUDA_R_32I, 4), CUBLAS_COMPUTE_32I, Scalar::I32)
            }
            _ => return Err(rocblas_status_not_implemented),
        };
        Ok(Self { input, output, compute, scalar })
    }
}

impl Scalar {
    /// Whether a scalar in host memory has this value.
    ///
    /// # Safety
    /// It is readable, as this type.
    unsafe fn is(self, at: *const c_void, value: f32) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match self {
                // 0 and 1 in binary16; minus 0 is 0.
                Self::F16 => {
                    let bits = at.cast::<u16>().read_unaligned();
                    if value == 0.0 { bits & 0x7fff == 0 } else { bits == 0x3c00 }
                }
                Self::F32 => at.cast::<f32>().read_unaligned() == value,
                Self::F64 => at.cast::<f64>().read_unaligned() == f64::from(value),
                Self::I32 => at.cast::<i32>().read_unaligned() == value as i32,
            }
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn rocblas_gemm_ex(
    handle: rocblas_handle,
    transA: rocblas_operation,
    transB: rocblas_operation,
    m: rocblas_int,
    n: rocblas_int,
    k: rocblas_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: rocblas_datatype,
    lda: rocblas_int,
    b: *const c_void,
    b_type: rocblas_datatype,
    ldb: rocblas_int,
    beta: *const c_void,
    c: *const c_void,
    c_type: rocblas_datatype,
    ldc: rocblas_int,
    d: *mut c_void,
    d_type: rocblas_datatype,
    ldd: rocblas_int,
    compute_type: rocblas_datatype,
    algo: rocblas_gemm_algo,
    solution_index: i32,
    flags: u32,
) -> rocblas_status {
    // SAFETY: the caller's handle, scalars and buffers.
    unsafe {
        rocblas_gemm_strided_batched_ex(
            handle,
            transA,
            transB,
            m,
            n,
            k,
            alpha,
            a,
            a_type,
            lda,
            0,
            b,
            b_type,
            ldb,
            0,
            beta,
            c,
            c_type,
            ldc,
            0,
            d,
            d_type,
            ldd,
            0,
            1,
            compute_type,
            algo,
            solution_index,
            flags,
        )
    }
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn rocblas_gemm_strided_batched_ex(
    handle: rocblas_handle,
    transA: rocblas_operation,
    transB: rocblas_operation,
    m: rocblas_int,
    n: rocblas_int,
    k: rocblas_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: rocblas_datatype,
    lda: rocblas_int,
    stride_a: rocblas_stride,
    b: *const c_void,
    b_type: rocblas_datatype,
    ldb: rocblas_int,
    stride_b: rocblas_stride,
    beta: *const c_void,
    c: *const c_void,
    c_type: rocblas_datatype,
    ldc: rocblas_int,
    stride_c: rocblas_stride,
    d: *mut c_void,
    d_type: rocblas_datatype,
    ldd: rocblas_int,
    stride_d: rocblas_stride,
    batch_count: rocblas_int,
    compute_type: rocblas_datatype,
    _algo: rocblas_gemm_algo,
    _solution_index: i32,
    _flags: u32,
) -> rocblas_status {
    let sizes = Sizes {
        a: transA,
        b: transB,
        m,
        n,
        k,
        lda,
        ldb,
        ldc,
        ldd,
        stride_a,
        stride_b,
        stride_c,
        stride_d,
        batch: batch_count,
    };
    let body = |handle: &mut Handle| {
        if !sizes.check()? {
            return Ok(());
        }
        // In place only where both are laid out alike.
        let in_place = !c.is_null() && core::ptr::eq(c, d);
        require(!in_place || (ldc == ldd && stride_c == stride_d), rocblas_status_invalid_value)?;
        require(a_type == b_type && c_type == d_type, rocblas_status_not_implemented)?;
        let types = Types::of(a_type, c_type, compute_type)?;
        // SAFETY: the caller's scalars, of the compute type.
        let is = |scalar: *const c_void, value: f32| unsafe { types.scalar.is(scalar, value) };
        let bytes = (types.input.1, types.output.1);
        // SAFETY: as above.
        if !unsafe { sizes.check_pointers(handle, alpha, a, b, beta, c, d, bytes, is) }? {
            return Ok(());
        }
        let zero = 0u64;
        let alpha = if alpha.is_null() { (&raw const zero).cast() } else { alpha };
        if types.scalar == Scalar::I32 && !aligned(&sizes, [a, b]) {
            // SAFETY: the buffers were checked.
            return unsafe { integer_product(handle, &sizes, alpha, a, b, beta, c, d) };
        }
        let ignored = handle.scalars_on_host && is(beta, 0.0);
        if !in_place && !ignored {
            // SAFETY: the buffers were checked.
            unsafe { copy_matrices(handle, &sizes, types.output.1, c, d) }?;
        }
        let (ta, tb) = (operation(transA)?, operation(transB)?);
        let algo = cublas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
        let compute = match types.compute {
            cublas::cublasComputeType_t::CUBLAS_COMPUTE_32F
                if crate::settings::tf32() && a_type == rocblas_datatype_f32_r =>
            {
                cublas::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
            }
            other => other,
        };
        let (input, output) = (types.input.0, types.output.0);
        let (lda, ldb) = (lda.max(1), ldb.max(1));
        // SAFETY: the handle is alive, the buffers were checked, the scalars are the caller's.
        answer(unsafe {
            if batch_count == 1 {
                cublas::cublasGemmEx(
                    handle.raw, ta, tb, m, n, k, alpha, a, input, lda, b, input, ldb, beta, d, output, ldd,
                    compute, algo,
                )
            } else {
                cublas::cublasGemmStridedBatchedEx(
                    handle.raw,
                    ta,
                    tb,
                    m,
                    n,
                    k,
                    alpha,
                    a,
                    input,
                    lda,
                    stride_a,
                    b,
                    input,
                    ldb,
                    stride_b,
                    beta,
                    d,
                    output,
                    ldd,
                    stride_d,
                    batch_count,
                    compute,
                    algo,
                )
            }
        })
    };
    // SAFETY: the caller's handle.
    unsafe { with(handle, body) }
}

/// Whether cuBLAS takes these 8-bit operands: at addresses and distances that are multiples of 4.
fn aligned(sizes: &Sizes, operands: [*const c_void; 2]) -> bool {
    let distances = [sizes.lda.into(), sizes.ldb.into(), sizes.ldd.into(), sizes.stride_a, sizes.stride_b];
    let all = [sizes.m, sizes.n, sizes.k].iter().all(|size| size % 4 == 0);
    all && distances.iter().all(|distance: &i64| distance % 4 == 0)
        && operands.iter().all(|operand| (*operand as usize).is_multiple_of(4))
}

/// `own.cu`'s.
#[repr(C)]
struct IntegerProduct {
    sizes: [i32; 4],
    distances: [i64; 10],
    alpha: i32,
    beta: i32,
}

/// # Safety
/// The buffers hold what `sizes` says, the scalars are readable i32s.
#[allow(clippy::too_many_arguments, reason = "a call's pointers")]
unsafe fn integer_product(
    handle: &Handle,
    sizes: &Sizes,
    alpha: *const c_void,
    a: *const c_void,
    b: *const c_void,
    beta: *const c_void,
    c: *const c_void,
    d: *mut c_void,
) -> Outcome {
    require(handle.scalars_on_host, rocblas_status_not_implemented)?;
    let strides = |operation, ld: i32| {
        if operation == rocblas_operation_none { (1, i64::from(ld)) } else { (i64::from(ld), 1) }
    };
    let ((a_row, a_column), (b_row, b_column)) = (strides(sizes.a, sizes.lda), strides(sizes.b, sizes.ldb));
    // SAFETY: the caller's scalars.
    let (alpha, beta) =
        unsafe { (alpha.cast::<i32>().read_unaligned(), beta.cast::<i32>().read_unaligned()) };
    let mut product = IntegerProduct {
        sizes: [sizes.m, sizes.n, sizes.k, sizes.batch],
        distances: [
            a_row,
            a_column,
            sizes.stride_a,
            b_row,
            b_column,
            sizes.stride_b,
            sizes.ldc.into(),
            sizes.stride_c,
            sizes.ldd.into(),
            sizes.stride_d,
        ],
        alpha,
        beta,
    };
    let (mut a, mut b, mut c, mut d) = (a, b, c, d);
    let items = sizes.m as u64 * sizes.n as u64 * sizes.batch as u64;
    let mut arguments = [
        (&raw mut product).cast(),
        (&raw mut a).cast(),
        (&raw mut b).cast(),
        (&raw mut c).cast(),
        (&raw mut d).cast(),
    ];
    // SAFETY: the kernel's arguments; the buffers hold what the sizes say, by the caller's word.
    unsafe { own_kernels::launch("gemm_i8", items, handle.stream, &mut arguments) }
        .map_err(|_| rocblas_status_internal_error)
}

/// Copies `c` to `d`, whose leading dimensions may differ: cuBLAS adds in place.
///
/// # Safety
/// Both hold what `sizes` says.
unsafe fn copy_matrices(
    handle: &Handle,
    sizes: &Sizes,
    size: usize,
    c: *const c_void,
    d: *mut c_void,
) -> Outcome {
    for batch in 0..i64::from(sizes.batch) {
        let at = |base: *const c_void, stride: i64| (base as i64 + batch * stride * size as i64) as u64;
        // SAFETY: plain numbers, for which zero is valid.
        let mut copy: cuda::CUDA_MEMCPY2D = unsafe { core::mem::zeroed() };
        copy.srcMemoryType = cuda::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE;
        copy.dstMemoryType = cuda::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = at(c, sizes.stride_c);
        copy.dstDevice = at(d, sizes.stride_d);
        copy.srcPitch = sizes.ldc as usize * size;
        copy.dstPitch = sizes.ldd as usize * size;
        copy.WidthInBytes = sizes.m as usize * size;
        copy.Height = sizes.n as usize;
        // SAFETY: inside both, by the caller's word; the driver reads the description before it returns.
        from_cuda(unsafe { cuda::cuMemcpy2DAsync_v2(&copy, handle.stream.cast()) })
            .map_err(|_| rocblas_status_internal_error)?;
    }
    Ok(())
}
