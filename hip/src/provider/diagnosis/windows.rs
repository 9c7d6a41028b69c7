//! Windows: AMD's driver and the HIP SDK.

use std::path::{Path, PathBuf};

use crate::provider::names::{HIP, HIPRTC, System, names_in};
use crate::provider::pe::Dll;

/// What is missing, and where to get it.
pub(super) fn problems(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Vec<String> {
    let mut problems = Vec::new();
    let windows = variable("SystemRoot").unwrap_or_else(|| r"C:\Windows".into());
    let system = windows.join("System32");
    match HIP.files_in(System::Windows, &system).first() {
        None => problems.push(format!(
            "{} has no amdhip64*.dll: no AMD GPU, or its driver is older than HIP on Windows (install AMD Software \
             from https://www.amd.com/en/support)",
            system.display()
        )),
        Some(driver) => {
            let version = Dll::read(&driver.path).and_then(|dll| dll.version);
            problems.push(format!(
                "the driver's HIP is {}, version {}: if it finds no GPU, update AMD Software \
                 (https://www.amd.com/en/support)",
                driver.path.display(),
                version.unwrap_or_else(|| "unknown".into())
            ));
        }
    }
    if !has_sdk(variable, &system) {
        problems.push(
            "there is no hipRTC, so no kernel can be compiled: install the HIP SDK \
             (https://www.amd.com/en/developer/resources/rocm-hub/hip-sdk.html), or in the active Python environment \
             AMD's wheels (docs/guide/windows.md has the command)"
                .into(),
        );
    }
    problems
}

/// Whether a folder of an SDK or of the active Python environment has hipRTC.
fn has_sdk(variable: &dyn Fn(&str) -> Option<PathBuf>, system: &Path) -> bool {
    let programs = variable("ProgramFiles").unwrap_or_else(|| r"C:\Program Files".into());
    let sdks = programs.join("AMD").join("ROCm");
    let versions = names_in(&sdks).map(|version| sdks.join(version));
    let named = ["HIP_PATH", "ROCM_PATH"].into_iter().filter_map(variable);
    let wheels = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
    let wheels = wheels.map(|root| root.join("Lib").join("site-packages").join("_rocm_sdk_core"));
    let mut folders =
        versions.chain(named).chain(wheels).map(|root| root.join("bin")).chain([system.to_owned()]);
    folders.any(|folder| !HIPRTC.files_in(System::Windows, &folder).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::tree::Tree;

    fn of(tree: &Tree) -> Vec<String> {
        let folders = [("SystemRoot", "W"), ("ProgramFiles", "P"), ("VIRTUAL_ENV", "venv")];
        problems(&|name| {
            let (_, folder) = folders.iter().find(|(known, _)| *known == name)?;
            Some(tree.0.join(folder))
        })
    }

    #[test]
    fn what_is_missing_comes_with_where_to_get_it() {
        let found = of(&Tree::new("bare-windows", &["W/System32/x"]));
        assert!(found[0].contains("has no amdhip64*.dll"), "{found:?}");
        assert!(found[1].starts_with("there is no hipRTC"), "{found:?}");
        let found = of(&Tree::new("driver-only", &["W/System32/amdhip64_6.dll"]));
        assert!(found[0].contains("amdhip64_6.dll, version unknown"), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
        for (name, sdk) in [
            ("sdk", "P/AMD/ROCm/6.4/bin/hiprtc0604.dll"),
            ("wheels", "venv/Lib/site-packages/_rocm_sdk_core/bin/hiprtc0714.dll"),
        ] {
            let found = of(&Tree::new(name, &["W/System32/amdhip64_7.dll", sdk]));
            assert_eq!(found.len(), 1, "{found:?}");
        }
    }
}
