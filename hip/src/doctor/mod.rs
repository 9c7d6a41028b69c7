//! The doctor: finds what keeps HIP from a GPU, or slows it down, from files and environment
//! variables. Each finding has commands that mend it or show its cause.
//!
//! It changes nothing, needs no root, and opens no library, so it works if ROCm is broken.
//! `docs/guide/doctor.md` lists all findings.

mod checks;
mod finding;
#[cfg(unix)]
mod linux;
mod system;
mod variables;
mod visible;
mod windows;

pub use self::checks::{CHECKS, Check};
pub use self::finding::{Finding, Severity};
pub use self::system::System;
use crate::provider::names::System as Kind;

/// Examines this machine. Problems come first, then warnings, then notes; of problems, the most
/// likely cause comes first.
///
/// ```
/// for finding in hip::doctor() {
///     println!("{}: {}", finding.code, finding.what);
///     for command in &finding.mend {
///         println!("    {command}");
///     }
/// }
/// ```
pub fn doctor() -> Vec<Finding> {
    examine(&System::here())
}

/// Examines a system, as [`doctor`] does this machine.
pub fn examine(system: &System) -> Vec<Finding> {
    let mut findings = match system.kind {
        #[cfg(unix)]
        Kind::Unix => linux::examine(system),
        #[cfg(not(unix))]
        Kind::Unix => Vec::new(),
        Kind::Windows => {
            let mut findings = windows::examine(&|name| system.raw(name));
            variables::of_hip(system, &mut findings);
            visible::examine(system, &[], &mut findings);
            findings
        }
    };
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// The most likely reason why HIP finds no device.
pub(crate) fn no_device() -> Option<Finding> {
    let others = [checks::NO_GPU.code, checks::WSL_DXG.code, checks::WSL_LIBRARY.code];
    let is_reason = |found: &Finding| found.severity == Severity::Problem || others.contains(&found.code);
    doctor().into_iter().find(is_reason)
}

/// On Windows, the HIP of AMD's driver and its version; `None` if there is none, and elsewhere.
pub(crate) fn windows_driver() -> Option<String> {
    let system = System::here();
    (system.kind == Kind::Windows).then(|| windows::driver(&|name| system.raw(name)))?
}
