//! The log of calls and packets (`VIRTUAL_GPU_LOG`).

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

struct Log {
    begin: Instant,
    /// The file; `None` for stderr.
    file: Option<Mutex<File>>,
}

static LOG: OnceLock<Option<Log>> = OnceLock::new();

/// The first call opens the log. If the file can't be opened, this is reported once on stderr.
pub(super) fn open(to: Option<&OsStr>) {
    LOG.get_or_init(|| {
        let to = to?;
        let file = match to.to_str() {
            Some("stderr") => None,
            _ => match File::options().append(true).create(true).open(to) {
                Ok(file) => Some(Mutex::new(file)),
                Err(error) => {
                    say(format_args!("VIRTUAL_GPU_LOG={}: {error}", to.display()));
                    return None;
                }
            },
        };
        Some(Log { begin: Instant::now(), file })
    });
}

/// Whether there is a log.
pub(super) fn is_open() -> bool {
    matches!(LOG.get(), Some(Some(_)))
}

pub(super) fn write(line: Arguments<'_>) {
    let Some(Some(log)) = LOG.get() else { return };
    let thread = std::thread::current();
    let time = log.begin.elapsed().as_secs_f64() * 1e3;
    let line = format!("{time:10.3} {} {line}\n", thread.name().unwrap_or("-"));
    // A log that can't be written must not stop the program.
    let _ = match &log.file {
        Some(file) => file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()),
        None => std::io::stderr().write_all(line.as_bytes()),
    };
}

/// Writes a line that a user must see to stderr, and to the log.
pub(super) fn say(line: Arguments<'_>) {
    eprintln!("virtual-gpu: {line}");
    write(line);
}

/// Logs a line, which is formatted only if there is a log.
macro_rules! trace {
    ($($argument:tt)*) => {
        if $crate::hsa::log::is_open() {
            $crate::hsa::log::write(format_args!($($argument)*));
        }
    };
}
pub(super) use trace;
