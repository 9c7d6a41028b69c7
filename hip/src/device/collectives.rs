//! Which collectives a device was given, so that a pass knows which of them may run beside its work.
//!
//! A group is named by the number of the device's rank in it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::Device;

/// A device's collectives.
#[derive(Default)]
pub(crate) struct Collectives {
    /// Locked while one is issued. On CPU devices that takes until the other ranks issue it too.
    issuing: Mutex<()>,
    /// Never locked while a call waits. One lock for all of it: a collective that a pass finds
    /// counted is either joined or found in `unjoined`.
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    /// The number of collectives issued.
    issued: u64,
    /// For each group, which of them was its last.
    last: BTreeMap<u64, u64>,
    /// For each group, how many of its collectives are not joined. Groups that have none are left
    /// out.
    unjoined: BTreeMap<u64, usize>,
}

/// What a device's collectives were when a pass began.
#[derive(Default)]
pub(crate) struct Before {
    issued: u64,
    /// The groups with collectives that were not joined.
    unjoined: Vec<u64>,
}

impl Collectives {
    /// Lets no other thread issue a collective on the device.
    pub(crate) fn issuing(&self) -> MutexGuard<'_, ()> {
        self.issuing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asked before the pass's first point: the compute stream waits for what was joined by then.
    pub(crate) fn before_pass(&self) -> Before {
        let noted = self.noted();
        Before { issued: noted.issued, unjoined: noted.unjoined.keys().copied().collect() }
    }

    /// Whether a collective of another group may still run beside the pass's work: one that was
    /// issued since the pass began, or was not joined when it began.
    pub(crate) fn others_since(&self, before: &Before, group: u64) -> bool {
        before.unjoined.iter().any(|&other| other != group)
            || self.noted().last.iter().any(|(&other, &last)| other != group && last > before.issued)
    }

    /// Whether the group has issued a collective since the pass began.
    pub(crate) fn issued_since(&self, before: &Before, group: u64) -> bool {
        self.noted().last.get(&group).is_some_and(|&last| last > before.issued)
    }

    /// How many of the group's collectives are not joined.
    pub(crate) fn unjoined(&self, group: u64) -> usize {
        self.noted().unjoined.get(&group).copied().unwrap_or_default()
    }

    /// Forgets a group whose collectives have ended.
    pub(crate) fn forget(&self, group: u64) {
        self.noted().last.remove(&group);
    }

    #[cfg(test)]
    pub(crate) fn all_joined(&self) -> bool {
        self.noted().unjoined.is_empty()
    }
}

/// A collective that is not joined. Dropped when the compute stream waits for it.
pub(crate) struct Unjoined {
    device: Arc<Device>,
    group: u64,
}

impl Unjoined {
    /// Notes a collective before it is issued. The caller has locked
    /// [`issuing`](Collectives::issuing).
    pub(crate) fn note(device: &Arc<Device>, group: u64) -> Self {
        let mut noted = device.collectives.noted();
        noted.issued += 1;
        let number = noted.issued;
        noted.last.insert(group, number);
        *noted.unjoined.entry(group).or_default() += 1;
        Self { device: device.clone(), group }
    }
}

impl Drop for Unjoined {
    fn drop(&mut self) {
        let mut noted = self.device.collectives.noted();
        if let Some(count) = noted.unjoined.get_mut(&self.group) {
            *count -= 1;
            if *count == 0 {
                noted.unjoined.remove(&self.group);
            }
        }
    }
}
