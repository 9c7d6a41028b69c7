//! Finds faults of a ROCm installation from files and environment variables.

#[cfg(unix)]
mod kfd;
mod windows;

use std::ffi::OsString;
use std::path::PathBuf;

use crate::provider::names::System;

/// The state of this machine's AMD kernel driver, and of the user's permissions on its device
/// files.
#[derive(Debug, Clone, Default)]
pub struct Diagnosis {
    driver: Option<String>,
    problems: Vec<String>,
    notes: Vec<String>,
}

/// The files and variables to examine: those of the real machine, or an imitation in a test.
struct Machine {
    system: System,
    #[cfg_attr(windows, allow(dead_code, reason = "variables name the folders"))]
    root: PathBuf,
    variable: fn(&str) -> Option<OsString>,
}

impl Diagnosis {
    /// Examines this machine.
    pub fn of_this_machine() -> Self {
        Self::of(&Machine { system: System::HERE, root: "/".into(), variable: |name| std::env::var_os(name) })
    }

    /// On Windows, the HIP of AMD's driver and its version; `None` if there is none.
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// What keeps HIP from finding a device, most likely cause first.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Unusual settings, which may or may not matter.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn of(machine: &Machine) -> Self {
        let (driver, problems) = match machine.system {
            #[cfg(unix)]
            System::Unix => (None, kfd::problems(&machine.root)),
            #[cfg(not(unix))]
            System::Unix => (None, Vec::new()),
            System::Windows => (windows::driver(&machine.variable), windows::problems(&machine.variable)),
        };
        let mut found = Self { driver, problems, notes: Vec::new() };
        found.look_at_environment(machine);
        found
    }

    fn look_at_environment(&mut self, machine: &Machine) {
        // Bytes that are not UTF-8 become the replacement character.
        let text = |name| Some((machine.variable)(name)?.to_string_lossy().into_owned());
        if let Some(value) = text("HSA_OVERRIDE_GFX_VERSION") {
            self.notes.push(format!(
                "HSA_OVERRIDE_GFX_VERSION={value} makes the GPU claim another architecture: kernels built for it may \
                 fail or compute wrong results"
            ));
        }
        for name in ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"] {
            if let Some(value) = text(name) {
                self.notes.push(format!("only the devices in {name}={value} are visible"));
            }
        }
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    pub(super) fn machine(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("hip-diagnosis-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::create_dir_all(root.join("dev/dri")).unwrap();
        fs::write(root.join("etc/group"), "root:x:0:\nvideo:x:44:\nrender:x:107:a,b\n").unwrap();
        fs::write(
            root.join("proc/self/status"),
            "Name:\tx\nGid:\t1000\t1000\t1000\t1000\nGroups:\t44 1000 \n",
        )
        .unwrap();
        root
    }

    #[test]
    fn no_kfd_is_the_first_problem() {
        let root = machine("none");
        let found = Diagnosis::of(&Machine { system: System::Unix, root: root.clone(), variable: |_| None });
        fs::remove_dir_all(root).unwrap();
        assert!(found.problems()[0].starts_with("/dev/kfd does not exist"), "{found:?}");
        assert!(found.notes().is_empty());
    }

    #[test]
    fn a_working_machine_has_no_problem_and_overrides_are_noted() {
        let root = machine("fine");
        fs::write(root.join("dev/kfd"), "").unwrap();
        fs::write(root.join("dev/dri/renderD128"), "").unwrap();
        let found = Diagnosis::of(&Machine {
            system: System::Unix,
            root: root.clone(),
            variable: |name| (name == "HSA_OVERRIDE_GFX_VERSION").then(|| "10.3.0".into()),
        });
        fs::remove_dir_all(root).unwrap();
        assert!(found.problems().is_empty(), "{found:?}");
        assert!(found.notes()[0].starts_with("HSA_OVERRIDE_GFX_VERSION=10.3.0"), "{found:?}");
    }
}
