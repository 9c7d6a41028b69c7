//! hipBLASLt's C functions, over a provider's handle.
//!
//! They check arguments as hipBLASLt does. For a buffer outside the runtime's allocations they
//! return `HIPBLAS_STATUS_INVALID_VALUE`.

mod functions;
mod problem;

pub use functions::table;
pub use problem::{Activation, Epilogue, Problem, is_fp8};

use core::ffi::c_void;
use hip_sys::hipStream_t;
use hipblaslt_sys::*;

/// The result of a function's body; the error is hipBLASLt's status.
pub type Outcome<T = ()> = Result<T, hipblasStatus_t>;

/// An algorithm that computes a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// The number by which the provider finds it.
    pub number: u64,
    /// The workspace that it needs, in bytes.
    pub workspace: usize,
}

/// The object that a `hipblasLtHandle_t` points to.
pub trait Handle: Sized + 'static {
    /// The library's version: major * 100,000 + minor * 100 + patch.
    fn version() -> i32;

    /// Creates a handle for the current device.
    fn create() -> Outcome<Self>;

    /// The algorithms for a problem that need at most `workspace` bytes, best first, and at most
    /// `most` of them.
    fn algorithms(&mut self, problem: &Problem, workspace: usize, most: usize) -> Outcome<Vec<Algorithm>>;

    /// Computes a product.
    ///
    /// # Safety
    /// The call was checked: its buffers hold what its problem says.
    unsafe fn multiply(&mut self, call: &Call) -> Outcome;

    /// Whether a range lies inside one of the runtime's allocations.
    fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool;
}

/// A product `D = epilogue(alpha scale_a scale_b op(A) op(B) + beta C)`.
#[derive(Clone, Copy)]
pub struct Call {
    /// What it computes.
    pub problem: Problem,
    /// The factor of the product.
    pub alpha: f32,
    /// The left operand.
    pub a: *const c_void,
    /// The right operand.
    pub b: *const c_void,
    /// The factors of A and B, an f32 each. Null for 1, which other types than fp8 always have.
    pub scales: [*const c_void; 2],
    /// The factor of `c`, which is read unless this is 0.
    pub beta: f32,
    /// The added matrix; may be `d`.
    pub c: *const c_void,
    /// The result.
    pub d: *mut c_void,
    /// The bias, or the place for sums. Null if the epilogue has none.
    pub bias: *mut c_void,
    /// The matrix that GELU stores or its gradient reads. Null if the epilogue has none.
    pub aux: *mut c_void,
    /// The number of the algorithm.
    pub algorithm: u64,
    /// The workspace, and its bytes.
    pub workspace: (*mut c_void, usize),
    /// The stream.
    pub stream: hipStream_t,
}
