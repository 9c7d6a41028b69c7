//! Which versions of ROCm the loader may find.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::doctor::checks;
use crate::doctor::finding::Finding;
use crate::doctor::system::System;
use crate::provider::names::{HIP, System as Kind};
use crate::provider::places::Machine;

pub(super) fn examine(system: &System, findings: &mut Vec<Finding>) {
    let variable = |name: &str| -> Option<OsString> { system.raw(name) };
    let machine = Machine { system: Kind::Unix, root: system.root.clone(), variable: &variable };
    let installations = machine.installations();
    let has_hip = |folder: &PathBuf| !HIP.files_in(Kind::Unix, folder).is_empty();
    let of_path = || installations.iter().filter(|found| found.origin == "ROCM_PATH");
    let own = system.variable("ROCM_PATH").filter(|path| !path.is_empty());
    if let (Some(path), false) = (own, of_path().flat_map(|found| &found.folders).any(has_hip)) {
        let what = format!("ROCM_PATH={path} has no HIP");
        findings.push(checks::ROCM_PATH.found(what, &[]));
    }
    let searched = searched(system);
    let mut versions: BTreeMap<String, &PathBuf> = BTreeMap::new();
    for folder in searched.iter().filter(|folder| has_hip(folder)) {
        versions.entry(version(folder)).or_insert(folder);
    }
    if versions.len() > 1 {
        let shown =
            |(version, folder): (&String, &&PathBuf)| format!("{version} in {}", below(system, folder));
        let all: Vec<_> = versions.iter().map(shown).collect();
        let what = format!("the loader's path has several versions of HIP: {}", all.join(", "));
        findings.push(checks::MIXED_ROCM.found(what, &[]));
    }
    let folders = installations.iter().flat_map(|found| &found.folders);
    if versions.is_empty() && !folders.into_iter().any(has_hip) {
        findings.push(checks::NO_HIP.found("ROCm's HIP was not found", &[]));
    }
}

/// A path as the system names it.
fn below(system: &System, path: &Path) -> String {
    format!("/{}", path.strip_prefix(&system.root).unwrap_or(path).display())
}

/// The folders that the loader searches: those of `LD_LIBRARY_PATH`, of `/etc/ld.so.conf.d`, and
/// the system's.
fn searched(system: &System) -> Vec<PathBuf> {
    let mut folders: Vec<String> =
        system.variable("LD_LIBRARY_PATH").unwrap_or_default().split(':').map(str::to_owned).collect();
    for file in system.names("etc/ld.so.conf.d").unwrap_or_default() {
        if file.ends_with(".conf") {
            let text = system.text(&format!("etc/ld.so.conf.d/{file}"));
            folders.extend(text.lines().map(|line| line.trim().to_owned()));
        }
    }
    folders.extend(
        ["/usr/lib64", "/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
            .map(str::to_owned),
    );
    let absolute = folders.iter().filter(|folder| folder.starts_with('/'));
    absolute.map(|folder| system.path(folder)).collect()
}

/// The version of ROCm that a folder of libraries belongs to: `6.4.1` for `/opt/rocm-6.4.1/lib`.
/// Elsewhere it is the number of HIP's file.
fn version(folder: &Path) -> String {
    let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let named = real.ancestors().filter_map(|part| part.file_name()?.to_str()).find_map(|name| {
        let version = name.strip_prefix("rocm-").or_else(|| name.strip_prefix("core-"))?;
        version.starts_with(|first: char| first.is_ascii_digit()).then(|| version.to_owned())
    });
    let number = || HIP.files_in(Kind::Unix, folder).iter().find_map(|file| file.number);
    named.unwrap_or_else(|| number().map_or("unknown".to_owned(), |number| format!("{number}.x")))
}
