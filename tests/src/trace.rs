//! Collects the backend's trace: which library call or kernel computed each op.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use burn_rocm::trace::{self, TARGET};
use log::{LevelFilter, Log, Metadata, Record};

thread_local! {
    /// The lines of a thread while it runs [`during`].
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// The one logger of a test program.
struct Collector;

impl Log for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = record.args().to_string();
        if let Some(file) = file() {
            file.add(&line);
        }
        LINES.with_borrow_mut(|lines| {
            if let Some(lines) = lines {
                lines.push(line);
            }
        });
    }

    fn flush(&self) {}
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Collector).expect("no other logger in a test program");
        log::set_max_level(LevelFilter::Debug);
    });
}

/// A file that holds each line once.
struct Lines(Mutex<(BTreeSet<String>, File)>);

impl Lines {
    fn add(&self, line: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.0.contains(line) {
            state.0.insert(line.to_string());
            writeln!(state.1, "{line}").expect("the trace's file can be written");
        }
    }
}

/// The file that `BURN_ROCM_TRACE_FILE` names.
fn file() -> Option<&'static Lines> {
    static FILE: OnceLock<Option<Lines>> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = std::env::var_os("BURN_ROCM_TRACE_FILE")?;
        let file = File::options().append(true).create(true).open(&path).expect("the trace's file opens");
        Some(Lines(Mutex::new((BTreeSet::new(), file))))
    })
    .as_ref()
}

/// If `BURN_ROCM_TRACE_FILE` is set, writes the trace of this process to that file from now on,
/// each line once. `docs/conformance.md` is made from it.
pub fn to_file() {
    if file().is_some() {
        install();
        trace::enable(true);
    }
}

/// The result of `ops`, and the lines that were traced while it ran, such as `float_add: kernel
/// binary_contiguous<Add, f32>`.
pub fn during<T>(ops: impl FnOnce() -> T) -> (T, Vec<String>) {
    install();
    trace::enable(true);
    LINES.set(Some(Vec::new()));
    let result = ops();
    (result, LINES.take().unwrap_or_default())
}
