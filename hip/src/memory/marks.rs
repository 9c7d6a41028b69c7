//! The faults that a buffer's contents may have.
//!
//! An op's outputs take over the [`Ticket`]s of its inputs and of its own launches. A read checks
//! the tickets of its buffer only. A ticket is forgotten once its launch has finished without a
//! fault. A ticket with a fault stays until the buffer is dropped or wholly overwritten.
//!
//! Most buffers have no ticket. For such a buffer, a launch pays one relaxed load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::memory::fault::{Ticket, progress, tell};

/// If there are more tickets than this, joining sets polls the device's progress, which sometimes
/// records an event.
const FEW: usize = 8;
/// If there are more tickets than this, the host is far ahead of the device, and waits for the
/// older half of the set's launches.
const MOST: usize = 64;
/// The most tickets with a fault that an overfull set keeps. One is enough to make a read fail.
const MOST_FAULTS: usize = 8;

/// Tickets, oldest first. Buffers with the same tickets share a set.
pub(crate) struct Set {
    tickets: Vec<Arc<Ticket>>,
    /// The value of [`progress`] when the tickets were last checked.
    looked: AtomicU64,
}

impl Set {
    pub(crate) fn of(ticket: Arc<Ticket>) -> Arc<Self> {
        Self::new(vec![ticket], progress())
    }

    fn new(tickets: Vec<Arc<Ticket>>, looked: u64) -> Arc<Self> {
        Arc::new(Self { tickets, looked: AtomicU64::new(looked) })
    }

    /// The set without the tickets that are known to be good; `None` if no ticket is left.
    fn unsettled(self: &Arc<Self>) -> Option<Arc<Self>> {
        let now = progress();
        if self.looked.load(Ordering::Relaxed) == now {
            return Some(self.clone());
        }
        if !self.tickets.iter().any(|ticket| ticket.is_good()) {
            self.looked.store(now, Ordering::Relaxed);
            return Some(self.clone());
        }
        let rest: Vec<_> = self.tickets.iter().filter(|ticket| !ticket.is_good()).cloned().collect();
        (!rest.is_empty()).then(|| Self::new(rest, now))
    }

    /// The error of the launches that found a fault. Call it after waiting for the launches.
    pub(crate) fn fault(&self) -> Option<Error> {
        tell(&self.tickets)
    }

    /// Whether this set has all tickets of `other`.
    fn holds(&self, other: &Self) -> bool {
        let mut own = self.tickets.iter();
        other.tickets.len() <= self.tickets.len()
            && other.tickets.iter().all(|ticket| own.any(|own| own.id() == ticket.id()))
    }

    /// A set with the tickets of both.
    pub(crate) fn join(a: Option<Arc<Self>>, b: Option<Arc<Self>>) -> Option<Arc<Self>> {
        let (a, b) = match (a, b) {
            (Some(a), Some(b)) => (a, b),
            (a, b) => return a.or(b),
        };
        if Arc::ptr_eq(&a, &b) || a.holds(&b) {
            return Some(a);
        }
        if b.holds(&a) {
            return Some(b);
        }
        let looked = a.looked.load(Ordering::Relaxed).min(b.looked.load(Ordering::Relaxed));
        let mut tickets: Vec<_> = a.tickets.iter().chain(&b.tickets).cloned().collect();
        tickets.sort_unstable_by_key(|ticket| ticket.id());
        tickets.dedup_by_key(|ticket| ticket.id());
        bound(&mut tickets);
        (!tickets.is_empty()).then(|| Self::new(tickets, looked))
    }
}

/// Bounds the set, which would otherwise grow with every step of a loop that never reads.
fn bound(tickets: &mut Vec<Arc<Ticket>>) {
    if tickets.len() <= FEW {
        return;
    }
    // Polling the newest ticket of each device would be enough. Most sets have tickets of one
    // device, and only the first call polls it.
    tickets.iter().for_each(|ticket| ticket.poll());
    tickets.retain(|ticket| !ticket.is_good());
    if tickets.len() <= MOST {
        return;
    }
    if tickets.iter().any(|ticket| ticket.value() != 0) {
        tickets.retain(|ticket| ticket.value() != 0);
        tickets.truncate(MOST_FAULTS);
        return;
    }
    // Waits for the newest first: once the device has passed it, it has passed the others too.
    tickets[..tickets.len() / 2].iter().rev().for_each(|ticket| ticket.wait());
    tickets.retain(|ticket| !ticket.is_good());
}

/// A buffer's set of tickets.
#[derive(Default)]
pub(crate) struct Marks {
    /// Whether there is a set. Written under the lock, read without it. A thread that gets a buffer
    /// from another thread sees the marks that the other thread set before.
    any: AtomicBool,
    set: Mutex<Option<Arc<Set>>>,
}

impl Marks {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The set without the tickets that are known to be good.
    #[cold]
    pub(crate) fn get(&self) -> Option<Arc<Set>> {
        let mut own = self.lock();
        let rest = own.as_ref()?.unsettled();
        if !own.as_ref().zip(rest.as_ref()).is_some_and(|(own, rest)| Arc::ptr_eq(own, rest)) {
            self.any.store(rest.is_some(), Ordering::Relaxed);
            own.clone_from(&rest);
        }
        rest
    }

    /// Replaces the set.
    pub(crate) fn put(&self, set: Option<Arc<Set>>) {
        let mut own = self.lock();
        self.any.store(set.is_some(), Ordering::Relaxed);
        *own = set;
    }

    /// The error of the launches that found a fault. Call it after waiting for the launches.
    #[inline]
    pub(crate) fn fault(&self) -> Option<Error> {
        if self.any() { self.get().and_then(|set| set.fault()) } else { None }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Set>>> {
        // A panic can't leave it broken: it is one value, and each change replaces it whole.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Fault};

    fn ticket() -> Arc<Ticket> {
        let device = Device::get(0).expect("a provider with a device");
        device.faults.issue("marks test", Fault::Index).expect("a word")
    }

    /// A ticket whose launch has finished and stored this value.
    fn over(complaint: u64) -> Arc<Ticket> {
        let ticket = ticket();
        // SAFETY: the word belongs to the ticket and lives as long.
        unsafe { AtomicU64::from_ptr(ticket.address() as *mut u64) }.store(complaint, Ordering::Release);
        ticket.launched();
        ticket.wait();
        ticket
    }

    fn join(a: &Arc<Set>, b: &Arc<Set>) -> Arc<Set> {
        Set::join(Some(a.clone()), Some(b.clone())).expect("tickets that may be faulty")
    }

    #[test]
    fn sets_are_joined_in_order_and_shared_where_one_holds_the_other() {
        let [a, b, c] = [ticket(), ticket(), ticket()].map(Set::of);
        let (ac, all) = (join(&c, &a), join(&join(&b, &c), &a));
        let ids = |set: &Set| set.tickets.iter().map(|ticket| ticket.id()).collect::<Vec<_>>();
        assert_eq!(ids(&ac), [ids(&a), ids(&c)].concat());
        assert_eq!(ids(&all), [ids(&a), ids(&b), ids(&c)].concat());
        for part in [&a, &b, &c, &ac, &all] {
            assert!(Arc::ptr_eq(&join(&all, part), &all) && Arc::ptr_eq(&join(part, &all), &all));
        }
        assert!(!ac.holds(&b) && !a.holds(&ac));
    }

    #[test]
    fn what_is_good_is_forgotten_and_what_is_not_stays() {
        let (pending, good, bad) = (ticket(), over(0), over(1 << 63));
        let all = join(&Set::of(pending.clone()), &join(&Set::new(vec![good], 0), &Set::new(vec![bad], 0)));
        let rest = all.unsettled().expect("two are left");
        assert_eq!(rest.tickets.len(), 2);
        assert!(Arc::ptr_eq(&rest.unsettled().expect("nothing new"), &rest));
        assert!(matches!(tell(&rest.tickets), Some(Error::Invalid { op: "marks test", .. })));
        let marks = Marks::default();
        assert!(!marks.any() && marks.fault().is_none());
        marks.put(Some(Set::new(vec![over(0)], 0)));
        assert!(marks.any() && marks.get().is_none() && !marks.any(), "nothing is left of it");
        marks.put(Some(all));
        for _ in 0..2 {
            assert!(marks.any() && marks.fault().is_some());
        }
        pending.cancelled();
    }

    #[test]
    fn sets_are_bounded() {
        let mut set = Set::of(ticket());
        for _ in 0..1000 {
            let next = ticket();
            next.launched();
            set = join(&set, &Set::of(next));
            assert!(set.tickets.len() <= MOST);
        }
        let mut set = Set::of(over(1 << 63));
        let first = set.tickets[0].id();
        for _ in 0..1000 {
            set = join(&set, &Set::of(over(1 << 63)));
            assert!(set.tickets.len() <= MOST);
        }
        assert_eq!(set.tickets[0].id(), first, "the first fault stays");
    }
}
