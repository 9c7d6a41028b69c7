//! Identifies the compiler of a provider's kernels. The key of a code object on disk covers
//! everything here.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::hash::Digest;
use crate::provider::kind::ProviderKind;

/// The identity of a provider's compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Toolchain {
    pub(crate) provider: ProviderKind,
    /// hipRTC's major and minor version. From ROCm 5.7 to 7.2, AMD left it at 9.0.
    pub(crate) hiprtc: (i32, i32),
    /// `hipRuntimeGetVersion`.
    pub(crate) runtime: i32,
    /// The builds of the compiler's files, in the form of [`builds_loaded`].
    pub(crate) builds: String,
}

/// The libraries that make AMD's code objects. Before ROCm 7 libamdhip64 also had hipRTC's
/// functions.
const AMD: &[&str] = &["libhiprtc", "libamd_comgr", "libamdhip64"];
/// The library that makes NVIDIA's code objects.
const NVIDIA: &[&str] = &["libnvrtc"];

impl Toolchain {
    /// The compiler of a provider whose libraries are loaded.
    pub(crate) fn of(provider: ProviderKind, hiprtc: (i32, i32), runtime: i32) -> Self {
        let builds = match provider {
            ProviderKind::Rocm => builds_loaded(AMD),
            ProviderKind::Cuda => builds_loaded(NVIDIA),
            ProviderKind::Cpu => {
                crate::provider::host_compiler().and_then(|path| build_of_file(&path)).unwrap_or_default()
            }
        };
        log::debug!("{provider} compiles with hipRTC {hiprtc:?}, HIP {runtime}, {builds}");
        Self { provider, hiprtc, runtime, builds }
    }

    /// Adds the compiler's identity to a key.
    pub(crate) fn add_to(&self, key: Digest) -> Digest {
        self.provider
            .compiles_with()
            .fold(key, |key, text| key.part(text))
            // The key also has the provider's name, because another provider could use AMD's
            // architecture names.
            .part(self.provider.name())
            .part(&format!("{}.{} {}", self.hiprtc.0, self.hiprtc.1, self.runtime))
            .part(&self.builds)
    }
}

/// The builds of this process's loaded libraries whose file names begin with one of `names`,
/// sorted. A build is the linker's build id, or the file's size and time if there is no id.
fn builds_loaded(names: &[&'static str]) -> String {
    struct Found<'a> {
        names: &'a [&'static str],
        builds: Vec<String>,
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
        let Some(name) = found.names.iter().find(|name| file.starts_with(name.as_bytes())) else { return 0 };
        // SAFETY: the loader has mapped the object and keeps it during this call.
        let build = unsafe { build_id(info) }.or_else(|| build_of_file(path));
        found.builds.push(format!("{name} {}", build.unwrap_or_default()));
        0
    }

    let mut found = Found { names, builds: Vec::new() };
    // SAFETY: the function is the C library's; it only calls `look` with the pointer before it
    // returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found.builds.sort();
    found.builds.join(", ")
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

/// A file's size and modification time.
fn build_of_file(path: &Path) -> Option<String> {
    let facts = std::fs::metadata(path).ok()?;
    Some(format!("{} bytes of {}.{:09}", facts.size(), facts.mtime(), facts.mtime_nsec()))
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

    #[test]
    fn libraries_of_this_process_are_told_by_their_builds() {
        let found = builds_loaded(&["libc.so"]);
        let build = found.strip_prefix("libc.so ").expect("the C library is loaded");
        assert!(build.len() >= 16 && !build.contains(','), "{found}");
        assert_eq!(builds_loaded(&["libc.so"]), found);
        assert_eq!(builds_loaded(&["libno-such-thing"]), "");
    }

    #[test]
    fn a_file_that_is_exchanged_is_another_build() {
        let path = std::env::temp_dir().join(format!("hip-toolchain-{}", std::process::id()));
        std::fs::write(&path, "old").unwrap();
        let old = build_of_file(&path);
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        let newer = build_of_file(&path);
        std::fs::write(&path, "longer").unwrap();
        let longer = build_of_file(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(old.is_some() && old != newer && newer != longer && longer != old);
        assert_eq!(build_of_file(&path), None);
    }
}
