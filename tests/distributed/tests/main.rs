//! Burn 0.21's own interfaces to several devices, on the CPU provider with two and with four
//! devices: burn-train's `Learner`, Burn's `DistributedBackend`, and burn-collective. If
//! `BURN_ROCM_PROVIDER` names another provider, its devices are used instead.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../src/again.rs"]
mod again;
mod collective;
mod learner;
mod model;
mod operations;

use std::sync::LazyLock;

use burn_rocm::RocmDevice;

/// Runs a test in processes with two and with four devices, in which a collective that never ends
/// is an error after 20 seconds. In such a process, returns the devices.
fn devices(test: &str) -> Option<Vec<RocmDevice>> {
    if let Ok(count) = std::env::var(CHILD) {
        return Some((0..count.parse().unwrap()).map(RocmDevice::new).collect());
    }
    for count in sizes(&["2", "4"]) {
        again::again(&["--exact", test], &environment(&count, timeout()));
    }
    None
}

/// The provider that the tests run on.
fn provider() -> &'static str {
    static PROVIDER: LazyLock<String> = LazyLock::new(|| {
        let named = std::env::var("BURN_ROCM_PROVIDER").ok().filter(|name| !name.is_empty());
        named.unwrap_or("cpu".into())
    });
    &PROVIDER
}

/// Seconds after which a collective is an error. A GPU compiles kernels while the other ranks wait.
fn timeout() -> &'static str {
    if provider() == "cpu" { "20" } else { "120" }
}

/// The numbers of devices to test: these on the CPU provider, else all that the provider has.
fn sizes(of_cpu: &[&str]) -> Vec<String> {
    match provider() {
        "cpu" => of_cpu.iter().map(|&count| count.to_owned()).collect(),
        name => {
            let count = RocmDevice::all().unwrap().len();
            assert!(count >= 2, "the {name} provider has {count} devices, and collectives need 2");
            vec![count.to_string()]
        }
    }
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
        ("BURN_ROCM_PROVIDER", provider()),
        ("BURN_ROCM_COLLECTIVE_TIMEOUT", timeout),
    ]
}
