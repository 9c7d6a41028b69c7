//! Hashes: one for keys and checksums of files, one for look-ups on the hot path.

use std::hash::Hasher;

/// FNV-1a with 128 bits (Fowler, Noll and Vo; RFC 9923): against accidents, not against an attacker, who can't write
/// to the cache's directory.
#[derive(Clone, Copy)]
pub(crate) struct Fnv(u128);

impl Fnv {
    pub(crate) const fn new() -> Self {
        Self(0x6c62272e07bb014262b821756295c58d)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0000000001000000000000000000013b);
        }
        self
    }

    /// A part with its length, so that moving a byte from one part to the next changes the hash.
    pub(crate) fn part(self, part: &str) -> Self {
        self.bytes(&(part.len() as u64).to_le_bytes()).bytes(part.as_bytes())
    }

    pub(crate) fn finish(self) -> u128 {
        self.0
    }
}

/// A few cycles a word: for small keys that the program itself makes.
#[derive(Default)]
pub(crate) struct Quick(u64);

impl Quick {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e3779b97f4a7c15);
    }
}

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.word(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        }
        let mut rest = [0; 8];
        rest[..words.remainder().len()].copy_from_slice(words.remainder());
        self.word(u64::from_le_bytes(rest) ^ (bytes.len() as u64) << 56);
    }

    fn write_u8(&mut self, i: u8) {
        self.word(i.into());
    }

    fn write_u32(&mut self, i: u32) {
        self.word(i.into());
    }

    fn write_u64(&mut self, i: u64) {
        self.word(i);
    }

    fn write_usize(&mut self, i: usize) {
        self.word(i as u64);
    }

    fn write_isize(&mut self, i: isize) {
        self.word(i as u64);
    }

    fn finish(&self) -> u64 {
        // hashbrown takes its control bits from the top and its index from the bottom.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_gives_the_published_values() {
        // draft-eastlake-fnv: test vectors of FNV-1a 128 for "" and "a".
        assert_eq!(Fnv::new().finish(), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(Fnv::new().bytes(b"a").finish(), 0xd228cb696f1a8caf78912b704e4a8964);
        assert_ne!(Fnv::new().part("ab").part("c").finish(), Fnv::new().part("a").part("bc").finish());
    }
}
