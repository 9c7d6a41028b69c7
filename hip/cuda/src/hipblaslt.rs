//! hipBLASLt, by cuBLASLt.

use crate::runtime::{ensure, is_device_memory, uncaptured};
use crate::settings::tf32;
use core::ffi::c_void;
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::sys as lt;
use hip_provider::hipblaslt::{Algorithm, Call, Outcome, Problem};
use hip_provider::require;
use hipblaslt_sys::*;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// The CUDA provider's hipBLASLt.
pub fn hipblaslt_table() -> Hipblaslt {
    hip_provider::hipblaslt::table::<Handle>()
}

/// What a `hipblasLtHandle_t` points to.
struct Handle(lt::cublasLtHandle_t);

impl Drop for Handle {
    fn drop(&mut self) {
        let _held = uncaptured();
        // SAFETY: cuBLASLt made the handle, and no other code uses it any more.
        if let Err(status) = answer(unsafe { lt::cublasLtDestroy(self.0) }) {
            log::warn!("cublasLtDestroy failed: {status:?}");
        }
    }
}

/// cuBLASLt's status as hipBLASLt's.
fn answer(status: lt::cublasStatus_t) -> Outcome {
    Err(match status as u32 {
        0 => return Ok(()),
        1 => HIPBLAS_STATUS_NOT_INITIALIZED,
        3 => HIPBLAS_STATUS_ALLOC_FAILED,
        7 => HIPBLAS_STATUS_INVALID_VALUE,
        8 => HIPBLAS_STATUS_ARCH_MISMATCH,
        13 => HIPBLAS_STATUS_EXECUTION_FAILED,
        15 => HIPBLAS_STATUS_NOT_SUPPORTED,
        _ => HIPBLAS_STATUS_INTERNAL_ERROR,
    })
}

/// The algorithms that this process knows, by number. An algorithm of hipBLASLt has room for 16
/// bytes and one of cuBLASLt has 64, so the former holds the number of the latter.
#[derive(Default)]
struct Known {
    all: Vec<lt::cublasLtMatmulAlgo_t>,
    numbers: HashMap<[u64; 8], u64>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// The number of an algorithm.
fn number(algorithm: lt::cublasLtMatmulAlgo_t) -> u64 {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let Known { all, numbers } = known.get_or_insert_default();
    *numbers.entry(algorithm.data).or_insert_with(|| {
        all.push(algorithm);
        all.len() as u64 - 1
    })
}

/// The algorithm of a number.
fn algorithm(number: u64) -> Outcome<lt::cublasLtMatmulAlgo_t> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known.as_ref().and_then(|known| known.all.get(usize::try_from(number).ok()?).copied());
    found.ok_or(HIPBLAS_STATUS_INVALID_VALUE)
}

/// The least alignment of matrices, in bytes. hipBLASLt does not ask for it; the backend gives it
/// matrices of at least this alignment.
const ALIGNED: u32 = 16;

/// cuBLASLt's type, if it has one. Both libraries have the same numbers.
fn datatype(ty: hipDataType) -> Outcome<lt::cudaDataType> {
    use lt::cudaDataType_t::*;
    Ok(match ty {
        HIP_R_32F => CUDA_R_32F,
        HIP_R_16F => CUDA_R_16F,
        HIP_R_16BF => CUDA_R_16BF,
        HIP_R_8F_E4M3 => CUDA_R_8F_E4M3,
        HIP_R_8F_E5M2 => CUDA_R_8F_E5M2,
        // FNUZ.
        _ => return Err(HIPBLAS_STATUS_NOT_SUPPORTED),
    })
}

/// cuBLASLt's descriptors of a problem, destroyed on drop.
struct Descriptors {
    desc: lt::cublasLtMatmulDesc_t,
    /// A, B, C and D.
    layouts: [lt::cublasLtMatrixLayout_t; 4],
}

impl Descriptors {
    fn new(
        problem: &Problem,
        scales: [*const c_void; 2],
        bias: *mut c_void,
        aux: *mut c_void,
    ) -> Outcome<Self> {
        use lt::cublasLtMatmulDescAttributes_t::*;
        let mut own = Self { desc: ptr::null_mut(), layouts: [ptr::null_mut(); 4] };
        let compute = match problem.ty {
            HIP_R_32F if tf32() && !problem.is_fp8() => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => lt::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let ty = datatype(problem.ty)?;
        let types = [datatype(problem.operands[0])?, datatype(problem.operands[1])?, ty, ty];
        // SAFETY: the functions are cuBLASLt's, and write a pointer each.
        unsafe {
            let scale = lt::cudaDataType_t::CUDA_R_32F;
            answer(lt::cublasLtMatmulDescCreate(&mut own.desc, compute, scale))?;
            let (a, b) = (problem.stored_a(), problem.stored_b());
            let sizes = [a, b, (problem.m, problem.n), (problem.m, problem.n)];
            let all = own.layouts.iter_mut().zip(sizes).zip(types).zip(problem.ld);
            for (((layout, (rows, cols)), ty), ld) in all {
                answer(lt::cublasLtMatrixLayoutCreate(layout, ty, rows as u64, cols as u64, ld))?;
            }
        }
        let operation = |transposed| match transposed {
            true => cublasOperation_t::CUBLAS_OP_T as i32,
            false => cublasOperation_t::CUBLAS_OP_N as i32,
        };
        own.set(CUBLASLT_MATMUL_DESC_TRANSA, operation(problem.transposed[0]))?;
        own.set(CUBLASLT_MATMUL_DESC_TRANSB, operation(problem.transposed[1]))?;
        // Both libraries have the same numbers of these epilogues.
        own.set(CUBLASLT_MATMUL_DESC_EPILOGUE, problem.raw_epilogue.0)?;
        for (attribute, scale) in [CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER]
            .into_iter()
            .zip(scales)
        {
            if !scale.is_null() {
                own.set(attribute, scale)?;
            }
        }
        if problem.epilogue.has_bias() {
            own.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
            own.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, ty as i32)?;
        }
        if problem.epilogue.has_aux() {
            own.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux)?;
            own.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.aux_ld)?;
        }
        Ok(own)
    }

    fn set<T>(&self, attribute: lt::cublasLtMatmulDescAttributes_t, value: T) -> Outcome {
        // SAFETY: the descriptor is alive; the function copies the value.
        answer(unsafe {
            let value = (&raw const value).cast();
            lt::cublasLtMatmulDescSetAttribute(self.desc, attribute, value, size_of::<T>())
        })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: what is not null was made by cuBLASLt, which copies what a call needs of it.
        unsafe {
            if !self.desc.is_null() {
                lt::cublasLtMatmulDescDestroy(self.desc);
            }
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                lt::cublasLtMatrixLayoutDestroy(layout);
            }
        }
    }
}

/// What the heuristic may choose from, destroyed on drop.
struct Preference(lt::cublasLtMatmulPreference_t);

impl Preference {
    fn new(workspace: usize) -> Outcome<Self> {
        use lt::cublasLtMatmulPreferenceAttributes_t::*;
        let mut own = Self(ptr::null_mut());
        // SAFETY: the function is cuBLASLt's, and writes a pointer.
        answer(unsafe { lt::cublasLtMatmulPreferenceCreate(&mut own.0) })?;
        own.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace as u64)?;
        for matrix in [
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            own.set(matrix, ALIGNED)?;
        }
        // If cuBLASLt splits a product, it must sum the parts in f32.
        let scheme = lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        own.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, scheme)?;
        Ok(own)
    }

    fn set<T>(&self, attribute: lt::cublasLtMatmulPreferenceAttributes_t, value: T) -> Outcome {
        // SAFETY: the preference is alive; the function copies the value.
        answer(unsafe {
            let value = (&raw const value).cast();
            lt::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, value, size_of::<T>())
        })
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: cuBLASLt made it.
            unsafe { lt::cublasLtMatmulPreferenceDestroy(self.0) };
        }
    }
}

/// Makes the thread's device current.
fn current() -> Outcome {
    ensure().map(|_| ()).map_err(|_| HIPBLAS_STATUS_INTERNAL_ERROR)
}

impl hip_provider::hipblaslt::Handle for Handle {
    /// cuBLASLt's: major * 10,000 + minor * 100 + patch.
    fn version() -> i32 {
        // SAFETY: the function is cuBLASLt's, and takes nothing.
        i32::try_from(unsafe { lt::cublasLtGetVersion() }).unwrap_or(0)
    }

    fn create() -> Outcome<Self> {
        current()?;
        let _held = uncaptured();
        let mut raw = ptr::null_mut();
        // SAFETY: the function is cuBLASLt's, the pointer valid.
        answer(unsafe { lt::cublasLtCreate(&mut raw) })?;
        Ok(Self(raw))
    }

    fn algorithms(&mut self, problem: &Problem, workspace: usize, most: usize) -> Outcome<Vec<Algorithm>> {
        current()?;
        let most_of_them = i32::try_from(most).map_err(|_| HIPBLAS_STATUS_INVALID_VALUE)?;
        let descriptors = match Descriptors::new(problem, [ptr::null(); 2], ptr::null_mut(), ptr::null_mut())
        {
            Err(HIPBLAS_STATUS_NOT_SUPPORTED) => return Ok(Vec::new()),
            other => other?,
        };
        let preference = Preference::new(workspace)?;
        let mut results: Vec<MaybeUninit<lt::cublasLtMatmulHeuristicResult_t>> = Vec::with_capacity(most);
        let mut count = 0;
        let [a, b, c, d] = descriptors.layouts;
        // SAFETY: all objects are alive; `results` has room for `most` elements.
        let found = answer(unsafe {
            lt::cublasLtMatmulAlgoGetHeuristic(
                self.0,
                descriptors.desc,
                a,
                b,
                c,
                d,
                preference.0,
                most_of_them,
                results.as_mut_ptr().cast(),
                &mut count,
            )
        });
        match found {
            Err(HIPBLAS_STATUS_NOT_SUPPORTED) => return Ok(Vec::new()),
            other => other?,
        }
        let count = usize::try_from(count).unwrap_or(0).min(most);
        // SAFETY: cuBLASLt has written the first `count` elements.
        unsafe { results.set_len(count) };
        // SAFETY: as above.
        let results = results.into_iter().map(|result| unsafe { result.assume_init() });
        let usable = results.filter(|result| result.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(usable
            .map(|result| Algorithm { number: number(result.algo), workspace: result.workspaceSize })
            .collect())
    }

    unsafe fn multiply(&mut self, call: &Call) -> Outcome {
        current()?;
        let matrices = [call.a, call.b, call.c, call.d.cast_const(), call.aux.cast_const()];
        let aligned = matrices.iter().all(|at| (*at as usize).is_multiple_of(ALIGNED as usize));
        require(aligned, HIPBLAS_STATUS_INVALID_VALUE)?;
        let algorithm = algorithm(call.algorithm)?;
        let descriptors = Descriptors::new(&call.problem, call.scales, call.bias, call.aux)?;
        let [a, b, c, d] = descriptors.layouts;
        // SAFETY: all objects are alive, the buffers were checked, and the scalars are read before
        // the call returns.
        answer(unsafe {
            lt::cublasLtMatmul(
                self.0,
                descriptors.desc,
                (&raw const call.alpha).cast(),
                call.a,
                a,
                call.b,
                b,
                (&raw const call.beta).cast(),
                call.c,
                c,
                call.d,
                d,
                &algorithm,
                call.workspace.0,
                call.workspace.1,
                call.stream.cast(),
            )
        })
    }

    fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
        is_device_memory(pointer, bytes)
    }
}
