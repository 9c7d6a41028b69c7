//! Finds faults of a ROCm installation from files and environment variables.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The state of this machine's AMD kernel driver, and of the user's permissions on its device
/// files.
#[derive(Debug, Clone, Default)]
pub struct Diagnosis {
    problems: Vec<String>,
    notes: Vec<String>,
}

/// The files and variables to examine: those of the real machine, or an imitation in a test.
struct System {
    root: PathBuf,
    variable: fn(&str) -> Option<String>,
}

/// An environment variable's text; bytes that are not UTF-8 become the replacement character.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

impl Diagnosis {
    /// Examines this machine.
    pub fn of_this_machine() -> Self {
        Self::of(&System { root: "/".into(), variable })
    }

    /// What keeps HIP from finding a device, most likely cause first.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Unusual settings, which may or may not matter.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn of(system: &System) -> Self {
        let mut found = Self::default();
        found.look_at_kfd(system);
        found.look_at_environment(system);
        found
    }

    fn look_at_kfd(&mut self, system: &System) {
        let kfd = system.root.join("dev/kfd");
        match OpenOptions::new().read(true).write(true).open(&kfd) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.problems.push(
                    "/dev/kfd does not exist: no AMD GPU, or its kernel driver (amdgpu) is not loaded, or the \
                     container was started without --device=/dev/kfd --device=/dev/dri"
                        .into(),
                );
                return;
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                self.problems.push(format!(
                    "no permission on /dev/kfd: {}",
                    match fs::metadata(&kfd) {
                        Ok(file) => membership(system, file.gid()),
                        Err(_) => "add the user to the groups render and video, then log in again".into(),
                    }
                ));
            }
            Err(error) => self.problems.push(format!("/dev/kfd can't be opened: {error}")),
        }
        let Ok(entries) = fs::read_dir(system.root.join("dev/dri")) else {
            self.problems
                .push("/dev/dri does not exist: the container was started without --device=/dev/dri".into());
            return;
        };
        for node in entries.flatten().filter(|node| node.file_name().to_string_lossy().starts_with("render"))
        {
            let opened = OpenOptions::new().read(true).write(true).open(node.path());
            if opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
                && let Ok(file) = node.metadata()
            {
                let name = node.file_name();
                self.problems.push(format!(
                    "no permission on /dev/dri/{}: {}",
                    name.to_string_lossy(),
                    membership(system, file.gid())
                ));
            }
        }
    }

    fn look_at_environment(&mut self, system: &System) {
        if let Some(value) = (system.variable)("HSA_OVERRIDE_GFX_VERSION") {
            self.notes.push(format!(
                "HSA_OVERRIDE_GFX_VERSION={value} makes the GPU claim another architecture: kernels built for it may \
                 fail or compute wrong results"
            ));
        }
        for name in ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"] {
            if let Some(value) = (system.variable)(name) {
                self.notes.push(format!("{name}={value} hides the other devices"));
            }
        }
    }
}

/// Why the user has no access to a device file of this group, and what to do.
fn membership(system: &System, gid: u32) -> String {
    let group = group_name(&system.root, gid).unwrap_or_else(|| gid.to_string());
    if own_groups(&system.root).contains(&gid) {
        format!("the user is in its group {group}, but the file does not let the group read and write")
    } else {
        format!(
            "the user is not in the group {group}: run `sudo usermod -aG render,video $USER`, then log in again"
        )
    }
}

fn group_name(root: &Path, gid: u32) -> Option<String> {
    let groups = fs::read_to_string(root.join("etc/group")).ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

fn own_groups(root: &Path) -> Vec<u32> {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let numbers = |key: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    [numbers("Gid:"), numbers("Groups:")].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str) -> PathBuf {
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
        let found = Diagnosis::of(&System { root: root.clone(), variable: |_| None });
        fs::remove_dir_all(root).unwrap();
        assert!(found.problems()[0].starts_with("/dev/kfd does not exist"), "{found:?}");
        assert!(found.notes().is_empty());
    }

    #[test]
    fn a_working_machine_has_no_problem_and_overrides_are_noted() {
        let root = machine("fine");
        fs::write(root.join("dev/kfd"), "").unwrap();
        fs::write(root.join("dev/dri/renderD128"), "").unwrap();
        let found = Diagnosis::of(&System {
            root: root.clone(),
            variable: |name| (name == "HSA_OVERRIDE_GFX_VERSION").then(|| "10.3.0".into()),
        });
        fs::remove_dir_all(root).unwrap();
        assert!(found.problems().is_empty(), "{found:?}");
        assert!(found.notes()[0].starts_with("HSA_OVERRIDE_GFX_VERSION=10.3.0"), "{found:?}");
    }

    #[test]
    fn groups_are_named_with_what_to_do() {
        let root = machine("groups");
        let system = System { root: root.clone(), variable: |_| None };
        let (outside, inside) = (membership(&system, 107), membership(&system, 44));
        fs::remove_dir_all(root).unwrap();
        assert!(outside.starts_with("the user is not in the group render"), "{outside}");
        assert!(inside.starts_with("the user is in its group video"), "{inside}");
    }
}
