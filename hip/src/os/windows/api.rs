//! The functions of Windows that this crate calls, as Microsoft's "Windows API index" declares them.
#![allow(non_snake_case)]

use std::ffi::{OsStr, OsString, c_void};
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A handle of an object, or a module's address.
pub(super) type Handle = *mut c_void;

/// `GetModuleHandleExW`: the address is one of the module's own, and no reference is added.
pub(super) const FROM_ADDRESS_UNCOUNTED: u32 = 0x4 | UNCOUNTED;
/// `GetModuleHandleExW`: the address is a file name's, and no reference is added.
pub(super) const UNCOUNTED: u32 = 0x2;
/// `LoadLibraryExW`: `LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS`. What a
/// library needs is looked for beside it, beside the program, in System32 and in the folders of
/// `AddDllDirectory`, not in PATH nor in the current folder.
pub(super) const BESIDE_AND_DEFAULT: u32 = 0x100 | 0x1000;
/// `LoadLibraryExW`: `LOAD_LIBRARY_SEARCH_SYSTEM32`. What the library needs is looked for there too.
pub(super) const SYSTEM32: u32 = 0x800;
/// `SetThreadErrorMode`: `SEM_FAILCRITICALERRORS | SEM_NOOPENFILEERRORBOX`. A library that does not
/// load gives an error, and no window.
pub(super) const NO_WINDOWS: u32 = 0x1 | 0x8000;
/// `OpenProcessToken`: `TOKEN_QUERY`.
pub(super) const TOKEN_QUERY: u32 = 0x8;
/// `GetTokenInformation`: `TokenUser`.
pub(super) const TOKEN_USER: i32 = 1;
/// `GetSecurityInfo`: `SE_FILE_OBJECT`.
pub(super) const FILE_OBJECT: i32 = 1;
/// `GetSecurityInfo`: `OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION`.
pub(super) const OWNER_AND_DACL: u32 = 0x1 | 0x4;

#[link(name = "kernel32")]
unsafe extern "system" {
    pub(super) fn AddDllDirectory(folder: *const u16) -> *mut c_void;
    pub(super) fn CloseHandle(object: Handle) -> i32;
    pub(super) fn GetCurrentProcess() -> Handle;
    pub(super) fn GetModuleFileNameW(module: Handle, name: *mut u16, size: u32) -> u32;
    pub(super) fn GetModuleHandleExW(flags: u32, address: *const c_void, module: *mut Handle) -> i32;
    pub(super) fn GetProcAddress(module: Handle, name: *const i8) -> *mut c_void;
    pub(super) fn K32EnumProcessModules(
        process: Handle,
        modules: *mut Handle,
        bytes: u32,
        needed: *mut u32,
    ) -> i32;
    pub(super) fn LoadLibraryExW(file: *const u16, reserved: Handle, flags: u32) -> Handle;
    pub(super) fn LocalFree(memory: *mut c_void) -> *mut c_void;
    pub(super) fn SetThreadErrorMode(mode: u32, old: *mut u32) -> i32;
}

#[link(name = "advapi32")]
unsafe extern "system" {
    pub(super) fn ConvertSidToStringSidW(sid: *const c_void, text: *mut *mut u16) -> i32;
    pub(super) fn GetAce(acl: *const c_void, index: u32, ace: *mut *mut c_void) -> i32;
    pub(super) fn GetSecurityInfo(
        object: Handle,
        kind: i32,
        wanted: u32,
        owner: *mut *mut c_void,
        group: *mut *mut c_void,
        dacl: *mut *mut c_void,
        sacl: *mut *mut c_void,
        descriptor: *mut *mut c_void,
    ) -> u32;
    pub(super) fn GetTokenInformation(
        token: Handle,
        class: i32,
        information: *mut c_void,
        size: u32,
        needed: *mut u32,
    ) -> i32;
    pub(super) fn OpenProcessToken(process: Handle, access: u32, token: *mut Handle) -> i32;
}

/// A text as Windows takes it: UTF-16, ended by a 0.
pub(super) fn wide(text: &OsStr) -> Vec<u16> {
    text.encode_wide().chain([0]).collect()
}

/// The path that a function writes. The function gets a buffer and its size, and returns the
/// path's length without the 0 at its end, or no less than the size if the buffer is too small.
pub(super) fn path_from(mut write: impl FnMut(*mut u16, u32) -> u32) -> Option<PathBuf> {
    let mut buffer = vec![0u16; 300];
    loop {
        let length = write(buffer.as_mut_ptr(), buffer.len() as u32) as usize;
        match length {
            0 => return None,
            _ if length < buffer.len() => return Some(OsString::from_wide(&buffer[..length]).into()),
            // The longest path has 32,767 units.
            _ if buffer.len() > 1 << 16 => return None,
            _ => buffer.resize(buffer.len() * 4, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_are_not_unicode_or_long_keep_every_unit() {
        let odd = OsString::from_wide(&[0x47, 0xd800, 0x78]);
        assert!(odd.to_str().is_none());
        assert_eq!(wide(&odd), [0x47, 0xd800, 0x78, 0]);
        for length in [1, 299, 300, 301, 32_767] {
            let units: Vec<u16> = (0..length).map(|at| if at % 7 == 0 { 0xdc00 } else { 0x61 }).collect();
            // As Windows's functions do: it fills the buffer, and returns its size if that is too little.
            let found = path_from(|buffer, size| {
                let count = units.len().min(size as usize);
                // SAFETY: no more than the buffer's size.
                unsafe { buffer.copy_from_nonoverlapping(units.as_ptr(), count) };
                count as u32
            });
            assert_eq!(found, Some(PathBuf::from(OsString::from_wide(&units))), "{length}");
        }
        assert_eq!(path_from(|_, _| 0), None);
        assert_eq!(path_from(|_, size| size), None);
    }
}
