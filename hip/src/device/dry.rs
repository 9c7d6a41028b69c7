//! Dry devices: stand-ins for a device that hand out addresses and run nothing.
//!
//! A dry device is a [`Device`] over the provider's dry tables, so every op takes the path that it
//! takes on the real device and allocates the same blocks from a pool of the same rules. The pool's
//! addresses are never mapped. Its index is one that no real device has, so a tensor of the real
//! device is refused as one of another device.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::watch::{self, DRY, RUNNING};

/// The first index of dry devices. Burn's ids of devices have 16 bits.
const FIRST: usize = 1 << 15;
/// How many dry devices there can be at once.
const MOST: usize = 1 << 15;

/// The dry devices of the estimates in progress.
fn all() -> MutexGuard<'static, HashMap<usize, Arc<Device>>> {
    static ALL: LazyLock<Mutex<HashMap<usize, Arc<Device>>>> = LazyLock::new(Mutex::default);
    // Every statement that changes the map leaves it whole.
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the index is one of a dry device.
#[inline]
pub(crate) fn is_dry(index: usize) -> bool {
    (FIRST..FIRST + MOST).contains(&index)
}

/// The dry device with this index.
pub(crate) fn get(index: usize) -> Result<Arc<Device>> {
    all().get(&index).cloned().ok_or_else(|| {
        Error::config("device index", "the dry device of an estimate in progress", index.to_string())
    })
}

/// A dry device, which [`Device::get`] finds by its index until this is dropped. Its buffers stay
/// valid afterwards.
pub struct Dry(Arc<Device>);

impl Dry {
    /// A dry device that stands for `device`. Its pool is empty, and holds up to `limit` bytes;
    /// `None` is no limit. While it exists, all threads' ops know their names.
    ///
    /// # Errors
    /// `Device` if the driver reports no properties; `Config` if there are too many dry devices.
    pub fn new(device: &Device, limit: Option<usize>) -> Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        device.refuse_dry("an estimate", "estimates are not nested")?;
        let mut all = all();
        if all.len() >= MOST {
            return Err(Error::config("dry devices", format!("up to {MOST} at once"), all.len().to_string()));
        }
        let index = loop {
            let index = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % MOST;
            if !all.contains_key(&index) {
                break index;
            }
        };
        let dry = Arc::new(Device::of(device.provider().dry(), index, device.context.ordinal)?);
        dry.pool.set_limit(limit);
        all.insert(index, dry.clone());
        watch::switch(DRY, true);
        Ok(Self(dry))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.0
    }
}

impl Drop for Dry {
    fn drop(&mut self) {
        let mut all = all();
        all.remove(&self.0.context.index);
        if all.is_empty() {
            watch::switch(DRY, false);
        }
    }
}

impl Device {
    /// Whether it is a [dry device](Dry).
    #[inline]
    pub fn is_dry(&self) -> bool {
        self.context.provider.is_dry()
    }

    /// For what a device that runs nothing can't do. The error names the op that the thread runs,
    /// or `op` outside any.
    ///
    /// # Errors
    /// `Dry` if this is a dry device.
    pub fn refuse_dry(&self, op: &'static str, reason: &str) -> Result<()> {
        if !self.is_dry() {
            return Ok(());
        }
        let op = Some(RUNNING.get().op).filter(|running| !running.is_empty()).unwrap_or(op);
        Err(Error::Dry { op, reason: reason.into() })
    }
}
