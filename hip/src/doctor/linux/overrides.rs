//! `HSA_OVERRIDE_GFX_VERSION`, with which a GPU claims another architecture.
//!
//! `libhsakmt/src/topology.c` of <https://github.com/ROCm/rocm-systems> reads it, and before it
//! `HSA_OVERRIDE_GFX_VERSION_<node>`, which is for one GPU.

use crate::doctor::checks;
use crate::doctor::finding::Finding;
use crate::doctor::linux::topology::{Gpu, Version};
use crate::doctor::system::System;
use crate::provider::names::System as Kind;
use crate::provider::places::Machine;

const OVERRIDE: &str = "HSA_OVERRIDE_GFX_VERSION";

/// The chip whose kernels all chips of its family run.
const GFX1030: Version = Version(10, 3, 0);

pub(super) fn examine(system: &System, gpus: &[Gpu], findings: &mut Vec<Finding>) {
    if gpus.is_empty()
        && let Some(value) = system.variable(OVERRIDE)
    {
        let words = [("variable", OVERRIDE)];
        findings.push(match parse(&value) {
            Some(version) => {
                checks::OVERRIDE_OTHER.found(claims(OVERRIDE, &value, "the GPU", version), &words)
            }
            None => malformed(OVERRIDE, &value),
        });
    }
    let mut found: Vec<Finding> = Vec::new();
    for gpu in gpus {
        let own = format!("{OVERRIDE}_{}", gpu.node);
        let variable = if system.raw(&own).is_some() { own.as_str() } else { OVERRIDE };
        found.extend(match system.variable(variable) {
            Some(value) => look_at(variable, &value, gpu),
            None => advise(system, gpus, gpu),
        });
    }
    // Several GPUs of one kind give the same finding.
    found.dedup();
    findings.extend(found);
}

fn look_at(variable: &str, value: &str, gpu: &Gpu) -> Option<Finding> {
    let words = [("variable", variable)];
    let Some(version) = parse(value) else { return Some(malformed(variable, value)) };
    let arch = gpu.version.arch();
    let what = claims(variable, value, &arch, version);
    if version == gpu.version {
        let what = format!("{variable}={value} is what the GPU is anyway ({arch})");
        Some(checks::OVERRIDE_NEEDLESS.found(what, &words))
    } else if (version.0, version.1) != (gpu.version.0, gpu.version.1) {
        Some(checks::OVERRIDE_FAMILY.found(what, &words))
    } else if same_instructions(version, gpu.version) {
        None
    } else {
        Some(checks::OVERRIDE_OTHER.found(what, &words))
    }
}

fn claims(variable: &str, value: &str, gpu: &str, version: Version) -> String {
    format!("{variable}={value} lets {gpu} claim to be {}", version.arch())
}

fn malformed(variable: &str, value: &str) -> Finding {
    checks::OVERRIDE_MALFORMED
        .found(format!("{variable}={value} is not a version"), &[("variable", variable)])
}

/// Three decimal numbers with dots between them, of at most 63, 255 and 255.
fn parse(value: &str) -> Option<Version> {
    let parts: Option<Vec<u64>> = value.split('.').map(|part| part.parse().ok()).collect();
    match parts?[..] {
        [major, minor, step] if major <= 63 && minor <= 255 && step <= 255 => {
            Some(Version(major, minor, step))
        }
        _ => None,
    }
}

/// Whether chips have the same instructions. Those of the family gfx103x have: AMD's engineers say
/// so in <https://github.com/ROCm/rocBLAS/issues/1339> and
/// <https://github.com/ROCm/Tensile/issues/1907>. gfx1100's kernels make gfx1103 hang:
/// <https://github.com/ROCm/rocm-libraries/issues/6320>.
fn same_instructions(a: Version, b: Version) -> bool {
    let family = (GFX1030.0, GFX1030.1);
    (a.0, a.1) == family && (b.0, b.1) == family
}

/// A chip of the family gfx103x whose rocBLAS has kernels for gfx1030, and none for the chip.
fn advise(system: &System, gpus: &[Gpu], gpu: &Gpu) -> Option<Finding> {
    if gpu.version == GFX1030 || !same_instructions(gpu.version, GFX1030) {
        return None;
    }
    let arch = gpu.version.arch();
    let variable = |name: &str| system.raw(name);
    let machine = Machine { system: Kind::Unix, root: system.root.clone(), variable: &variable };
    let installations = machine.installations();
    let kernels: Vec<String> = installations
        .iter()
        .flat_map(|found| &found.folders)
        .map(|folder| crate::provider::names::names_in(&folder.join("rocblas/library")).collect())
        .find(|names: &Vec<String>| !names.is_empty())?;
    let has = |target: &str| kernels.iter().any(|name| name.contains(target));
    if !has("gfx1030") || has(&arch) || has("gfx10-3-generic") {
        return None;
    }
    // Another GPU must keep its architecture.
    let alone = gpus.iter().all(|other| same_instructions(other.version, GFX1030));
    let name = if alone { OVERRIDE.to_owned() } else { format!("{OVERRIDE}_{}", gpu.node) };
    let what = format!("rocBLAS has kernels for gfx1030, but none for {arch}");
    Some(checks::OVERRIDE_ADVISED.found(what, &[("variable", &name)]))
}
