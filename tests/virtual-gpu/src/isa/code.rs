//! The decode cache over the machine code of loaded code objects.

/// Decoded instructions of all loaded code, shared by all waves.
#[derive(Debug, Default)]
pub struct Code {}

impl Code {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares `len` bytes of machine code at the host address `base`.
    pub fn add(&self, base: u64, len: u64) {
        let _ = (base, len);
    }

    /// Forgets the code at `base`, as given to [`Code::add`].
    pub fn remove(&self, base: u64) {
        let _ = base;
    }
}
