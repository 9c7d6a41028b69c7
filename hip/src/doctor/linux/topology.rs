//! The GPUs that KFD, the compute part of amdgpu, lists.
//!
//! The files and their keys: `drivers/gpu/drm/amd/amdkfd/kfd_topology.c` of Linux, and their use in
//! `libhsakmt/src/topology.c` of <https://github.com/ROCm/rocm-systems>.

use crate::doctor::system::System;

const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

/// A GPU.
#[derive(Debug)]
pub(super) struct Gpu {
    /// The number of its node. CPUs are nodes too.
    pub(super) node: u64,
    /// Major, minor and step of its architecture.
    pub(super) version: Version,
    /// The number of its render node.
    render: u64,
    /// 0 if it has none.
    pub(super) unique_id: u64,
    /// The nodes that it reaches without the host's memory.
    pub(super) peers: Vec<u64>,
}

impl Gpu {
    /// The name of its render node in `/dev/dri` and `/sys/class/drm`.
    pub(super) fn render_node(&self) -> String {
        format!("renderD{}", self.render)
    }

    /// Whether the GPU is a part of a processor for PCs (LLVM's "User Guide for AMDGPU Backend",
    /// "Processors", APU). MI300A's is not meant.
    pub(super) fn is_integrated(&self) -> bool {
        const CHIPS: [&str; 8] =
            ["gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103"];
        let arch = self.version.arch();
        CHIPS.contains(&arch.as_str()) || arch.starts_with("gfx115")
    }
}

/// Major, minor and step of an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version(pub(super) u64, pub(super) u64, pub(super) u64);

impl Version {
    /// The name of the architecture: `gfx90a` for 9, 0 and 10.
    pub(super) fn arch(self) -> String {
        format!("gfx{}{:x}{:x}", self.0, self.1, self.2)
    }
}

/// The GPUs, in KFD's order, which is that of ROCr's and HIP's indices.
pub(super) fn gpus(system: &System) -> Vec<Gpu> {
    let nodes = system.names(NODES).unwrap_or_default();
    nodes.iter().filter_map(|node| gpu(system, node)).collect()
}

fn gpu(system: &System, node: &str) -> Option<Gpu> {
    let folder = format!("{NODES}/{node}");
    let properties = system.text(&format!("{folder}/properties"));
    let value = |key| value(&properties, key);
    // The kernel writes gfx90a as 90010: two digits for each of minor and step.
    let target = value("gfx_target_version").filter(|&target| target > 0)?;
    let mut peers = Vec::new();
    for links in ["io_links", "p2p_links"] {
        for link in system.names(&format!("{folder}/{links}")).unwrap_or_default() {
            let link = system.text(&format!("{folder}/{links}/{link}/properties"));
            peers.extend(self::value(&link, "node_to"));
        }
    }
    Some(Gpu {
        node: node.parse().ok()?,
        version: Version(target / 10_000, target / 100 % 100, target % 100),
        render: value("drm_render_minor")?,
        unique_id: value("unique_id").unwrap_or(0),
        peers,
    })
}

fn value(properties: &str, key: &str) -> Option<u64> {
    let line = properties.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line?.trim().parse().ok()
}
