//! Checks of callers' pointers, and work in a stream.

use core::ffi::c_void;

/// Whether `bytes` bytes at `pointer` lie inside one live allocation; always true for 0 bytes.
pub(crate) fn is_device_memory<T>(pointer: *const T, bytes: usize) -> bool {
    bytes == 0 || (!pointer.is_null() && crate::runtime::check_range(pointer.cast::<c_void>(), bytes))
}

/// Runs `body` in a stream, while the device's other work waits. `None` if the stream can't run
/// work.
pub(crate) fn in_stream<R>(stream: hip_sys::hipStream_t, body: impl FnOnce() -> R) -> Option<R> {
    let mut result = None;
    let ran = crate::runtime::on_stream(stream, |_| {
        result = Some(body());
        Ok(())
    });
    ran.ok().and(result)
}
