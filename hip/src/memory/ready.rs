//! Memory that other libraries use: when its contents are ready for them, and when they are done.

use std::ffi::c_void;

use crate::device::Device;
use crate::error::Result;
use crate::memory::buffer::Buffer;

/// Who waits for the work that writes a buffer, before another library uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// The host waits. Afterwards the host and every stream may use the contents.
    OnHost,
    /// This stream of the other library waits: a `hipStream_t`, or a `CUstream` on an NVIDIA GPU.
    /// Null is the default stream. The host does not wait, unless a kernel may have found a fault
    /// in the contents.
    OnStream(*mut c_void),
    /// Nobody waits. The other library orders its work itself, after the backend's stream. The host
    /// waits only if a kernel may have found a fault in the contents.
    Unordered,
}

impl Device {
    /// Enqueues all work that writes the buffer, and makes `ready` wait for it.
    ///
    /// # Errors
    /// The fault of the contents, if a kernel found one; an error that was kept for the next read;
    /// `Capture` if this thread captures a graph; `Device` if HIP fails.
    ///
    /// # Safety
    /// The stream is a live one of this process.
    pub unsafe fn make_ready(&self, op: &'static str, buffer: &Buffer, ready: Ready) -> Result<()> {
        self.refuse_captured(op, "captured work has not run yet")?;
        self.refuse_dry(op, "the memory is not there")?;
        self.compute.catch_up();
        // Whether there is a fault is known only after a wait.
        let ready = if buffer.marks.get().is_some() { Ready::OnHost } else { ready };
        match ready {
            Ready::OnHost => {
                let launched = self.faults.launched();
                self.compute.mark_for_host()?.synchronize()?;
                self.faults.pass(launched);
                self.releases.poll(self.captures.any());
            }
            Ready::OnStream(stream) => {
                let event = self.compute.mark()?;
                // SAFETY: the function is HIP's; the event is alive, the stream by the caller's
                // promise.
                let status =
                    unsafe { (self.context.hip().hipStreamWaitEvent)(stream.cast(), event.raw(), 0) };
                self.context.check("hipStreamWaitEvent", status)?;
            }
            Ready::Unordered => {}
        }
        self.context.take_error()?;
        buffer.marks.fault().map_or(Ok(()), Err)
    }

    /// Runs `release` once the compute stream is past the work that it has received so far: now, or
    /// in a later call of this crate that reads or waits.
    pub fn after_queued_work(&self, release: Box<dyn FnOnce() + Send>) {
        self.releases.after_compute(release);
    }

    /// Drops `value`, which keeps memory that another library uses, once all streams of the device
    /// are past the work that they have received so far. Waits for that, unless a thread captures a
    /// graph: then a later call of this crate does it.
    pub fn drop_after_all_work<T: Send + 'static>(&self, value: T) {
        self.releases.after_all(Box::new(move || drop(value)), self.captures.any());
    }
}
