//! The limits that Linux's control groups set to the memory of this process.
//!
//! The files are those of the kernel's documents `admin-guide/cgroup-v2.rst` and
//! `admin-guide/cgroup-v1/memory.rst`.

use std::{fs, path::Path};

/// The files of one version of control groups.
struct Version {
    limit: &'static str,
    used: &'static str,
    /// The lines of `memory.stat` that count the pages of files, inner groups included.
    files: [&'static str; 2],
}

const V2: Version =
    Version { limit: "memory.max", used: "memory.current", files: ["inactive_file", "active_file"] };

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    // Without `total_`, the lines leave out inner groups.
    files: ["total_inactive_file", "total_active_file"],
};

/// Each limit that holds for this process, and how much of it is in use, in bytes.
pub(super) fn limits() -> Vec<(usize, usize)> {
    // A system that does not name the process's groups may still have limits at its root.
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_else(|_| "0::/".to_owned());
    limits_in(Path::new("/sys/fs/cgroup"), &own)
}

/// The limits of the groups in `own`, a process's `/proc/self/cgroup`, and of the groups around them.
/// `root` is the folder where control groups are mounted.
///
/// A container may see its own group as the root, and still be told the group's path on the host. The
/// folders of that path are then missing, and the root has the limit.
fn limits_in(root: &Path, own: &str) -> Vec<(usize, usize)> {
    let mut limits = Vec::new();
    for line in own.lines() {
        // The hierarchy's number, its controllers, the group. Version 2 names no controllers.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (version, mounted) = match controllers {
            "" => (V2, root.to_owned()),
            _ if controllers.split(',').any(|controller| controller == "memory") => (V1, root.join("memory")),
            _ => continue,
        };
        let innermost = mounted.join(group.trim_start_matches('/'));
        let groups = innermost.ancestors().take_while(|folder| folder.starts_with(&mounted));
        limits.extend(groups.filter_map(|folder| version.limit_of(folder)));
    }
    limits
}

impl Version {
    /// A group's limit, and how much of it is in use; `None` if the group has no limit.
    fn limit_of(&self, group: &Path) -> Option<(usize, usize)> {
        let number =
            |file: &str| -> Option<usize> { fs::read_to_string(group.join(file)).ok()?.trim().parse().ok() };
        // No limit is `max` in version 2, and a number above any machine's memory in version 1.
        let limit = number(self.limit)?;
        // The kernel counts cached files as in use, and drops them when the group needs memory.
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let files: usize = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| self.files.contains(name))
            .filter_map(|(_, bytes)| bytes.trim().parse::<usize>().ok())
            .sum();
        Some((limit, number(self.used).unwrap_or(0).saturating_sub(files)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    /// Writes the files of a group.
    fn group(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn cached_files_are_not_in_use_and_outer_groups_count() {
        let folder = Folder::new().unwrap();
        let root = folder.path();
        let stat = "anon 90\ninactive_anon 1\ninactive_file 700\nactive_file 200\n";
        let limited = [("memory.max", "1000\n"), ("memory.current", "990\n"), ("memory.stat", stat)];
        group(&root.join("slurm"), &limited);
        group(&root.join("slurm/job"), &[("memory.max", "max\n"), ("memory.current", "990\n")]);
        group(&root.join("slurm/job/step"), &[("memory.max", "5000\n"), ("memory.current", "100\n")]);
        assert_eq!(limits_in(root, "0::/slurm\n"), [(1000, 90)]);
        assert_eq!(limits_in(root, "0::/slurm/job/step\n"), [(5000, 100), (1000, 90)]);
        assert!(limits_in(root, "0::/\n").is_empty(), "the root has none");
        // A container whose root is its own group.
        group(root, &limited);
        assert_eq!(limits_in(root, "0::/\n"), [(1000, 90)]);
        assert_eq!(limits_in(root, "0::/docker/0123\n"), [(1000, 90)]);
    }

    #[test]
    fn version_1_has_its_own_files() {
        let folder = Folder::new().unwrap();
        let root = folder.path();
        let stat = "inactive_file 1\nactive_file 2\ntotal_inactive_file 700\ntotal_active_file 200\n";
        let limited =
            [("memory.limit_in_bytes", "1000\n"), ("memory.usage_in_bytes", "990\n"), ("memory.stat", stat)];
        group(&root.join("memory/slurm/job"), &limited);
        let own = "12:cpu,cpuacct:/slurm\n7:hugetlb,memory:/slurm/job/step\n1:name=systemd:/a\n0::/b\n";
        assert_eq!(limits_in(root, own), [(1000, 90)]);
        assert!(limits_in(root, "7:memory:/other\n").is_empty());
    }
}
