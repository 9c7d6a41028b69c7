//! Streams for an app's own work.

use core::ffi::c_void;
use core::fmt;
use std::sync::Arc;

use hip::{Device, Priority};

use crate::device::RocmDevice;
use crate::waiting::enqueue_own;

/// A stream for an app's own work, such as calls of other libraries. The device may run its work at
/// the same time as the backend's ops, except where [`after_backend`](Self::after_backend) and
/// [`backend_after`](Self::backend_after) order them. The host never waits for that.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_rocm::interop::{Priority, Ready, Stream, as_raw};
/// use burn_rocm::{Rocm, RocmDevice};
///
/// let device = RocmDevice::default();
/// let stream = Stream::named(&device, "statistics", Priority::Low)?;
/// let x = Tensor::<Rocm, 2>::ones([4, 4], &device).into_primitive().tensor();
///
/// // SAFETY: `stream` is alive.
/// let raw = unsafe { as_raw(&x, Ready::OnStream(stream.handle()))? };
/// stream.enqueue("mean", |handle| {
///     // Call a library here, with `handle` and `raw.pointer`.
///     let _ = (handle, raw.pointer);
/// });
/// // Ops that come now, and the next user of the memory of `x`, wait for that work.
/// stream.backend_after()?;
/// drop(x);
/// # Ok::<(), burn_rocm::RocmError>(())
/// ```
///
/// Dropping it destroys the stream once its work is done.
pub struct Stream {
    own: hip::Stream,
    device: Arc<Device>,
    name: String,
}

impl Stream {
    /// A new stream of the device. Profiles show its work under `name`, which need not be unique.
    ///
    /// # Errors
    /// As [`RocmDevice::info`].
    pub fn named(device: &RocmDevice, name: &str, priority: Priority) -> hip::Result<Self> {
        let device = device.open()?;
        device.refuse_dry("interop::Stream", "it has no streams")?;
        Ok(Self { own: device.new_stream(name, priority)?, device, name: name.into() })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device.
    pub fn device(&self) -> RocmDevice {
        RocmDevice::new(self.device.info().index)
    }

    /// The handle: a `hipStream_t`, or a `CUstream` on an NVIDIA GPU. It is valid until this value
    /// is dropped.
    pub fn handle(&self) -> *mut c_void {
        self.own.as_raw()
    }

    /// Makes later work of this stream wait for all ops that this thread has called so far, and for
    /// what other threads have enqueued.
    ///
    /// # Errors
    /// The error of an earlier matrix product that this call enqueues; `Capture` if this thread
    /// captures a graph; an error of the device.
    pub fn after_backend(&self) -> hip::Result<()> {
        self.order("Stream::after_backend", |backend| self.own.wait_for(backend))
    }

    /// Makes later ops of the device wait for this stream's work so far. So does the next user of
    /// the memory of tensors that are dropped from now on.
    ///
    /// # Errors
    /// As [`after_backend`](Self::after_backend).
    pub fn backend_after(&self) -> hip::Result<()> {
        self.order("Stream::backend_after", |backend| backend.wait_for(&self.own))
    }

    fn order(
        &self,
        op: &'static str,
        order: impl FnOnce(&hip::Stream) -> hip::Result<()>,
    ) -> hip::Result<()> {
        enqueue_own()?;
        self.device.refuse_captured(op, "the backend's stream is another one meanwhile")?;
        order(self.device.compute_stream())
    }

    /// Gives the handle to `enqueue`, which enqueues work on it. Profiles show this work by the
    /// name `what`.
    pub fn enqueue<T>(&self, what: &str, enqueue: impl FnOnce(*mut c_void) -> T) -> T {
        self.own.enqueue(what, enqueue)
    }

    /// Waits on the host for this stream's work so far.
    ///
    /// # Errors
    /// An error of the device.
    pub fn synchronize(&self) -> hip::Result<()> {
        self.own.synchronize()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream(`{}` of {})", self.name, self.device())
    }
}
