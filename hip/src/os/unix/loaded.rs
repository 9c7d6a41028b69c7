//! The libraries that are loaded into this process, from `dl_iterate_phdr` and `dladdr`.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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

/// Nothing: this loader tells libraries by their sonames, and a symbol's lookup shows which HIP a
/// library calls.
pub(crate) fn named(_name: &str) -> Option<PathBuf> {
    None
}

/// This process's loaded files whose names begin with one of `names`: the name's start, the file,
/// and the linker's build id if there is one.
pub(crate) fn files(names: &[&'static str]) -> Vec<(&'static str, PathBuf, Option<String>)> {
    struct Found<'a> {
        names: &'a [&'static str],
        files: Vec<(&'static str, PathBuf, Option<String>)>,
    }

    /// # Safety
    /// Called by `dl_iterate_phdr`, with `found` pointing to a [`Found`].
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes the pointer that it was given, and the description of a loaded
        // object that is valid during this call.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Found<'_>>()) };
        if info.dlpi_name.is_null() {
            return 0;
        }
        // SAFETY: the loader gives the object's file name, ended by a NUL.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()));
        let file = path.file_name().map(OsStr::as_bytes).unwrap_or_default();
        if let Some(name) = found.names.iter().find(|name| file.starts_with(name.as_bytes())) {
            // SAFETY: the loader has mapped the object and keeps it during this call.
            found.files.push((name, path.to_owned(), unsafe { build_id(info) }));
        }
        0
    }

    let mut found = Found { names, files: Vec::new() };
    // SAFETY: the function is the C library's; it only calls `look` with the pointer before it
    // returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found.files
}

/// The build id in a loaded object's notes.
///
/// # Safety
/// `info` is the loader's description of an object that stays mapped during the call.
unsafe fn build_id(info: &libc::dl_phdr_info) -> Option<String> {
    // SAFETY: the program headers of a mapped object.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    headers.iter().filter(|header| header.p_type == libc::PT_NOTE).find_map(|header| {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        // SAFETY: a note segment lies inside a loaded segment ("Note Section", System V ABI), so it
        // is mapped.
        let notes = unsafe { std::slice::from_raw_parts(start as *const u8, header.p_memsz as usize) };
        build_id_in(notes, header.p_align as usize)
    })
}

/// The build id among ELF notes. A note has the sizes of its name and of its description, its type,
/// then name and description, both padded.
fn build_id_in(mut notes: &[u8], align: usize) -> Option<String> {
    const GNU_BUILD_ID: u32 = 3;
    let align = if align == 8 { 8 } else { 4 };
    loop {
        let word =
            |at: usize| -> Option<u32> { Some(u32::from_ne_bytes(notes.get(at..at + 4)?.try_into().ok()?)) };
        let (name_size, size, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let start = (12 + name_size).next_multiple_of(align);
        let text = notes.get(start..start.checked_add(size)?)?;
        if kind == GNU_BUILD_ID && notes.get(12..12 + name_size)? == b"GNU\0" {
            return Some(text.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get((start + size).next_multiple_of(align)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, text: &[u8], align: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, text.len() as u32, kind] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        for part in [name, text] {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(align), 0);
        }
        bytes
    }

    #[test]
    fn a_build_id_is_found_among_other_notes() {
        for align in [4, 8] {
            let other = [note(b"GNU\0", 5, &[1; 13], align), note(b"FreeBSD\0", 3, &[2; 4], align)].concat();
            let own = note(b"GNU\0", 3, &[0xab, 0x01, 0xff], align);
            assert_eq!(build_id_in(&[other.clone(), own.clone()].concat(), align).as_deref(), Some("ab01ff"));
            assert_eq!(build_id_in(&other, align), None);
            for cut in 0..own.len().min(19) {
                assert_eq!(build_id_in(&own[..cut], align), None, "cut at {cut}");
            }
            let lies = [u32::MAX.to_ne_bytes(), u32::MAX.to_ne_bytes(), 3u32.to_ne_bytes()].concat();
            assert_eq!(build_id_in(&lies, align), None);
        }
    }
}
