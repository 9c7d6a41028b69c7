//! Reads that the host begins at one point of the stream and waits for later.

use std::fmt;
use std::sync::Arc;

use crate::device::Device;
use crate::device::context::count;
use crate::device::event::Event;
use crate::error::{Error, Result};
use crate::memory::buffer::Buffer;
use crate::memory::host::HostBuffer;
use crate::memory::marks::Set;
use crate::memory::pinned::SMALL;
use crate::profile::work::{Load, WorkKind};
use crate::trace;

const OP: &str = "a read";
const COPY: &str = "copy to the host";

/// Bytes of a buffer on their way to the host ([`Device::begin_read`]). If it is dropped before
/// [`wait`](Self::wait), the drop waits for the copy.
pub struct LateRead {
    device: Arc<Device>,
    /// `None` only while it is dropped, or if there is nothing to copy.
    copied: Option<(HostBuffer, Event)>,
    /// The faults that the bytes may have.
    faults: Option<Arc<Set>>,
    /// The device's fault launches before the copy.
    launched: u64,
}

impl Device {
    /// Enqueues a copy of up to 64 KiB of a buffer to the host, in stream order, and does not wait.
    /// Work that is enqueued later may overwrite the bytes, and the host sees those of now.
    ///
    /// # Errors
    /// `Invalid` for more bytes, a range past the end or a buffer of another device; `Capture` as
    /// for [`Device::read`]; `Device` if HIP fails.
    pub fn begin_read(
        self: &Arc<Self>,
        buffer: &Buffer,
        byte_offset: usize,
        bytes: usize,
    ) -> Result<LateRead> {
        self.check_range("begin_read", buffer, byte_offset, bytes)?;
        if bytes > SMALL {
            return Err(Error::invalid("begin_read", format!("at most {SMALL} bytes"), bytes.to_string()));
        }
        self.refuse_captured(OP, "captured work has not run yet")?;
        self.refuse_dry(OP, "there is no value to read")?;
        let mut read = LateRead { device: self.clone(), copied: None, faults: None, launched: 0 };
        count(&self.context.counters.device_to_host);
        trace::served(WorkKind::Transfer, || COPY);
        if bytes > 0 {
            let mut block = self.host_buffer(bytes)?;
            let source = buffer.address() + byte_offset;
            // Launches the deferred ops, which may compute the bytes and issue tickets.
            let stream = self.compute.raw();
            read.launched = self.faults.launched();
            let timed = self.compute.begin_work();
            self.context.bind()?;
            // SAFETY: the source was checked above, and the pool reuses its memory behind the copy
            // only. The block has `bytes` bytes and is read, or given back, behind the event.
            let status = unsafe {
                (self.context.hip().hipMemcpyAsync)(
                    block.bytes_mut().as_mut_ptr().cast(),
                    source as *const _,
                    bytes,
                    hip_sys::hipMemcpyDeviceToHost,
                    stream,
                )
            };
            self.context.check("hipMemcpyAsync", status)?;
            self.compute.end_work(timed, WorkKind::Transfer, || COPY, Load::bytes(bytes));
            let event = self.compute.mark_for_host().inspect_err(|_| {
                // The copy may still be in flight, and the block is about to be used again.
                let _ = self.compute.synchronize();
            })?;
            read.copied = Some((block, event));
        }
        read.faults = if buffer.marks.any() { buffer.marks.get() } else { None };
        Ok(read)
    }
}

impl LateRead {
    /// Waits for the copy alone, not for work that was enqueued behind it. Returns the bytes and
    /// their fault, as [`Device::read_with_fault`] does.
    ///
    /// # Errors
    /// As [`Device::read_with_fault`].
    pub fn wait(mut self) -> Result<(Vec<u8>, Option<Error>)> {
        let bytes = match &self.copied {
            Some((block, event)) => {
                event.synchronize()?;
                self.device.faults.pass(self.launched);
                // Visible by the event's `hipEventReleaseToSystem`.
                block.bytes().to_vec()
            }
            None => Vec::new(),
        };
        self.copied = None;
        let device = &self.device;
        device.releases.poll(device.captures.any());
        device.context.take_error()?;
        Ok((bytes, self.faults.as_ref().and_then(|set| set.fault())))
    }
}

impl Drop for LateRead {
    fn drop(&mut self) {
        if let Some((_, event)) = &self.copied
            && let Err(error) = event.synchronize()
        {
            self.device.context.record(error);
        }
    }
}

impl fmt::Debug for LateRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateRead").field("device", &self.device.info().index).finish_non_exhaustive()
    }
}
