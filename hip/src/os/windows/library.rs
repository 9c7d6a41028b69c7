//! Opens libraries with `LoadLibraryExW`.

use std::env;
use std::ffi::{CStr, OsStr, OsString, c_void};
use std::io;
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::path::{self, Component, Path, PathBuf, Prefix};
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
        unsafe { load(&unlimited(&file), api::BESIDE_AND_DEFAULT) }.map_err(|error| error.to_string())
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
        unsafe { api::AddDllDirectory(api::wide(&unlimited(&folder)).as_ptr()) };
    }
}

/// An absolute path as the loader takes it: 260 units or more need a prefix ("Maximum Path Length
/// Limitation").
fn unlimited(path: &Path) -> OsString {
    const LIMIT: usize = 260;
    let text = path.as_os_str();
    let units: Vec<u16> = text.encode_wide().collect();
    let (prefix, skipped) = match path.components().next() {
        _ if units.len() < LIMIT => return text.to_owned(),
        Some(Component::Prefix(first)) => match first.kind() {
            Prefix::Disk(_) => (r"\\?\", 0),
            // `\\server\share` becomes `\\?\UNC\server\share`.
            Prefix::UNC(..) => (r"\\?\UNC\", 2),
            _ => return text.to_owned(),
        },
        _ => return text.to_owned(),
    };
    let mut long = OsString::from(prefix);
    long.push(OsString::from_wide(&units[skipped..]));
    long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_paths_get_a_prefix() {
        let long = "x".repeat(300);
        for (path, expected) in [
            (r"C:\short".to_owned(), r"C:\short".to_owned()),
            (format!(r"C:\{long}"), format!(r"\\?\C:\{long}")),
            (format!(r"\\server\share\{long}"), format!(r"\\?\UNC\server\share\{long}")),
            (format!(r"\\?\C:\{long}"), format!(r"\\?\C:\{long}")),
        ] {
            assert_eq!(unlimited(Path::new(&path)), OsString::from(expected));
        }
    }
}
