//! How often each op was computed in which way, for all threads. Kept only while somebody asks for
//! a summary.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;
use hip_kernels::Template;

use crate::profile::names::{self, Text};
use crate::profile::work::WorkKind;
use crate::settings::settings;
use crate::watch::{self, RUNNING, SUMMARY};

/// The kernels that only bring a tensor into row-major order.
const LAYOUT_COPIES: [Template; 4] =
    [Template::copy_strided, Template::copy_strided_units, Template::copy_transposed, Template::copy_narrow];

/// In which way a piece of an op's work was done, or why it was not done in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum How {
    Work(WorkKind),
    LayoutCopy,
    /// A step of a launch that several ops share.
    Joined,
    Fallback,
}

/// What is counted together. `by` is the kernel, the library's function or the fallback's reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) op: &'static str,
    pub(crate) dtype: &'static str,
    pub(crate) how: How,
    pub(crate) by: Text,
}

/// The counts since the process began to keep them.
#[derive(Clone, Default)]
pub(crate) struct Ledger {
    pub(crate) counts: HashMap<Entry, u64, FixedState>,
    /// The launches that the steps of [`How::Joined`] share.
    pub(crate) shared: u64,
    /// How many summaries are being made, that of the whole process included.
    readers: usize,
}

static LEDGER: LazyLock<Mutex<Ledger>> = LazyLock::new(|| {
    let of_process = settings().is_ok_and(|settings| settings.summary);
    Mutex::new(Ledger { readers: of_process.into(), ..Ledger::default() })
});

fn ledger() -> MutexGuard<'static, Ledger> {
    // Counts; a panic leaves none of them broken.
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The counts so far.
pub(crate) fn so_far() -> Ledger {
    ledger().clone()
}

impl Ledger {
    /// The counts since `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (entry, count) in &before.counts {
            if let Some(now) = self.counts.get_mut(entry) {
                *now -= count;
            }
        }
        self.counts.retain(|_, count| *count > 0);
        self.shared -= before.shared;
        self
    }

    fn add(&mut self, how: How, by: Text) {
        let running = RUNNING.get();
        *self.counts.entry(Entry { op: running.op, dtype: running.dtype, how, by }).or_default() += 1;
    }
}

/// Counts are kept as long as one of these exists.
pub(crate) struct Reader(());

impl Reader {
    pub(crate) fn new() -> Self {
        let mut ledger = ledger();
        ledger.readers += 1;
        watch::switch(SUMMARY, true);
        Self(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut ledger = ledger();
        ledger.readers -= 1;
        // Under the lock, so that no new reader is switched off.
        if ledger.readers == 0 {
            watch::switch(SUMMARY, false);
        }
    }
}

/// Counts a launch of a kernel.
pub(crate) fn launched(kernel: &str) {
    let template = kernel.split('<').next().unwrap_or_default();
    let is_layout = LAYOUT_COPIES.iter().any(|copy| copy.name().to_string() == template);
    let how = if is_layout { How::LayoutCopy } else { How::Work(WorkKind::Kernel) };
    ledger().add(how, names::text(kernel));
}

/// Counts a step of a shared launch; `first` if the launch begins with it.
pub(crate) fn joined(kernel: &str, first: bool) {
    let by = names::text(kernel);
    let mut ledger = ledger();
    ledger.add(How::Joined, by);
    ledger.shared += u64::from(first);
}

/// Counts other work. The first word of a library call's text is the function.
pub(crate) fn served(kind: WorkKind, text: &str) {
    let by = match kind {
        WorkKind::Library => text.split(' ').next().unwrap_or_default(),
        WorkKind::Graph => "replay",
        _ => text,
    };
    ledger().add(How::Work(kind), names::text(by));
}

/// Counts that something else than the first choice computes the running op.
pub(crate) fn fell_back(reason: &str) {
    ledger().add(How::Fallback, names::text(reason));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_to_row_major_order_are_told_from_others() {
        let of = |kernel: &str| {
            let before = so_far();
            launched(kernel);
            let since = so_far().since(&before);
            let by = names::text(kernel);
            since.counts.keys().find(|entry| entry.by == by).map(|entry| entry.how)
        };
        assert_eq!(of("copy_strided<u32>"), Some(How::LayoutCopy));
        assert_eq!(of("copy_strided_units<16>"), Some(How::LayoutCopy));
        assert_eq!(of("copy_to_strided<u32>"), Some(How::Work(WorkKind::Kernel)));
    }
}
