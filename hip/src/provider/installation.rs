//! Opens AMD's libraries, and takes all of them from one installation of ROCm.
//! [`places`](crate::provider::places) lists where installations lie.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::os;
use crate::provider::library::{Loaded, Search};
use crate::provider::names::{HIP, HIPRTC, Library, Named, System, name_of};
use crate::provider::pe::Dll;
use crate::provider::places::{Installation, LOADER, Machine};

/// From this number of HIP's soname on, hipRTC is always a separate library.
const HIP_WITHOUT_HIPRTC: u32 = 7;

impl Installation {
    /// A library's files in the installation's folders.
    fn files(&self, library: Library) -> Vec<Named> {
        self.folders.iter().flat_map(|folder| library.files_in(self.system, folder)).collect()
    }

    /// HIP's files. On Windows, those whose hipRTC is there come first, because a folder may have
    /// several versions of both. An SDK without a HIP uses the driver's of its hipRTC's version.
    fn hips(&self) -> Vec<Named> {
        let own = self.files(HIP);
        if self.system == System::Unix {
            return own;
        }
        let hiprtc: Vec<_> = self.files(HIPRTC).into_iter().map(|file| file.number).collect();
        if own.is_empty() {
            let drivers = self.driver.iter().flat_map(|folder| HIP.files_in(self.system, folder));
            return drivers.filter(|file| hiprtc.contains(&file.number)).collect();
        }
        let (mut first, last): (Vec<_>, _) = own.into_iter().partition(|file| hiprtc.contains(&file.number));
        first.extend(last);
        first
    }

    /// Loads HIP from this installation.
    fn open_hip(&self, search: &mut Search) -> Option<Loaded> {
        if self.folders.is_empty() {
            return open_by_name(HIP, search);
        }
        self.note_absent(HIP, search);
        self.hips().iter().find_map(|file| search.file(&file.path))
    }

    /// Loads a library from this installation, unless it belongs to another HIP than `hip`.
    fn open(&self, library: Library, hip: &Path, search: &mut Search) -> Option<Loaded> {
        if self.folders.is_empty() {
            return open_by_name(library, search);
        }
        self.note_absent(library, search);
        for file in self.files(library) {
            match self.belongs_to_another(library, &file, hip) {
                Some(why) => search.broken(&file.path.display().to_string(), why),
                None => {
                    if let Some(loaded) = search.file(&file.path) {
                        return Some(loaded);
                    }
                }
            }
        }
        None
    }

    /// Notes the folders that do not have the library.
    fn note_absent(&self, library: Library, search: &mut Search) {
        search.folders = self.folders.iter().chain(&self.driver).cloned().collect();
        for folder in &self.folders {
            if library.files_in(self.system, folder).is_empty() {
                search.absent(folder.join(library.pattern(self.system)).display().to_string());
            }
        }
    }

    /// On Windows, why a DLL belongs to another HIP than the one in use. The loader resolves its HIP
    /// by the name alone, so it may be a file of that name that the app loaded from elsewhere, and a
    /// function's address does not show that it is.
    fn belongs_to_another(&self, library: Library, file: &Named, hip: &Path) -> Option<String> {
        if self.system == System::Unix {
            return None;
        }
        let name = name_of(hip);
        if library.stem == HIPRTC.stem {
            let (theirs, ours) = (file.number?, HIP.number_of(self.system, name)?);
            return (theirs != ours).then(|| format!("is of ROCm {theirs}, and {name} is in use"));
        }
        let needs = Dll::read(&file.path)?.needs;
        let theirs = needs.into_iter().find(|name| HIP.number_of(self.system, name).is_some())?;
        let mixed = "two installations of ROCm are mixed";
        if !theirs.eq_ignore_ascii_case(name) {
            return Some(format!("calls {theirs}, and {name} is in use: {mixed}"));
        }
        let found = os::loaded::named(&theirs)?;
        let same = fs::canonicalize(&found).ok()? == fs::canonicalize(hip).ok()?;
        (!same).then(|| format!("would call {}, and {} is in use: {mixed}", found.display(), hip.display()))
    }

    /// Why the files show a HIP that needs a separate hipRTC of its own version, and that is not
    /// there. Such an installation is passed over without loading anything, because a HIP that is
    /// loaded stays in the process, and another installation's libraries could find it by its
    /// soname.
    fn lacks_hiprtc(&self) -> Option<String> {
        let number = self.hips().first()?.number.filter(|number| *number >= HIP_WITHOUT_HIPRTC)?;
        let there = self.files(HIPRTC);
        let Some(newest) = there.first() else { return Some("has no hipRTC beside it".into()) };
        // On Linux, HIP and hipRTC of one folder are of one version.
        let goes_with_it = |file: &Named| self.system == System::Unix || file.number == Some(number);
        if there.iter().any(goes_with_it) {
            return None;
        }
        Some(format!("is of ROCm {number}, but {} beside it is of another", name_of(&newest.path)))
    }
}

/// Loads a library by its file name, from the loader's search path.
fn open_by_name(library: Library, search: &mut Search) -> Option<Loaded> {
    let (oldest, newest) = library.numbers();
    let numbered = (oldest..=newest).rev().map(|number| format!("{}.so.{number}", library.stem));
    for name in numbered.chain([format!("{}.so", library.stem)]) {
        if let Some(mut loaded) = search.name(&name) {
            if let Some(file) =
                loaded.symbol(library.function).and_then(|found| os::loaded::file_of(found.as_ptr()))
            {
                loaded.path = file;
            }
            return Some(loaded);
        }
    }
    search.absent(format!("{}.so.{newest} to .so.{oldest} in {LOADER}", library.stem));
    None
}

/// The installation that this process uses.
struct Rocm {
    installation: Installation,
    hip: Loaded,
}

/// The installation of this process: the first that does not lack hipRTC and whose HIP loads.
fn rocm() -> Result<&'static Rocm> {
    static CHOSEN: OnceLock<Result<Rocm>> = OnceLock::new();
    let choose = || {
        let variable = |name: &str| std::env::var_os(name);
        let machine = Machine { system: System::HERE, root: "/".into(), variable: &variable };
        Rocm::choose(machine.installations())
    };
    CHOSEN.get_or_init(choose).as_ref().map_err(Error::clone)
}

impl Rocm {
    fn choose(installations: Vec<Installation>) -> Result<Self> {
        let mut search = Search::default();
        for installation in installations {
            if let Some(why) = installation.lacks_hiprtc() {
                search.broken(&installation.to_string(), why);
            } else if let Some(hip) = installation.open_hip(&mut search) {
                log::debug!("ROCm: {installation}");
                // The libraries of wheels need some that are in another wheel.
                os::library::search_in(&installation.folders);
                return Ok(Self { installation, hip });
            }
        }
        Err(search.error(HIP.title, format!("{} is not installed", HIP.title)))
    }

    /// hipRTC with HIP's own number, in HIP's folder: a folder may have several versions. The numbers
    /// of both have been the same since ROCm 5.7.
    fn hiprtc_beside_hip(&self, search: &mut Search) -> Option<Loaded> {
        let hip = fs::canonicalize(&self.hip.path).unwrap_or_else(|_| self.hip.path.clone());
        let number = |path: &Path| {
            let version = name_of(path).strip_prefix(HIP.stem)?.strip_prefix(".so.")?;
            version.split('.').next()?.parse::<u32>().ok()
        };
        let number = number(&self.hip.path).or_else(|| number(&hip))?;
        let file = self.hip.path.parent()?.join(format!("{}.so.{number}", HIPRTC.stem));
        if file.exists() { search.file(&file) } else { None }
    }

    fn open(&self, library: Library) -> Result<Loaded> {
        let mut search = Search::default();
        let compiles = library.stem == HIPRTC.stem;
        if compiles && let Some(loaded) = self.hiprtc_beside_hip(&mut search) {
            return Ok(loaded);
        }
        if compiles {
            self.open_companions(&mut search);
        }
        let found = match library.stem == HIP.stem {
            true => self.installation.open_hip(&mut search),
            false => self.installation.open(library, &self.hip.path, &mut search),
        };
        let Some(loaded) = found else {
            let absent = format!("the ROCm in use has no {}: {}", library.title, self.installation);
            return Err(search.error(library.title, absent));
        };
        // The lookup of a symbol also searches the libraries that a library needs. So in rocBLAS
        // and MIOpen it finds the HIP that they call. On Windows it does not, and
        // `belongs_to_another` asks the loader instead.
        let function = |of: &Loaded| of.symbol(HIP.function);
        match function(&loaded) {
            Some(theirs) if Some(theirs) != function(&self.hip) => {
                let other = os::loaded::file_of(theirs.as_ptr()).unwrap_or_default();
                Err(Error::NotAvailable {
                    reason: format!(
                        "{} calls another HIP than the one in use: two installations of ROCm are mixed",
                        library.title
                    ),
                    searched: vec![
                        format!("{} (loaded, in use)", self.hip.shown()),
                        format!("{} (calls {})", loaded.shown(), other.display()),
                    ],
                })
            }
            _ => Ok(loaded),
        }
    }

    /// On Windows, loads the compiler and hipRTC's headers, which HIP and hipRTC open by their names.
    /// By itself the loader would search PATH. The driver's HIP keeps the driver's compiler.
    fn open_companions(&self, search: &mut Search) {
        if self.installation.system == System::Unix {
            return;
        }
        let hip = &self.hip.path;
        let own = |file: &Named| self.installation.belongs_to_another(HIPRTC, file, hip).is_none();
        if let Some(hiprtc) = self.installation.files(HIPRTC).into_iter().find(own)
            && let Some(folder) = hiprtc.path.parent()
        {
            let version = name_of(&hiprtc.path).to_ascii_lowercase().replace("hiprtc", "hiprtc-builtins");
            let of_hip = hip.parent().filter(|beside| *beside != folder);
            search.companions("hipRTC", folder, |name| {
                let lower = name.to_ascii_lowercase();
                let compiler = lower.starts_with("amd_comgr") && lower.ends_with(".dll");
                lower == version || compiler && !of_hip.is_some_and(|beside| beside.join(name).exists())
            });
        }
    }
}

/// Loads a library of the installation that this process uses. The first call chooses it.
///
/// # Errors
/// `NotAvailable` if no installation has a HIP that loads, if the one in use lacks the library, or
/// if the library calls another installation's HIP.
pub(crate) fn open(library: Library) -> Result<Loaded> {
    rocm()?.open(library)
}

/// The folders of the installation that this process uses, and how it was found; `None` if no
/// installation is usable.
pub(crate) fn in_use() -> Option<String> {
    rocm().ok().map(|rocm| rocm.installation.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::names::{HIPBLASLT, MIOPEN, ROCBLAS};
    use crate::provider::tree::Tree;

    #[test]
    fn what_was_searched_is_listed_with_patterns_for_what_does_not_exist() {
        let tree = Tree::new("nothing", &[]);
        let windows = [
            ("ProgramFiles", "Programs"),
            ("HIP_PATH", "mine"),
            ("VIRTUAL_ENV", "venv"),
            ("SystemRoot", "W"),
        ];
        for (system, variables, places) in [
            (
                System::Unix,
                &[][..],
                [
                    "opt/rocm/lib/libamdhip64.so*",
                    "opt/rocm/core/lib/libamdhip64.so*",
                    "opt/rocm/core-*/lib/libamdhip64.so*",
                    "opt/rocm-*/lib/libamdhip64.so*",
                    "usr/local/lib/python*/*-packages/_rocm_sdk_core/lib/libamdhip64.so*",
                ],
            ),
            (
                System::Windows,
                &windows,
                [
                    "mine/bin/amdhip64*.dll",
                    "venv/Lib/site-packages/_rocm_sdk_core/bin/amdhip64*.dll",
                    "Programs/AMD/ROCm/*/bin/amdhip64*.dll",
                    "W/System32/amdhip64*.dll",
                    "W/System32/amdhip64*.dll",
                ],
            ),
        ] {
            let folders = tree.all(system, variables).into_iter().filter(|found| !found.folders.is_empty());
            let Err(Error::NotAvailable { reason, searched }) = Rocm::choose(folders.collect()) else {
                panic!("nothing is there");
            };
            assert_eq!(reason, "HIP is not installed");
            let searched: Vec<_> = searched.iter().map(|place| tree.below(Path::new(place))).collect();
            for place in places {
                assert!(searched.iter().any(|found| found == place), "{place} of {searched:?}");
            }
        }
    }

    /// The installation of a root folder below a tree.
    fn at(tree: &Tree, system: System, root: &str) -> Installation {
        tree.all(system, &[("ROCM_PATH", root), ("SystemRoot", "W")]).swap_remove(0)
    }

    #[test]
    fn a_hip_without_hiprtc_is_passed_over_unless_it_has_the_functions_itself() {
        let tree = Tree::new(
            "hiprtc",
            &[
                "7/lib/libamdhip64.so.7",
                "6/lib/libamdhip64.so.6",
                "8/lib/libhiprtc.so.8",
                "7/bin/amdhip64_7.dll",
                "6/bin/amdhip64_6.dll",
                "8/bin/hiprtc0800.dll",
                "mixed/bin/amdhip64_7.dll",
                "mixed/bin/hiprtc0604.dll",
            ],
        );
        let mixed = at(&tree, System::Windows, "mixed").lacks_hiprtc();
        assert_eq!(mixed.as_deref(), Some("is of ROCm 7, but hiprtc0604.dll beside it is of another"));
        for system in [System::Unix, System::Windows] {
            let lacks = |root| at(&tree, system, root).lacks_hiprtc().is_some();
            assert_eq!(["7", "6", "8"].map(lacks), [true, false, false]);
            let only = vec![at(&tree, system, "7")];
            let Err(Error::NotAvailable { reason, searched }) = Rocm::choose(only) else { panic!("taken") };
            assert_eq!(reason, "HIP is installed but has no hipRTC beside it");
            assert!(searched[0].ends_with(" (ROCM_PATH) (has no hipRTC beside it)"), "{searched:?}");
        }
    }

    #[test]
    fn on_windows_a_hip_goes_with_its_own_hiprtc() {
        let tree = Tree::new(
            "pairs",
            &[
                "both/bin/amdhip64_6.dll",
                "both/bin/amdhip64_7.dll",
                "both/bin/hiprtc0604.dll",
                "sdk/bin/hiprtc0507.dll",
                "sdk/bin/rocblas.dll",
                "older/bin/hiprtc0604.dll",
                "libraries/bin/rocblas.dll",
                "W/System32/amdhip64.dll",
                "W/System32/amdhip64_7.dll",
            ],
        );
        let hips = |root| -> Vec<String> {
            let found = at(&tree, System::Windows, root).hips();
            found.iter().map(|file| tree.below(&file.path)).collect()
        };
        assert_eq!(hips("both"), ["both/bin/amdhip64_6.dll", "both/bin/amdhip64_7.dll"]);
        // An SDK without a HIP takes the driver's of its own version, and no other.
        assert_eq!(hips("sdk"), ["W/System32/amdhip64.dll"]);
        assert_eq!(hips("older"), [""; 0]);
        assert_eq!(hips("libraries"), [""; 0]);
    }

    #[test]
    fn on_windows_hiprtc_of_another_version_is_not_taken() {
        let tree = Tree::new("versions-mixed", &["sdk/bin/amdhip64_7.dll", "sdk/bin/hiprtc0604.dll"]);
        let sdk = at(&tree, System::Windows, "sdk");
        let mut search = Search::default();
        assert!(sdk.open(HIPRTC, Path::new("amdhip64_7.dll"), &mut search).is_none());
        let Error::NotAvailable { reason, .. } = search.error("hipRTC", "absent".into()) else {
            panic!("another error");
        };
        assert_eq!(reason, "hipRTC is installed but is of ROCm 6, and amdhip64_7.dll is in use");
        for library in [ROCBLAS, HIPBLASLT, MIOPEN] {
            let mut search = Search::default();
            assert!(sdk.open(library, Path::new("amdhip64_7.dll"), &mut search).is_none());
            let error = search.error(library.title, "absent".into());
            assert!(error.to_string().contains(&library.pattern(System::Windows)), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_loaders_search_path_is_asked_for_newer_sonames_too() {
        const C: Library = Library { title: "C", stem: "libc", known: (1, 1), function: c"malloc" };
        let mut search = Search::default();
        let loaded = open_by_name(C, &mut search).unwrap();
        assert!(loaded.path.is_absolute() && loaded.path.ends_with("libc.so.6"), "{}", loaded.shown());
        const NONE: Library = Library { title: "Nothing", stem: "libno-such-thing", ..C };
        assert!(open_by_name(NONE, &mut search).is_none());
        let Error::NotAvailable { reason, searched } = search.error("Nothing", "absent".into()) else {
            panic!("another error");
        };
        assert_eq!(reason, "absent");
        assert_eq!(searched, ["libno-such-thing.so.9 to .so.1 in the loader's search path"]);
    }
}
