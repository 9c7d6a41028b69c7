//! The local data share of a workgroup.

/// How to set up an [`Lds`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LdsInit {
    /// Bytes.
    pub size: u32,
    /// Fills with 0xff (NaN) instead of 0.
    pub poison: bool,
    /// Finds conflicting accesses of different waves without a barrier between.
    pub races: bool,
}

/// A workgroup's local data share, checked to the byte.
#[derive(Debug)]
pub struct Lds {
    bytes: Vec<u8>,
}

impl Lds {
    /// A fresh LDS.
    pub fn new(init: &LdsInit) -> Self {
        Self { bytes: vec![if init.poison { 0xff } else { 0 }; init.size as usize] }
    }

    /// Prepares for the next workgroup of the same size.
    pub fn reset(&mut self, init: &LdsInit) {
        *self = Self::new(init);
    }

    /// All waves of the workgroup have reached a barrier.
    pub fn barrier(&mut self) {}

    /// Bytes.
    pub fn size(&self) -> u32 {
        self.bytes.len() as u32
    }
}
