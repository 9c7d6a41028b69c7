//! Products of matrices.

use super::handle::{Handle, answer};
use crate::own_kernels;
use crate::runtime::from_cuda;
use core::ffi::c_void;
use cudarc::cublas::sys as cublas;
use cudarc::driver::sys as cuda;
use hip_provider::require;
use hip_provider::rocblas::{Gemm, Mixed, Outcome, Sizes, Types};
use rocblas_sys::*;

/// cuBLAS's value for an operation.
pub(super) fn operation(operation: rocblas_operation) -> cublas::cublasOperation_t {
    match operation {
        rocblas_operation_none => cublas::cublasOperation_t::CUBLAS_OP_N,
        rocblas_operation_transpose => cublas::cublasOperation_t::CUBLAS_OP_T,
        _ => cublas::cublasOperation_t::CUBLAS_OP_C,
    }
}

/// cuBLAS's types of the operands, the results and the sums.
fn raw(types: Types) -> (cublas::cudaDataType, cublas::cudaDataType, cublas::cublasComputeType_t) {
    use cublas::cublasComputeType_t::*;
    use cublas::cudaDataType_t::*;
    match types {
        Types::F32 if crate::settings::tf32() => (CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32),
        Types::F32 => (CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F),
        Types::F64 => (CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F),
        Types::F16 => (CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F),
        Types::F16InF16 => (CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F),
        Types::F16ToF32 => (CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F),
        Types::Bf16 => (CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F),
        Types::Bf16ToF32 => (CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F),
        Types::I8 => (CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I),
    }
}

impl Mixed for Handle {
    unsafe fn gemm_ex(&mut self, call: &Gemm, types: Types) -> Outcome {
        let Gemm { sizes, alpha, a, b, beta, c, d, .. } = *call;
        if types == Types::I8 && !aligned(&sizes, [a, b]) {
            // SAFETY: the buffers were checked.
            return unsafe { integer_product(self, &sizes, alpha, a, b, beta, c, d) };
        }
        if !call.in_place() && call.keeps {
            // SAFETY: the buffers were checked.
            unsafe { copy_matrices(self, &sizes, types.bytes().1, c, d) }?;
        }
        let (ta, tb) = (operation(sizes.a), operation(sizes.b));
        let (input, output, compute) = raw(types);
        let algo = cublas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
        let Sizes { m, n, k, ldd, stride_a, stride_b, stride_d, batch, .. } = sizes;
        let (lda, ldb) = (sizes.lda.max(1), sizes.ldb.max(1));
        // SAFETY: the handle is alive, the buffers were checked, the scalars are the caller's.
        answer(unsafe {
            if batch == 1 {
                cublas::cublasGemmEx(
                    self.raw, ta, tb, m, n, k, alpha, a, input, lda, b, input, ldb, beta, d, output, ldd,
                    compute, algo,
                )
            } else {
                cublas::cublasGemmStridedBatchedEx(
                    self.raw, ta, tb, m, n, k, alpha, a, input, lda, stride_a, b, input, ldb, stride_b, beta,
                    d, output, ldd, stride_d, batch, compute, algo,
                )
            }
        })
    }
}

/// Whether cuBLAS accepts these 8-bit operands: sizes, strides and addresses must be multiples of
/// 4.
fn aligned(sizes: &Sizes, operands: [*const c_void; 2]) -> bool {
    let distances = [sizes.lda.into(), sizes.ldb.into(), sizes.ldd.into(), sizes.stride_a, sizes.stride_b];
    let all = [sizes.m, sizes.n, sizes.k].iter().all(|size| size % 4 == 0);
    all && distances.iter().all(|distance: &i64| distance % 4 == 0)
        && operands.iter().all(|operand| (*operand as usize).is_multiple_of(4))
}

/// `Gemm` of `own.cu`.
#[repr(C)]
struct IntegerProduct {
    sizes: [i32; 4],
    distances: [i64; 10],
    alpha: i32,
    beta: i32,
}

/// # Safety
/// The buffers hold what `sizes` says; the scalars are readable i32s.
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
    let (a_row, a_column) = Sizes::strides(sizes.a, sizes.lda);
    let (b_row, b_column) = Sizes::strides(sizes.b, sizes.ldb);
    // SAFETY: the caller's scalars.
    let (alpha, beta) =
        unsafe { (alpha.cast::<i32>().read_unaligned(), beta.cast::<i32>().read_unaligned()) };
    let mut product = IntegerProduct {
        sizes: [sizes.m, sizes.n, sizes.k, sizes.batch],
        distances: [
            a_row as i64,
            a_column as i64,
            sizes.stride_a,
            b_row as i64,
            b_column as i64,
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
    // SAFETY: the kernel's arguments. The caller vouches that the buffers hold what the sizes say.
    unsafe { own_kernels::launch("gemm_i8", items, handle.stream, &mut arguments) }
        .map_err(|_| rocblas_status_internal_error)
}

/// Copies `c` to `d`, because cuBLAS only adds in place. Their leading dimensions may differ.
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
        // SAFETY: the caller vouches for both buffers; the driver reads the description before it
        // returns.
        from_cuda(unsafe { cuda::cuMemcpy2DAsync_v2(&copy, handle.stream.cast()) })
            .map_err(|_| rocblas_status_internal_error)?;
    }
    Ok(())
}
