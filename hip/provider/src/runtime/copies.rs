//! Copies and fills.

use super::{Allocations, Status, api};
use core::ffi::{c_int, c_void};
use hip_sys::*;

/// A provider's copies and fills. The C functions have checked ranges of device memory. By HIP's
/// contract the caller vouches for ranges of host memory.
pub trait Copies {
    /// The provider's value for each allocation.
    type Own: Copy + 'static;

    /// The live allocations.
    fn live() -> &'static Allocations<Self::Own>;

    /// Runs `body`, the checks and the work, in order with the stream's other work.
    fn ordered(stream: hipStream_t, body: impl FnOnce() -> Status) -> Status;

    /// Checks that these devices exist, and makes them ready for copies between them.
    fn check_devices(devices: [c_int; 2]) -> Status;

    /// Copies.
    ///
    /// # Safety
    /// Both ranges may be accessed.
    unsafe fn copy(to: *mut c_void, from: *const c_void, bytes: usize, stream: hipStream_t) -> Status;

    /// Copies from the second device to the first.
    ///
    /// # Safety
    /// As [`Copies::copy`].
    unsafe fn copy_between(
        devices: [c_int; 2],
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: hipStream_t,
    ) -> Status;

    /// Fills bytes.
    ///
    /// # Safety
    /// The range may be written.
    unsafe fn fill(to: *mut c_void, value: u8, bytes: usize, stream: hipStream_t) -> Status;

    /// Fills 32-bit words; `bytes` is a multiple of 4.
    ///
    /// # Safety
    /// As [`Copies::fill`]; `to` is aligned.
    unsafe fn fill_words(to: *mut c_void, value: u32, bytes: usize, stream: hipStream_t) -> Status;
}

/// Copies in stream order.
///
/// # Safety
/// The host's ranges may be accessed, by HIP's contract; here and in the functions below.
pub(super) unsafe extern "C" fn hipMemcpyAsync<C: Copies>(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: hipMemcpyKind,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        C::ordered(stream, || {
            if size == 0 {
                return Ok(());
            }
            C::live().check_copy(to, from, size, kind)?;
            // SAFETY: device ranges were checked, host ranges are the caller's.
            unsafe { C::copy(to, from, size, stream) }
        })
    })
}

/// Copies between two devices in stream order.
///
/// # Safety
/// As [`hipMemcpyAsync`].
pub(super) unsafe extern "C" fn hipMemcpyPeerAsync<C: Copies>(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    size: usize,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        let devices = [to_device, from_device];
        C::check_devices(devices)?;
        C::ordered(stream, || {
            if size == 0 {
                return Ok(());
            }
            C::live().check_copy(to, from, size, hipMemcpyDeviceToDevice)?;
            // SAFETY: checked above.
            unsafe { C::copy_between(devices, to, from, size, stream) }
        })
    })
}

/// Fills bytes in stream order.
///
/// # Safety
/// As [`hipMemcpyAsync`].
pub(super) unsafe extern "C" fn hipMemsetAsync<C: Copies>(
    to: *mut c_void,
    value: c_int,
    size: usize,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        C::ordered(stream, || match C::live().check_fill(to, Some(size))? {
            0 => Ok(()),
            // SAFETY: checked above.
            bytes => unsafe { C::fill(to, value as u8, bytes, stream) },
        })
    })
}

/// Fills 32-bit words in stream order.
///
/// # Safety
/// As [`hipMemcpyAsync`].
pub(super) unsafe extern "C" fn hipMemsetD32Async<C: Copies>(
    to: hipDeviceptr_t,
    value: c_int,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        if !(to as usize).is_multiple_of(4) {
            return Err(hipErrorInvalidValue);
        }
        C::ordered(stream, || match C::live().check_fill(to, count.checked_mul(4))? {
            0 => Ok(()),
            // SAFETY: checked above.
            bytes => unsafe { C::fill_words(to, value as u32, bytes, stream) },
        })
    })
}
