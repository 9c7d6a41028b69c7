//! MIOpen's C functions, over a provider's handle.
//!
//! They check descriptors and scalars as MIOpen does. The provider checks buffers.

mod activation;
mod batch_norm;
mod convolution;
mod descriptor;
mod functions;
mod fusion;
mod pooling;
mod reduction;
mod row_norm;
mod softmax;
mod tensor;

pub use activation::{Activation, Activations};
pub use batch_norm::{BatchGradient, BatchNorm, BatchNorms, Inference, Training};
pub use convolution::{Convolution, ConvolutionBuffers, Convolutions, Convolve, FoundAlgorithm, Kind};
pub use descriptor::{Described, Own};
pub use functions::table;
pub use fusion::Fusions;
pub use pooling::{Pooling, Poolings};
pub use reduction::{Reduction, ReductionMemory, Reductions};
pub use row_norm::{Normalised, RowGradient, RowNorms, Rows};
pub use softmax::{Softmax, Softmaxes};
pub use tensor::{Operand, Tensor};

use descriptor::{create, destroy};

use crate::require;
use core::ffi::c_void;
use miopen_sys::*;

/// The result of a function's body; the error is MIOpen's status.
pub type Outcome<T = ()> = Result<T, miopenStatus_t>;

/// The object behind a `miopenHandle_t`.
///
/// Each op family has a trait of its own for its computations. The C functions check all arguments
/// except memory before they call these. The caller of the C function vouches for the addresses of
/// operands and workspaces.
pub trait Handle: Sized + 'static {
    /// The provider's part of a tensor descriptor.
    type Tensor: Own<Tensor>;

    /// The library's version: major, minor, patch.
    fn version() -> [usize; 3];

    /// Creates a handle for a stream.
    fn create(stream: miopenAcceleratorQueue_t) -> Outcome<miopenHandle_t>;

    /// Sets the stream of a handle's calls.
    ///
    /// # Safety
    /// A non-null handle came from [`Handle::create`] and is not destroyed; no call uses it meanwhile.
    unsafe fn set_stream(handle: miopenHandle_t, stream: miopenAcceleratorQueue_t) -> Outcome;

    /// Destroys a handle.
    ///
    /// # Safety
    /// The handle came from [`Handle::create`] and is not used again.
    unsafe fn destroy(handle: miopenHandle_t) -> Outcome;

    /// Runs the body of a call in order with the stream's other work.
    ///
    /// # Safety
    /// A non-null handle came from [`Handle::create`] and is not destroyed.
    unsafe fn with(handle: miopenHandle_t, body: impl FnOnce(&Self) -> Outcome) -> Outcome;
}

/// Runs the body of a call with its handle.
///
/// # Safety
/// As [`Handle::with`].
unsafe fn with<H: Handle>(handle: miopenHandle_t, body: impl FnOnce(&H) -> Outcome) -> miopenStatus_t {
    // SAFETY: the caller vouches for the handle.
    status(|| unsafe { H::with(handle, body) })
}

/// Runs a body at the C boundary.
fn status(body: impl FnOnce() -> Outcome) -> miopenStatus_t {
    crate::boundary(miopenStatusSuccess, miopenStatusInternalError, body)
}

/// The object behind an opaque pointer of the API; null is a bad parameter.
///
/// # Safety
/// A non-null `pointer` came from this library's create function for `T` and is not destroyed.
pub unsafe fn object<'a, T, P>(pointer: *mut P) -> Outcome<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or(miopenStatusBadParm)
}

/// As [`object`], mutable.
///
/// # Safety
/// As [`object`], and no other thread uses the object, because MIOpen's descriptors must not be
/// changed concurrently.
unsafe fn object_mut<'a, T, P>(pointer: *mut P) -> Outcome<&'a mut T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<T>().as_mut() }.ok_or(miopenStatusBadParm)
}

/// Moves a new object to the heap and gives its pointer to the caller through `to`.
///
/// # Safety
/// A non-null `to` is valid for a write.
unsafe fn give<T, P>(to: *mut *mut P, value: T) -> Outcome {
    require(!to.is_null(), miopenStatusBadParm)?;
    // SAFETY: not null, so valid by the caller's contract.
    unsafe { to.write(Box::into_raw(Box::new(value)).cast::<P>()) };
    Ok(())
}

/// Destroys an object that `give` made.
///
/// # Safety
/// As [`object`]; the pointer is not used again.
pub unsafe fn take<T, P>(pointer: *mut P) -> Outcome {
    require(!pointer.is_null(), miopenStatusBadParm)?;
    // SAFETY: `give` made it with this type, by the caller's contract.
    drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
    Ok(())
}

/// Writes an answer through an out-pointer; null is a bad parameter.
///
/// # Safety
/// A non-null `to` is valid for a write.
unsafe fn answer<T>(to: *mut T, value: T) -> Outcome {
    require(!to.is_null(), miopenStatusBadParm)?;
    // SAFETY: not null, so valid by the caller's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// A scalar argument (alpha or beta) from host memory: `f64` for double tensors, else `f32`.
///
/// # Safety
/// A non-null `pointer` is valid for a read of that type.
pub unsafe fn scalar(pointer: *const c_void, data: miopenDataType_t) -> Outcome<f64> {
    require(!pointer.is_null(), miopenStatusBadParm)?;
    // SAFETY: the caller vouches for the read.
    Ok(unsafe {
        if data == miopenDouble {
            pointer.cast::<f64>().read_unaligned()
        } else {
            f64::from(pointer.cast::<f32>().read_unaligned())
        }
    })
}

/// Refuses scalars other than alpha = 1 and beta = 0, as most of MIOpen's functions do.
///
/// # Safety
/// As [`scalar`].
unsafe fn plain_scalars(alpha: *const c_void, beta: *const c_void, data: miopenDataType_t) -> Outcome {
    // SAFETY: the caller vouches for both.
    let (alpha, beta) = unsafe { (scalar(alpha, data)?, scalar(beta, data)?) };
    require(alpha == 1.0 && beta == 0.0, miopenStatusNotImplemented)
}
