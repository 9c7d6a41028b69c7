//! Opens shared libraries: AMD's, which `installation` finds, and NVIDIA's for the CUDA provider.

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::Error;
#[cfg(any(feature = "cuda", test))]
use crate::error::Result;
use crate::os;
use crate::provider::names::{System, names_in};
use crate::provider::pe::Dll;

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

/// A loaded library. It stays loaded until the process ends.
pub(crate) struct Loaded {
    /// The path or file name under which it was found.
    pub(crate) path: PathBuf,
    library: os::library::Library,
}

impl Loaded {
    /// The path as text. What is not Unicode becomes the replacement character.
    pub(crate) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    /// The address of a symbol.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        self.library.symbol(name)
    }
}

/// A search for a library: the places that were searched, and why the first copy found was not
/// used.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Where else, besides its own folder, a library finds those that it needs.
    pub(crate) folders: Vec<PathBuf>,
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
        let header = (System::HERE == System::Windows).then(|| Dll::read(path));
        if let Some(why) = match &header {
            Some(None) => Some("is not a DLL".to_owned()),
            Some(Some(header)) => header.misfit(),
            None => None,
        } {
            self.broken(&place, why);
            return None;
        }
        let loaded = {
            let _alone = alone();
            // SAFETY: these are AMD's or NVIDIA's libraries, whose initialisers are made to be run by
            // the loader.
            unsafe { os::library::Library::open(path) }
        };
        match loaded {
            Ok(library) => Some(Loaded { path: path.to_owned(), library }),
            Err(why) => {
                let needs = header.flatten().map(|header| header.needs).unwrap_or_default();
                let missing = self.missing(path, &needs);
                let missing = if missing.is_empty() { missing } else { format!(" (there is no {missing})") };
                self.broken(&place, format!("does not load: {why}{missing}"));
                None
            }
        }
    }

    /// On Windows, loads the `wanted` files of a folder, which library `of` opens by their names when
    /// it first needs them. The loader then finds what is loaded, wherever it lies. Returns the names
    /// of those that do not load.
    pub(crate) fn companions(
        &mut self,
        of: &str,
        folder: &Path,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let mut failed = Vec::new();
        for name in names_in(folder).filter(|name| wanted(name)) {
            match self.file(&folder.join(&name)) {
                Some(loaded) => log::debug!("for {of}: {}", loaded.shown()),
                None => failed.push(name),
            }
        }
        failed
    }

    /// The DLLs that one needs and that lie in no folder in which the loader looks, separated by
    /// commas.
    fn missing(&self, path: &Path, needs: &[String]) -> String {
        let windows = std::env::var_os("SystemRoot").map(|root| Path::new(&root).join("System32"));
        let program = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
        let folders: Vec<_> =
            [path.parent().map(Path::to_owned), windows, program].into_iter().flatten().collect();
        let missing = needs.iter().filter(|name| {
            // Names of this form are those of parts of Windows, not of files.
            let lower = name.to_ascii_lowercase();
            !lower.starts_with("api-ms-")
                && !lower.starts_with("ext-ms-")
                && !folders.iter().chain(&self.folders).any(|folder| folder.join(name).exists())
        });
        missing.map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Loads the file of this name from the loader's search path. If there is none, this is not
    /// noted.
    pub(crate) fn name(&mut self, file: &str) -> Option<Loaded> {
        let loaded = {
            let _alone = alone();
            // SAFETY: as in `file`.
            unsafe { os::library::Library::open_by_name(file) }
        };
        match loaded? {
            Ok(library) => return Some(Loaded { path: file.into(), library }),
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
pub(crate) fn open_in(names: Names, directories: &[PathBuf]) -> Result<Loaded> {
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

/// While the guard lives, no thread compiles.
fn alone() -> RwLockWriteGuard<'static, ()> {
    COMPILER.write().unwrap_or_else(PoisonError::into_inner)
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
                searched: vec![library.shown()],
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
        let folder = Path::new("no").join("such");
        match open_in(NONE, std::slice::from_ref(&folder)).err() {
            Some(Error::NotAvailable { reason, searched }) => {
                assert_eq!(reason, "Nothing is not installed");
                assert_eq!(
                    searched,
                    [
                        folder.join("libno-such-thing.so.7").display().to_string(),
                        folder.join("libno-such-thing.so").display().to_string(),
                        "libno-such-thing.so.7".into(),
                        "libno-such-thing.so".into(),
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
        let why = if cfg!(windows) { "is not a DLL" } else { "does not load: " };
        assert!(reason.starts_with(&format!("Nothing is installed but {why}")), "{reason}");
    }

    #[cfg(unix)]
    #[test]
    fn a_path_that_is_not_utf_8_is_kept() {
        use std::os::unix::ffi::OsStringExt;
        let c = open_in(Names { title: "C", files: &["libc.so.6"] }, &[]).unwrap();
        let file = os::loaded::file_of(c.symbol(c"malloc").unwrap().as_ptr()).unwrap();
        let mut name = format!("hip-not-utf-8-{}-", std::process::id()).into_bytes();
        name.push(0xff);
        let folder = std::env::temp_dir().join(std::ffi::OsString::from_vec(name));
        std::fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink(file, folder.join("libc.so.6")).unwrap();
        let loaded = Search::default().file(&folder.join("libc.so.6"));
        std::fs::remove_dir_all(&folder).unwrap();
        let loaded = loaded.unwrap();
        assert_eq!(loaded.path, folder.join("libc.so.6"));
        assert!(loaded.shown().ends_with("-\u{fffd}/libc.so.6"), "{}", loaded.shown());
    }

    #[test]
    fn a_library_without_the_functions_names_the_first_one() {
        const FILE: &str = if cfg!(windows) { "kernel32.dll" } else { "libc.so.6" };
        const C: Names = Names { title: "HIP", files: &[FILE] };
        let library = open_in(C, &[]).unwrap();
        match fill!(hip_sys::Hip, &library, "HIP").err() {
            Some(Error::NotAvailable { reason, searched }) => {
                assert_eq!(reason, "HIP lacks the symbol hipInit");
                assert_eq!(searched, [FILE]);
            }
            _ => panic!("libc has no hipInit"),
        }
    }
}
