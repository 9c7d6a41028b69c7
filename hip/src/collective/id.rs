//! The name of a group.

use std::ffi::c_char;
use std::fmt;

use rccl_sys::ncclUniqueId;

use crate::collective::library::Library;
use crate::error::{Error, Result};
use crate::provider::provider;

/// Names a group of ranks. One of them makes it, and gives its 128 bytes to the others.
///
/// Whoever knows the bytes can join the group, so send them only to processes that shall.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::BYTES]);

impl UniqueId {
    /// The number of its bytes.
    pub const BYTES: usize = 128;

    /// A new id, from RCCL. The process must live for as long as the group is used.
    ///
    /// # Errors
    /// `NotAvailable` if RCCL is missing, with the package to install; `Collective` if it fails.
    pub fn new() -> Result<Self> {
        let library = Library(provider()?.rccl()?);
        let mut id = ncclUniqueId { internal: [0; Self::BYTES] };
        // SAFETY: the function is RCCL's; it writes one id.
        let status = unsafe { (library.0.ncclGetUniqueId)(&mut id) };
        library.check("ncclGetUniqueId", status, || "no id for a group".into())?;
        Ok(Self(id.internal.map(|byte| byte as u8)))
    }

    /// The bytes, to be sent to the other ranks.
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// The id that has these bytes.
    ///
    /// # Errors
    /// `Invalid` unless there are 128.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let found = || Error::invalid("UniqueId::from_bytes", "128 bytes", format!("{} bytes", bytes.len()));
        bytes.try_into().map(Self).map_err(|_| found())
    }

    pub(super) fn raw(&self) -> ncclUniqueId {
        ncclUniqueId { internal: self.0.map(|byte| byte as c_char) }
    }
}

impl fmt::Debug for UniqueId {
    /// Without the bytes, because they are a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}
