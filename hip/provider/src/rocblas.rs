//! rocBLAS's C functions, over a provider's handle.
//!
//! They check arguments as rocBLAS does, in the same order. For a buffer outside the runtime's
//! allocations they return `rocblas_status_invalid_pointer`.

mod functions;
mod gemm;
mod vector;

pub use functions::table;
pub use gemm::{Gemm, Sizes, Types};
pub use vector::{Geam, Gemv, Matrix, Vector};

use crate::require;
use core::ffi::{CStr, c_void};
use hip_sys::hipStream_t;
use rocblas_sys::*;

/// The result of a function's body; the error is rocBLAS's status.
pub type Outcome<T = ()> = Result<T, rocblas_status>;

/// The object that a `rocblas_handle` points to.
pub trait Handle: Real<f32> + Real<f64> + Mixed + Sized + 'static {
    /// The library's version, such as `5.2.0`.
    fn version() -> &'static CStr;

    /// Creates a handle with the default stream and scalars on the host.
    fn create() -> Outcome<Self>;

    /// Destroys a handle, after [`Handle::ready`].
    fn destroy(self) -> Outcome;

    /// Makes the handle ready for a call by this thread.
    fn ready(&mut self) -> Outcome;

    /// The handle's stream.
    fn stream(&self) -> hipStream_t;

    /// Gives the handle another stream.
    fn set_stream(&mut self, stream: hipStream_t) -> Outcome;

    /// Whether the scalars of calls are in host memory.
    fn scalars_on_host(&self) -> bool;

    /// Sets whether the scalars of calls are in host memory.
    fn set_scalars_on_host(&mut self, on_host: bool) -> Outcome;

    /// Allows or forbids atomics.
    fn allow_atomics(&mut self, allowed: bool) -> Outcome;

    /// Sets the handle's workspace in device memory; null for the library's own.
    fn set_workspace(&mut self, at: *mut c_void, bytes: usize) -> Outcome;

    /// Runs `body` (the checks and the computation) in order with the stream's other work.
    fn compute(&mut self, body: impl FnOnce(&mut Self) -> Outcome) -> Outcome;

    /// The solutions that can compute a product besides the default. None is 0 or -1, which are the
    /// default.
    fn solutions(_: &Gemm, _: Types) -> &'static [i32] {
        &[]
    }

    /// Whether a range lies inside one of the runtime's allocations.
    fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool;
}

/// Products with several types.
pub trait Mixed {
    /// `D = alpha op(A) op(B) + beta C`, with operands of one type and sums of another.
    ///
    /// # Safety
    /// The call was checked; its buffers and scalars are of `types`.
    unsafe fn gemm_ex(&mut self, call: &Gemm, types: Types) -> Outcome;
}

/// Computations in one type.
pub trait Real<T> {
    /// `C = alpha op(A) op(B) + beta C`.
    ///
    /// # Safety
    /// The call was checked; its buffers and scalars are of `T`.
    unsafe fn gemm(&mut self, call: &Gemm) -> Outcome;

    /// `y = alpha op(A) x + beta y`.
    ///
    /// # Safety
    /// The call was checked.
    unsafe fn gemv(&mut self, call: &Gemv<T>) -> Outcome;

    /// `C = alpha op(A) + beta op(B)`.
    ///
    /// # Safety
    /// The call was checked.
    unsafe fn geam(&mut self, call: &Geam<T>) -> Outcome;
}

/// Rows and columns in memory of a matrix that has `rows` x `columns` after its operation (none or
/// a transpose).
fn stored(operation: rocblas_operation, rows: i32, columns: i32) -> (i32, i32) {
    if operation == rocblas_operation_none { (rows, columns) } else { (columns, rows) }
}

/// Refuses a batch of matrices that is not inside one of the runtime's allocations. `size` is the
/// bytes of an element. No matrix is empty.
fn check_memory<H: Handle>(
    pointer: *const c_void,
    size: usize,
    (rows, columns): (i32, i32),
    ld: i64,
    stride: i64,
    batch: i32,
) -> Outcome {
    let overflow = || rocblas_status_invalid_size;
    let own = (i64::from(columns) - 1) * ld + i64::from(rows) - 1;
    let far = stride.checked_mul(i64::from(batch) - 1).ok_or_else(overflow)?;
    let last = own.checked_add(far.max(0)).ok_or_else(overflow)?;
    // With a negative stride, the batch lies before `pointer`.
    let first = far.min(0);
    let bytes = |elements: i64| elements.checked_mul(size as i64).ok_or_else(overflow);
    let elements = last.checked_sub(first).and_then(|last| last.checked_add(1)).ok_or_else(overflow)?;
    let start = pointer.cast::<u8>().wrapping_offset(bytes(first)? as isize);
    let bytes = usize::try_from(bytes(elements)?).map_err(|_| overflow())?;
    require(H::is_device_memory(start.cast(), bytes), rocblas_status_invalid_pointer)
}
