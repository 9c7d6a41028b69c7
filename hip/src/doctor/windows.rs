//! Windows: AMD's driver and the HIP SDK.

use std::ffi::OsString;

use crate::doctor::checks;
use crate::doctor::finding::Finding;
use crate::provider::names::{HIP, HIPRTC, System};
use crate::provider::pe::Dll;
use crate::provider::places::Machine;

/// The HIP of AMD's driver and its file's version, which is the driver's; `None` if there is none.
pub(super) fn driver(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<String> {
    let system = Machine { system: System::Windows, root: "/".into(), variable }.system32();
    let hip = HIP.files_in(System::Windows, &system).into_iter().next()?;
    let version = Dll::read(&hip.path).and_then(|dll| dll.version);
    Some(format!("{}, version {}", hip.path.display(), version.as_deref().unwrap_or("unknown")))
}

/// What is missing.
pub(super) fn examine(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let machine = Machine { system: System::Windows, root: "/".into(), variable };
    let system = machine.system32();
    if HIP.files_in(System::Windows, &system).is_empty() {
        let what = format!(
            "{} has no amdhip64*.dll: there is no AMD GPU, or its driver is missing or too old",
            system.display()
        );
        findings.push(checks::WINDOWS_DRIVER.found(what, &[]));
    }
    let installations = machine.installations();
    let mut folders = installations.iter().flat_map(|installation| &installation.folders);
    if folders.all(|folder| HIPRTC.files_in(System::Windows, folder).is_empty()) {
        let what = "there is no hipRTC, so no kernel can be compiled";
        findings.push(checks::WINDOWS_HIPRTC.found(what, &[]));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::tree::Tree;

    fn of<T>(tree: &Tree, ask: impl Fn(&dyn Fn(&str) -> Option<OsString>) -> T) -> T {
        let folders = [
            ("SystemRoot", "W"),
            ("ProgramFiles", "P"),
            ("ROCM_PATH", "mine"),
            ("HIP_PATH", "sdk"),
            ("VIRTUAL_ENV", "venv"),
            ("CONDA_PREFIX", "conda"),
            ("LOCALAPPDATA", "local"),
            ("APPDATA", "roaming"),
        ];
        ask(&|name| {
            let (_, folder) = folders.iter().find(|(known, _)| *known == name)?;
            Some(tree.0.join(folder).into())
        })
    }

    #[test]
    fn what_is_missing_comes_with_where_to_get_it() {
        let bare = Tree::new("bare-windows", &["W/System32/x"]);
        assert_eq!(of(&bare, driver), None);
        let found = of(&bare, examine);
        assert!(found[0].what.contains("has no amdhip64*.dll"), "{found:?}");
        assert!(found[1].what.starts_with("there is no hipRTC"), "{found:?}");
        let only = Tree::new("driver-only", &["W/System32/amdhip64_6.dll"]);
        let found = of(&only, driver);
        assert!(
            found.as_ref().is_some_and(|at| at.ends_with("amdhip64_6.dll, version unknown")),
            "{found:?}"
        );
        let found = of(&only, examine);
        assert!(found.len() == 1 && found[0].what.starts_with("there is no hipRTC"), "{found:?}");
        for (name, sdk) in [
            ("sdk", "P/AMD/ROCm/6.4/bin/hiprtc0604.dll"),
            ("rocm-path", "mine/bin/hiprtc0604.dll"),
            ("hip-path", "sdk/bin/hiprtc0604.dll"),
            ("with-driver", "W/System32/hiprtc0701.dll"),
            ("wheels", "venv/Lib/site-packages/_rocm_sdk_core/bin/hiprtc0714.dll"),
            ("conda", "conda/Lib/site-packages/_rocm_sdk_core/bin/hiprtc0714.dll"),
            ("python", "local/Programs/Python/Python313/Lib/site-packages/_rocm_sdk_core/bin/hiprtc0714.dll"),
            ("of-user", "roaming/Python/Python313/site-packages/_rocm_sdk_core/bin/hiprtc0714.dll"),
        ] {
            let found = of(&Tree::new(name, &["W/System32/amdhip64_7.dll", sdk]), examine);
            assert!(found.is_empty(), "{found:?}");
        }
    }
}
