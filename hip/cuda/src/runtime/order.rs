//! Streams and events by the CUDA driver.

use super::{Driver, device::ensure, error::from_cuda};
use cudarc::driver::sys as cuda;
use hip_provider::runtime::{Status, Streams};
use hip_sys::{hipEvent_t, hipStream_t};
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locked for writing while this provider captures a stream of its own.
static CAPTURES: RwLock<()> = RwLock::new(());

/// While the guard lives, no capture runs. Hold it while waiting for the whole device, because
/// during a capture such a wait fails and invalidates the capture. NVIDIA's libraries may also wait
/// for the device when they create or destroy handles.
pub(crate) fn uncaptured() -> RwLockReadGuard<'static, ()> {
    CAPTURES.read().unwrap_or_else(PoisonError::into_inner)
}

/// While the guard lives, no thread waits for the whole device. Hold it to capture a stream.
pub(crate) fn capturing() -> RwLockWriteGuard<'static, ()> {
    CAPTURES.write().unwrap_or_else(PoisonError::into_inner)
}

impl Streams for Driver {
    fn create_stream(flags: c_uint) -> Status<hipStream_t> {
        ensure()?;
        let mut made = ptr::null_mut();
        // SAFETY: the function is the driver's, the pointer valid; HIP's flags are CUDA's.
        from_cuda(unsafe { cuda::cuStreamCreate(&mut made, flags) })?;
        Ok(made.cast())
    }

    fn create_stream_of(flags: c_uint, priority: c_int) -> Status<hipStream_t> {
        ensure()?;
        let mut made = ptr::null_mut();
        // SAFETY: as above. CUDA too takes the nearest priority, and a lower number goes first.
        from_cuda(unsafe { cuda::cuStreamCreateWithPriority(&mut made, flags, priority) })?;
        Ok(made.cast())
    }

    fn priorities() -> Status<[c_int; 2]> {
        ensure()?;
        let [mut least, mut greatest] = [0; 2];
        // SAFETY: the function is the driver's, the pointers valid.
        from_cuda(unsafe { cuda::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) })?;
        Ok([least, greatest])
    }

    unsafe fn destroy_stream(stream: hipStream_t) -> Status {
        ensure()?;
        // SAFETY: the caller's stream, here and below.
        from_cuda(unsafe { cuda::cuStreamDestroy_v2(stream.cast()) })
    }

    unsafe fn synchronize_stream(stream: hipStream_t) -> Status {
        ensure()?;
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuStreamSynchronize(stream.cast()) })
    }

    fn synchronize_device() -> Status {
        ensure()?;
        let _held = uncaptured();
        // SAFETY: no precondition but the context, which `ensure` made current.
        from_cuda(unsafe { cuda::cuCtxSynchronize() })
    }

    unsafe fn wait_for(stream: hipStream_t, event: hipEvent_t) -> Status {
        ensure()?;
        // SAFETY: the caller's stream and event, here and below.
        from_cuda(unsafe { cuda::cuStreamWaitEvent(stream.cast(), event.cast(), 0) })
    }

    fn create_event(flags: c_uint) -> Status<hipEvent_t> {
        ensure()?;
        let mut made = ptr::null_mut();
        // SAFETY: the function is the driver's, the pointer valid; the first three flags are
        // CUDA's.
        from_cuda(unsafe { cuda::cuEventCreate(&mut made, flags & 7) })?;
        Ok(made.cast())
    }

    unsafe fn destroy_event(event: hipEvent_t) -> Status {
        ensure()?;
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuEventDestroy_v2(event.cast()) })
    }

    unsafe fn record(event: hipEvent_t, stream: hipStream_t) -> Status {
        ensure()?;
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuEventRecord(event.cast(), stream.cast()) })
    }

    unsafe fn query(event: hipEvent_t) -> Status {
        ensure()?;
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuEventQuery(event.cast()) })
    }

    unsafe fn synchronize_event(event: hipEvent_t) -> Status {
        ensure()?;
        // SAFETY: as above.
        from_cuda(unsafe { cuda::cuEventSynchronize(event.cast()) })
    }

    unsafe fn elapsed(start: hipEvent_t, stop: hipEvent_t) -> Status<f32> {
        ensure()?;
        let mut ms = 0.0;
        // SAFETY: as above; a valid pointer.
        from_cuda(unsafe { cuda::cuEventElapsedTime_v2(&mut ms, start.cast(), stop.cast()) })?;
        Ok(ms)
    }
}
