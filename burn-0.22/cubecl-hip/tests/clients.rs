//! What CubeCL asks of a runtime, answered from burn-rocm's provider.
#![allow(missing_docs, clippy::unwrap_used)]

use cubecl_hip::{AmdDevice, HipRuntime};

/// The reason reaches the caller, and the devices that are there stay usable.
#[test]
fn the_client_of_a_device_that_is_not_there() {
    let count = HipRuntime::enumerate_all_devices().len();
    let missing = count + 6;
    let caught = std::panic::catch_unwind(|| HipRuntime::client(&AmdDevice::new(missing)));
    let text = caught.map(drop).unwrap_err();
    let text = text.downcast_ref::<String>().unwrap();
    assert!(text.starts_with(&format!("rocm:{missing}: ")) && text.contains(&missing.to_string()), "{text}");
    for index in 0..count {
        let client = HipRuntime::client(&AmdDevice::new(index));
        assert!(!client.properties().identity.name.is_empty());
    }
}
