//! Opens libraries with `LoadLibraryExW`.

use std::env;
use std::ffi::{CStr, OsStr, c_void};
use std::io;
use std::path::{self, Path, PathBuf};
use std::ptr::{self, NonNull};

use super::api;

/// An open library. It stays loaded until the process ends.
pub(crate) struct Library(NonNull<c_void>);

// SAFETY: the address of a module that is never unloaded; the loader's functions may be called from
// any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens a file. What it needs is looked for in its own folder, in the folders of [`search_in`],
    /// beside the program and in System32, and never in PATH.
    ///
    /// # Safety
    /// The library's initialisers are made to be run by the loader.
    pub(crate) unsafe fn open(file: &Path) -> Result<Self, String> {
        // The loader takes absolute paths with backslashes only.
        let file = path::absolute(file).map_err(|error| error.to_string())?;
        // SAFETY: the caller vouches for the initialisers.
        unsafe { load(file.as_os_str(), api::BESIDE_AND_DEFAULT) }.map_err(|error| error.to_string())
    }

    /// Opens the file of this name from System32, where drivers put theirs, or else from the first
    /// absolute folder of PATH that has it; `None` if none has. The current folder is not searched.
    ///
    /// # Safety
    /// As for [`open`](Self::open).
    pub(crate) unsafe fn open_by_name(name: &str) -> Option<Result<Self, String>> {
        // SAFETY: the caller vouches for the initialisers.
        if let Ok(library) = unsafe { load(name.as_ref(), api::SYSTEM32) } {
            return Some(Ok(library));
        }
        let folders = env::var_os("PATH")?;
        let mut files = env::split_paths(&folders).filter(|folder| folder.is_absolute());
        let file = files.find_map(|folder| Some(folder.join(name)).filter(|file| file.is_file()))?;
        // SAFETY: as above.
        Some(unsafe { Self::open(&file) })
    }

    /// The address of a symbol of this library. The libraries that it needs are not searched.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: only the address is taken; the caller declares the signature.
        NonNull::new(unsafe { api::GetProcAddress(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// # Safety
/// As for [`Library::open`].
unsafe fn load(file: &OsStr, flags: u32) -> io::Result<Library> {
    let file = api::wide(file);
    let mut mode = 0;
    // SAFETY: the path ends with a 0, and the caller vouches for the initialisers. The module is
    // never unloaded, because its threads and exit handlers would outlive it.
    let (module, error) = unsafe {
        api::SetThreadErrorMode(api::NO_WINDOWS, &mut mode);
        let module = api::LoadLibraryExW(file.as_ptr(), ptr::null_mut(), flags);
        let error = io::Error::last_os_error();
        api::SetThreadErrorMode(mode, ptr::null_mut());
        (module, error)
    };
    NonNull::new(module).map(Library).ok_or(error)
}

/// Adds folders in which the loader looks for libraries that others need.
pub(crate) fn search_in(folders: &[PathBuf]) {
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let Ok(folder) = path::absolute(folder) else { continue };
        // SAFETY: the path ends with a 0. If the loader refuses the folder, what lies there does
        // not load, and the library that needs it says so.
        unsafe { api::AddDllDirectory(api::wide(folder.as_os_str()).as_ptr()) };
    }
}
