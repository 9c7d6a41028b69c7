//! The ops that wait for their results to be needed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

/// An op that was put off.
pub(crate) trait Waiting: Send + Sync {
    /// The thread that put the op off.
    fn thread(&self) -> ThreadId;

    /// Enqueues the op unless that was done, or unless it belongs to another thread's graph. Reads
    /// of the op's result report its error.
    fn enqueue_here(&self);
}

type List = Vec<Weak<dyn Waiting>>;

/// The ops that may still wait.
fn list() -> MutexGuard<'static, List> {
    static LIST: Mutex<List> = Mutex::new(Vec::new());
    // Every statement that changes the list leaves it whole.
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists an op, and enqueues the one that its thread put off before, so that a thread has at most
/// one op waiting and keeps few operands alive.
pub(crate) fn wait(op: &Arc<impl Waiting + 'static>) {
    let op: Weak<dyn Waiting> = Arc::downgrade(op) as _;
    enqueue_own();
    let mut list = list();
    list.retain(|other| other.strong_count() > 0);
    list.push(op);
}

fn enqueue(chosen: impl Fn(&Arc<dyn Waiting>) -> bool) {
    // Outside the lock, because an op's operands may wait too.
    let all: Vec<_> = list().iter().filter_map(Weak::upgrade).filter(chosen).collect();
    all.iter().for_each(|op| op.enqueue_here());
}

/// Enqueues the op that this thread put off. What waits for the device, records its time or captures
/// its work calls this first. Other threads' ops stay, because enqueuing them would make it a matter
/// of chance whether a sum replaces them, and so how the sum is rounded.
pub(crate) fn enqueue_own() {
    let own = std::thread::current().id();
    enqueue(|op| op.thread() == own);
}

/// Enqueues all threads' ops, before a graph writes memory that these may read.
pub(crate) fn enqueue_all() {
    enqueue(|_| true);
}
