//! rocBLAS's handle.

use super::{gemm, gemm_ex, vector};
use crate::numeric::device::{in_stream, is_device_memory};
use crate::numeric::multiply::Scalar;
use crate::runtime::enqueue;
use crate::settings::Failure;
use core::ffi::{CStr, c_void};
use half::f16;
use hip_provider::require;
use hip_provider::rocblas::{Geam, Gemm, Gemv, Mixed, Outcome, Real, Types};
use hip_sys::hipStream_t;
use rocblas_sys::*;

/// What a `rocblas_handle` points to.
pub(super) struct Handle {
    stream: hipStream_t,
}

impl hip_provider::rocblas::Handle for Handle {
    /// The version of ROCm 7.2, whose behaviour this library follows.
    fn version() -> &'static CStr {
        c"5.2.0"
    }

    fn create() -> Outcome<Self> {
        require(!Failure::RocblasHandle.is_asked(), rocblas_status_memory_error)?;
        Ok(Handle { stream: core::ptr::null_mut() })
    }

    fn destroy(self) -> Outcome {
        Ok(())
    }

    fn ready(&mut self) -> Outcome {
        Ok(())
    }

    fn stream(&self) -> hipStream_t {
        self.stream
    }

    fn set_stream(&mut self, stream: hipStream_t) -> Outcome {
        self.stream = stream;
        Ok(())
    }

    /// Does nothing, because host and device memory are the same here.
    fn scalars_on_host(&self) -> bool {
        true
    }

    fn set_scalars_on_host(&mut self, _: bool) -> Outcome {
        Ok(())
    }

    /// Does nothing, because no function here uses atomics.
    fn allow_atomics(&mut self, _: bool) -> Outcome {
        Ok(())
    }

    /// Each thread has its own scratch memory, so the workspace stays unused.
    fn set_workspace(&mut self, at: *mut c_void, bytes: usize) -> Outcome {
        require(!Failure::RocblasWorkspace.is_asked(), rocblas_status_internal_error)?;
        require(at.is_null() || is_device_memory(at, bytes), rocblas_status_invalid_pointer)
    }

    fn compute(&mut self, body: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        require(!Failure::RocblasProducts.is_asked(), rocblas_status_arch_mismatch)?;
        in_stream(self.stream, || body(self)).unwrap_or(Err(rocblas_status_internal_error))
    }

    fn solutions(_: &Gemm, _: Types) -> &'static [i32] {
        &gemm_ex::SOLUTIONS
    }

    fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
        is_device_memory(pointer, bytes)
    }
}

/// Runs a product, or records it with copies of its scalars, which are of type `S`, if the stream
/// is captured.
///
/// # Safety
/// The call was checked, for scalars of `S`; `run` may run it.
unsafe fn product<S: Copy + 'static>(call: &Gemm, run: impl Fn(&Gemm) + 'static) -> Outcome {
    // SAFETY: the caller's scalars.
    let scalars =
        unsafe { [call.alpha.cast::<S>().read_unaligned(), call.beta.cast::<S>().read_unaligned()] };
    let call = *call;
    let again = move || {
        let [alpha, beta] = [0, 1].map(|at| (&raw const scalars[at]).cast());
        run(&Gemm { alpha, beta, ..call });
        Ok(())
    };
    // SAFETY: it holds the addresses of the call's buffers and plain values.
    unsafe { enqueue(again) }
}

impl Mixed for Handle {
    unsafe fn gemm_ex(&mut self, call: &Gemm, types: Types) -> Outcome {
        // SAFETY: the caller's checked call.
        let run = move |call: &Gemm| unsafe { gemm_ex::run_types(call, types) };
        // SAFETY: as above.
        unsafe {
            match types {
                Types::F64 => product::<f64>(call, run),
                Types::F16InF16 => product::<f16>(call, run),
                Types::I8 => product::<i32>(call, run),
                _ => product::<f32>(call, run),
            }
        }
    }
}

impl<T: Scalar + core::ops::Add<Output = T>> Real<T> for Handle {
    unsafe fn gemm(&mut self, call: &Gemm) -> Outcome {
        // SAFETY: the caller's checked call.
        unsafe { product::<T>(call, |call| gemm::run::<T>(call)) }
    }

    unsafe fn gemv(&mut self, call: &Gemv<T>) -> Outcome {
        // SAFETY: the caller's checked call.
        let (alpha, beta, call) = unsafe { (*call.alpha, *call.beta, *call) };
        // SAFETY: it holds the addresses of the call's buffers and plain values.
        unsafe {
            enqueue(move || {
                vector::gemv(&Gemv { alpha: &alpha, beta: &beta, ..call });
                Ok(())
            })
        }
    }

    unsafe fn geam(&mut self, call: &Geam<T>) -> Outcome {
        // SAFETY: the caller's checked call.
        let (factors, call) = unsafe { (call.factors.map(|factor| *factor), *call) };
        // SAFETY: it holds the addresses of the call's buffers and plain values.
        unsafe {
            enqueue(move || {
                vector::geam(&Geam { factors: [&factors[0], &factors[1]], ..call });
                Ok(())
            })
        }
    }
}
