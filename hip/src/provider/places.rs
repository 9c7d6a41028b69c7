//! Where installations of ROCm lie.
//!
//! These are the layouts, and where each is documented:
//!
//! | layout | folder of the libraries |
//! |---|---|
//! | AMD's packages from ROCm 7.13 (preview) on | `/opt/rocm/core-10.0/lib`, with the links `/opt/rocm/lib` and `/opt/rocm/core` |
//! | AMD's packages before | `/opt/rocm-7.2.0/lib`, with the link `/opt/rocm` |
//! | Python's wheels | `_rocm_sdk_core/lib` (HIP, hipRTC) and `_rocm_sdk_libraries*/lib` of one `site-packages` |
//! | distributions | the loader's search path |
//! | Windows: AMD's HIP SDK | `%HIP_PATH%\bin`, `C:\Program Files\AMD\ROCm\6.4\bin`; HIP may lie in System32 instead |
//! | Windows: Python's wheels | `_rocm_sdk_core\bin` and `_rocm_sdk_libraries*\bin` |
//! | Windows: AMD's driver | `C:\Windows\System32` |
//!
//! Sources: <https://rocm.docs.amd.com/en/docs-10.0.0/about/transition-guide-TheRock.html>;
//! `docs/packaging/python_packaging.md` and `amdrocm-core-postinst.j2` of
//! <https://github.com/ROCm/TheRock>;
//! <https://rocm.docs.amd.com/projects/install-on-windows/en/latest/>.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::provider::names::{System, name_of, names_in};

/// The loader's search path, as an error names it.
pub(crate) const LOADER: &str = "the loader's search path";

/// The prefix of the name of a Python version's folder.
const PYTHON: &str = "python";

/// The wheel with HIP and hipRTC.
const CORE_WHEEL: &str = "_rocm_sdk_core";

/// Where one installation of ROCm has its libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Installation {
    /// How the installation was found.
    pub(crate) origin: &'static str,
    pub(crate) system: System,
    /// The folders of its libraries; empty for the loader's search path.
    pub(crate) folders: Vec<PathBuf>,
    /// On Windows, the folder of the driver's HIP, for an installation that has none of its own.
    pub(crate) driver: Option<PathBuf>,
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

/// The folders and variables to search: those of the real machine, or an imitation in a test.
pub(crate) struct Machine<'a> {
    pub(crate) system: System,
    /// Not used on Windows, whose variables name the folders.
    pub(crate) root: PathBuf,
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Machine<'_> {
    /// The folder that a variable names. A relative one is looked up now, because the program may
    /// change its current folder before it opens the next library.
    fn variable(&self, name: &str) -> Option<PathBuf> {
        let path = (self.variable)(name).filter(|value| !value.is_empty()).map(PathBuf::from)?;
        Some(std::path::absolute(&path).unwrap_or(path))
    }

    /// The installations, in the order in which they are tried. A folder that several links point to
    /// appears once.
    pub(crate) fn installations(&self) -> Vec<Installation> {
        let mut all = match self.system {
            System::Unix => self.on_unix(),
            System::Windows => self.on_windows(),
        };
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

    fn on_unix(&self) -> Vec<Installation> {
        let mut all = Vec::new();
        if let Some(root) = self.variable("ROCM_PATH") {
            all.extend(self.under("ROCM_PATH", &root));
        }
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            if let Some(root) = self.variable(name) {
                all.extend(self.pythons(name, &root.join("lib")));
            }
        }
        let opt = self.root.join("opt");
        all.extend(self.under("AMD's packages", &opt.join("rocm")));
        all.extend(newest_first(&opt, "rocm-").iter().map(|root| self.at("AMD's packages", root)));
        all.push(Installation { origin: LOADER, system: self.system, folders: Vec::new(), driver: None });
        let home = self.variable("HOME").map(|home| home.join(".local/lib"));
        for lib in home.into_iter().chain(["usr/local/lib", "usr/lib"].map(|lib| self.root.join(lib))) {
            all.extend(self.pythons("Python's packages", &lib));
        }
        all
    }

    fn on_windows(&self) -> Vec<Installation> {
        let mut all = Vec::new();
        if let Some(root) = self.variable("ROCM_PATH") {
            all.push(self.at("ROCM_PATH", &root));
        }
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            if let Some(root) = self.variable(name) {
                all.extend(self.wheels(name, &[root.join("Lib").join("site-packages")]));
            }
        }
        if let Some(root) = self.variable("HIP_PATH") {
            all.push(self.at("HIP_PATH", &root));
        }
        let programs = self.variable("ProgramFiles").unwrap_or_else(|| r"C:\Program Files".into());
        let sdks = programs.join("AMD").join("ROCm");
        all.extend(newest_first(&sdks, "").iter().map(|root| self.at("AMD's HIP SDK", root)));
        let installed = self.variable("LOCALAPPDATA").map(|local| local.join("Programs").join("Python"));
        let of_user = self.variable("APPDATA").map(|roaming| roaming.join("Python"));
        for (folder, packages) in [(installed, "Lib"), (of_user, "")] {
            if let Some(folder) = folder {
                let pythons = newest_first(&folder, "Python");
                let sites: Vec<_> =
                    pythons.iter().map(|python| python.join(packages).join("site-packages")).collect();
                all.extend(self.wheels("Python's packages", &sites));
            }
        }
        // Last, because a driver alone has neither rocBLAS nor MIOpen.
        let folders = vec![self.system32()];
        all.push(Installation { origin: "AMD's driver", system: self.system, folders, driver: None });
        all
    }

    /// Where Windows's drivers put DLLs.
    pub(crate) fn system32(&self) -> PathBuf {
        self.variable("SystemRoot").unwrap_or_else(|| r"C:\Windows".into()).join("System32")
    }

    /// The installation with this root folder.
    fn at(&self, origin: &'static str, root: &Path) -> Installation {
        // A link to a wheel's folder: the other wheels are beside the folder, not beside the link.
        let real = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        let linked = self.system == System::Unix && name_of(&real).starts_with(CORE_WHEEL);
        let root = if linked { &real } else { root };
        let (first, second) = match self.system {
            System::Unix => ("lib", Some("lib64")),
            System::Windows => ("bin", None),
        };
        let mut folders = vec![root.join(first)];
        // In Python's wheels, rocBLAS and MIOpen are in a package beside HIP's. Packages with the
        // same ending belong together. There was a package for each family of GPUs before the
        // device files got wheels of their own.
        if let (Some(ending), Some(site)) = (name_of(root).strip_prefix(CORE_WHEEL), root.parent()) {
            let mut beside: Vec<_> = names_in(site)
                .filter(|name| name.starts_with("_rocm_sdk_libraries") && name.ends_with(ending))
                .collect();
            beside.sort();
            folders.extend(beside.iter().map(|name| site.join(name).join(first)));
        } else {
            folders.extend(second.map(|second| root.join(second)));
        }
        let driver = (self.system == System::Windows).then(|| self.system32());
        Installation { origin, system: self.system, folders, driver }
    }

    /// The installations in a root folder that may hold several: its own, then those
    /// in the folders of ROCm 7.13 and later.
    fn under(&self, origin: &'static str, root: &Path) -> Vec<Installation> {
        let mut roots = vec![root.to_owned(), root.join("core")];
        roots.extend(newest_first(root, "core-"));
        roots.iter().map(|root| self.at(origin, root)).collect()
    }

    /// The installations from wheels in a folder that has a folder for each version of Python.
    fn pythons(&self, origin: &'static str, lib: &Path) -> Vec<Installation> {
        let sites: Vec<_> = newest_first(lib, PYTHON)
            .iter()
            .flat_map(|python| ["site-packages", "dist-packages"].map(|packages| python.join(packages)))
            .collect();
        let found = self.wheels(origin, &sites);
        match found.iter().any(|found| found.folders.iter().any(|folder| folder.is_dir())) {
            true => found,
            false => vec![self.at(origin, &lib.join("python*/*-packages").join(CORE_WHEEL))],
        }
    }

    /// The installations from wheels in folders of packages. If there is none, returns where the
    /// first would be, so that the list of searched places shows it.
    fn wheels(&self, origin: &'static str, sites: &[PathBuf]) -> Vec<Installation> {
        let mut found = Vec::new();
        for site in sites {
            let mut cores: Vec<_> = names_in(site).filter(|name| name.starts_with(CORE_WHEEL)).collect();
            cores.sort();
            found.extend(cores.iter().map(|core| self.at(origin, &site.join(core))));
        }
        if let (true, Some(site)) = (found.is_empty(), sites.first()) {
            found.push(self.at(origin, &site.join(CORE_WHEEL)));
        }
        found
    }
}

/// The folders `FOLDER/PREFIX<version>`, highest version first. If there is none, returns the
/// pattern itself, so that the list of searched places shows it.
fn newest_first(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    // Other endings are other builds: `core-asan-10.0` needs a program with a sanitizer, and
    // `Python313-32` has 32 bits. A free-threaded Python has its packages in `python3.14t`.
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

#[cfg(test)]
mod tests {
    use crate::provider::names::System::{Unix, Windows};
    use crate::provider::tree::Tree;

    #[test]
    fn versions_are_compared_as_numbers_and_sanitizer_builds_left_out() {
        let tree = Tree::new(
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
        assert_eq!(tree.installations(Unix, &[]), expected);
    }

    #[cfg(unix)]
    #[test]
    fn the_link_of_the_packages_comes_before_the_newest_version() {
        let tree = Tree::new("links", &["opt/rocm/core-10.0/lib/x", "opt/rocm/core-7.14/lib/x"]);
        // The links that `update-alternatives` makes once an administrator has chosen the older
        // version.
        tree.link("opt/rocm/lib", "opt/rocm/core-7.14/lib");
        tree.link("opt/rocm/core", "opt/rocm/core-7.14");
        tree.link("opt/rocm/core-10", "opt/rocm/core-10.0");
        assert_eq!(tree.installations(Unix, &[]), ["opt/rocm/lib", "opt/rocm/core-10.0/lib", "loader"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_the_core_wheel_has_the_wheels_neighbours() {
        let site = "venv/lib/python3.13t/site-packages";
        let files = ["core", "libraries"].map(|part| format!("{site}/_rocm_sdk_{part}/lib/x"));
        let tree = Tree::new("linked-core", &files.each_ref().map(String::as_str));
        tree.link("mine", &format!("{site}/_rocm_sdk_core"));
        let wheels = files.map(|file| file.trim_end_matches("/x").to_owned()).join(" ");
        for variables in [&[("ROCM_PATH", "mine")][..], &[("VIRTUAL_ENV", "venv")]] {
            assert_eq!(tree.installations(Unix, variables), [wheels.as_str(), "loader"], "{variables:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_environment_comes_first_and_the_systems_python_last() {
        let tree = Tree::new(
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
        assert_eq!(tree.installations(Unix, &[]), system);
        let set = [("CONDA_PREFIX", "conda"), ("VIRTUAL_ENV", "venv"), ("ROCM_PATH", "mine")];
        let first = ["mine/lib".to_owned(), venv.clone(), older, conda];
        assert_eq!(tree.installations(Unix, &set), [&first[..], &system[..]].concat());
        // ROCM_PATH may also name the folder of the core wheel.
        let core = ("ROCM_PATH", "venv/lib/python3.12/site-packages/_rocm_sdk_core");
        assert_eq!(tree.installations(Unix, &[core])[0], venv);
    }

    #[test]
    fn a_relative_variable_is_looked_up_once_and_an_empty_one_does_not_count() {
        for (system, library, folder) in [(Unix, "ROCM_PATH", "lib"), (Windows, "HIP_PATH", "bin")] {
            for (value, expected) in [("some/where", true), ("", false)] {
                let variable = |name: &str| (name == library).then(|| value.into());
                let machine = super::Machine { system, root: "/no/such".into(), variable: &variable };
                let all = machine.installations();
                let mut named = all.iter().filter(|found| found.origin == library);
                let here = std::env::current_dir().unwrap().join("some").join("where").join(folder);
                assert_eq!(named.next().map(|found| &found.folders[0]), expected.then_some(&here));
            }
        }
    }

    #[test]
    fn windows_has_sdks_wheels_and_the_driver() {
        let tree = Tree::new(
            "windows",
            &[
                "Programs/AMD/ROCm/5.7/bin/x",
                "Programs/AMD/ROCm/6.4/bin/x",
                "Programs/AMD/ROCm/6.10/bin/x",
                "Programs/AMD/ROCm/docs/bin/x",
                "mine/bin/x",
                "venv/Lib/site-packages/_rocm_sdk_core/bin/x",
                "venv/Lib/site-packages/_rocm_sdk_libraries_gfx110X_all/bin/x",
                "Local/Programs/Python/Python39/Lib/site-packages/_rocm_sdk_core/bin/x",
                "Local/Programs/Python/Python313/Lib/site-packages/_rocm_sdk_core/bin/x",
                "Local/Programs/Python/Python313/Lib/site-packages/_rocm_sdk_libraries/bin/x",
                "Local/Programs/Python/Python314-32/Lib/site-packages/_rocm_sdk_core/bin/x",
                "Roaming/Python/Python313/site-packages/_rocm_sdk_core/bin/x",
                "Windows/System32/x",
            ],
        );
        let fixed = [
            ("ProgramFiles", "Programs"),
            ("SystemRoot", "Windows"),
            ("LOCALAPPDATA", "Local"),
            ("APPDATA", "Roaming"),
        ];
        let python = "Local/Programs/Python/Python313/Lib/site-packages";
        let system = [
            "Programs/AMD/ROCm/6.10/bin".to_owned(),
            "Programs/AMD/ROCm/6.4/bin".into(),
            "Programs/AMD/ROCm/5.7/bin".into(),
            format!("{python}/_rocm_sdk_core/bin {python}/_rocm_sdk_libraries/bin"),
            "Local/Programs/Python/Python39/Lib/site-packages/_rocm_sdk_core/bin".into(),
            "Roaming/Python/Python313/site-packages/_rocm_sdk_core/bin".into(),
            "Windows/System32".into(),
        ];
        assert_eq!(tree.installations(Windows, &fixed), system);
        let set = [("HIP_PATH", "Programs/AMD/ROCm/6.4"), ("VIRTUAL_ENV", "venv"), ("ROCM_PATH", "mine")];
        let venv = "venv/Lib/site-packages";
        let first = [
            "mine/bin".to_owned(),
            format!("{venv}/_rocm_sdk_core/bin {venv}/_rocm_sdk_libraries_gfx110X_all/bin"),
            system[1].clone(),
            system[0].clone(),
        ];
        let expected = [&first[..], &system[2..]].concat();
        assert_eq!(tree.installations(Windows, &[&set[..], &fixed].concat()), expected);
    }
}
