//! Linux: what the kernel says of AMD's GPUs, and the user's rights to use them.

mod access;
mod container;
mod driver;
mod libraries;
mod overrides;
mod peers;
mod topology;
mod wsl;

use crate::doctor::finding::Finding;
use crate::doctor::system::System;
use crate::doctor::{variables, visible};

pub(super) fn examine(system: &System) -> Vec<Finding> {
    let mut findings = Vec::new();
    let gpus = topology::gpus(system);
    let used = if wsl::is_wsl(system) {
        wsl::examine(system, &mut findings);
        true
    } else {
        driver::examine(system, &gpus, &mut findings)
    };
    // Without a GPU, nothing else matters.
    if used {
        let visible: Vec<u64> = gpus.iter().map(|gpu| gpu.unique_id).collect();
        visible::examine(system, &visible, &mut findings);
        overrides::examine(system, &gpus, &mut findings);
        variables::of_hsa(system, &mut findings);
        variables::of_hip(system, &mut findings);
        libraries::examine(system, &mut findings);
        peers::examine(system, &gpus, &mut findings);
    }
    findings
}
