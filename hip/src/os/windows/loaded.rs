//! The libraries that are loaded into this process.

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr;

use super::api::{self, Handle};

/// The file that a loaded library's function or variable comes from.
pub(crate) fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut module = ptr::null_mut();
    // SAFETY: any address may be asked for; the function writes one handle.
    let found = unsafe { api::GetModuleHandleExW(api::FROM_ADDRESS_UNCOUNTED, address, &mut module) };
    if found == 0 { None } else { file(module) }
}

/// The file that the loader takes for a library of this name, if one is loaded: of several it takes
/// the first.
pub(crate) fn named(name: &str) -> Option<PathBuf> {
    let name = api::wide(name.as_ref());
    let mut module = ptr::null_mut();
    // SAFETY: the name ends with a 0; the function writes one handle.
    let found = unsafe { api::GetModuleHandleExW(api::UNCOUNTED, name.as_ptr().cast(), &mut module) };
    if found == 0 { None } else { file(module) }
}

/// This process's loaded files whose names begin with one of `names`: the name's start, the file,
/// and no build id, because DLLs have none.
pub(crate) fn files(names: &[&'static str]) -> Vec<(&'static str, PathBuf, Option<String>)> {
    let start = |path: &PathBuf| {
        let file = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        names.iter().copied().find(|name| file.starts_with(&name.to_ascii_lowercase()))
    };
    let files = modules().into_iter().filter_map(file);
    files.filter_map(|path| Some((start(&path)?, path, None))).collect()
}

fn modules() -> Vec<Handle> {
    let mut modules: Vec<Handle> = vec![ptr::null_mut(); 256];
    loop {
        let bytes = size_of_val(modules.as_slice()) as u32;
        let mut needed = 0;
        // SAFETY: the function writes at most the given number of bytes, and the number that it
        // needs.
        let listed = unsafe {
            api::K32EnumProcessModules(api::GetCurrentProcess(), modules.as_mut_ptr(), bytes, &mut needed)
        };
        if listed == 0 {
            return Vec::new();
        }
        let count = needed as usize / size_of::<Handle>();
        if needed <= bytes {
            modules.truncate(count);
            return modules;
        }
        modules.resize(count + 64, ptr::null_mut());
    }
}

fn file(module: Handle) -> Option<PathBuf> {
    // SAFETY: Windows looks the handle up among its modules, and refuses that of a module that was
    // unloaded; the buffer has the given size.
    api::path_from(|buffer, size| unsafe { api::GetModuleFileNameW(module, buffer, size) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_this_process_are_found() {
        let found = files(&["KERNEL32"]);
        assert_eq!(found.len(), 1, "{found:?}");
        let file = file_of(api::GetCurrentProcess as *const c_void);
        assert!(file.is_some_and(|file| file.is_absolute()));
        assert_eq!(named("KERNEL32.dll").as_ref(), Some(&found[0].1));
        assert_eq!(named("no-such-thing.dll"), None);
        assert!(files(&["no-such-thing"]).is_empty());
    }
}
