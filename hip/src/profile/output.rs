//! The profile of the whole process, which `BURN_ROCM_PROFILE` asks for.

use std::io::{self, Write};
use std::panic::catch_unwind;
use std::sync::Once;

use crate::os::at_exit;
use crate::profile::lane;
use crate::profile::report::Profile;
use crate::profile::session;
use crate::settings::{ProfileOutput, settings};

/// Waits for the profiled work and writes the profile of the whole process so far, as
/// `BURN_ROCM_PROFILE` or [`Config::profile`](crate::Config::profile) says. Does nothing if they
/// ask for none.
///
/// The process does this by itself when `main` returns or the program calls
/// [`exit`](std::process::exit). Call it before the process ends in another way, such as by a
/// signal.
///
/// # Errors
/// The system's, if the file can't be written.
pub fn write() -> io::Result<()> {
    let Some(session) = session::of_process() else { return Ok(()) };
    lane::finish_all();
    let profile = Profile::of(session);
    match settings().map(|settings| &settings.profile) {
        Ok(ProfileOutput::Table) => io::stderr().write_all(profile.to_string().as_bytes()),
        Ok(ProfileOutput::Trace(path)) => profile.write_chrome_trace(path),
        Ok(ProfileOutput::None) | Err(_) => Ok(()),
    }
}

/// Writes the profile of the whole process when it exits, if there is one. Call it when HIP is
/// loaded: what was loaded before is still there then.
pub(crate) fn write_at_exit() {
    static ONCE: Once = Once::new();
    if session::of_process().is_some() {
        ONCE.call_once(|| at_exit::call(exiting));
    }
}

extern "C" fn exiting() {
    // A panic must not leave a function that C calls.
    let written = catch_unwind(write);
    if let Ok(Err(error)) = written {
        let file = settings().ok().map(|settings| format!("{:?}", settings.profile)).unwrap_or_default();
        // Nobody is left to tell if stderr is closed.
        let _ = writeln!(io::stderr(), "burn-rocm: the profile was not written to {file}: {error}");
    }
}
