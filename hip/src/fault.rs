//! What kernels complain about: indices out of range, division by zero. A kernel can't fail, so it stores one word into
//! host memory that the device reaches; the next read or sync finds it there, with no copy or wait of its own.
//!
//! Each op has a word of its own, in which later complaints of the same op replace earlier ones: nothing is compared or
//! exchanged, which devices behind a bus without atomics could not do, and ops never mix up their names.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::pinned::PinnedBlock;

/// What a kernel may find wrong with the values it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An index outside its axis. The word is `prelude.h`'s `raise_index`.
    Index,
    /// An integer divided by zero.
    Division,
}

/// Words, and ops that may have one; this backend has some fifty that need it. A power of two.
const WORDS: usize = 256;

struct Op {
    name: &'static str,
    fault: Fault,
    word: u16,
}

/// The ops that were ever launched with a flag, hashed by their names' addresses: a look-up is one comparison, without a lock.
static OPS: [OnceLock<Op>; WORDS] = [const { OnceLock::new() }; WORDS];
/// Where the op of each word stands in [`OPS`].
static PLACES: [AtomicU16; WORDS] = [const { AtomicU16::new(0) }; WORDS];
static USED: AtomicU16 = AtomicU16::new(0);

/// The word of an op, the same on every device.
#[inline]
fn word(name: &'static str, fault: Fault) -> usize {
    let address = name.as_ptr() as usize;
    let mut place = (address ^ (address >> 8)) % WORDS;
    for _ in 0..WORDS {
        let op = OPS[place].get_or_init(|| {
            let word = USED.fetch_add(1, Ordering::AcqRel);
            PLACES[usize::from(word)].store(place as u16, Ordering::Release);
            Op { name, fault, word }
        });
        if std::ptr::eq(op.name, name) && op.fault == fault {
            return usize::from(op.word);
        }
        place = (place + 1) % WORDS;
    }
    // More ops than words: the last one's name stands for all of them.
    WORDS - 1
}

/// One device's words.
pub(crate) struct Faults(PinnedBlock);

impl Faults {
    pub(crate) fn new(context: &std::sync::Arc<crate::context::Context>) -> Result<Self> {
        Ok(Self(PinnedBlock::coherent(context, WORDS * size_of::<u64>())?))
    }

    /// The address of an op's word.
    #[inline]
    pub(crate) fn address(&self, name: &'static str, fault: Fault) -> usize {
        self.0.address() as usize + word(name, fault) * size_of::<u64>()
    }

    /// What was raised since the last time, all in one error that has the first op's name.
    pub(crate) fn take(&self) -> Option<Error> {
        let used = usize::from(USED.load(Ordering::Acquire)).min(WORDS);
        let mut first: Option<Error> = None;
        for (index, place) in PLACES.iter().enumerate().take(used) {
            // SAFETY: the block holds `WORDS` words aligned to far more; the device and the host access each as a whole.
            let word = unsafe { AtomicU64::from_ptr(self.0.address().cast::<u64>().add(index)) };
            if word.load(Ordering::Acquire) == 0 {
                continue;
            }
            let value = word.swap(0, Ordering::AcqRel);
            let Some(op) = OPS[usize::from(place.load(Ordering::Acquire))].get() else { continue };
            let (expected, found) = describe(op.fault, value);
            match &mut first {
                None => first = Some(Error::invalid(op.name, expected, found)),
                Some(Error::Invalid { found: all, .. }) => {
                    all.push_str(&format!("; {}: expected {expected}, found {found}", op.name));
                }
                Some(_) => {}
            }
        }
        first
    }
}

/// In words: `raise_index` has the axis' size in bits 32 to 62 and the index in bits 0 to 31, each at its type's end
/// where it is past it.
fn describe(fault: Fault, value: u64) -> (String, String) {
    if fault == Fault::Division {
        return ("divisors other than 0".into(), "division by zero".into());
    }
    let size = (value >> 32) & 0x7fff_ffff;
    let index = match value as u32 as i32 {
        i32::MAX => format!("{} or more", i32::MAX),
        i32::MIN => format!("{} or less", i32::MIN),
        index => index.to_string(),
    };
    let axis = if size == 0x7fff_ffff { format!("at least {size}") } else { size.to_string() };
    (format!("indices from 0 to below the axis' size, {axis}"), format!("index {index}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_a_word_of_its_own() {
        let names = ["fault_test_a", "fault_test_b", "fault_test_c"];
        let words: Vec<usize> = names.iter().map(|name| word(name, Fault::Index)).collect();
        assert!(words[0] != words[1] && words[1] != words[2] && words[0] != words[2]);
        assert_ne!(word(names[0], Fault::Division), words[0]);
        assert_eq!(word(names[0], Fault::Index), words[0]);
    }

    #[test]
    fn words_in_words() {
        let index =
            |size: u64, index: i32| describe(Fault::Index, 1 << 63 | size << 32 | u64::from(index as u32));
        assert_eq!(index(10, 12).1, "index 12");
        assert_eq!(index(10, -3).1, "index -3");
        assert!(index(10, -3).0.ends_with("size, 10"));
        assert_eq!(index(0, i32::MAX).1, "index 2147483647 or more");
        assert!(index(0x7fff_ffff, 0).0.ends_with("at least 2147483647"));
    }
}
