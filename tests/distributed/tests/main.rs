//! Burn 0.21's own interfaces to several devices, on the CPU provider with two and with four
//! devices: burn-train's `Learner`, Burn's `DistributedBackend`, and burn-collective.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../src/again.rs"]
mod again;
mod collective;
mod learner;
mod model;
mod operations;

use burn_rocm::RocmDevice;

/// Runs a test in processes with two and with four devices, in which a collective that never ends
/// is an error after 20 seconds. In such a process, returns the devices.
fn devices(test: &str) -> Option<Vec<RocmDevice>> {
    const DEVICES: &str = "BURN_ROCM_CPU_DEVICES";
    if let Ok(count) = std::env::var(DEVICES) {
        return Some((0..count.parse().unwrap()).map(RocmDevice::new).collect());
    }
    for count in ["2", "4"] {
        let environment =
            [(DEVICES, count), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_COLLECTIVE_TIMEOUT", "20")];
        again::again(&["--exact", test], &environment);
    }
    None
}
