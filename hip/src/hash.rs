//! Hashes of cached files and of their keys.

use xxhash_rust::xxh3::Xxh3;

/// XXH3 with 128 bits. It guards against accidents only: an attacker can't write to the cache's
/// directory.
pub(crate) struct Digest(Xxh3);

impl Digest {
    pub(crate) fn new() -> Self {
        Self(Xxh3::new())
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.update(bytes);
        self
    }

    /// Adds a part and its length, so that moving a byte from one part to the next changes the
    /// hash.
    pub(crate) fn part(self, part: &str) -> Self {
        self.bytes(&(part.len() as u64).to_le_bytes()).bytes(part.as_bytes())
    }

    pub(crate) fn finish(self) -> u128 {
        self.0.digest128()
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    #[test]
    fn parts_do_not_run_together() {
        let of = |parts: [&str; 2]| parts.iter().fold(Digest::new(), |hash, part| hash.part(part)).finish();
        assert_ne!(of(["ab", "c"]), of(["a", "bc"]));
        assert_eq!(of(["ab", "c"]), of(["ab", "c"]));
    }
}
