//! Linux: files below `/`.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

use super::{Section, entries};

/// The operating system, the processor and the user. `root` is `/`, or a test's substitute for it.
pub fn system(root: &Path) -> Section {
    let mut section = Section::new("system");
    let release = text(root, "etc/os-release");
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    section.line("system", name.unwrap_or("unknown").trim_matches('"'));
    section.line("kernel", text(root, "proc/sys/kernel/osrelease").trim());
    let processors = text(root, "proc/cpuinfo");
    let processor = processors.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let processor = processor.trim_start_matches([' ', '\t', ':']);
    section.line("processor", format!("{processor}, {cores} cores usable"));
    let memory = text(root, "proc/meminfo");
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: f64 = kib.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
    section.line("memory", format!("{:.1} GiB", kib / f64::from(1 << 20)));
    let status = text(root, "proc/self/status");
    let own = groups(&status);
    let names: Vec<String> = own.iter().map(|&gid| group(root, gid)).collect();
    section.line("user's groups", names.join(" "));
    section
}

/// The kernel driver's view of AMD GPUs: the driver, device files, and the GPUs that it lists.
pub fn kernel_driver(root: &Path) -> Section {
    let mut section = Section::new("AMD's kernel driver");
    let version = text(root, "sys/module/amdgpu/version");
    let driver = match (root.join("sys/module/amdgpu").exists(), version.trim()) {
        (true, "") => "loaded, the kernel's own".to_owned(),
        (true, version) => format!("loaded, version {version}"),
        (false, _) => "not loaded".to_owned(),
    };
    section.line("amdgpu", driver);
    section.line("/dev/kfd", device_file(root, &root.join("dev/kfd")));
    for node in entries(&root.join("dev/dri")).iter().filter(|name| name.starts_with("render")) {
        section.line(format!("/dev/dri/{node}"), device_file(root, &root.join("dev/dri").join(node)));
    }
    for node in entries(&root.join("sys/class/kfd/kfd/topology/nodes")) {
        let folder = format!("sys/class/kfd/kfd/topology/nodes/{node}");
        let properties = text(root, &format!("{folder}/properties"));
        let property = |name: &str| -> u64 {
            let line = properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        // CPUs are nodes too, but have no architecture.
        let target = property("gfx_target_version");
        if target > 0 {
            let name = text(root, &format!("{folder}/name"));
            let simds = property("simd_count");
            section
                .line(format!("GPU node {node}"), format!("{} {} SIMDs {}", gfx(target), simds, name.trim()));
        }
    }
    section
}

/// The kernel writes gfx90a as 90010 and gfx1030 as 100300: major, minor and step of two digits
/// each.
fn gfx(version: u64) -> String {
    format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
}

/// Whether the user can open a device file, and its owner.
fn device_file(root: &Path, path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let Ok(file) = fs::metadata(path) else { return "does not exist".to_owned() };
    let owner = format!("group {}, mode {:o}", group(root, file.gid()), file.mode() & 0o777);
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => format!("usable ({owner})"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => format!("no permission ({owner})"),
        Err(error) => format!("cannot be opened: {error} ({owner})"),
    }
}

fn text(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_default()
}

/// The user's groups, from `/proc/self/status`.
fn groups(status: &str) -> Vec<u32> {
    let numbers = |key: &str, most: usize| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().filter_map(|number| number.parse().ok()).take(most).collect()
    };
    // "Gid:" lists the real group first, then the effective group and two more.
    let mut all = [numbers("Gid:", 1), numbers("Groups:", usize::MAX)].concat();
    all.sort_unstable();
    all.dedup();
    all
}

/// A group's name, or its number if it has no name.
fn group(root: &Path, gid: u32) -> String {
    let table = text(root, "etc/group");
    let name = table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| gid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_a_gpu_is_told_in_full() {
        let root = std::env::temp_dir().join(format!("burn-rocm-machine-{}", std::process::id()));
        let write = |path: &str, content: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("to create it");
            fs::write(path, content).expect("to write");
        };
        write("etc/group", "root:x:0:\nvideo:x:44:\nrender:x:107:a,b\n");
        write("proc/self/status", "Name:\tx\nGid:\t44\t44\t44\t44\nGroups:\t44 107 4242 \n");
        write("sys/module/amdgpu/version", "6.12.12\n");
        write("dev/kfd", "");
        write("dev/dri/renderD128", "");
        write("dev/dri/card0", "");
        write("sys/class/kfd/kfd/topology/nodes/0/properties", "simd_count 0\ngfx_target_version 0\n");
        write("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 440\ngfx_target_version 90010\n");
        write("sys/class/kfd/kfd/topology/nodes/1/name", "aldebaran\n");
        let (system, driver) = (system(&root).to_string(), kernel_driver(&root).to_string());
        fs::remove_dir_all(&root).expect("to remove");
        assert!(system.contains("video render 4242"), "{system}");
        assert!(driver.contains("loaded, version 6.12.12"), "{driver}");
        assert!(driver.contains("gfx90a 440 SIMDs aldebaran"), "{driver}");
        assert!(driver.contains("/dev/dri/renderD128  usable"), "{driver}");
        assert!(!driver.contains("card0") && !driver.contains("node 0"), "{driver}");
    }

    #[test]
    fn a_bare_machine_is_told_too() {
        let root = Path::new("/nonexistent");
        assert!(kernel_driver(root).to_string().contains("not loaded"));
        assert!(kernel_driver(root).to_string().contains("/dev/kfd  does not exist"));
        assert!(system(root).to_string().contains("unknown"));
    }

    #[test]
    fn architectures_have_hexadecimal_steps() {
        assert_eq!(
            [90010, 100300, 110001, 90402, 90006].map(gfx),
            ["gfx90a", "gfx1030", "gfx1101", "gfx942", "gfx906"].map(String::from)
        );
    }
}
