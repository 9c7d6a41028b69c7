//! What differs between operating systems: opening libraries, naming the files that are loaded, and
//! the rights to a file. Both systems have the same functions.

pub(crate) mod at_exit;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use self::unix::{library, loaded, private};
#[cfg(windows)]
pub(crate) use self::windows::{library, loaded, private};
