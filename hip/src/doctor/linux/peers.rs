//! What several GPUs need: direct transfers, and RCCL's wishes.

use crate::doctor::checks;
use crate::doctor::finding::Finding;
use crate::doctor::linux::container::in_container;
use crate::doctor::linux::driver::{self, OnBus};
use crate::doctor::linux::topology::Gpu;
use crate::doctor::system::System;

pub(super) fn examine(system: &System, gpus: &[Gpu], findings: &mut Vec<Finding>) {
    for gpu in gpus {
        findings.extend(small_bar(system, gpu));
    }
    // An app rarely uses the processor's GPU together with another.
    let gpus: Vec<&Gpu> = gpus.iter().filter(|gpu| !gpu.is_integrated()).collect();
    if gpus.len() < 2 {
        return;
    }
    iommu(system, findings);
    let apart = gpus.iter().enumerate().flat_map(|(index, a)| gpus[index + 1..].iter().map(move |b| (a, b)));
    let apart: Vec<String> = apart
        .filter(|(a, b)| !a.peers.contains(&b.node) && !b.peers.contains(&a.node))
        .map(|(a, b)| format!("{} and {}", a.node, b.node))
        .collect();
    if !apart.is_empty() {
        let what = format!("KFD's nodes have no direct way to each other: {}", apart.join(", "));
        findings.push(checks::NO_PEER_ACCESS.found(what, &[]));
    }
    // RCCL's `init.cc` warns of this.
    if system.text("proc/sys/kernel/numa_balancing") == "1" {
        let what = "the kernel balances NUMA memory automatically";
        findings.push(checks::NUMA_BALANCING.found(what, &[]));
    }
    if in_container(system)
        && let Some(kib) = shared_memory(system).filter(|&kib| kib <= 64 << 10)
    {
        let what = format!("this container's /dev/shm has {} MiB", kib >> 10);
        findings.push(checks::SHARED_MEMORY.found(what, &[]));
    }
    locked_memory(system, findings);
}

/// Compares `mem_info_vis_vram_total` with `mem_info_vram_total`
/// (<https://docs.kernel.org/gpu/amdgpu/driver-misc.html>).
fn small_bar(system: &System, gpu: &Gpu) -> Option<Finding> {
    let bytes = |file| -> Option<u64> {
        system.text(&format!("sys/class/drm/{}/device/{file}", gpu.render_node())).parse().ok()
    };
    let (all, visible) = (bytes("mem_info_vram_total")?, bytes("mem_info_vis_vram_total")?);
    let what = || {
        let (arch, visible, all) = (gpu.version.arch(), visible >> 20, all >> 20);
        format!("the host addresses {visible} of the {all} MiB of {arch}, KFD's node {}", gpu.node)
    };
    (visible < all).then(|| checks::SMALL_BAR.found(what(), &[]))
}

/// Whether the IOMMU translates the GPUs' addresses. The kind of a group is in
/// `/sys/kernel/iommu_groups/<group>/type`: `identity` passes them through. A kernel may be built
/// so, without `iommu=pt` (<https://github.com/ROCm/rocm-systems/pull/7916>). Kernels before 5.11
/// have no such file.
///
/// That `iommu=pt` mends it: <https://github.com/ROCm/rccl/issues/1129>, and RCCL's `init.cc`.
fn iommu(system: &System, findings: &mut Vec<Finding>) {
    let arguments = system.text("proc/cmdline");
    let passed = arguments.split_whitespace().any(|word| ["iommu=pt", "iommu.passthrough=1"].contains(&word));
    let translates = |address: &str| {
        let group = format!("sys/bus/pci/devices/{address}/iommu_group");
        match system.text(&format!("{group}/type")).as_str() {
            "" => system.exists(&group) && !passed,
            kind => kind != "identity",
        }
    };
    let gpus = driver::on_bus(system).unwrap_or_default();
    let translated: Vec<_> = gpus
        .into_iter()
        .filter(OnBus::is_amdgpus)
        .map(|gpu| gpu.address)
        .filter(|address| translates(address))
        .collect();
    if !translated.is_empty() {
        let what = format!("the IOMMU translates the addresses of {}", translated.join(", "));
        findings.push(checks::IOMMU.found(what, &[]));
    }
}

/// The size of `/dev/shm` in KiB; `None` if the mount has no limit of its own.
fn shared_memory(system: &System) -> Option<u64> {
    let mounts = system.text("proc/self/mounts");
    let options = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        (fields.next()? == "/dev/shm").then(|| fields.nth(1))?
    })?;
    let size = options.split(',').find_map(|option| option.strip_prefix("size="))?;
    size.strip_suffix('k')?.parse().ok()
}

fn locked_memory(system: &System, findings: &mut Vec<Finding>) {
    let adapters = system.names("sys/class/infiniband").unwrap_or_default();
    let limits = system.text("proc/self/limits");
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = limit.and_then(|limit| limit.split_whitespace().next()?.parse::<u64>().ok());
    if let (false, Some(bytes)) = (adapters.is_empty(), soft) {
        let what = format!("a process may lock {} KiB of memory, and there is InfiniBand", bytes >> 10);
        findings.push(checks::LOCKED_MEMORY.found(what, &[]));
    }
}
