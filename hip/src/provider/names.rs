//! The file names of AMD's libraries: sonames, and on Windows DLLs.
//!
//! | library | Linux | Windows |
//! |---|---|---|
//! | HIP | `libamdhip64.so.7` | `amdhip64_7.dll`, `amdhip64_6.dll`; `amdhip64.dll` before ROCm 6 |
//! | hipRTC | `libhiprtc.so.7` | `hiprtcMMmm.dll` with ROCm's version: `hiprtc0507.dll`, `hiprtc0714.dll` |
//! | rocBLAS | `librocblas.so.5` | `rocblas.dll` |
//! | hipBLASLt | `libhipblaslt.so.1` | `libhipblaslt.dll` |
//! | MIOpen | `libMIOpen.so.1` | `MIOpen.dll` |
//! | RCCL | `librccl.so.1` | `rccl.dll` (AMD ships none yet) |

use std::cmp::Reverse;
use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};

/// How a system names libraries and lays out folders. Both kinds are compiled everywhere, so that
/// tests can imitate the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    /// ELF files with sonames.
    Unix,
    /// DLLs.
    Windows,
}

impl System {
    /// This machine's.
    pub(crate) const HERE: Self = if cfg!(windows) { Self::Windows } else { Self::Unix };
}

/// One of AMD's libraries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Library {
    pub(crate) title: &'static str,
    /// The file name up to `.so`.
    pub(crate) stem: &'static str,
    /// The soname's number in ROCm 5.7 and in ROCm 10. In a folder, files with any number are
    /// found. The loader's search path can't be listed, so each of these numbers and [`AHEAD`] more
    /// are tried there.
    pub(crate) known: (u32, u32),
    /// A function of the library.
    pub(crate) function: &'static CStr,
}

/// How many numbers beyond the known ones are tried in the loader's search path.
const AHEAD: u32 = 8;

pub(crate) const HIP: Library =
    Library { title: "HIP", stem: "libamdhip64", known: (5, 7), function: c"hipInit" };
pub(crate) const HIPRTC: Library =
    Library { title: "hipRTC", stem: "libhiprtc", known: (5, 7), function: c"hiprtcVersion" };
pub(crate) const ROCBLAS: Library =
    Library { title: "rocBLAS", stem: "librocblas", known: (3, 5), function: c"rocblas_create_handle" };
pub(crate) const HIPBLASLT: Library =
    Library { title: "hipBLASLt", stem: "libhipblaslt", known: (0, 1), function: c"hipblasLtCreate" };
pub(crate) const MIOPEN: Library =
    Library { title: "MIOpen", stem: "libMIOpen", known: (1, 1), function: c"miopenCreate" };

pub(crate) const RCCL: Library =
    Library { title: "RCCL", stem: "librccl", known: (1, 1), function: c"ncclGetVersion" };

/// The ranges that rocprofv3 shows, and those of the older roctracer.
pub(crate) const ROCTX: Library =
    Library { title: "rocTX", stem: "librocprofiler-sdk-roctx", known: (0, 1), function: c"roctxRangePushA" };
pub(crate) const ROCTX_OLD: Library =
    Library { title: "rocTX", stem: "libroctx64", known: (4, 4), function: c"roctxRangePushA" };

/// A library's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The number of the soname. For HIP and hipRTC it is ROCm's major version, also on Windows.
    pub(crate) number: Option<u32>,
    pub(crate) path: PathBuf,
}

impl Library {
    /// The library's files in a folder, newest first. The development link (`.so`, without a number)
    /// is last.
    pub(crate) fn files_in(self, system: System, folder: &Path) -> Vec<Named> {
        let version = |name: &str| match system {
            System::Unix => self.soname(name),
            System::Windows => self.dll(name),
        };
        let mut files: Vec<_> =
            names_in(folder).filter_map(|name| Some((version(&name)?, folder.join(&name)))).collect();
        files.sort_by(|a, b| (Reverse(a.0), &a.1).cmp(&(Reverse(b.0), &b.1)));
        files
            .into_iter()
            .map(|(version, path)| Named { number: version.map(|(number, _)| number), path })
            .collect()
    }

    /// The version in a soname. The inner `None` is the development link's.
    fn soname(self, name: &str) -> Option<Option<(u32, u32)>> {
        match name.strip_prefix(self.stem)?.strip_prefix(".so")? {
            "" => Some(None),
            // Longer versions, as in `libMIOpen.so.1.0`, are the files behind the sonames.
            number => Some(Some((number.strip_prefix('.')?.parse().ok()?, 0))),
        }
    }

    /// The version in a DLL's name, of any case. The inner `None` is that of a name without one.
    fn dll(self, name: &str) -> Option<Option<(u32, u32)>> {
        let name = name.to_ascii_lowercase();
        let stem = self.dll_stem().to_ascii_lowercase();
        // hipBLASLt's DLL begins with `lib`, so the others may one day.
        let rest = name.strip_prefix("lib").unwrap_or(&name).strip_prefix(&stem)?.strip_suffix(".dll")?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        match (self.stem == HIP.stem, self.stem == HIPRTC.stem, rest) {
            // Before ROCm 6 the name had no number.
            (true, _, "") => Some(Some((HIP.known.0, 0))),
            (true, _, number) => Some(Some((number.strip_prefix('_')?.parse().ok()?, 0))),
            (_, true, version) if version.len() == 4 && digits(version) => {
                Some(Some((version[..2].parse().ok()?, version[2..].parse().ok()?)))
            }
            (_, _, "") => Some(None),
            _ => None,
        }
    }

    /// The number in a file's name.
    pub(crate) fn number_of(self, system: System, name: &str) -> Option<u32> {
        let version = match system {
            System::Unix => self.soname(name),
            System::Windows => self.dll(name),
        };
        version?.map(|(number, _)| number)
    }

    fn dll_stem(self) -> &'static str {
        self.stem.strip_prefix("lib").unwrap_or(self.stem)
    }

    /// The pattern of the file names.
    pub(crate) fn pattern(self, system: System) -> String {
        match system {
            System::Unix => format!("{}.so*", self.stem),
            System::Windows if [HIP.stem, HIPRTC.stem].contains(&self.stem) => {
                format!("{}*.dll", self.dll_stem())
            }
            System::Windows => format!("{}.dll", self.dll_stem()),
        }
    }

    /// The oldest and the newest number that are tried in the loader's search path.
    pub(crate) fn numbers(self) -> (u32, u32) {
        (self.known.0, self.known.1 + AHEAD)
    }
}

/// The names of a folder's entries, without those that are not UTF-8; none if the folder can't be
/// read.
pub(crate) fn names_in(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

/// The last part of a path; empty if it is not UTF-8.
pub(crate) fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(system: System, library: Library, names: &[&str]) -> Vec<(String, Option<u32>)> {
        static SERIAL: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("hip-names-{}-{serial}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in names {
            fs::write(folder.join(name), "").unwrap();
        }
        let found = library.files_in(system, &folder);
        fs::remove_dir_all(&folder).unwrap();
        found.iter().map(|file| (name_of(&file.path).to_owned(), file.number)).collect()
    }

    #[test]
    fn the_newest_soname_comes_first_and_the_development_link_last() {
        let names = [
            "libMIOpen.so",
            "libMIOpen.so.1",
            "libMIOpen.so.1.0",
            "libMIOpen.so.10",
            "libMIOpen.so.9",
            "libMIOpen.a",
        ];
        let found = found(System::Unix, MIOPEN, &names);
        let found: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(found, ["libMIOpen.so.10", "libMIOpen.so.9", "libMIOpen.so.1", "libMIOpen.so"]);
    }

    #[test]
    fn dlls_are_told_by_patterns_and_the_newest_comes_first() {
        let hip = ["amdhip64.dll", "amdhip64_6.dll", "amdhip64_10.dll", "amdhip64_7.dll", "amdhip64_7d.dll"];
        let expected =
            [("amdhip64_10.dll", 10), ("amdhip64_7.dll", 7), ("amdhip64_6.dll", 6), ("amdhip64.dll", 5)];
        let expected = expected.map(|(name, number)| (name.to_owned(), Some(number)));
        assert_eq!(found(System::Windows, HIP, &hip), expected);

        let rtc = [
            "hiprtc0507.dll",
            "hiprtc0604.dll",
            "hiprtc0700.dll",
            "HIPRTC0714.DLL",
            "hiprtc0701.dll",
            "hiprtc0715.dll",
            "hiprtc-builtins0715.dll",
            "hiprtc.pdb",
            "hiprtc715.dll",
            "hiprtc0\u{fc}15.dll",
        ];
        let expected = [
            ("hiprtc0715.dll", 7),
            ("HIPRTC0714.DLL", 7),
            ("hiprtc0701.dll", 7),
            ("hiprtc0700.dll", 7),
            ("hiprtc0604.dll", 6),
            ("hiprtc0507.dll", 5),
        ];
        let expected = expected.map(|(name, number)| (name.to_owned(), Some(number)));
        assert_eq!(found(System::Windows, HIPRTC, &rtc), expected);

        let others = ["rocblas.dll", "MIOpen.dll", "miopen_plugin.dll", "rocblas-test.dll", "hipblas.dll"];
        assert_eq!(found(System::Windows, ROCBLAS, &others), [("rocblas.dll".to_owned(), None)]);
        assert_eq!(found(System::Windows, MIOPEN, &others), [("MIOpen.dll".to_owned(), None)]);
        let others = ["libhipblaslt.dll", "hipblas.dll", "libhipblaslt.lib", "rocroller.dll"];
        assert_eq!(found(System::Windows, HIPBLASLT, &others), [("libhipblaslt.dll".to_owned(), None)]);
        let sonames = ["libhipblaslt.so.0", "libhipblaslt.so.1", "libhipblaslt.so.1.2", "libhipblas.so.3"];
        let expected = [("libhipblaslt.so.1".to_owned(), Some(1)), ("libhipblaslt.so.0".to_owned(), Some(0))];
        assert_eq!(found(System::Unix, HIPBLASLT, &sonames), expected);
    }

    #[test]
    fn patterns_are_those_of_the_system() {
        let patterns = [HIP, HIPRTC, ROCBLAS, MIOPEN].map(|library| library.pattern(System::Windows));
        assert_eq!(patterns, ["amdhip64*.dll", "hiprtc*.dll", "rocblas.dll", "MIOpen.dll"]);
        assert_eq!(ROCBLAS.pattern(System::Unix), "librocblas.so*");
    }
}
