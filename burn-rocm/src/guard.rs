//! What happens to a thread's captures when an op fails in them.

use std::cell::RefCell;

use hip::{Device, Error};

use crate::waiting::abandon_captured;

thread_local! {
    /// The devices whose captures by this thread end when the step's function returns or panics.
    static GUARDED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// While this lives, the thread's capture on the device stays open when an op fails. If the step
/// goes on after the error, its ops are still recorded and never run: they would read what nothing
/// has computed, and might write it into parameters.
pub(crate) struct Guard(());

impl Guard {
    pub(crate) fn begin(device: usize) -> Self {
        GUARDED.with_borrow_mut(|all| all.push(device));
        Self(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        GUARDED.with_borrow_mut(Vec::pop);
    }
}

/// The devices of the thread's guarded captures. `try_with` fails only while the thread ends, when
/// it has none.
fn guarded() -> Vec<usize> {
    GUARDED.try_with(|all| all.borrow().clone()).unwrap_or_default()
}

/// Refuses what would end the thread's guarded capture on the device. The capture then gives no
/// graph.
///
/// # Errors
/// `Capture` if there is such a capture.
pub(crate) fn refuse_within(device: usize, op: &'static str) -> hip::Result<()> {
    if !guarded().contains(&device) {
        return Ok(());
    }
    let reason = "captures are not nested";
    Device::get(device)?.refuse_captured(op, reason)?;
    // Inside `uncaptured` the work that is refused is no part of the capture.
    Err(Error::Capture { op, reason: reason.into() })
}

/// Tells the thread's captures that an op has failed. Those that nobody guards are over: Burn has
/// no guard, and no op would run any more. Guarded ones give no graph if the op was refused.
pub(crate) fn failed(error: &Error) {
    let guarded = guarded();
    if guarded.is_empty() {
        abandon_captured(|_| true);
        return hip::abandon_captures();
    }
    let Error::Capture { op, reason } = error else { return };
    for device in guarded.into_iter().filter_map(|index| Device::get(index).ok()) {
        // The error is the capture's, too.
        let _ = device.refuse_captured(op, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn an_op_may_fail_while_its_thread_ends() {
        static RETURNED: AtomicBool = AtomicBool::new(false);
        struct AtEnd;
        impl Drop for AtEnd {
            fn drop(&mut self) {
                let error = Error::Invalid { op: "add", expected: "one".into(), found: "other".into() };
                failed(&error);
                RETURNED.store(refuse_within(0, "graph").is_ok(), Ordering::Relaxed);
            }
        }
        thread_local!(static AT_END: AtEnd = const { AtEnd });
        let thread = std::thread::spawn(|| {
            // A thread drops its values in the opposite order of their first uses.
            AT_END.with(|_| ());
            drop(Guard::begin(0));
        });
        thread.join().unwrap();
        assert!(RETURNED.load(Ordering::Relaxed));
    }
}
