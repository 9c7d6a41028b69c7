//! Identifies the compiler of a provider's kernels. The key of a code object on disk covers
//! everything here.

use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::hash::Digest;
use crate::os;
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
const AMD: &[&str] = match cfg!(windows) {
    true => &["hiprtc", "amd_comgr", "amdhip64"],
    false => &["libhiprtc", "libamd_comgr", "libamdhip64"],
};
/// The library that makes NVIDIA's code objects.
const NVIDIA: &[&str] = if cfg!(windows) { &["nvrtc64"] } else { &["libnvrtc"] };

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
pub(crate) fn builds_loaded(names: &[&'static str]) -> String {
    let build = |(name, path, build): (_, std::path::PathBuf, Option<String>)| {
        format!("{name} {}", build.or_else(|| build_of_file(&path)).unwrap_or_default())
    };
    let mut builds: Vec<_> = os::loaded::files(names).into_iter().map(build).collect();
    builds.sort();
    builds.join(", ")
}

/// A file's size and modification time.
fn build_of_file(path: &Path) -> Option<String> {
    let facts = std::fs::metadata(path).ok()?;
    let time = facts.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(format!("{} bytes of {}.{:09}", facts.len(), time.as_secs(), time.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_this_process_are_told_by_their_builds() {
        let name = if cfg!(windows) { "kernel32" } else { "libc.so" };
        let found = builds_loaded(&[name]);
        let build = found.strip_prefix(&format!("{name} ")).expect("the C library is loaded");
        assert!(build.len() >= 16 && !build.contains(','), "{found}");
        assert_eq!(builds_loaded(&[name]), found);
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
