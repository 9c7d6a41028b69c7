//! Checked handles. A stale, foreign or null handle is recognised without dereferencing it.

use std::sync::{Arc, PoisonError, RwLock};

/// The live objects of one kind.
///
/// A handle has three parts: a tag, which makes it an address that no object has, a slot, and the
/// slot's generation.
pub(crate) struct Handles<T> {
    tag: u8,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    all: Vec<(u32, Option<Arc<T>>)>,
    free: Vec<u32>,
}

impl<T> Handles<T> {
    pub(crate) const fn new(tag: u8) -> Self {
        Self { tag, slots: RwLock::new(Slots { all: Vec::new(), free: Vec::new() }) }
    }

    pub(crate) fn insert(&self, value: Arc<T>) -> usize {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = slots.free.pop().unwrap_or_else(|| {
            slots.all.push((0, None));
            slots.all.len() as u32 - 1
        });
        let slot = &mut slots.all[index as usize];
        slot.0 = slot.0.wrapping_add(1);
        slot.1 = Some(value);
        (u64::from(self.tag) << 56 | u64::from(index) << 32 | u64::from(slot.0)) as usize
    }

    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let (generation, value) = slots.all.get(self.index(handle)?)?;
        if *generation == handle as u32 { value.clone() } else { None }
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        let index = self.index(handle)?;
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let (generation, value) = slots.all.get_mut(index)?;
        if *generation != handle as u32 {
            return None;
        }
        let value = value.take()?;
        slots.free.push(index as u32);
        Some(value)
    }

    fn index(&self, handle: usize) -> Option<usize> {
        let handle = handle as u64;
        ((handle >> 56) as u8 == self.tag).then_some((handle >> 32 & 0xff_ffff) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_foreign_handles_are_refused() {
        let numbers: Handles<u32> = Handles::new(1);
        let others: Handles<u32> = Handles::new(2);
        let one = numbers.insert(Arc::new(1));
        assert_eq!(numbers.get(one).as_deref(), Some(&1));
        assert!(others.get(one).is_none());
        assert!(numbers.remove(one).is_some());
        assert!(numbers.remove(one).is_none());
        let two = numbers.insert(Arc::new(2));
        assert!(numbers.get(one).is_none(), "the slot is used again, the handle is not");
        assert_eq!(numbers.get(two).as_deref(), Some(&2));
        assert!(numbers.get(0).is_none());
        assert!(numbers.get(0x7fff_1234_5678).is_none());
    }
}
