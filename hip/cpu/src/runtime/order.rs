//! The lock of late mode, in which streams run their work as late as HIP allows.

use super::settings;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the mode is on.
pub(super) fn is_on() -> bool {
    settings().is_ok_and(|settings| settings.late)
}

/// The lock of all devices.
pub(super) fn lock() -> MutexGuard<'static, ()> {
    static ORDER: Mutex<()> = Mutex::new(());
    ORDER.lock().unwrap_or_else(PoisonError::into_inner)
}
