//! Opens shared libraries: AMD's, which `installation` finds, and NVIDIA's for the CUDA provider.

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::Error;
#[cfg(any(feature = "cuda", test))]
use crate::error::Result;

/// Locked for reading while AMD's compiler may run, and for writing while a library is opened.
///
/// Workaround: in ROCm 7.2 the two can deadlock. A library's initialisers run under the dynamic
/// loader's lock. They register code objects with HIP, which calls the compiler, which takes its
/// own lock (`amd_comgr_do_action`). A compiling thread holds that lock when it registers
/// thread-local destructors (`__cxa_thread_atexit`), for which glibc takes the loader's lock. Seen
/// when one thread's first matrix product opened rocBLAS while another thread compiled a kernel.
static COMPILER: RwLock<()> = RwLock::new(());

/// While the guard lives, no library is opened. Hold it for every call that may run AMD's
/// compiler. A thread must not hold it twice.
pub(crate) fn compiling() -> RwLockReadGuard<'static, ()> {
    COMPILER.read().unwrap_or_else(PoisonError::into_inner)
}

/// A library's title and its file names, newest first.
#[cfg(any(feature = "cuda", test))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    pub(crate) title: &'static str,
    pub(crate) files: &'static [&'static str],
}

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

    /// Loads a library from CUDA's directories, or else from the loader's search path.
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

/// The file that a loaded library's function or variable comes from.
pub(crate) fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: all zeroes are a value of this struct of pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for; `info` outlives the call.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a NUL-ended text that the loader keeps while the library is loaded. This crate
    // unloads no library.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

/// A search for a library: the places that were searched, and why the first copy found was not
/// used.
#[derive(Debug, Default)]
pub(crate) struct Search {
    searched: Vec<String>,
    broken: Option<String>,
}

impl Search {
    /// Notes a place that does not have the library.
    pub(crate) fn absent(&mut self, place: String) {
        self.searched.push(place);
    }

    /// Notes a place that has the library, and what keeps it from being used: a predicate, such as
    /// `does not load`.
    pub(crate) fn broken(&mut self, place: &str, why: String) {
        self.searched.push(format!("{place} ({why})"));
        self.broken.get_or_insert(why);
    }

    /// Loads a file. One that exists but does not load needs a library that is missing, or is built
    /// for another architecture.
    pub(crate) fn file(&mut self, path: &Path) -> Option<Loaded> {
        let place = path.display().to_string();
        if !path.exists() {
            self.absent(place);
            return None;
        }
        match load(path.as_os_str()) {
            Ok(library) => Some(Loaded { path: place, library }),
            Err(why) => {
                self.broken(&place, format!("does not load: {why}"));
                None
            }
        }
    }

    /// Loads the file of this name from the loader's search path. If there is none, this is not
    /// noted.
    pub(crate) fn name(&mut self, file: &str) -> Option<Loaded> {
        match load(file.as_ref()) {
            Ok(library) => return Some(Loaded { path: file.into(), library }),
            Err(why) if why.contains(&format!("{file}: cannot open shared object file")) => {}
            Err(why) => self.broken(file, format!("does not load: {why}")),
        }
        None
    }

    /// The error of a search that found nothing usable; `absent` is its reason if no place has the
    /// library.
    pub(crate) fn error(self, title: &str, absent: String) -> Error {
        let reason = self.broken.map_or(absent, |why| format!("{title} is installed but {why}"));
        Error::NotAvailable { reason, searched: self.searched }
    }
}

/// Loads a library from the first place that has it. The error lists every place, and why a file
/// there did not load.
#[cfg(any(feature = "cuda", test))]
fn open_in(names: Names, directories: &[PathBuf]) -> Result<Loaded> {
    let mut search = Search::default();
    for directory in directories {
        for file in names.files {
            if let Some(library) = search.file(&directory.join(file)) {
                return Ok(library);
            }
        }
    }
    for file in names.files {
        let noted = search.searched.len();
        if let Some(library) = search.name(file) {
            return Ok(library);
        }
        if search.searched.len() == noted {
            search.absent((*file).into());
        }
    }
    Err(search.error(names.title, format!("{} is not installed", names.title)))
}

fn load(path: &OsStr) -> std::result::Result<std::mem::ManuallyDrop<Library>, String> {
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
        // Long enough for a search that is not blocked.
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
