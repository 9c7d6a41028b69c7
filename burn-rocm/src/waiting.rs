//! Ops that are put off (deferred). A thread puts off at most one op, until its next op at the
//! latest.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An op whose work was put off and may still have to be enqueued.
pub(crate) trait Waiting: Send + Sync {
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

type List = Vec<Weak<dyn Waiting>>;

/// The ops, of all threads, that may not be enqueued yet and read a graph's memory. A replay may
/// overwrite that memory.
fn of_graphs() -> MutexGuard<'static, List> {
    static OF_GRAPHS: Mutex<List> = Mutex::new(Vec::new());
    // Every statement that changes the list leaves it whole.
    OF_GRAPHS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the op that this thread put off. Also `None` while the thread is ending.
#[cold]
fn take() -> Option<Arc<dyn Waiting>> {
    ANY.set(false);
    LAST.try_with(RefCell::take).ok().flatten()
}

/// Keeps an op until this thread's next op. The thread must not be holding one already. `of_graph`
/// says whether the op reads a graph's memory.
pub(crate) fn wait(op: Arc<dyn Waiting>, of_graph: bool) {
    if of_graph {
        let mut list = of_graphs();
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(&op));
    }
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

/// Enqueues the op that this thread put off, and those of all threads that read a graph's memory. A
/// replay calls this first.
///
/// # Errors
/// Those of this thread's op.
pub(crate) fn enqueue_before_replay() -> hip::Result<()> {
    enqueue_own()?;
    let all = std::mem::take(&mut *of_graphs());
    // Reads of their results report their errors.
    all.iter().filter_map(Weak::upgrade).for_each(|op| drop(op.enqueue()));
    Ok(())
}
