//! Finds and opens AMD's shared libraries, and NVIDIA's for the CUDA provider.

use std::ffi::{CStr, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, Result};

/// Locked for reading while AMD's compiler may run, and for writing while a library is opened.
///
/// Workaround: in ROCm 7.2 the two can deadlock. A library's initialisers run under the dynamic
/// loader's lock. They register code objects with HIP, which calls the compiler, which takes its
/// own lock (`amd_comgr_do_action`). A compiling thread holds that lock when it registers
/// thread-local destructors (`__cxa_thread_atexit`), for which glibc takes the loader's lock. Seen
/// when one thread's first matrix product opened rocBLAS while another thread compiled a kernel.
static COMPILER: RwLock<()> = RwLock::new(());

/// While the guard lives, [`open`] opens no library. Hold it for every call that may run AMD's
/// compiler. A thread must not hold it twice.
pub(crate) fn compiling() -> RwLockReadGuard<'static, ()> {
    COMPILER.read().unwrap_or_else(PoisonError::into_inner)
}

/// A library's title and its file names, newest first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    pub(crate) title: &'static str,
    pub(crate) files: &'static [&'static str],
}

// The sonames of ROCm 7, 6 and 5.7, then the development link.
pub(crate) const HIP: Names = Names {
    title: "HIP",
    files: &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"],
};
pub(crate) const HIPRTC: Names =
    Names { title: "hipRTC", files: &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"] };
pub(crate) const ROCBLAS: Names = Names {
    title: "rocBLAS",
    files: &["librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so"],
};
pub(crate) const MIOPEN: Names = Names { title: "MIOpen", files: &["libMIOpen.so.1", "libMIOpen.so"] };

/// NVIDIA's libraries, for the CUDA provider.
#[cfg(feature = "cuda")]
pub(crate) mod nvidia {
    use super::{Loaded, Names, PathBuf, Result, open_in};

    // The sonames of CUDA 13 and 12, then the development link.
    pub(crate) const DRIVER: Names =
        Names { title: "NVIDIA's driver", files: &["libcuda.so.1", "libcuda.so"] };
    pub(crate) const NVRTC: Names =
        Names { title: "NVRTC", files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"] };
    pub(crate) const CUBLAS_LT: Names =
        Names { title: "cuBLASLt", files: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"] };
    pub(crate) const CUBLAS: Names =
        Names { title: "cuBLAS", files: &["libcublas.so.13", "libcublas.so.12", "libcublas.so"] };
    pub(crate) const CUDNN: Names = Names { title: "cuDNN 9", files: &["libcudnn.so.9"] };

    /// As [`super::open`], in CUDA's directories.
    pub(crate) fn open(names: Names) -> Result<Loaded> {
        let mut directories = Vec::new();
        for variable in ["CUDA_PATH", "CUDA_HOME"] {
            if let Some(root) = std::env::var_os(variable).filter(|root| !root.is_empty()) {
                directories.push(PathBuf::from(&root).join("lib64"));
                directories.push(PathBuf::from(&root).join("lib"));
            }
        }
        directories.push("/usr/local/cuda/lib64".into());
        open_in(names, &directories)
    }
}

/// A loaded library. It stays loaded until the process ends.
pub(crate) struct Loaded {
    /// The path or file name under which it was found.
    pub(crate) path: String,
    library: std::mem::ManuallyDrop<Library>,
}

impl Loaded {
    /// The address of a symbol.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: only the address is taken; the caller declares the signature.
        let symbol = unsafe { self.library.get::<*mut c_void>(name.to_bytes_with_nul()) }.ok()?;
        NonNull::new(symbol.into_raw())
    }
}

/// The directories that are searched before the loader's own path.
pub(crate) fn directories() -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some(root) = std::env::var_os("ROCM_PATH").filter(|root| !root.is_empty()) {
        found.push(PathBuf::from(&root).join("lib"));
        found.push(PathBuf::from(&root).join("lib64"));
    }
    found.push("/opt/rocm/lib".into());
    found
}

/// Loads a library from the first place that has it. The error lists every place, and why a file
/// there did not load.
pub(crate) fn open(names: Names) -> Result<Loaded> {
    open_in(names, &directories())
}

fn open_in(names: Names, directories: &[PathBuf]) -> Result<Loaded> {
    let mut searched = Vec::new();
    // Why the first file that exists did not load.
    let mut broken = None;
    for directory in directories {
        for file in names.files {
            let path = directory.join(file);
            if !path.exists() {
                searched.push(path.display().to_string());
                continue;
            }
            match load(path.as_os_str()) {
                Ok(library) => {
                    return Ok(Loaded { path: path.display().to_string(), library });
                }
                // The file exists but does not load: it needs a library that is missing, or is
                // built for another architecture.
                Err(why) => {
                    searched.push(format!("{} ({why})", path.display()));
                    broken.get_or_insert(why);
                }
            }
        }
    }
    for file in names.files {
        match load(file.as_ref()) {
            Ok(library) => return Ok(Loaded { path: (*file).into(), library }),
            Err(why) if why.contains(&format!("{file}: cannot open shared object file")) => {
                searched.push((*file).into());
            }
            Err(why) => {
                searched.push(format!("{file} ({why})"));
                broken.get_or_insert(why);
            }
        }
    }
    let reason = match broken {
        Some(why) => format!("{} is installed but does not load: {why}", names.title),
        None => format!("{} is not installed", names.title),
    };
    Err(Error::NotAvailable { reason, searched })
}

fn load(path: &std::ffi::OsStr) -> std::result::Result<std::mem::ManuallyDrop<Library>, String> {
    let _alone = COMPILER.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: these are AMD's libraries, whose initialisers are made to be run by dlopen. They are
    // never unloaded, because their threads and exit handlers would outlive them.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map(std::mem::ManuallyDrop::new)
        .map_err(|error| error.to_string())
}

/// Fills a function table from a loaded library.
macro_rules! fill {
    ($table:ty, $library:expr, $title:expr) => {{
        let library: &$crate::provider::library::Loaded = $library;
        // SAFETY: the library is AMD's and is never unloaded; the table's signatures are those of
        // AMD's headers.
        unsafe { <$table>::load(|name| library.symbol(name)) }.map_err(|missing| {
            $crate::error::Error::NotAvailable {
                reason: format!("{} lacks the symbol {}", $title, missing.to_string_lossy()),
                searched: vec![library.path.clone()],
            }
        })
    }};
}
pub(crate) use fill;

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Names = Names { title: "Nothing", files: &["libno-such-thing.so.7", "libno-such-thing.so"] };

    #[test]
    fn a_missing_library_lists_where_it_was_looked_for() {
        match open_in(NONE, &["/no/such/dir".into()]).err() {
            Some(Error::NotAvailable { reason, searched }) => {
                assert_eq!(reason, "Nothing is not installed");
                assert_eq!(
                    searched,
                    [
                        "/no/such/dir/libno-such-thing.so.7",
                        "/no/such/dir/libno-such-thing.so",
                        "libno-such-thing.so.7",
                        "libno-such-thing.so",
                    ]
                );
            }
            other => panic!("{:?}", other.map(|error| error.to_string())),
        }
    }

    #[test]
    fn no_library_is_opened_beside_the_compiler() {
        let compiling = compiling();
        let (opened, answer) = std::sync::mpsc::channel();
        let opener = std::thread::spawn(move || opened.send(open_in(NONE, &[]).is_err()));
        // Long enough for a search that nothing blocks.
        let early = answer.recv_timeout(std::time::Duration::from_millis(300));
        assert!(early.is_err(), "opened beside the compiler");
        drop(compiling);
        assert_eq!(answer.recv(), Ok(true));
        opener.join().unwrap().unwrap();
    }

    #[test]
    fn a_broken_library_says_why_it_does_not_load() {
        let directory = std::env::temp_dir().join(format!("hip-broken-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("libno-such-thing.so.7"), b"not a library").unwrap();
        let Err(Error::NotAvailable { reason, searched }) = open_in(NONE, std::slice::from_ref(&directory))
        else {
            panic!("it loaded");
        };
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(searched[0].contains("libno-such-thing.so.7 ("), "{}", searched[0]);
        assert!(reason.starts_with("Nothing is installed but does not load: "), "{reason}");
    }

    #[test]
    fn a_library_without_the_functions_names_the_first_one() {
        const C: Names = Names { title: "HIP", files: &["libc.so.6"] };
        let library = open_in(C, &[]).unwrap();
        match fill!(hip_sys::Hip, &library, "HIP").err() {
            Some(Error::NotAvailable { reason, searched }) => {
                assert_eq!(reason, "HIP lacks the symbol hipInit");
                assert_eq!(searched, ["libc.so.6"]);
            }
            _ => panic!("libc has no hipInit"),
        }
    }
}
