//! Opens libraries with `dlopen`.

use std::ffi::{CStr, OsStr, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

/// An open library. It stays loaded until the process ends.
pub(crate) struct Library(ManuallyDrop<Handle>);

impl Library {
    /// Opens a file.
    ///
    /// # Safety
    /// The library's initialisers are made to be run by `dlopen`.
    pub(crate) unsafe fn open(file: &Path) -> Result<Self, String> {
        // SAFETY: the caller vouches for the initialisers.
        unsafe { open(file.as_os_str()) }
    }

    /// Opens the file of this name from the loader's search path; `None` if no folder of the path
    /// has it.
    ///
    /// # Safety
    /// As for [`open`](Self::open).
    pub(crate) unsafe fn open_by_name(name: &str) -> Option<Result<Self, String>> {
        // SAFETY: as above.
        match unsafe { open(name.as_ref()) } {
            Err(why) if is_absent(&why, name) => None,
            opened => Some(opened),
        }
    }

    /// The address of a symbol of this library or of the libraries that it needs.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: only the address is taken; the caller declares the signature.
        let symbol = unsafe { self.0.get::<*mut c_void>(name.to_bytes_with_nul()) }.ok()?;
        NonNull::new(symbol.into_raw())
    }
}

/// Whether `dlopen` failed because it found no file of this name. If not, it found the file, but
/// this file or a library that it needs does not load.
fn is_absent(why: &str, name: &str) -> bool {
    let starts = [
        // glibc, in any language. If it found the file, its message begins with the whole path.
        format!("{name}: "),
        // musl.
        format!("Error loading shared library {name}: No such file"),
        // FreeBSD.
        format!("Shared object \"{name}\" not found"),
    ];
    starts.iter().any(|start| why.starts_with(start))
}

/// # Safety
/// As for [`Library::open`].
unsafe fn open(path: &OsStr) -> Result<Library, String> {
    // SAFETY: the caller vouches for the initialisers. Libraries are never unloaded, because their
    // threads and exit handlers would outlive them.
    unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map(|handle| Library(ManuallyDrop::new(handle)))
        .map_err(|error| error.to_string())
}

/// Adds folders in which the loader looks for libraries that others need. `dlopen` takes none: AMD's
/// libraries name the folders of their neighbours themselves.
pub(crate) fn search_in(_folders: &[PathBuf]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_file_is_told_from_one_that_does_not_load() {
        const NAME: &str = "libx.so.7";
        for why in [
            "libx.so.7: cannot open shared object file: No such file or directory",
            "libx.so.7: Kann die Shared-Object-Datei nicht \u{f6}ffnen: Datei nicht gefunden",
            "Error loading shared library libx.so.7: No such file or directory",
            "Shared object \"libx.so.7\" not found, required by \"app\"",
        ] {
            assert!(is_absent(why, NAME), "{why}");
        }
        for why in [
            "/usr/lib/libx.so.7: invalid ELF header",
            "libhsa.so.1: cannot open shared object file: No such file or directory",
            "Error loading shared library libx.so.7: Exec format error",
            "Error loading shared library libhsa.so.1: No such file or directory (needed by libx.so.7)",
            "Shared object \"libhsa.so.1\" not found, required by \"libx.so.7\"",
        ] {
            assert!(!is_absent(why, NAME), "{why}");
        }
    }
}
