//! Ops and regions as ranges of AMD's and NVIDIA's profilers ([`Config::ranges`](crate::Config::ranges)):
//! roctx for rocprofv3, NVTX for Nsight Systems. Both have functions of the same signatures.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::provider::kind::ProviderKind;
use crate::provider::library::Loaded;
use crate::provider::{installation, names, provider};
use crate::settings::allow_fallback;

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// `roctxRangePushA` or `nvtxRangePushA`, which copy the text, and their counterparts.
struct Functions {
    push: Push,
    pop: Pop,
}

/// The functions, opened at the first range. An error is logged once.
fn opened() -> &'static Result<Functions> {
    static OPENED: OnceLock<Result<Functions>> = OnceLock::new();
    OPENED.get_or_init(|| open().inspect_err(|error| log::warn!("ops are no ranges of a profiler: {error}")))
}

/// The functions; `None` if there is no library.
fn functions() -> Option<&'static Functions> {
    opened().as_ref().ok()
}

/// Checks that ops can be ranges.
///
/// # Errors
/// `NotAvailable` if there is no library and [`Config::strict`](crate::Config::strict) is set.
pub(crate) fn check() -> Result<()> {
    match opened() {
        Ok(_) => Ok(()),
        Err(error) => allow_fallback(error.clone()).map(|_| ()),
    }
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
            push: std::mem::transmute::<*mut c_void, Push>(push?.as_ptr()),
            pop: std::mem::transmute::<*mut c_void, Pop>(pop?.as_ptr()),
        })
    }
}

impl Functions {
    /// Whether there is a range to end; a text with a NUL begins none.
    fn push(&self, name: &str) -> bool {
        let Ok(name) = CString::new(name) else { return false };
        // SAFETY: the text lives until the call returns.
        unsafe { (self.push)(name.as_ptr()) };
        true
    }

    fn pop(&self) {
        // SAFETY: no precondition.
        unsafe { (self.pop)() };
    }
}

/// Begins a range of the calling thread. Returns whether there is a range to end.
pub(crate) fn push(name: &str) -> bool {
    functions().is_some_and(|functions| functions.push(name))
}

/// Ends the thread's last range.
pub(crate) fn pop() {
    if let Some(functions) = functions() {
        functions.pop();
    }
}

#[cfg(all(test, unix, feature = "cpu"))]
mod tests {
    use std::ffi::CStr;
    use std::process::Command;

    use super::*;
    use crate::provider::library::Search;

    /// An imitation of `libroctx64.so`, built by the host's C++ compiler.
    const IMITATION: &str = r#"
#include <cstring>
static char open[256];
static int depth;
extern "C" int roctxRangePushA(const char *text) { std::strcat(std::strcat(open, "/"), text); return depth++; }
extern "C" int roctxRangePop() { *std::strrchr(open, '/') = 0; return --depth; }
extern "C" const char *open_ranges() { return open; }
"#;

    #[test]
    fn ranges_call_the_two_functions() {
        let folder = std::env::temp_dir().join(format!("hip-ranges-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, file) = (folder.join("roctx.cpp"), folder.join("libroctx64.so.4"));
        std::fs::write(&source, IMITATION).unwrap();
        let compiler = crate::provider::host_compiler().expect("a C++ compiler");
        let built = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).args([&file, &source]).status();
        assert!(built.unwrap().success());
        let library = Search::default().file(&file).expect("it loads");
        std::fs::remove_dir_all(&folder).unwrap();
        let open = library.symbol(c"open_ranges").unwrap();
        // SAFETY: the function above has this signature and returns a text that stays.
        let open =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(open.as_ptr()) };
        // SAFETY: as above.
        let shown = || unsafe { CStr::from_ptr(open()) }.to_str().unwrap().to_owned();
        let functions = find(&library, [c"roctxRangePushA", c"roctxRangePop"]).unwrap();
        assert!(functions.push("step") && functions.push("float_add") && !functions.push("a\0b"));
        assert_eq!(shown(), "/step/float_add");
        functions.pop();
        assert_eq!(shown(), "/step");
        functions.pop();
        assert_eq!(shown(), "");

        let Err(Error::NotAvailable { reason, .. }) = find(&library, [c"nvtxRangePushA", c"roctxRangePop"])
        else {
            panic!("it has no such function")
        };
        assert_eq!(reason, "it lacks the symbol nvtxRangePushA");
    }
}
