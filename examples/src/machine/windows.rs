//! Windows: variables of the system, and the folders of AMD's driver and SDKs.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Section, entries};

/// A folder that a variable names, or the usual one.
fn folder(variable: &str, usual: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| usual.into(), PathBuf::from)
}

/// The operating system and the processor. The argument is there because other systems need it.
pub fn system(_root: &Path) -> Section {
    let mut section = Section::new("system");
    let text = |name: &str| {
        std::env::var_os(name).map_or_else(|| "unknown".into(), |value| value.to_string_lossy().into_owned())
    };
    section.line("system", text("OS"));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    section.line("processor", format!("{}, {cores} cores usable", text("PROCESSOR_IDENTIFIER")));
    section
}

/// The DLLs of AMD's driver, and the HIP SDKs.
pub fn kernel_driver(_root: &Path) -> Section {
    let mut section = Section::new("AMD's driver and HIP SDKs");
    let system = folder("SystemRoot", r"C:\Windows").join("System32");
    let amd = |name: &String| {
        let name = name.to_ascii_lowercase();
        ["amdhip64", "hiprtc", "amd_comgr"].iter().any(|start| name.starts_with(start))
            && name.ends_with(".dll")
    };
    let found: Vec<_> = entries(&system).into_iter().filter(amd).collect();
    if found.is_empty() {
        section.line("driver", format!("{} has no amdhip64*.dll", system.display()));
    }
    for name in found {
        let size = fs::metadata(system.join(&name)).map_or(0, |file| file.len());
        section.line(format!("driver's {name}"), format!("{:.1} MiB", size as f64 / f64::from(1 << 20)));
    }
    let sdks = folder("ProgramFiles", r"C:\Program Files").join("AMD").join("ROCm");
    let versions = entries(&sdks).join(" ");
    let versions = if versions.is_empty() { "none".to_owned() } else { versions };
    section.line(format!("SDKs in {}", sdks.display()), versions);
    section
}
