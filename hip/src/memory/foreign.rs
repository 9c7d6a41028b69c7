//! Memory that somebody else allocated, and buffers over it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Device;
use crate::device::info::MemorySpace;
use crate::error::{Error, Result};
use crate::memory::release::Release;

/// A range of memory that somebody else allocated and a device can access.
pub struct ForeignMemory {
    /// The address on the device.
    pub address: usize,
    /// The length in bytes.
    pub bytes: usize,
    /// Whether nobody may write it.
    pub read_only: bool,
    /// Called once, when nobody needs the memory any more: the last owner of the buffer is gone,
    /// and the device is past the work that uses the memory. The thread that drops the last owner
    /// calls it, or one that later reads, waits, drops or adopts such memory, or cleans the memory
    /// up. If the process ends first, nobody calls it.
    pub keeper: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, bytes, read_only, .. } = self;
        write!(f, "ForeignMemory({bytes} bytes at {address:#x}, read-only: {read_only})")
    }
}

/// The share of a buffer, or of a captured graph, in such memory. The last one to go releases it.
pub(crate) struct Foreign {
    device: Arc<Device>,
    address: usize,
    bytes: usize,
    pub(crate) read_only: bool,
    /// Whether the range is registered with the driver.
    registered: bool,
    /// `None` only while this is dropped. The lock makes it shareable; nobody waits for it.
    keeper: Mutex<Option<Release>>,
}

impl Foreign {
    /// Takes over the memory.
    pub(crate) fn new(device: &Arc<Device>, memory: ForeignMemory) -> Result<Self> {
        let ForeignMemory { address, bytes, read_only, keeper } = memory;
        if address == 0 || bytes == 0 || address.checked_add(bytes).is_none() {
            let found = format!("{bytes} bytes at {address:#x}");
            return Err(Error::invalid("memory of another library", "a range of memory", found));
        }
        let registered = device.info().memory == MemorySpace::Host;
        if registered {
            device.context.bind()?;
            // SAFETY: the function is HIP's. The caller of `Device::adopt` says that the memory is
            // the host's and stays until the keeper is called, which is after its end below.
            let status = unsafe { (device.context.hip().hipHostRegister)(address as *mut _, bytes, 0) };
            device.context.check("hipHostRegister", status)?;
        }
        let keeper = Mutex::new(Some(keeper));
        device.pool.import(bytes);
        Ok(Self { device: device.clone(), address, bytes, read_only, registered, keeper })
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(keeper) = keeper else { return };
        self.device.pool.end_import(self.bytes);
        let (address, registered, context) = (self.address, self.registered, self.device.context.clone());
        self.device.releases.after_compute(Box::new(move || {
            if registered {
                // SAFETY: the function is HIP's; the range was registered and is not used any more.
                let status = unsafe { (context.hip().hipHostUnregister)(address as *mut _) };
                context.record_status("hipHostUnregister", status);
            }
            keeper();
        }));
    }
}
