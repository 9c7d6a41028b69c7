//! Pointers from callers: are they memory of this provider's devices?

use core::ffi::c_void;

/// Whether `bytes` bytes at `pointer` lie inside one live allocation; zero bytes lie anywhere.
pub(crate) fn is_device_memory<T>(pointer: *const T, bytes: usize) -> bool {
    bytes == 0 || (!pointer.is_null() && crate::runtime::check_range(pointer.cast::<c_void>(), bytes))
}

/// Runs `body` in a stream: its device's other work waits. `None` where the stream can't run work.
pub(crate) fn in_stream<R>(stream: hip_sys::hipStream_t, body: impl FnOnce() -> R) -> Option<R> {
    let mut result = None;
    let ran = crate::runtime::on_stream(stream, |_| {
        result = Some(body());
        Ok(())
    });
    ran.ok().and(result)
}
