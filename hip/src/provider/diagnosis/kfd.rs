//! Linux: the device files of AMD's kernel driver, and the user's permissions on them.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What keeps the user from AMD's device files below a root folder.
pub(super) fn problems(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let kfd = root.join("dev/kfd");
    match OpenOptions::new().read(true).write(true).open(&kfd) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            problems.push(
                "/dev/kfd does not exist: no AMD GPU, or its kernel driver (amdgpu) is not loaded, or the \
                 container was started without --device=/dev/kfd --device=/dev/dri"
                    .into(),
            );
            return problems;
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            problems.push(format!(
                "no permission on /dev/kfd: {}",
                match fs::metadata(&kfd) {
                    Ok(file) => membership(root, file.gid()),
                    Err(_) => "add the user to the groups render and video, then log in again".into(),
                }
            ));
        }
        Err(error) => problems.push(format!("/dev/kfd can't be opened: {error}")),
    }
    let Ok(entries) = fs::read_dir(root.join("dev/dri")) else {
        problems.push("/dev/dri does not exist: the container was started without --device=/dev/dri".into());
        return problems;
    };
    for node in entries.flatten().filter(|node| node.file_name().to_string_lossy().starts_with("render")) {
        let opened = OpenOptions::new().read(true).write(true).open(node.path());
        if opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
            && let Ok(file) = node.metadata()
        {
            let name = node.file_name();
            problems.push(format!(
                "no permission on /dev/dri/{}: {}",
                name.to_string_lossy(),
                membership(root, file.gid())
            ));
        }
    }
    problems
}

/// Why the user has no access to a device file of this group, and what to do.
fn membership(root: &Path, gid: u32) -> String {
    let group = group_name(root, gid).unwrap_or_else(|| gid.to_string());
    if own_groups(root).contains(&gid) {
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
    use crate::provider::diagnosis::tests::machine;

    #[test]
    fn groups_are_named_with_what_to_do() {
        let root = machine("groups");
        let (outside, inside) = (membership(&root, 107), membership(&root, 44));
        fs::remove_dir_all(root).unwrap();
        assert!(outside.starts_with("the user is not in the group render"), "{outside}");
        assert!(inside.starts_with("the user is in its group video"), "{inside}");
    }
}
