//! Labels, under which the pools count the memory that a thread allocates.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::watch::{self, MEMORY};

/// A path of labels. `Label(0)` is the empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(pub(crate) u32);

/// The most paths of a process. A program that makes a new name each step would fill memory
/// otherwise. A name beyond the limit counts under the label outside it.
const MOST: usize = 4096;

struct Labels {
    /// The path of each label, and the label outside it.
    all: Vec<(Arc<str>, Label)>,
    by_path: HashMap<Arc<str>, Label>,
}

static LABELS: LazyLock<Mutex<Labels>> =
    LazyLock::new(|| Mutex::new(Labels { all: vec![("".into(), Label(0))], by_path: HashMap::new() }));

thread_local! {
    /// The path that the thread is in. Plain `Cell`s without a destructor are still there while a
    /// thread ends.
    static CURRENT: Cell<Label> = const { Cell::new(Label(0)) };
    static ENTERED: RefCell<Entered> = const { RefCell::new(Entered { begun: 0, labels: Vec::new() }) };
}

/// The labels that a thread has entered and not left, in order, each with a number.
struct Entered {
    begun: u64,
    labels: Vec<(u64, Label)>,
}

fn labels() -> MutexGuard<'static, Labels> {
    // Every statement that changes the lists leaves them whole.
    LABELS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Labels {
    fn inside(&mut self, outer: Label, name: &str) -> Label {
        let path = match &*self.all[outer.0 as usize].0 {
            "" => name.to_owned(),
            before => format!("{before}/{name}"),
        };
        if let Some(&known) = self.by_path.get(&*path) {
            return known;
        }
        if self.all.len() >= MOST {
            return outer;
        }
        let (path, label) = (Arc::<str>::from(path), Label(self.all.len() as u32));
        self.all.push((path.clone(), outer));
        self.by_path.insert(path, label);
        label
    }
}

/// The path that the thread is in.
#[inline]
pub(crate) fn current() -> Label {
    CURRENT.get()
}

/// The path as text. The empty one is `(no label)`.
pub(crate) fn path(label: Label) -> Arc<str> {
    if label.0 == 0 { "(no label)".into() } else { labels().all[label.0 as usize].0.clone() }
}

/// The label outside this one.
pub(crate) fn outer(label: Label) -> Label {
    labels().all[label.0 as usize].1
}

/// A label of the calling thread that ends when this is dropped; see [`memory_label`].
#[must_use = "the label ends where this is dropped"]
pub struct MemoryLabel {
    /// `None` if the thread was ending.
    number: Option<u64>,
    /// It ends on the thread that entered it.
    thread: PhantomData<*const ()>,
}

/// Until the result is dropped, counts the device memory that the calling thread allocates under
/// this name, behind the names that the thread is in already. A block keeps its label until it is
/// freed, whichever thread frees it. `memory_label("a/b")` is `b` inside `a`.
///
/// Labels may end in any order. The thread is in the one that it entered last, of those that have
/// not ended.
///
/// A process has up to 4095 paths of labels. A name beyond that counts under the label outside it.
///
/// ```
/// let device = hip::Device::get(0)?;
/// let _optimizer = hip::memory_label("optimizer");
/// let moments = device.alloc(1 << 20)?;
/// let summary = device.pool().summary();
/// let row = summary.labels.iter().find(|row| &*row.name == "optimizer");
/// assert_eq!(row.map(|row| row.used.bytes), Some(1 << 20));
/// # drop(moments);
/// # Ok::<(), hip::Error>(())
/// ```
pub fn memory_label(name: &str) -> MemoryLabel {
    let names = name.split('/').filter(|name| !name.is_empty());
    let label = {
        let mut all = labels();
        names.fold(current(), |outer, name| all.inside(outer, name))
    };
    // `try_with` fails only while the thread ends.
    let number = ENTERED.try_with(|entered| {
        let Entered { begun, labels } = &mut *entered.borrow_mut();
        *begun += 1;
        labels.push((*begun, label));
        CURRENT.set(label);
        *begun
    });
    MemoryLabel { number: number.ok(), thread: PhantomData }
}

impl Drop for MemoryLabel {
    fn drop(&mut self) {
        let _ = ENTERED.try_with(|entered| {
            let labels = &mut entered.borrow_mut().labels;
            labels.retain(|&(number, _)| Some(number) != self.number);
            CURRENT.set(labels.last().map_or(Label(0), |&(_, label)| label));
        });
    }
}

/// Whether blocks that are allocated from now on, by all threads, keep the name of the op that
/// allocated them and the time. Off at first, because an op then does more than one relaxed load.
/// The first call reads the settings, so an app installs its [`Config`](crate::Config) before.
pub fn memory_track_ops(on: bool) {
    watch::switch(MEMORY, on);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_nest_and_end() {
        let outside = current();
        {
            let _outer = memory_label("label-tests");
            let outer_label = current();
            {
                let _inner = memory_label("a/b");
                assert_eq!(&*path(current()), "label-tests/a/b");
                assert_eq!(outer(outer(current())), outer_label);
            }
            assert_eq!(current(), outer_label);
            let _none = memory_label("/");
            assert_eq!(current(), outer_label);
        }
        assert_eq!(current(), outside);
        let _again = memory_label("label-tests/a");
        assert_eq!(&*path(current()), "label-tests/a");
    }

    #[test]
    fn labels_end_in_any_order() {
        let first = memory_label("label-order");
        let second = memory_label("second");
        drop(first);
        assert_eq!(&*path(current()), "label-order/second");
        drop(second);
        assert_eq!(current(), Label(0));
    }

    #[test]
    fn a_panic_ends_a_label() {
        let caught = std::panic::catch_unwind(|| {
            let _label = memory_label("label-panic");
            panic!("the test's");
        });
        assert!(caught.is_err());
        assert_eq!(current(), Label(0));
    }

    #[test]
    fn names_without_end_count_under_the_label_outside() {
        let mut all = Labels { all: vec![("".into(), Label(0))], by_path: HashMap::new() };
        let outer = all.inside(Label(0), "outer");
        for number in 0..2 * MOST {
            all.inside(outer, &number.to_string());
        }
        assert_eq!(all.all.len(), MOST);
        assert_eq!(all.inside(outer, "one more"), outer);
        let known = all.inside(outer, "7");
        assert_eq!(&*all.all[known.0 as usize].0, "outer/7");
    }
}
