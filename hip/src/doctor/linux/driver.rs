//! The GPU on the PCI bus, amdgpu, and the device files.

use std::fs;

use crate::doctor::checks;
use crate::doctor::finding::Finding;
use crate::doctor::linux::access;
use crate::doctor::linux::container::in_container;
use crate::doctor::linux::topology::Gpu;
use crate::doctor::system::System;

/// A GPU of AMD on the PCI bus.
pub(super) struct OnBus {
    pub(super) address: String,
    driver: Option<String>,
}

impl OnBus {
    /// Whether the driver amdgpu has it.
    pub(super) fn is_amdgpus(&self) -> bool {
        self.driver.as_deref().is_none_or(|driver| driver == "amdgpu")
    }
}

/// AMD's GPUs on the PCI bus: display controllers and, as AMD's Instinct are, processing
/// accelerators. `None` if the bus can't be listed.
pub(super) fn on_bus(system: &System) -> Option<Vec<OnBus>> {
    let addresses = system.names("sys/bus/pci/devices")?;
    let of_amd = addresses.into_iter().filter(|address| {
        let text = |file| system.text(&format!("sys/bus/pci/devices/{address}/{file}"));
        let class = text("class");
        text("vendor") == "0x1002" && (class.starts_with("0x03") || class.starts_with("0x12"))
    });
    let driver = |address: &str| {
        let link = fs::read_link(system.path(&format!("sys/bus/pci/devices/{address}/driver"))).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    };
    Some(of_amd.map(|address| OnBus { driver: driver(&address), address }).collect())
}

/// Whether there may be a GPU, so that other checks make sense.
pub(super) fn examine(system: &System, gpus: &[Gpu], findings: &mut Vec<Finding>) -> bool {
    let on_bus = on_bus(system);
    let has_kfd = system.exists("dev/kfd");
    // amdgpu makes /dev/kfd without a GPU too. Some machines, such as small virtual ones, have no bus.
    let none_on_bus = on_bus.as_ref().map_or(!has_kfd && !in_container(system), Vec::is_empty);
    if gpus.is_empty() && none_on_bus && (on_bus.is_some() || !system.exists("sys/module/amdgpu")) {
        findings.push(checks::NO_GPU.found("this machine has no AMD GPU", &[]));
        return false;
    }
    let other = |gpu: &&OnBus| gpu.driver.as_ref().is_some_and(|driver| driver != "amdgpu");
    let held: Vec<_> = on_bus.iter().flatten().filter(other).collect();
    for gpu in &held {
        let driver = gpu.driver.as_deref().unwrap_or_default();
        let what = format!("the driver {driver} holds the GPU {}", gpu.address);
        findings.push(checks::OTHER_DRIVER.found(what, &[("address", &gpu.address)]));
    }
    let all = on_bus.as_ref().map_or(0, Vec::len);
    if all > 0 && held.len() == all {
        return true;
    }
    if !has_kfd {
        // Containers see the host's modules.
        findings.push(match system.exists("sys/module/amdgpu") {
            false if on_bus.is_some() || !in_container(system) => amdgpu_missing(system, all),
            _ if in_container(system) => container_devices(system, "/dev/kfd"),
            _ => checks::KFD_MISSING.found("amdgpu is loaded, but /dev/kfd does not exist", &[]),
        });
        return true;
    }
    let nodes = system.names("dev/dri").unwrap_or_default();
    let nodes: Vec<_> = nodes.into_iter().filter(|name| name.starts_with("renderD")).collect();
    // The others belong to other makers' GPUs.
    let of_amd = |name: &&String| gpus.is_empty() || gpus.iter().any(|gpu| **name == gpu.render_node());
    let files: Vec<_> = nodes.iter().filter(of_amd).map(|name| format!("/dev/dri/{name}")).collect();
    access::examine(system, &[&["/dev/kfd".to_owned()], &files[..]].concat(), findings);
    if nodes.is_empty() && in_container(system) {
        findings.push(container_devices(system, "/dev/dri/renderD*"));
    } else if !in_container(system) {
        // A container may have been given some of the GPUs only.
        for gpu in gpus.iter().filter(|gpu| !nodes.contains(&gpu.render_node())) {
            let (arch, file) = (gpu.version.arch(), gpu.render_node());
            let what = format!("the {arch} of KFD's node {} has no /dev/dri/{file}", gpu.node);
            findings.push(checks::RENDER_MISSING.found(what, &[]));
        }
        if gpus.is_empty() {
            let what = "/dev/kfd exists, but KFD lists no GPU";
            findings.push(checks::KFD_WITHOUT_GPU.found(what, &[]));
        }
    }
    true
}

fn amdgpu_missing(system: &System, gpus: usize) -> Finding {
    let what = match gpus {
        0 => "the kernel driver amdgpu is not loaded".to_owned(),
        _ => format!("the PCI bus has {gpus} AMD GPU(s), but the kernel driver amdgpu is not loaded"),
    };
    // AMD's amdgpu-dkms is built on this machine. The kernel's own amdgpu is signed.
    let built = system.names("var/lib/dkms").unwrap_or_default().iter().any(|name| name == "amdgpu");
    if !built || !only_signed_modules(system) {
        return checks::AMDGPU_MISSING.found(what, &[]);
    }
    // Ubuntu's place, and DKMS's own. Sources: <https://wiki.ubuntu.com/UEFI/SecureBoot/DKMS>, and
    // "Secure Boot" of <https://github.com/dkms-project/dkms>.
    let ubuntu = "/var/lib/shim-signed/mok/MOK.der";
    let key = if system.exists(ubuntu) { ubuntu } else { "/var/lib/dkms/mok.pub" };
    let what = format!("{what}: Secure Boot is on, and amdgpu was built by DKMS");
    checks::SECURE_BOOT.found(what, &[("key", key)])
}

/// Whether the kernel refuses modules without a known signature (kernel_lockdown(7)).
fn only_signed_modules(system: &System) -> bool {
    let lockdown = system.text("sys/kernel/security/lockdown");
    // The mode in force is in brackets: `none [integrity] confidentiality`.
    if lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]") {
        return true;
    }
    let names = system.names("sys/firmware/efi/efivars").unwrap_or_default();
    let variable = names.into_iter().find(|name| name.starts_with("SecureBoot-"));
    // Four bytes of attributes, then the value.
    variable.is_some_and(|name| system.bytes(&format!("sys/firmware/efi/efivars/{name}")).get(4) == Some(&1))
}

/// In a container, the number of the host's group `render` is not known.
fn container_devices(system: &System, missing: &str) -> Finding {
    let what = format!("this container has no {missing}");
    let gid = access::group_of(system, "/dev/kfd");
    let gid = gid.map_or("$(getent group render | cut -d: -f3)".to_owned(), |gid| gid.to_string());
    checks::CONTAINER_DEVICES.found(what, &[("gid", &gid)])
}
