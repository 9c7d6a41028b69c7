//! rocBLAS on the host's CPU.
//!
//! The same call with the same number of threads gives the same bits.
#![allow(non_upper_case_globals)] // AMD's names.

mod gemm;
mod gemm_ex;
mod handle;
mod vector;

use rocblas_sys::Rocblas;

/// The CPU device's rocBLAS.
pub fn rocblas_table() -> Rocblas {
    hip_provider::rocblas::table::<handle::Handle>()
}
