//! Copies and fills. Large ones are spread over the cores.

use super::{device::device, memory::LIVE, pool::parallel_ranges, stream::on_stream};
use hip_provider::runtime::{Status, api};
use hip_sys::*;
use std::ffi::{c_int, c_void};

/// Bytes a core takes at a time; half of it is not worth a second core.
const CHUNK: usize = 1 << 20;

/// An address that several threads use, each its own part of what lies there.
#[derive(Clone, Copy)]
struct Shared(*mut u8);
// SAFETY: the parts are disjoint.
unsafe impl Send for Shared {}
// SAFETY: the parts are disjoint.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// `offset` lies inside what the address points to.
    unsafe fn at(self, offset: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { self.0.add(offset) }
    }
}

/// # Safety
/// Both ranges may be accessed.
unsafe fn move_bytes(to: *mut c_void, from: *const c_void, bytes: usize) {
    let overlap = (to as usize).abs_diff(from as usize) < bytes;
    if bytes < 2 * CHUNK || overlap {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
        return;
    }
    let (to, from) = (Shared(to.cast()), Shared(from.cast_mut().cast()));
    parallel_ranges(bytes, CHUNK, |part| {
        // SAFETY: a part of the two ranges, which do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.at(part.start), to.at(part.start), part.len()) };
    });
}

pub(super) unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: hipMemcpyKind,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        on_stream(stream, |_| {
            if size == 0 {
                return Ok(());
            }
            LIVE.check_copy(to, from, size, kind)?;
            // SAFETY: device ranges were checked, host ranges are the caller's, by HIP's contract.
            unsafe { move_bytes(to, from, size) };
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn hipMemcpyPeerAsync(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    size: usize,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        device(to_device)?;
        device(from_device)?;
        on_stream(stream, |_| {
            if size == 0 {
                return Ok(());
            }
            LIVE.check_copy(to, from, size, hipMemcpyDeviceToDevice)?;
            // SAFETY: checked above.
            unsafe { move_bytes(to, from, size) };
            Ok(())
        })
    })
}

fn fill(
    to: *mut c_void,
    bytes: Option<usize>,
    stream: hipStream_t,
    write: impl Fn(*mut u8, usize) + Sync,
) -> Status {
    on_stream(stream, |_| {
        let bytes = LIVE.check_fill(to, bytes)?;
        let to = Shared(to.cast());
        parallel_ranges(bytes, CHUNK, |part| {
            // SAFETY: inside the range that was checked.
            write(unsafe { to.at(part.start) }, part.len());
        });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn hipMemsetAsync(
    to: *mut c_void,
    value: c_int,
    size: usize,
    stream: hipStream_t,
) -> hipError_t {
    // SAFETY: `fill` gives parts of the range that it checked.
    api(|| fill(to, Some(size), stream, |at, bytes| unsafe { at.write_bytes(value as u8, bytes) }))
}

pub(super) unsafe extern "C" fn hipMemsetD32Async(
    to: hipDeviceptr_t,
    value: c_int,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        if !(to as usize).is_multiple_of(4) {
            return Err(hipErrorInvalidValue);
        }
        fill(to, count.checked_mul(4), stream, |at, bytes| {
            // SAFETY: `fill` gives parts of the range that it checked, whole words since chunks are.
            unsafe { std::slice::from_raw_parts_mut(at.cast::<c_int>(), bytes / 4) }.fill(value);
        })
    })
}
