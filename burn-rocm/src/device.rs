//! Burn's device: an index among the chosen provider's devices.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_std::DType;
use hip::{Counters, Error, PoolStats, ProviderKind};

use crate::dtype::kernel_type;
use crate::waiting::enqueue_own;

/// A device of the chosen provider, by its index.
///
/// ```
/// use burn_rocm::RocmDevice;
///
/// let device = RocmDevice::default();
/// let info = device.info()?;
/// println!("{device}: {} ({}), {} bytes", info.name, info.architecture, info.memory);
/// device.set_memory_limit(4 << 30)?;
/// assert!(device.memory_stats()?.reserved <= 4 << 30);
/// # Ok::<(), burn_rocm::RocmError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RocmDevice {
    /// The index among the provider's devices, from 0.
    pub index: usize,
}

/// A device's properties.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The provider that runs the device.
    pub provider: ProviderKind,
    /// The marketing name, or the architecture if the driver gives no name.
    pub name: String,
    /// The architecture with its features, such as `gfx90a:sramecc+:xnack-`.
    pub architecture: String,
    /// Bytes of memory.
    pub memory: usize,
    /// Compute units.
    pub compute_units: u32,
    /// Threads in a wave (32 or 64 on a GPU).
    pub wave_size: u32,
    /// Bytes of shared memory (LDS) that a block of threads may use.
    pub shared_memory: usize,
    /// The dtypes that the device's matrix cores multiply. Empty if it has no matrix cores, or if
    /// burn-rocm does not know the chip.
    pub matrix_types: Vec<DType>,
}

/// The index of [`RocmDevice::default`].
static DEFAULT: AtomicUsize = AtomicUsize::new(0);

impl Default for RocmDevice {
    /// The device that [`set_default`](RocmDevice::set_default) chose, else device 0.
    fn default() -> Self {
        Self::new(DEFAULT.load(Ordering::Relaxed))
    }
}

impl RocmDevice {
    /// The device with this index. The first use of the device fails if it does not exist.
    pub fn new(index: usize) -> Self {
        Self { index }
    }

    /// Every device of the chosen provider.
    ///
    /// # Errors
    /// `NotAvailable` if no provider has a device, `Config` for an invalid setting.
    pub fn all() -> Result<Vec<Self>, Error> {
        Ok((0..hip::Device::count()?).map(Self::new).collect())
    }

    /// The device that [`RocmDevice::default`] returns.
    pub fn current() -> Self {
        Self::default()
    }

    /// Makes this the device that [`RocmDevice::default`] returns, in every thread. Tensors stay
    /// where they are.
    ///
    /// # Errors
    /// `Config` if the provider has no such device; the errors of [`all`](Self::all).
    pub fn set_default(&self) -> Result<(), Error> {
        hip::provider()?.check_index(self.index)?;
        // Relaxed, because the index publishes no other data.
        DEFAULT.store(self.index, Ordering::Relaxed);
        Ok(())
    }

    /// The device's properties. Opens the device, as every method below does.
    ///
    /// # Errors
    /// `Config` if the provider has no such device; an error that the driver reports.
    pub fn info(&self) -> Result<DeviceInfo, Error> {
        let device = self.open()?;
        let info = device.info();
        let matrix =
            |dtype: &DType| kernel_type(*dtype).is_ok_and(|dtype| info.matrix_types().contains(&dtype));
        let dtypes = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I8];
        Ok(DeviceInfo {
            provider: device.provider().kind(),
            name: info.name.clone(),
            architecture: info.arch.clone(),
            memory: info.usable_memory(),
            compute_units: info.compute_units,
            wave_size: info.warp_size,
            shared_memory: info.shared_memory_per_block,
            matrix_types: dtypes.into_iter().filter(matrix).collect(),
        })
    }

    /// The memory pool's bytes in use, bytes reserved from the driver, peak, hits and misses.
    ///
    /// # Errors
    /// As [`info`](Self::info).
    pub fn memory_stats(&self) -> Result<PoolStats, Error> {
        Ok(self.open()?.pool().stats())
    }

    /// Free and total bytes, as the driver counts them. Memory that the pool caches is not free.
    ///
    /// # Errors
    /// As [`info`](Self::info).
    pub fn free_and_total_memory(&self) -> Result<(usize, usize), Error> {
        self.open()?.memory_info()
    }

    /// Resets the peak of [`memory_stats`](Self::memory_stats) to the bytes that are in use now.
    ///
    /// # Errors
    /// As [`info`](Self::info).
    pub fn reset_peak_memory(&self) -> Result<(), Error> {
        self.open()?.pool().reset_peak();
        Ok(())
    }

    /// Limits the memory pool to this many bytes; `None` removes the limit. Memory that the pool
    /// already holds beyond the new limit stays until `Backend::memory_cleanup`.
    ///
    /// # Errors
    /// As [`info`](Self::info).
    pub fn set_memory_limit(&self, bytes: impl Into<Option<usize>>) -> Result<(), Error> {
        self.open()?.pool().set_limit(bytes.into());
        Ok(())
    }

    /// Waits for everything that was queued on the device.
    ///
    /// # Errors
    /// As [`info`](Self::info). Also a fault that no read has reported; each fault is reported
    /// once.
    pub fn synchronize(&self) -> Result<(), Error> {
        enqueue_own()?;
        self.open()?.sync()
    }

    /// The numbers of copies, waits and launches on the device since it was opened.
    ///
    /// # Errors
    /// As [`info`](Self::info).
    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(self.open()?.counters())
    }

    /// Measures the bytes a second of the device's memory by copies within it. Profiles then show
    /// which share of them each row reached.
    ///
    /// # Errors
    /// `OutOfMemory` if 256 MiB are not free; an error of the device.
    pub fn measure_bandwidth(&self) -> Result<f64, Error> {
        enqueue_own()?;
        self.open()?.measure_bandwidth()
    }

    /// Opens the device.
    pub(crate) fn open(&self) -> hip::Result<Arc<hip::Device>> {
        hip::Device::get(self.index)
    }
}

impl fmt::Debug for RocmDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RocmDevice({})", self.index)
    }
}

impl fmt::Display for RocmDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rocm:{}", self.index)
    }
}

impl FromStr for RocmDevice {
    type Err = Error;

    /// `"rocm"` is device 0, `"rocm:N"` device N.
    fn from_str(text: &str) -> Result<Self, Error> {
        let error = || Error::Config {
            what: "device".into(),
            expected: "`rocm` or `rocm:INDEX`".into(),
            found: format!("`{text}`"),
        };
        match text.strip_prefix("rocm") {
            Some("") => Ok(Self::new(0)),
            Some(rest) => {
                let digits = rest.strip_prefix(':').ok_or_else(error)?;
                // `usize::from_str` would accept a sign.
                if !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(error());
                }
                digits.parse().map(Self::new).map_err(|_| error())
            }
            None => Err(error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!("rocm".parse::<RocmDevice>().unwrap(), RocmDevice::default());
        assert_eq!("rocm:12".parse::<RocmDevice>().unwrap().index, 12);
        assert_eq!(RocmDevice::new(3).to_string().parse::<RocmDevice>().unwrap(), RocmDevice::new(3));
        for bad in ["", "cuda", "rocm:", "rocm:x", "rocm1", "rocm:-1", "rocm:+1", "rocm:99999999999999999999"]
        {
            assert!(matches!(bad.parse::<RocmDevice>(), Err(Error::Config { .. })), "{bad}");
        }
    }
}
