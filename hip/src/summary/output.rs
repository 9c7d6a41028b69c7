//! The summary of the whole process, which `BURN_ROCM_SUMMARY` asks for.

use std::io::{self, Write};
use std::panic::catch_unwind;
use std::sync::Once;

use crate::os::at_exit;
use crate::settings::settings;
use crate::summary::ledger;
use crate::summary::report::Summary;

/// Writes the summary of the whole process when it exits, if
/// [`Config::summary`](crate::Config::summary) asks for it.
pub(crate) fn write_at_exit() {
    static ONCE: Once = Once::new();
    if settings().is_ok_and(|settings| settings.summary) {
        ONCE.call_once(|| at_exit::call(exiting));
    }
}

extern "C" fn exiting() {
    // A panic must not leave a function that C calls, and nobody is left to tell if stderr is
    // closed.
    let _ = catch_unwind(|| {
        let text = Summary::of(&ledger::so_far()).to_string();
        let _ = io::stderr().write_all(text.as_bytes());
    });
}
