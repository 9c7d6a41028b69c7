//! Finds AMD's libraries on this machine, and takes all of them from one installation of ROCm.
//!
//! These are the layouts, and where each is documented:
//!
//! | layout | folder of the libraries |
//! |---|---|
//! | AMD's packages from ROCm 7.13 (preview) on | `/opt/rocm/core-10.0/lib`, with the links `/opt/rocm/lib` and `/opt/rocm/core` |
//! | AMD's packages before | `/opt/rocm-7.2.0/lib`, with the link `/opt/rocm` |
//! | Python's wheels | `_rocm_sdk_core/lib` (HIP, hipRTC) and `_rocm_sdk_libraries*/lib` of one `site-packages` |
//! | distributions | the loader's search path |
//!
//! Sources: <https://rocm.docs.amd.com/en/docs-10.0.0/about/transition-guide-TheRock.html>;
//! `docs/packaging/python_packaging.md` and `amdrocm-core-postinst.j2` of
//! <https://github.com/ROCm/TheRock>.

use std::ffi::{CStr, OsString};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::provider::library::{Loaded, Search, file_of};

/// One of AMD's libraries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Library {
    pub(crate) title: &'static str,
    /// The file name up to `.so`.
    stem: &'static str,
    /// The soname's number in ROCm 5.7 and in ROCm 10. In a folder, files with any number are
    /// found. The loader's search path can't be listed, so each of these numbers and [`AHEAD`] more
    /// are tried there.
    known: (u32, u32),
    /// A function of the library.
    function: &'static CStr,
}

/// How many numbers beyond the known ones are tried in the loader's search path.
const AHEAD: u32 = 8;

pub(crate) const HIP: Library =
    Library { title: "HIP", stem: "libamdhip64", known: (5, 7), function: c"hipInit" };
pub(crate) const HIPRTC: Library =
    Library { title: "hipRTC", stem: "libhiprtc", known: (5, 7), function: c"hiprtcVersion" };
pub(crate) const ROCBLAS: Library =
    Library { title: "rocBLAS", stem: "librocblas", known: (3, 5), function: c"rocblas_create_handle" };
pub(crate) const MIOPEN: Library =
    Library { title: "MIOpen", stem: "libMIOpen", known: (1, 1), function: c"miopenCreate" };

/// From this number of HIP's soname on, hipRTC is always a separate library.
const HIP_WITHOUT_HIPRTC: u32 = 7;

impl Library {
    /// The library's files in a folder, each with the number of its soname: newest first, and the
    /// development link (`.so`, without a number) last.
    fn files_in(self, folder: &Path) -> Vec<(Option<u32>, PathBuf)> {
        let link = format!("{}.so", self.stem);
        let prefix = format!("{link}.");
        let mut files: Vec<_> = names_in(folder)
            .filter_map(|name| match name.strip_prefix(&prefix) {
                // Longer versions, as in `libMIOpen.so.1.0`, are the files behind the sonames.
                Some(number) => Some((Some(number.parse().ok()?), folder.join(&name))),
                None => (name == link).then(|| (None, folder.join(&name))),
            })
            .collect();
        files.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        files
    }
}

/// The names of a folder's entries, without those that are not UTF-8; none if the folder can't be
/// read.
fn names_in(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

/// The last part of a path; empty if it is not UTF-8.
fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The folders `FOLDER/PREFIX<version>`, highest version first. If there is none, returns the
/// pattern itself, so that the list of searched places shows it.
fn newest_first(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    // Other endings are other builds: `core-asan-10.0` needs a program with a sanitizer. A
    // free-threaded Python has its packages in `python3.14t`.
    let version = |name: &str| -> Option<Vec<u32>> {
        let version = name.strip_prefix(prefix)?;
        let version = if prefix == PYTHON { version.strip_suffix('t').unwrap_or(version) } else { version };
        version.split('.').map(|part| part.parse().ok()).collect()
    };
    let mut found: Vec<_> =
        names_in(folder).filter_map(|name| Some((version(&name)?, folder.join(&name)))).collect();
    found.sort_by(|a, b| b.0.cmp(&a.0));
    if found.is_empty() {
        return vec![folder.join(format!("{prefix}*"))];
    }
    found.into_iter().map(|(_, path)| path).collect()
}

/// Where one installation of ROCm has its libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Installation {
    /// How the installation was found.
    origin: &'static str,
    /// The folders of its libraries; empty for the loader's search path.
    folders: Vec<PathBuf>,
}

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.folders.is_empty() {
            return f.write_str(self.origin);
        }
        let mut folders: Vec<_> =
            self.folders.iter().filter(|folder| folder.is_dir()).map(|f| f.display().to_string()).collect();
        folders.dedup();
        write!(f, "{} ({})", folders.join(" and "), self.origin)
    }
}

impl Installation {
    /// The installation with this root folder.
    fn at(origin: &'static str, root: &Path) -> Self {
        // A link to a wheel's folder: the other wheels are beside the folder, not beside the link.
        let real = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        let root = if name_of(&real).starts_with(CORE_WHEEL) { &real } else { root };
        let mut folders = vec![root.join("lib"), root.join("lib64")];
        // In Python's wheels, rocBLAS and MIOpen are in a package beside HIP's. Packages with the
        // same ending belong together. There was a package for each family of GPUs before the
        // device files got wheels of their own.
        if let (Some(ending), Some(site)) = (name_of(root).strip_prefix(CORE_WHEEL), root.parent()) {
            let mut beside: Vec<_> = names_in(site)
                .filter(|name| name.starts_with("_rocm_sdk_libraries") && name.ends_with(ending))
                .collect();
            beside.sort();
            folders.pop();
            folders.extend(beside.iter().map(|name| site.join(name).join("lib")));
        }
        Self { origin, folders }
    }

    /// The installations in a root folder that may hold several: its own, then those
    /// in the folders of ROCm 7.13 and later.
    fn under(origin: &'static str, root: &Path) -> Vec<Self> {
        let mut roots = vec![root.to_owned(), root.join("core")];
        roots.extend(newest_first(root, "core-"));
        roots.iter().map(|root| Self::at(origin, root)).collect()
    }

    /// The installations from wheels in a folder that has a folder for each version of Python.
    fn wheels(origin: &'static str, lib: &Path) -> Vec<Self> {
        let mut found = Vec::new();
        for python in newest_first(lib, PYTHON) {
            for packages in ["site-packages", "dist-packages"] {
                let site = python.join(packages);
                let mut cores: Vec<_> = names_in(&site).filter(|name| name.starts_with(CORE_WHEEL)).collect();
                cores.sort();
                found.extend(cores.iter().map(|core| Self::at(origin, &site.join(core))));
            }
        }
        if found.is_empty() {
            found.push(Self::at(origin, &lib.join("python*/*-packages").join(CORE_WHEEL)));
        }
        found
    }

    /// Loads a library from this installation.
    fn open(&self, library: Library, search: &mut Search) -> Option<Loaded> {
        if self.folders.is_empty() {
            return open_by_name(library, search);
        }
        for folder in &self.folders {
            let files = library.files_in(folder);
            if files.is_empty() {
                search.absent(folder.join(format!("{}.so*", library.stem)).display().to_string());
            }
            for (_, file) in files {
                if let Some(loaded) = search.file(&file) {
                    return Some(loaded);
                }
            }
        }
        None
    }

    /// Whether the files show a HIP that needs a separate hipRTC, and none is there. Such an
    /// installation is passed over without loading anything, because a HIP that is loaded stays in
    /// the process, and another installation's libraries could find it by its soname.
    fn lacks_hiprtc(&self) -> bool {
        let files = |library: Library| self.folders.iter().flat_map(move |folder| library.files_in(folder));
        let needs_it = |number: Option<u32>| number.is_some_and(|number| number >= HIP_WITHOUT_HIPRTC);
        files(HIP).next().is_some_and(|(number, _)| needs_it(number)) && files(HIPRTC).next().is_none()
    }
}

/// The prefix of the name of a Python version's folder.
const PYTHON: &str = "python";

/// The wheel with HIP and hipRTC.
const CORE_WHEEL: &str = "_rocm_sdk_core";

/// Loads a library by its file name, from the loader's search path.
fn open_by_name(library: Library, search: &mut Search) -> Option<Loaded> {
    let (oldest, newest) = (library.known.0, library.known.1 + AHEAD);
    let numbered = (oldest..=newest).rev().map(|number| format!("{}.so.{number}", library.stem));
    for name in numbered.chain([format!("{}.so", library.stem)]) {
        if let Some(mut loaded) = search.name(&name) {
            if let Some(file) = loaded.symbol(library.function).and_then(|found| file_of(found.as_ptr())) {
                loaded.path = file.display().to_string();
            }
            return Some(loaded);
        }
    }
    search.absent(format!("{}.so.{newest} to .so.{oldest} in {LOADER}", library.stem));
    None
}

const LOADER: &str = "the loader's search path";

/// The folders and variables to search: those of the real machine, or an imitation in a test.
struct System<'a> {
    root: PathBuf,
    variable: &'a dyn Fn(&str) -> Option<OsString>,
}

/// The installations of a machine, in the order in which they are tried. A folder that several
/// links point to appears once.
fn installations(system: &System) -> Vec<Installation> {
    let variable = |name| (system.variable)(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut all = Vec::new();
    if let Some(root) = variable("ROCM_PATH") {
        all.extend(Installation::under("ROCM_PATH", &root));
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(root) = variable(name) {
            all.extend(Installation::wheels(name, &root.join("lib")));
        }
    }
    let opt = system.root.join("opt");
    all.extend(Installation::under("AMD's packages", &opt.join("rocm")));
    all.extend(newest_first(&opt, "rocm-").iter().map(|root| Installation::at("AMD's packages", root)));
    all.push(Installation { origin: LOADER, folders: Vec::new() });
    let home = variable("HOME").map(|home| home.join(".local/lib"));
    for lib in home.into_iter().chain(["usr/local/lib", "usr/lib"].map(|lib| system.root.join(lib))) {
        all.extend(Installation::wheels("Python's packages", &lib));
    }

    let mut seen: Vec<Vec<PathBuf>> = Vec::new();
    all.retain(|installation| {
        let real: Vec<_> =
            installation.folders.iter().filter_map(|folder| fs::canonicalize(folder).ok()).collect();
        let new = real.is_empty() || !seen.contains(&real);
        seen.push(real);
        new
    });
    all
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
        Rocm::choose(installations(&System { root: "/".into(), variable: &variable }))
    };
    CHOSEN.get_or_init(choose).as_ref().map_err(Error::clone)
}

impl Rocm {
    fn choose(installations: Vec<Installation>) -> Result<Self> {
        let mut search = Search::default();
        for installation in installations {
            if installation.lacks_hiprtc() {
                search.broken(&installation.to_string(), "has no hipRTC beside it".into());
            } else if let Some(hip) = installation.open(HIP, &mut search) {
                log::debug!("ROCm: {installation}");
                return Ok(Self { installation, hip });
            }
        }
        Err(search.error(HIP.title, format!("{} is not installed", HIP.title)))
    }

    /// hipRTC with HIP's own number, in HIP's folder: a folder may have several versions. The numbers
    /// of both have been the same since ROCm 5.7.
    fn hiprtc_beside_hip(&self, search: &mut Search) -> Option<Loaded> {
        let hip = fs::canonicalize(&self.hip.path).unwrap_or_else(|_| PathBuf::from(&self.hip.path));
        let number = |path: &Path| {
            let version = name_of(path).strip_prefix(HIP.stem)?.strip_prefix(".so.")?;
            version.split('.').next()?.parse::<u32>().ok()
        };
        let number = number(Path::new(&self.hip.path)).or_else(|| number(&hip))?;
        let file = Path::new(&self.hip.path).parent()?.join(format!("{}.so.{number}", HIPRTC.stem));
        if file.exists() { search.file(&file) } else { None }
    }

    fn open(&self, library: Library) -> Result<Loaded> {
        let mut search = Search::default();
        if library.stem == HIPRTC.stem
            && let Some(loaded) = self.hiprtc_beside_hip(&mut search)
        {
            return Ok(loaded);
        }
        let Some(loaded) = self.installation.open(library, &mut search) else {
            let absent = format!("the ROCm in use has no {}: {}", library.title, self.installation);
            return Err(search.error(library.title, absent));
        };
        // The lookup of a symbol also searches the libraries that a library needs. So in rocBLAS
        // and MIOpen it finds the HIP that they call.
        let function = |of: &Loaded| of.symbol(HIP.function);
        match function(&loaded) {
            Some(theirs) if Some(theirs) != function(&self.hip) => {
                let other = file_of(theirs.as_ptr()).unwrap_or_default();
                Err(Error::NotAvailable {
                    reason: format!(
                        "{} calls another HIP than the one in use: two installations of ROCm are mixed",
                        library.title
                    ),
                    searched: vec![
                        format!("{} (loaded, in use)", self.hip.path),
                        format!("{} (calls {})", loaded.path, other.display()),
                    ],
                })
            }
            _ => Ok(loaded),
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

    /// A machine's folders.
    struct Machine(PathBuf);

    impl Machine {
        /// A machine with these files below its root, all empty.
        fn new(name: &str, files: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("hip-machine-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let machine = Self(root);
            fs::create_dir_all(&machine.0).unwrap();
            for file in files {
                let path = machine.0.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            machine
        }

        fn link(&self, from: &str, to: &str) {
            std::os::unix::fs::symlink(self.0.join(to), self.0.join(from)).unwrap();
        }

        /// The installations that exist, each as a list of its folders below the root.
        fn installations(&self, variables: &[(&str, &str)]) -> Vec<String> {
            let variable = |name: &str| {
                let (_, path) = variables.iter().find(|(set, _)| *set == name)?;
                Some(self.0.join(path).into_os_string())
            };
            let system = System { root: self.0.clone(), variable: &variable };
            let below = |folder: &PathBuf| folder.strip_prefix(&self.0).unwrap().display().to_string();
            let exist = |found: &Installation| -> Option<String> {
                if found.folders.is_empty() {
                    return Some("loader".into());
                }
                let folders: Vec<_> = found.folders.iter().filter(|f| f.is_dir()).map(below).collect();
                (!folders.is_empty()).then(|| folders.join(" "))
            };
            installations(&system).iter().filter_map(exist).collect()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn versions_are_compared_as_numbers_and_sanitizer_builds_left_out() {
        let machine = Machine::new(
            "versions",
            &[
                "opt/rocm/core-7.9/lib/x",
                "opt/rocm/core-7.14/lib/x",
                "opt/rocm/core-10.0/lib/x",
                "opt/rocm/core-asan-10.1/lib/x",
                "opt/rocm-6.4.1/lib/x",
                "opt/rocm-7.2.10/lib/x",
                "opt/rocm-7.2.9/lib64/x",
            ],
        );
        let expected = [
            "opt/rocm/core-10.0/lib",
            "opt/rocm/core-7.14/lib",
            "opt/rocm/core-7.9/lib",
            "opt/rocm-7.2.10/lib",
            "opt/rocm-7.2.9/lib64",
            "opt/rocm-6.4.1/lib",
            "loader",
        ];
        assert_eq!(machine.installations(&[]), expected);
    }

    #[test]
    fn the_link_of_the_packages_comes_before_the_newest_version() {
        let machine = Machine::new("links", &["opt/rocm/core-10.0/lib/x", "opt/rocm/core-7.14/lib/x"]);
        // The links that `update-alternatives` makes once an administrator has chosen the older
        // version.
        machine.link("opt/rocm/lib", "opt/rocm/core-7.14/lib");
        machine.link("opt/rocm/core", "opt/rocm/core-7.14");
        machine.link("opt/rocm/core-10", "opt/rocm/core-10.0");
        assert_eq!(machine.installations(&[]), ["opt/rocm/lib", "opt/rocm/core-10.0/lib", "loader"]);
    }

    #[test]
    fn a_link_to_the_core_wheel_has_the_wheels_neighbours() {
        let site = "venv/lib/python3.13t/site-packages";
        let files = ["core", "libraries"].map(|part| format!("{site}/_rocm_sdk_{part}/lib/x"));
        let machine = Machine::new("linked-core", &files.each_ref().map(String::as_str));
        machine.link("mine", &format!("{site}/_rocm_sdk_core"));
        let wheels = files.map(|file| file.trim_end_matches("/x").to_owned()).join(" ");
        for variables in [&[("ROCM_PATH", "mine")][..], &[("VIRTUAL_ENV", "venv")]] {
            assert_eq!(machine.installations(variables), [wheels.as_str(), "loader"], "{variables:?}");
        }
    }

    #[test]
    fn the_environment_comes_first_and_the_systems_python_last() {
        let machine = Machine::new(
            "python",
            &[
                "mine/lib/x",
                "venv/lib/python3.9/site-packages/_rocm_sdk_core/lib/x",
                "venv/lib/python3.12/site-packages/_rocm_sdk_core/lib/x",
                "venv/lib/python3.12/site-packages/_rocm_sdk_libraries/lib/x",
                "conda/lib/python3.13/site-packages/_rocm_sdk_core/lib/x",
                "conda/lib/python3.13/site-packages/_rocm_sdk_libraries_gfx94X_dcgpu/lib/x",
                "opt/rocm/lib/x",
                "usr/lib/python3/dist-packages/_rocm_sdk_core/lib/x",
                "usr/local/lib/python3.13/dist-packages/_rocm_sdk_core_v2/lib/x",
                "usr/local/lib/python3.13/dist-packages/_rocm_sdk_libraries_v1/lib/x",
                "usr/local/lib/python3.13/dist-packages/_rocm_sdk_libraries_v2/lib/x",
            ],
        );
        let (venv, conda) = ("venv/lib/python3.12/site-packages", "conda/lib/python3.13/site-packages");
        let local = "usr/local/lib/python3.13/dist-packages";
        let venv = format!("{venv}/_rocm_sdk_core/lib {venv}/_rocm_sdk_libraries/lib");
        let older = "venv/lib/python3.9/site-packages/_rocm_sdk_core/lib".to_owned();
        let conda = format!("{conda}/_rocm_sdk_core/lib {conda}/_rocm_sdk_libraries_gfx94X_dcgpu/lib");
        let system = [
            "opt/rocm/lib".to_owned(),
            "loader".into(),
            format!("{local}/_rocm_sdk_core_v2/lib {local}/_rocm_sdk_libraries_v2/lib"),
            "usr/lib/python3/dist-packages/_rocm_sdk_core/lib".into(),
        ];
        assert_eq!(machine.installations(&[]), system);
        let set = [("CONDA_PREFIX", "conda"), ("VIRTUAL_ENV", "venv"), ("ROCM_PATH", "mine")];
        let first = ["mine/lib".to_owned(), venv.clone(), older, conda];
        assert_eq!(machine.installations(&set), [&first[..], &system[..]].concat());
        // ROCM_PATH may also name the folder of the core wheel.
        let core = ("ROCM_PATH", "venv/lib/python3.12/site-packages/_rocm_sdk_core");
        assert_eq!(machine.installations(&[core])[0], venv);
    }

    #[test]
    fn the_newest_soname_comes_first_and_the_development_link_last() {
        let names =
            ["libMIOpen.so", "libMIOpen.so.1", "libMIOpen.so.1.0", "libMIOpen.so.10", "libMIOpen.so.9"];
        let machine = Machine::new("sonames", &[names, ["libMIOpen.a"; 5]].concat());
        let found = MIOPEN.files_in(&machine.0);
        let found: Vec<_> =
            found.iter().map(|(_, file)| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(found, ["libMIOpen.so.10", "libMIOpen.so.9", "libMIOpen.so.1", "libMIOpen.so"]);
    }

    #[test]
    fn what_was_searched_is_listed_with_patterns_for_what_does_not_exist() {
        let machine = Machine::new("nothing", &[]);
        let system = System { root: machine.0.clone(), variable: &|_| None };
        let folders = installations(&system).into_iter().filter(|found| !found.folders.is_empty());
        let Err(Error::NotAvailable { reason, searched }) = Rocm::choose(folders.collect()) else {
            panic!("nothing is there");
        };
        assert_eq!(reason, "HIP is not installed");
        let below = |place: &String| place.replace(&format!("{}/", machine.0.display()), "");
        let searched: Vec<_> = searched.iter().map(below).collect();
        for place in [
            "opt/rocm/lib/libamdhip64.so*",
            "opt/rocm/core/lib/libamdhip64.so*",
            "opt/rocm/core-*/lib/libamdhip64.so*",
            "opt/rocm-*/lib/libamdhip64.so*",
            "usr/local/lib/python*/*-packages/_rocm_sdk_core/lib/libamdhip64.so*",
        ] {
            assert!(searched.iter().any(|found| found == place), "{place} of {searched:?}");
        }
    }

    #[test]
    fn a_hip_without_hiprtc_is_passed_over_unless_it_has_the_functions_itself() {
        let machine = Machine::new(
            "hiprtc",
            &["7/lib/libamdhip64.so.7", "6/lib/libamdhip64.so.6", "8/lib/libhiprtc.so.8"],
        );
        let lacks = |root| Installation::at("a test", &machine.0.join(root)).lacks_hiprtc();
        assert_eq!(["7", "6", "8"].map(lacks), [true, false, false]);
        let only = vec![Installation::at("a test", &machine.0.join("7"))];
        let Err(Error::NotAvailable { reason, searched }) = Rocm::choose(only) else { panic!("taken") };
        assert_eq!(reason, "HIP is installed but has no hipRTC beside it");
        assert!(searched[0].ends_with("7/lib (a test) (has no hipRTC beside it)"), "{searched:?}");
    }

    #[test]
    fn the_loaders_search_path_is_asked_for_newer_sonames_too() {
        const C: Library = Library { title: "C", stem: "libc", known: (1, 1), function: c"malloc" };
        let mut search = Search::default();
        let loaded = open_by_name(C, &mut search).unwrap();
        assert!(loaded.path.starts_with('/') && loaded.path.ends_with("libc.so.6"), "{}", loaded.path);
        const NONE: Library = Library { title: "Nothing", stem: "libno-such-thing", ..C };
        assert!(open_by_name(NONE, &mut search).is_none());
        let Error::NotAvailable { reason, searched } = search.error("Nothing", "absent".into()) else {
            panic!("another error");
        };
        assert_eq!(reason, "absent");
        assert_eq!(searched, ["libno-such-thing.so.9 to .so.1 in the loader's search path"]);
    }
}
