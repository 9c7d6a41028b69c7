//! A kernel that is loaded onto a device, and the modules that wait to be unloaded.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hip_sys::{hipFunction_t, hipModule_t};

use crate::device::context::Context;
use crate::profile::names::{self, Text};

/// A kernel, compiled and loaded onto one device.
pub struct Kernel {
    pub(super) context: Arc<Context>,
    pub(super) retired: Arc<Retired>,
    pub(super) function: hipFunction_t,
    pub(super) module: hipModule_t,
    /// The code object, kept because HIP may read it for as long as the module is loaded.
    pub(super) code: Option<Box<[u8]>>,
    pub(super) last_use: AtomicU64,
    /// Its C++ name, for the trace.
    pub(super) name: Box<str>,
    pub(super) text: OnceLock<Text>,
}

// SAFETY: "HIP APIs are thread safe" (HIP programming guide); the handles are plain values,
// unloaded by the one owner.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    pub(crate) fn function(&self) -> hipFunction_t {
        self.function
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its name's number in profiles.
    pub(crate) fn text(&self) -> Text {
        *self.text.get_or_init(|| names::text(&self.name))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if !self.module.is_null() {
            // A launch may still be in the stream: the module is unloaded once the stream is past
            // it.
            let code = self.code.take().unwrap_or_default();
            self.retired.list().push(RetiredModule { module: self.module, _code: code });
        }
    }
}

pub(super) struct RetiredModule {
    pub(super) module: hipModule_t,
    _code: Box<[u8]>,
}

// SAFETY: as for `Kernel`.
unsafe impl Send for RetiredModule {}

/// Modules whose kernels are dropped, but which the device may still be running.
#[derive(Default)]
pub(super) struct Retired(Mutex<Vec<RetiredModule>>);

impl Retired {
    pub(super) fn list(&self) -> MutexGuard<'_, Vec<RetiredModule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
