//! Copies and fills. Large ones use all cores.

use super::{
    Host,
    capture::enqueue,
    device::device,
    memory::{LIVE, Own},
    pool::parallel_ranges,
    stream::on_stream,
};
use hip_provider::runtime::{Allocations, Copies, Status};
use hip_sys::hipStream_t;
use std::ffi::{c_int, c_void};

/// Bytes that a core copies at a time. For a smaller part, waking a second core is not worthwhile.
const CHUNK: usize = 1 << 20;

/// An address that threads share, each for its own part of the memory.
#[derive(Clone, Copy)]
struct Shared(*mut u8);
// SAFETY: the parts are disjoint.
unsafe impl Send for Shared {}
// SAFETY: the parts are disjoint.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// `offset` lies inside the memory at the address.
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

fn fill(to: *mut c_void, bytes: usize, write: impl Fn(*mut u8, usize) + Sync) -> Status {
    let to = Shared(to.cast());
    parallel_ranges(bytes, CHUNK, |part| {
        // SAFETY: inside the caller's range.
        write(unsafe { to.at(part.start) }, part.len());
    });
    Ok(())
}

/// Copies run at once, in the calling thread and the pool.
impl Copies for Host {
    type Own = Own;

    fn live() -> &'static Allocations<Own> {
        &LIVE
    }

    fn ordered(stream: hipStream_t, body: impl FnOnce() -> Status) -> Status {
        on_stream(stream, |_| body())
    }

    fn check_devices(devices: [c_int; 2]) -> Status {
        devices.into_iter().try_for_each(|index| device(index).map(|_| ()))
    }

    unsafe fn copy(to: *mut c_void, from: *const c_void, bytes: usize, _: hipStream_t) -> Status {
        // SAFETY: the caller's ranges.
        unsafe {
            enqueue(move || {
                move_bytes(to, from, bytes);
                Ok(())
            })
        }
    }

    unsafe fn copy_between(
        _: [c_int; 2],
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: hipStream_t,
    ) -> Status {
        // SAFETY: as above; all devices share the machine's memory.
        unsafe { Self::copy(to, from, bytes, stream) }
    }

    unsafe fn fill(to: *mut c_void, value: u8, bytes: usize, _: hipStream_t) -> Status {
        // SAFETY: `fill` gives parts of the caller's range.
        unsafe { enqueue(move || fill(to, bytes, |at, bytes| at.write_bytes(value, bytes))) }
    }

    unsafe fn fill_words(to: *mut c_void, value: u32, bytes: usize, _: hipStream_t) -> Status {
        // SAFETY: `fill` gives parts of the caller's range, in whole words as chunks are multiples
        // of 4.
        let words = move |at: *mut u8, bytes| unsafe {
            std::slice::from_raw_parts_mut(at.cast::<u32>(), bytes / 4).fill(value);
        };
        // SAFETY: the caller's range.
        unsafe { enqueue(move || fill(to, bytes, words)) }
    }
}
