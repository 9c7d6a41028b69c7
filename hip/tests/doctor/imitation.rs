//! Imitations of machines.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::PathBuf;

use hip::doctor::{Finding, System, examine};

/// The imitated user.
pub(crate) const USER: u32 = 4242;

/// A machine's files, and its environment variables.
pub(crate) struct Imitation {
    pub(crate) root: PathBuf,
    variables: Vec<(String, String)>,
    /// The group of the device files.
    pub(crate) gid: u32,
}

impl Drop for Imitation {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Imitation {
    /// A healthy machine with GPUs of these architectures (100300 is gfx1030), ROCm 7.2 and a user
    /// in the group `render`.
    pub(crate) fn healthy(gpus: &[u64]) -> Self {
        let own = std::thread::current().name().unwrap_or_default().replace("::", "-");
        let root = std::env::temp_dir().join(format!("hip-doctor-{own}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let mut machine = Self { root, variables: Vec::new(), gid: 0 };
        machine.device("dev/kfd");
        machine.gid = machine.metadata("dev/kfd").gid();
        machine.write("etc/passwd", format!("root:x:0:0::/root:/bin/sh\ndev:x:{USER}:{USER}::/:/bin/sh\n"));
        machine.write("etc/group", format!("root:x:0:\nrender:x:{}:dev\ndev:x:{USER}:\n", machine.gid));
        machine.user(USER, &[machine.gid]);
        machine.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet\n");
        machine.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
        machine.write("sys/module/amdgpu/version", "6.10.5\n");
        machine.write("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n");
        machine.write("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n");
        machine.write(
            "sys/class/kfd/kfd/topology/nodes/0/properties",
            "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\ndrm_render_minor 0\n",
        );
        for (index, target) in gpus.iter().enumerate() {
            machine.gpu(index, *target, gpus.len());
        }
        machine.write("opt/rocm-7.2.0/lib/libamdhip64.so.7", "");
        machine.write("opt/rocm-7.2.0/lib/rocblas/library/TensileLibrary_lazy_gfx1030.dat", "");
        machine
    }

    fn gpu(&self, index: usize, target: u64, count: usize) {
        let (address, render) = (format!("0000:0{}:00.0", index + 3), 128 + index);
        let on_bus = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{on_bus}/vendor"), "0x1002\n");
        self.write(&format!("{on_bus}/class"), if index == 0 { "0x030000\n" } else { "0x120000\n" });
        self.link(&format!("{on_bus}/driver"), "../../../../bus/pci/drivers/amdgpu");
        self.write(&format!("{on_bus}/iommu_group/type"), "identity\n");
        let node = format!("sys/class/kfd/kfd/topology/nodes/{}", index + 1);
        let properties = format!(
            "cpu_cores_count 0\nsimd_count 144\ngfx_target_version {target}\ndrm_render_minor {render}\n\
             unique_id {}\n",
            0x4b2c_1a9f_0000_0000_u64 + index as u64
        );
        self.write(&format!("{node}/properties"), &properties);
        for other in (0..count).filter(|other| *other != index) {
            self.write(
                &format!("{node}/p2p_links/{other}/properties"),
                format!("type 2\nnode_from {}\nnode_to {}\n", index + 1, other + 1),
            );
        }
        self.device(&format!("dev/dri/renderD{render}"));
        for file in ["mem_info_vram_total", "mem_info_vis_vram_total"] {
            self.write(&format!("sys/class/drm/renderD{render}/device/{file}"), "17163091968\n");
        }
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn link(&self, path: &str, to: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.root.join(path);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.unwrap();
    }

    /// A device file of a group other than root's, with mode 660.
    fn device(&self, path: &str) {
        self.write(path, "");
        self.mode(path, 0o660);
        // Fails unless root runs the test. Another user's files have another group than root's.
        let _ = chown(self.root.join(path), None, Some(4107));
    }

    pub(crate) fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.root.join(path), Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn metadata(&self, path: &str) -> fs::Metadata {
        fs::metadata(self.root.join(path)).unwrap()
    }

    /// The user of the process, and the groups beside the user's own.
    pub(crate) fn user(&self, user: u32, groups: &[u32]) {
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        // The real, the effective, the saved and the file system's.
        let four = |number: u32| vec![number.to_string(); 4].join("\t");
        let (user, group, groups) = (four(user), four(USER), groups.join(" "));
        let status = format!("Name:\tapp\nUid:\t{user}\nGid:\t{group}\nGroups:\t{groups} \n");
        self.write("proc/self/status", status);
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.into(), value.into()));
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let variables = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        examine(&System::imitation(&self.root, variables))
    }
}
