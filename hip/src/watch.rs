//! What watches the program's ops: the trace, the profile, the ranges for AMD's and NVIDIA's
//! profilers, the pools, which name the op that allocated a block, the checks of results, the
//! summary, and passes. One word says which of them are on, so an op or a launch that nobody watches costs one
//! relaxed load.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use crate::profile::names::Text;
use crate::settings::{CheckFinite, ProfileOutput, settings};

/// Bits of the word.
pub(crate) const TRACE: u16 = 1;
pub(crate) const PROFILE: u16 = 2;
pub(crate) const RANGES: u16 = 4;
pub(crate) const MEMORY: u16 = 8;
pub(crate) const CHECK: u16 = 16;
pub(crate) const SYNC: u16 = 32;
pub(crate) const DRY: u16 = 64;
pub(crate) const SUMMARY: u16 = 128;
pub(crate) const PASS: u16 = 256;
/// Set once the settings were read.
const ASKED: u16 = 0x8000;

static WATCHED: AtomicU16 = AtomicU16::new(0);

/// The bits of what is on: as the settings say at first, then as [`switch`] sets them.
#[inline]
pub(crate) fn watched() -> u16 {
    // Relaxed: the word publishes no other data.
    match WATCHED.load(Ordering::Relaxed) {
        0 => ask(),
        word => word & !ASKED,
    }
}

/// Whether work is timed.
#[inline]
pub(crate) fn profiled() -> bool {
    watched() & PROFILE != 0
}

#[cold]
fn ask() -> u16 {
    let said = settings().map_or(0, |settings| {
        let bits = [
            (settings.trace, TRACE),
            (settings.profile != ProfileOutput::None, PROFILE),
            (settings.ranges, RANGES),
            (settings.check_finite != CheckFinite::Off, CHECK),
            (settings.sync_each_op, SYNC),
            (settings.summary, SUMMARY),
        ];
        bits.iter().filter(|(on, _)| *on).fold(0, |word, (_, bit)| word | bit)
    });
    // If another thread asked meanwhile, its answer stays, and what it has switched since.
    match WATCHED.compare_exchange(0, ASKED | said, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => said,
        Err(word) => word & !ASKED,
    }
}

/// Switches one of them on or off, for all threads.
pub(crate) fn switch(bit: u16, on: bool) {
    // Otherwise the settings would be read later and undo this.
    watched();
    match on {
        true => WATCHED.fetch_or(bit, Ordering::Relaxed),
        false => WATCHED.fetch_and(!bit, Ordering::Relaxed),
    };
}

/// Nanoseconds of the host's clock since the first call in this process.
pub(crate) fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// The outermost op that a thread runs.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    /// Empty outside any op.
    pub(crate) op: &'static str,
    /// The dtype of its first tensor; empty if it takes none.
    pub(crate) dtype: &'static str,
    /// The number by which the profile knows the shapes of its tensors; 0 if it does not.
    pub(crate) shapes: u32,
    /// Where the app called it, if profiles ask for that.
    pub(crate) site: Text,
    /// When it began, if it is profiled.
    pub(crate) since: Option<u64>,
    /// Whether it is a range of AMD's or NVIDIA's profiler.
    pub(crate) in_range: bool,
    /// Whether it is a span of `tracing`.
    pub(crate) in_span: bool,
    /// How many records the trace has logged for it.
    pub(crate) served: u32,
}

pub(crate) const NONE: Running = Running {
    op: "",
    dtype: "",
    shapes: 0,
    site: Text::EMPTY,
    since: None,
    in_range: false,
    in_span: false,
    served: 0,
};

impl Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { op: "", .. } => f.write_str("outside an op"),
            Self { op, dtype: "", .. } => f.write_str(op),
            Self { op, dtype, .. } => write!(f, "{op} {dtype}"),
        }
    }
}

/// What checks an op's results when the op ends; set once there are some. The module that does it
/// stands above those that name ops.
static CHECKER: OnceLock<fn(&Running)> = OnceLock::new();

/// From now on, `checker` gets each op that ends.
pub(crate) fn check_by(checker: fn(&Running)) {
    // A second call has the same checker.
    let _ = CHECKER.set(checker);
}

/// What a pass does where an outermost op begins; set by the first pass. The module that does it
/// stands above those that name ops.
static AT_OPS: OnceLock<fn()> = OnceLock::new();

/// From now on, `begins` is called where an outermost op begins, while [`PASS`] is on.
pub(crate) fn at_ops(begins: fn()) {
    // A second call has the same function.
    let _ = AT_OPS.set(begins);
}

/// An outermost op begins.
pub(crate) fn op_begins() {
    if let Some(begins) = AT_OPS.get() {
        begins();
    }
}

/// Has the results of the thread's running op checked, if something is on that does.
pub(crate) fn check_results() {
    if watched() & (CHECK | SYNC) != 0
        && let Some(check) = CHECKER.get()
    {
        check(&RUNNING.get());
    }
}

thread_local! {
    pub(crate) static RUNNING: Cell<Running> = const { Cell::new(NONE) };
    /// The thread's number, from 1; 0 if it has none yet. Plain `Cell`s without a destructor are
    /// still there while a thread ends.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    static SHAPES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The most names that are kept. A program that starts a new thread each step would fill memory
/// otherwise.
const MOST: usize = 4096;

/// The names of the first [`MOST`] named threads, by their numbers. They outlive the threads,
/// because a block may.
static NAMES: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());

/// The calling thread's number, which no other thread of the process has or had.
pub(crate) fn thread_number() -> u32 {
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(new_number());
        }
        number.get()
    })
}

#[cold]
fn new_number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the numbers differ.
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    if let Some(name) = std::thread::current().name() {
        keep_name(&mut NAMES.lock().unwrap_or_else(PoisonError::into_inner), number, name);
    }
    number
}

fn keep_name(names: &mut BTreeMap<u32, String>, number: u32, name: &str) {
    if names.len() < MOST {
        names.insert(number, name.to_owned());
    }
}

/// The name of the thread with this number: `thread` and the number if it has none, or if it came
/// after the first [`MOST`] named threads.
pub(crate) fn thread_name(number: u32) -> String {
    let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.get(&number).cloned().unwrap_or_else(|| format!("thread {number}"))
}

/// Collects the shapes of an op's tensors.
pub struct Shapes<'a>(&'a mut Vec<usize>);

impl Shapes<'_> {
    /// Adds a tensor of these sizes.
    pub fn add(&mut self, dims: &[usize]) {
        self.0.push(dims.len());
        self.0.extend_from_slice(dims);
    }
}

/// What `look_up` says about the shapes that `shapes` adds: for each its rank, then its sizes.
pub(crate) fn with_shapes<T>(shapes: &dyn Fn(&mut Shapes<'_>), look_up: impl FnOnce(&[usize]) -> T) -> T {
    // `try_with` fails only while the thread ends.
    let mut all = SHAPES.try_with(RefCell::take).unwrap_or_default();
    all.clear();
    shapes(&mut Shapes(&mut all));
    let found = look_up(&all);
    let _ = SHAPES.try_with(|kept| kept.replace(all));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_do_not_undo_a_switch() {
        switch(RANGES, true);
        // Imitates a thread that read the word just before.
        let seen = ask();
        switch(RANGES, false);
        assert_ne!(seen & RANGES, 0);
        assert_eq!(watched() & RANGES, 0);
    }

    #[test]
    fn threads_have_a_number_each_and_named_ones_keep_their_name() {
        let own = thread_number();
        assert_eq!(thread_number(), own);
        let other = |name: Option<&str>| {
            let builder = std::thread::Builder::new();
            let builder = match name {
                Some(name) => builder.name(name.to_owned()),
                None => builder,
            };
            builder.spawn(thread_number).unwrap().join().unwrap()
        };
        let (named, unnamed) = (other(Some("watch-tests")), other(None));
        assert!(own != named && own != unnamed && named != unnamed);
        assert_eq!(thread_name(named), "watch-tests");
        assert_eq!(thread_name(unnamed), format!("thread {unnamed}"));
        assert!(!NAMES.lock().unwrap().contains_key(&unnamed), "a thread without a name leaves nothing");
    }

    #[test]
    fn the_names_of_threads_do_not_fill_memory() {
        let mut names = BTreeMap::new();
        for number in 1..=3 * MOST as u32 {
            keep_name(&mut names, number, &format!("worker {number}"));
        }
        assert_eq!(names.len(), MOST);
        assert_eq!(names[&1], "worker 1");
    }

    #[test]
    fn shapes_are_ranks_and_sizes() {
        let seen = with_shapes(
            &|shapes| {
                shapes.add(&[2, 3]);
                shapes.add(&[]);
            },
            <[usize]>::to_vec,
        );
        assert_eq!(seen, [2, 2, 3, 0]);
    }
}
