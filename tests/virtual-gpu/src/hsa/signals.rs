//! Signals (HSA 1.2, section 2.4; `hsa_ext_amd.h`).

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::api::Array;
use super::bell::GLANCE;
use super::log::trace;
use super::runtime::{lock, now, runtime};
use super::types::{SIGNAL_KIND_USER, Signal, SignalHandle};
use super::{AgentHandle, Status, Times};
use crate::memory::Pages;

/// The size of the slabs that signals are cut from. Slabs are never unmapped.
const SLAB: usize = 256 << 10;

/// The addresses of signals that are not in use.
static FREE: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// `hsa_signal_condition_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Equal,
    NotEqual,
    Less,
    NotLess,
}

impl Condition {
    pub(super) fn new(number: u32) -> Option<Self> {
        [Self::Equal, Self::NotEqual, Self::Less, Self::NotLess].get(number as usize).copied()
    }

    pub(super) fn holds(self, value: i64, than: i64) -> bool {
        match self {
            Self::Equal => value == than,
            Self::NotEqual => value != than,
            Self::Less => value < than,
            Self::NotLess => value >= than,
        }
    }
}

impl SignalHandle {
    /// The signal; none for the handle 0.
    pub(super) fn get(self) -> Option<&'static Signal> {
        let signal = self.handle as *const Signal;
        // SAFETY: the caller guarantees that a handle other than 0 came from `create`. Slabs are never unmapped, so the
        // reference is valid even after the signal was destroyed.
        unsafe { signal.as_ref() }
    }

    pub(super) fn load(self) -> i64 {
        self.get().map_or(0, |signal| signal.value.load(Ordering::Acquire))
    }

    /// Waits until the value meets the condition; the handle 0 always does.
    pub(super) fn wait(self, condition: Condition, than: i64, deadline: Option<Instant>) -> Option<i64> {
        let signal = self.get()?;
        let test =
            || Some(signal.value.load(Ordering::Acquire)).filter(|&value| condition.holds(value, than));
        runtime().bell.wait(deadline, GLANCE, test)
    }

    /// Marks the end of an operation: sets its times and decrements the value.
    pub(super) fn complete(self, start: u64) {
        self.finish(start, |signal| {
            signal.value.fetch_sub(1, Ordering::AcqRel);
        });
    }

    /// Marks the failure of a copy: the value becomes negative (`hsa_amd_memory_async_copy`).
    pub(super) fn fail(self, start: u64) {
        self.finish(start, |signal| signal.value.store(-1, Ordering::Release));
    }

    fn finish(self, start: u64, change: impl FnOnce(&Signal)) {
        if let Some(signal) = self.get() {
            signal.start.store(start, Ordering::Relaxed);
            signal.end.store(now(), Ordering::Relaxed);
            change(signal);
            runtime().bell.ring();
        }
    }
}

/// A new signal, or none if there is no memory.
pub(super) fn create(value: i64, kind: i64) -> Option<SignalHandle> {
    let mut free = lock(&FREE);
    if free.is_empty() {
        let pages = Pages::new(SLAB).ok()?;
        let start = pages.start();
        runtime().share(start, SLAB);
        free.extend(
            (0..SLAB / size_of::<Signal>()).map(|number| start + (number * size_of::<Signal>()) as u64),
        );
        std::mem::forget(pages);
    }
    let handle = SignalHandle { handle: free.pop()? };
    drop(free);
    let signal = handle.get()?;
    signal.kind.store(kind, Ordering::Relaxed);
    signal.start.store(0, Ordering::Relaxed);
    signal.end.store(0, Ordering::Relaxed);
    signal.queue.store(0, Ordering::Relaxed);
    signal.value.store(value, Ordering::Release);
    Some(handle)
}

/// Gives a signal back.
pub(super) fn destroy(signal: SignalHandle) {
    if let Some(contents) = signal.get() {
        contents.kind.store(0, Ordering::Relaxed);
        lock(&FREE).push(signal.handle);
    }
}

/// Makes a signal.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_create(
    value: i64,
    consumers: u32,
    agents: Array<AgentHandle>,
    signal: Option<&mut MaybeUninit<SignalHandle>>,
) -> Status {
    hsa_amd_signal_create(value, consumers, agents, 0, signal)
}

/// Makes a signal. The attributes, which say who may wait for it, are not needed here.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_signal_create(
    value: i64,
    _consumers: u32,
    _agents: Array<AgentHandle>,
    _attributes: u64,
    signal: Option<&mut MaybeUninit<SignalHandle>>,
) -> Status {
    let Some(signal) = signal else { return Status::INVALID_ARGUMENT };
    let Some(made) = create(value, SIGNAL_KIND_USER) else { return Status::OUT_OF_RESOURCES };
    trace!("hsa_signal_create {value} -> {:#x}", made.handle);
    signal.write(made);
    Status::SUCCESS
}

/// Destroys a signal.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_destroy(signal: SignalHandle) -> Status {
    trace!("hsa_signal_destroy {:#x}", signal.handle);
    if signal.handle == 0 {
        return Status::INVALID_ARGUMENT;
    }
    destroy(signal);
    Status::SUCCESS
}

/// Where a signal's value lies.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_signal_value_pointer(
    signal: SignalHandle,
    pointer: Option<&mut MaybeUninit<*mut i64>>,
) -> Status {
    match (signal.get(), pointer) {
        (Some(signal), Some(pointer)) => {
            pointer.write(signal.value.as_ptr());
            Status::SUCCESS
        }
        (None, _) => Status::INVALID_SIGNAL,
        (_, None) => Status::INVALID_ARGUMENT,
    }
}

/// A signal's value.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_load_relaxed(signal: SignalHandle) -> i64 {
    signal.load()
}

/// Sets a signal's value without waking threads that wait for it.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_silent_store_relaxed(signal: SignalHandle, value: i64) {
    if let Some(signal) = signal.get() {
        signal.value.store(value, Ordering::Release);
    }
}

/// Sets a signal's value.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_store_relaxed(signal: SignalHandle, value: i64) {
    hsa_signal_store_screlease(signal, value);
}

/// Sets a signal's value. HIP rings a queue's doorbell with it.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_store_screlease(signal: SignalHandle, value: i64) {
    trace!("hsa_signal_store {:#x} = {value}", signal.handle);
    hsa_signal_silent_store_relaxed(signal, value);
    runtime().bell.ring();
}

/// Adds to a signal's value.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_add_relaxed(signal: SignalHandle, value: i64) {
    if let Some(signal) = signal.get() {
        signal.value.fetch_add(value, Ordering::AcqRel);
        runtime().bell.ring();
    }
}

/// Subtracts from a signal's value.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_subtract_relaxed(signal: SignalHandle, value: i64) {
    hsa_signal_add_relaxed(signal, value.wrapping_neg());
}

/// Waits until a signal meets a condition, or for `timeout` nanoseconds, and returns its value.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_signal_wait_scacquire(
    signal: SignalHandle,
    condition: u32,
    than: i64,
    timeout: u64,
    _state: u32,
) -> i64 {
    let deadline = Instant::now().checked_add(Duration::from_nanos(timeout)).filter(|_| timeout != u64::MAX);
    let met = Condition::new(condition).and_then(|condition| signal.wait(condition, than, deadline));
    met.unwrap_or_else(|| signal.load())
}

/// `hsa_amd_signal_handler`: whether it wants to be called again.
pub type SignalHandler = extern "C" fn(value: i64, argument: *mut c_void) -> bool;

struct Waiting {
    signal: SignalHandle,
    condition: Condition,
    than: i64,
    handler: SignalHandler,
    argument: *mut c_void,
}

// SAFETY: `hsa_amd_signal_async_handler` says that a thread of the runtime calls the handler with the argument.
unsafe impl Send for Waiting {}

#[derive(Default)]
struct Handlers {
    waiting: Vec<Waiting>,
    /// Whether the thread that calls them is running.
    started: bool,
}

static HANDLERS: Mutex<Handlers> = Mutex::new(Handlers { waiting: Vec::new(), started: false });

/// Registers a function to be called when a signal meets a condition.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_signal_async_handler(
    signal: SignalHandle,
    condition: u32,
    than: i64,
    handler: Option<SignalHandler>,
    argument: *mut c_void,
) -> Status {
    trace!("hsa_amd_signal_async_handler {:#x} condition {condition} {than}", signal.handle);
    let (Some(condition), Some(handler)) = (Condition::new(condition), handler) else {
        return Status::INVALID_ARGUMENT;
    };
    if signal.handle == 0 {
        return Status::INVALID_SIGNAL;
    }
    let mut handlers = lock(&HANDLERS);
    if !handlers.started {
        let thread = std::thread::Builder::new().name("virtual-gpu-handlers".into());
        if thread.spawn(call_handlers).is_err() {
            return Status::OUT_OF_RESOURCES;
        }
        handlers.started = true;
    }
    handlers.waiting.push(Waiting { signal, condition, than, handler, argument });
    drop(handlers);
    runtime().bell.ring();
    Status::SUCCESS
}

/// Calls handlers, one at a time, in the order in which their signals are found to be met.
fn call_handlers() {
    loop {
        let next = || {
            let mut handlers = lock(&HANDLERS);
            let met = |waiting: &Waiting| waiting.condition.holds(waiting.signal.load(), waiting.than);
            let place = handlers.waiting.iter().position(met)?;
            Some(handlers.waiting.remove(place))
        };
        let bell = &runtime().bell;
        // Does not check at short intervals while there are no handlers.
        bell.wait(None, Duration::from_secs(1), || (!lock(&HANDLERS).waiting.is_empty()).then_some(()));
        let Some(waiting) = bell.wait(None, GLANCE, next) else { continue };
        if (waiting.handler)(waiting.signal.load(), waiting.argument) {
            lock(&HANDLERS).waiting.push(waiting);
        }
    }
}

fn times(signal: SignalHandle, times: Option<&mut MaybeUninit<Times>>) -> Status {
    match (signal.get(), times) {
        (Some(signal), Some(times)) => {
            times.write(Times {
                start: signal.start.load(Ordering::Relaxed),
                end: signal.end.load(Ordering::Relaxed),
            });
            Status::SUCCESS
        }
        (None, _) => Status::INVALID_SIGNAL,
        (_, None) => Status::INVALID_ARGUMENT,
    }
}

/// When the launch that completed a signal ran.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_profiling_get_dispatch_time(
    _agent: AgentHandle,
    signal: SignalHandle,
    found: Option<&mut MaybeUninit<Times>>,
) -> Status {
    times(signal, found)
}

/// When the copy that completed a signal ran.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_profiling_get_async_copy_time(
    signal: SignalHandle,
    found: Option<&mut MaybeUninit<Times>>,
) -> Status {
    times(signal, found)
}
