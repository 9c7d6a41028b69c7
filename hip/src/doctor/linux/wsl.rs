//! Windows Subsystem for Linux, where ROCm needs librocdxg and not KFD.
//!
//! Source: the README of <https://github.com/ROCm/librocdxg>.

use crate::doctor::checks;
use crate::doctor::finding::Finding;
use crate::doctor::system::System;

/// Whether the kernel is Microsoft's.
pub(super) fn is_wsl(system: &System) -> bool {
    let release = system.text("proc/sys/kernel/osrelease");
    [release, system.text("proc/version")].iter().any(|text| text.to_lowercase().contains("microsoft"))
}

pub(super) fn examine(system: &System, findings: &mut Vec<Finding>) {
    // An NVIDIA GPU. WSL does not say whether the machine has one of AMD's too.
    if system.exists("usr/lib/wsl/lib/libcuda.so.1") {
        return;
    }
    if !system.exists("dev/dxg") {
        findings.push(checks::WSL_DXG.found("this WSL has no /dev/dxg", &[]));
        return;
    }
    if !has_library(system) {
        let what = "this WSL has /dev/dxg, but no librocdxg.so";
        findings.push(checks::WSL_LIBRARY.found(what, &[]));
    } else if system.number("HSA_ENABLE_DXG_DETECTION") != Some(1) {
        let what = "HSA_ENABLE_DXG_DETECTION is not 1";
        findings.push(checks::WSL_DETECTION.found(what, &[]));
    }
}

fn has_library(system: &System) -> bool {
    let opt = system.names("opt").unwrap_or_default();
    let rocm = opt.iter().filter(|name| name.starts_with("rocm")).map(|name| format!("opt/{name}/lib"));
    let others = ["usr/lib", "usr/local/lib", "usr/lib/x86_64-linux-gnu", "usr/lib/wsl/lib"];
    let own = system.variable("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = rocm.chain(others.map(str::to_owned)).chain(own.split(':').map(str::to_owned));
    let names = |folder: String| system.names(&folder).unwrap_or_default();
    folders.filter(|folder| !folder.is_empty()).flat_map(names).any(|name| name.starts_with("librocdxg.so"))
}
