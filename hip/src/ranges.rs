//! Ops and regions as ranges of AMD's and NVIDIA's profilers ([`Config::ranges`](crate::Config::ranges)):
//! roctx for rocprofv3, NVTX for Nsight Systems. Both have functions of the same signatures.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::provider::kind::ProviderKind;
use crate::provider::library::Loaded;
use crate::provider::{installation, names, provider};

/// `roctxRangePushA` or `nvtxRangePushA`, which copy the text, and their counterparts.
struct Functions {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// The functions, opened at the first range. `None` if there is no library; this is logged once.
fn functions() -> Option<&'static Functions> {
    static OPENED: OnceLock<Option<Functions>> = OnceLock::new();
    let open = || match open() {
        Ok(functions) => Some(functions),
        Err(error) => {
            log::warn!("ops are no ranges of a profiler: {error}");
            None
        }
    };
    OPENED.get_or_init(open).as_ref()
}

fn open() -> Result<Functions> {
    match provider()?.kind() {
        ProviderKind::Rocm => {
            let library = installation::open(names::ROCTX)
                .or_else(|first| installation::open(names::ROCTX_OLD).map_err(|_| first))?;
            find(&library, [c"roctxRangePushA", c"roctxRangePop"])
        }
        #[cfg(feature = "cuda")]
        ProviderKind::Cuda => {
            let library = crate::provider::nvidia::open(crate::provider::nvidia::NVTX)?;
            find(&library, [c"nvtxRangePushA", c"nvtxRangePop"])
        }
        kind => {
            let reason = format!("the {kind} provider has no profiler's library");
            Err(Error::NotAvailable { reason, searched: Vec::new() })
        }
    }
}

fn find(library: &Loaded, names: [&std::ffi::CStr; 2]) -> Result<Functions> {
    let [push, pop] = names.map(|name| {
        library.symbol(name).ok_or_else(|| Error::NotAvailable {
            reason: format!("it lacks the symbol {}", name.to_string_lossy()),
            searched: vec![library.shown()],
        })
    });
    log::debug!("ranges: {}", library.shown());
    // SAFETY: AMD's `roctx.h` and NVIDIA's `nvToolsExt.h` declare the functions of these names with
    // these signatures. The library stays loaded.
    unsafe {
        Ok(Functions {
            push: std::mem::transmute::<*mut std::ffi::c_void, _>(push?.as_ptr()),
            pop: std::mem::transmute::<*mut std::ffi::c_void, _>(pop?.as_ptr()),
        })
    }
}

/// Begins a range of the calling thread. Returns whether there is a range to end.
pub(crate) fn push(name: &str) -> bool {
    let (Some(functions), Ok(name)) = (functions(), CString::new(name)) else { return false };
    // SAFETY: the text lives until the call returns.
    unsafe { (functions.push)(name.as_ptr()) };
    true
}

/// Ends the thread's last range.
pub(crate) fn pop() {
    if let Some(functions) = functions() {
        // SAFETY: no precondition.
        unsafe { (functions.pop)() };
    }
}
