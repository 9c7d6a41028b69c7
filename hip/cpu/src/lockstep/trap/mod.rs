//! Handlers that make a kernel's invalid access end the launch instead of the process.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(super) use unix::install;
#[cfg(windows)]
pub(super) use windows::install;
