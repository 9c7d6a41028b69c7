//! Ops that are put off (deferred). A thread puts off at most one op, until its next op at the
//! latest.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use hip::{Buffer, Device};

/// An op whose work was put off and may still have to be enqueued.
pub(crate) trait Waiting: Send + Sync {
    /// Whether the op still has to be enqueued and reads a buffer for which `is` holds.
    fn reads(&self, is: &dyn Fn(&Buffer) -> bool) -> bool;

    /// The device of the op, if its thread was capturing a graph when it put the op off.
    fn captured_on(&self) -> Option<&Arc<Device>>;

    /// Enqueues the op if that has not happened yet.
    ///
    /// # Errors
    /// The op's, each time.
    fn enqueue(&self) -> hip::Result<()>;
}

thread_local! {
    /// The op that this thread put off. If the thread ends first, the tensor that the op writes
    /// still holds the op and enqueues it when the elements are needed.
    static LAST: RefCell<Option<Arc<dyn Waiting>>> = const { RefCell::new(None) };
    /// Whether `LAST` holds an op. Every op asks, and this costs one load, because unlike `LAST` it
    /// has no destructor.
    static ANY: Cell<bool> = const { Cell::new(false) };
}

type List = Vec<(ThreadId, Weak<dyn Waiting>)>;

/// The last op that each thread put off, also of threads that have ended. It may not be enqueued
/// yet. A replay, or a write into memory that others hold, may overwrite what it reads.
fn of_all_threads() -> MutexGuard<'static, List> {
    static OF_ALL_THREADS: Mutex<List> = Mutex::new(Vec::new());
    // Every statement that changes the list leaves it whole.
    OF_ALL_THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the op that this thread put off. Also `None` while the thread is ending.
#[cold]
fn take() -> Option<Arc<dyn Waiting>> {
    ANY.set(false);
    LAST.try_with(RefCell::take).ok().flatten()
}

/// Keeps an op until this thread's next op. The thread must not be holding one already.
pub(crate) fn wait(op: Arc<dyn Waiting>) {
    let own = thread::current().id();
    let mut list = of_all_threads();
    // The thread's op before this one has been enqueued.
    list.retain(|(thread, other)| *thread != own && other.strong_count() > 0);
    list.push((own, Arc::downgrade(&op)));
    drop(list);
    ANY.set(LAST.try_with(|last| last.replace(Some(op))).is_ok());
}

/// Lets go of `op` if this thread put it off.
pub(crate) fn release(op: &Arc<impl Waiting + 'static>) {
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        if last.as_ref().is_some_and(|last| std::ptr::addr_eq(Arc::as_ptr(last), Arc::as_ptr(op))) {
            *last = None;
            ANY.set(false);
        }
    });
}

/// Lets go of the op that this thread put off, if that was in a capture and `is` holds for the op's
/// device. Call this before a capture ends without a graph. Otherwise the thread's next op would run
/// it, on operands that were never computed, and would get its error.
pub(crate) fn abandon_captured(is: impl Fn(&Arc<Device>) -> bool) {
    let of_capture = |last: &RefCell<Option<Arc<dyn Waiting>>>| {
        last.borrow().as_ref().and_then(|op| op.captured_on()).is_some_and(&is)
    };
    if ANY.get() && LAST.try_with(of_capture).unwrap_or(false) {
        drop(take());
    }
}

/// Whether this thread has put an op off.
pub(crate) fn any_put_off() -> bool {
    ANY.get()
}

/// Enqueues the op that this thread put off. Call this before allocating a result, asking whether a
/// tensor has other owners, waiting for the device, recording its time, or beginning or ending a
/// capture.
///
/// # Errors
/// The op's. Reads of its result report it too.
#[inline]
pub(crate) fn enqueue_own() -> hip::Result<()> {
    if ANY.get() { take().map_or(Ok(()), |op| op.enqueue()) } else { Ok(()) }
}

/// Enqueues the op that this thread put off, and those of all threads that read a buffer for which
/// `is` holds. Call this before a replay, or before a write into memory that others hold.
///
/// # Errors
/// Those of this thread's op.
pub(crate) fn enqueue_readers(is: impl Fn(&Buffer) -> bool) -> hip::Result<()> {
    enqueue_own()?;
    let all: List = of_all_threads().clone();
    let readers = all.iter().filter_map(|(_, op)| op.upgrade()).filter(|op| op.reads(&is));
    // Reads of their results report their errors.
    readers.for_each(|op| drop(op.enqueue()));
    Ok(())
}
