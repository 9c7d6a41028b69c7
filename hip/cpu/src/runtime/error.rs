//! Failures of kernels.

use hip_sys::hipError_t;
use std::sync::{Mutex, PoisonError};

/// A kernel's failure that lockstep or late mode found.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) status: hipError_t,
    pub(crate) text: String,
}

static LAST_FAULT: Mutex<Option<String>> = Mutex::new(None);

/// The text of the last kernel failure; `None` if no kernel failed. Only lockstep and late
/// mode find such failures.
pub fn last_fault() -> Option<String> {
    LAST_FAULT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub(super) fn keep_fault(fault: &Fault) {
    log::error!("hip-cpu: {}", fault.text);
    *LAST_FAULT.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.text.clone());
}
