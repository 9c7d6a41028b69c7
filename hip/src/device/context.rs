//! The state that a device's streams, events and buffers share: the function table, the unreported
//! error and the counters.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hip_sys::{Hip, hipError_t};

use crate::error::{Error, Result, check, device_error};
use crate::provider::Provider;

/// How often this crate gave a device each kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Copies from the device to the host.
    pub device_to_host: u64,
    /// Copies from the host to the device.
    pub host_to_device: u64,
    /// Times that the host waited for the device.
    pub waits: u64,
    /// Kernels that this crate launched. Does not count those that AMD's libraries launch or those
    /// of captured graphs.
    pub launches: u64,
    /// Graphs launched.
    pub graphs: u64,
}

#[derive(Default)]
pub(crate) struct CounterCells {
    pub(crate) device_to_host: AtomicU64,
    pub(crate) host_to_device: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) launches: AtomicU64,
    pub(crate) graphs: AtomicU64,
}

/// Adds one. Relaxed: a counter orders no other access.
pub(crate) fn count(cell: &AtomicU64) {
    cell.fetch_add(1, Ordering::Relaxed);
}

/// The purpose of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// Other streams wait for it. The host waits for it too, before it reuses memory that the
    /// device only read.
    Ordering,
    /// The host waits for it before it reads host memory that the device wrote.
    ///
    /// HIP's flag for this: "A system-scope release when recording this event ... to make
    /// non-coherent host memory visible to the host" (`hip_runtime_api.h`,
    /// `hipEventReleaseToSystem`). Without the flag, `hipEventSynchronize` promises visibility only
    /// for coherent memory (HIP programming guide, "Visibility of Zero-Copy Host Memory").
    ToHost,
    /// It measures time.
    Timing,
}

/// One device of a provider, as its streams, events and buffers use it.
pub(crate) struct Context {
    pub(crate) provider: &'static Provider,
    /// Its index as users see it.
    pub(crate) index: usize,
    /// Its index as HIP counts. A dry device has that of the device that it stands for.
    pub(crate) ordinal: usize,
    pub(crate) counters: CounterCells,
    has_error: AtomicBool,
    error: Mutex<Option<Error>>,
    /// For each [`EventKind`].
    spare_events: Mutex<[Vec<hip_sys::hipEvent_t>; 3]>,
}

// SAFETY: event handles may be used from any thread ("HIP APIs are thread safe", HIP programming
// guide); the list that holds them is behind a mutex.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(provider: &'static Provider, index: usize, ordinal: usize) -> Self {
        Self {
            provider,
            index,
            ordinal,
            counters: CounterCells::default(),
            has_error: AtomicBool::new(false),
            error: Mutex::new(None),
            spare_events: Mutex::default(),
        }
    }

    pub(crate) fn hip(&self) -> &'static Hip {
        self.provider.hip()
    }

    /// Makes the device current for this thread.
    ///
    /// With several devices, each call asks HIP which device is current, because other code on this
    /// thread may use HIP too. A single device stays current. `hipGetDevice` takes 13 ns and
    /// `hipSetDevice` 23 ns; a launch takes 2,980 ns (`examples/current_device.rs`, one H200
    /// through the `cuda` provider).
    #[inline]
    pub(crate) fn bind(&self) -> Result<()> {
        thread_local! {
            /// Whether this thread has made the only device current.
            static CHOSEN: Cell<bool> = const { Cell::new(false) };
        }
        let one = self.provider.device_count() == 1;
        if one && CHOSEN.get() {
            return Ok(());
        }
        let mut current = -1;
        if !one {
            // SAFETY: the function is HIP's; it writes one int.
            let status = unsafe { (self.hip().hipGetDevice)(&mut current) };
            self.check("hipGetDevice", status)?;
        }
        if current != self.ordinal as c_int {
            // SAFETY: the function is HIP's.
            let status = unsafe { (self.hip().hipSetDevice)(self.ordinal as c_int) };
            self.check("hipSetDevice", status)?;
        }
        CHOSEN.set(one);
        Ok(())
    }

    #[inline]
    pub(crate) fn check(&self, call: &'static str, status: hipError_t) -> Result<()> {
        check(self.hip(), call, status)
    }

    /// Keeps an error for the next read or sync. Only the first one is kept, because later ones are
    /// mostly consequences of it.
    pub(crate) fn record(&self, error: Error) {
        log::error!("{error}");
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        self.has_error.store(true, Ordering::Release);
    }

    /// Records a status if it is a failure. For `Drop`, which can't return it.
    pub(crate) fn record_status(&self, call: &'static str, status: hipError_t) {
        if status != hip_sys::hipSuccess && status != hip_sys::hipErrorDeinitialized {
            self.record(device_error(self.hip(), call, status));
        }
    }

    /// Returns the recorded error and forgets it.
    pub(crate) fn take_error(&self) -> Result<()> {
        if !self.has_error.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_error.store(false, Ordering::Release);
        first.take().map_or(Ok(()), Err)
    }

    /// An unused event of this kind, if one is kept.
    pub(crate) fn take_event(&self, kind: EventKind) -> Option<hip_sys::hipEvent_t> {
        self.spare_events.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize].pop()
    }

    /// Keeps an event for the next caller that needs one of its kind.
    pub(crate) fn keep_event(&self, kind: EventKind, event: hip_sys::hipEvent_t) {
        self.spare_events.lock().unwrap_or_else(PoisonError::into_inner)[kind as usize].push(event);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let events = std::mem::take(&mut *self.spare_events.lock().unwrap_or_else(PoisonError::into_inner));
        for event in events.into_iter().flatten() {
            // SAFETY: the function is HIP's; nobody else has the handle. If the event is pending,
            // HIP destroys it once it has happened.
            let status = unsafe { (self.hip().hipEventDestroy)(event) };
            self.record_status("hipEventDestroy", status);
        }
    }
}
