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
    if let Ok(count) = std::env::var(CHILD) {
        return Some((0..count.parse().unwrap()).map(RocmDevice::new).collect());
    }
    for count in ["2", "4"] {
        again::again(&["--exact", test], &environment(count, "20"));
    }
    None
}

/// The number of devices in a process that a test has started. Not a variable that users may have
/// set: a test that finds it starts no processes.
const CHILD: &str = "DISTRIBUTED_TEST_CHILD";

/// The environment of such a process, in which a collective that never ends is an error after so
/// many seconds.
fn environment<'a>(count: &'a str, timeout: &'a str) -> [(&'static str, &'a str); 4] {
    [
        (CHILD, count),
        ("BURN_ROCM_CPU_DEVICES", count),
        ("BURN_ROCM_PROVIDER", "cpu"),
        ("BURN_ROCM_COLLECTIVE_TIMEOUT", timeout),
    ]
}
