//! Burn's device: an index among the chosen provider's devices.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use burn_backend::{DeviceId, DeviceOps};
use burn_std::device::Device as BurnDevice;
use hip::Error;

/// A device of the chosen provider, by its index.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct RocmDevice {
    /// The index among the provider's devices, from 0.
    pub index: usize,
}

impl RocmDevice {
    /// The device of that index; whether there is one shows on first use.
    pub fn new(index: usize) -> Self {
        Self { index }
    }

    /// The device itself.
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
                // `usize::from_str` would take a sign.
                if !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(error());
                }
                digits.parse().map(Self::new).map_err(|_| error())
            }
            None => Err(error()),
        }
    }
}

impl BurnDevice for RocmDevice {
    fn from_id(device_id: DeviceId) -> Self {
        Self::new(device_id.index_id as usize)
    }

    fn to_id(&self) -> DeviceId {
        DeviceId { type_id: 0, index_id: self.index as u16 }
    }
}

impl DeviceOps for RocmDevice {}

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

    #[test]
    fn ids() {
        let device = RocmDevice::new(5);
        assert_eq!(RocmDevice::from_id(device.to_id()), device);
        assert_eq!(device.to_id().type_id, 0);
    }
}
