//! The process's runtime: its GPUs and what they share.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use super::allocation::{Allocation, Gpu};
use super::bell::Bell;
use super::counter_file::CounterFile;
use super::log;
use crate::dispatch::{Behaviour, Engine};
use crate::isa::Code;
use crate::memory::{Pages, Range};
use crate::settings::Settings;

/// A kernel of a loaded executable.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub(super) name: String,
    /// The GPU that it was loaded for.
    pub(super) gpu: usize,
}

pub(super) struct Runtime {
    pub(super) settings: Settings,
    pub(super) gpus: Vec<Gpu>,
    pub(super) code: Code,
    pub(super) engine: Engine,
    pub(super) bell: Bell,
    /// Where the launches' counters go.
    pub(super) counters: Option<CounterFile>,
    /// By first address.
    pub(super) allocations: Mutex<BTreeMap<u64, Allocation>>,
    /// By the address of the kernel's descriptor.
    pub(super) kernels: RwLock<BTreeMap<u64, Kernel>>,
    /// Freed memory whose addresses stay reserved, so that a late access does not hit new memory.
    pub(super) quarantine: Mutex<VecDeque<Pages>>,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// The runtime, made at the first call. If settings are invalid, this reports them on stderr and
/// uses the defaults; normally `hsa_init` has refused them before.
pub(super) fn runtime() -> &'static Runtime {
    RUNTIME.get_or_init(|| {
        let settings = Settings::from_env().unwrap_or_else(|error| {
            log::say(format_args!("{error}"));
            Settings::default()
        });
        log::open(settings.log.as_deref());
        Runtime {
            gpus: (0..settings.devices).map(|_| Gpu::default()).collect(),
            code: Code::new(),
            engine: Engine::new(settings.threads),
            bell: Bell::default(),
            counters: settings.counters.as_deref().and_then(open_counters),
            allocations: Mutex::default(),
            kernels: RwLock::default(),
            quarantine: Mutex::default(),
            settings,
        }
    })
}

/// A file that can't be opened is said on stderr.
fn open_counters(path: &OsStr) -> Option<CounterFile> {
    CounterFile::open(path)
        .map_err(|error| log::say(format_args!("VIRTUAL_GPU_COUNTERS={}: {error}", path.display())))
        .ok()
}

impl Runtime {
    pub(super) fn behaviour(&self) -> Behaviour {
        let Settings { poison, turns, races, .. } = self.settings;
        Behaviour { poison, turns, races, counters: self.counters.is_some() }
    }

    pub(super) fn allocations(&self) -> MutexGuard<'_, BTreeMap<u64, Allocation>> {
        lock(&self.allocations)
    }

    /// Lets every GPU access memory of the runtime itself: signals and queues.
    pub(super) fn share(&self, start: u64, length: usize) {
        for gpu in &self.gpus {
            gpu.memory.insert(Range { start, end: start + length as u64, writable: true, host: true });
        }
    }

    /// Undoes [`Runtime::share`].
    pub(super) fn unshare(&self, start: u64) {
        for gpu in &self.gpus {
            gpu.memory.remove(start);
        }
    }
}

/// Locks a mutex, even after a panic: each critical section here changes a single value, so a
/// thread that panicked left the values whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The system's clock in nanoseconds, the unit of timestamps.
pub(super) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local value.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
