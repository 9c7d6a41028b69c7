//! How an app finds this backend's devices.

use crate::again::again;
use burn::tensor::{Device, DeviceType, Tensor};

/// Set in a process that [`again`] started.
const CHILD: &str = "BURN_ROCM_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

#[test]
fn two_devices() {
    if !is_child() {
        let environment = [(CHILD, "1"), ("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")];
        again(&["--exact", "devices::two_devices"], &environment);
        return;
    }
    let devices = Device::enumerate(DeviceType::Rocm).into_vec();
    assert_eq!(devices, [Device::rocm(0), Device::rocm(1)]);
    let first = Tensor::<1>::from_floats([1.0, 2.0], &devices[0]);
    let second = first.clone().to_device(&devices[1]);
    assert_eq!(second.device(), devices[1]);
    let sum = second + Tensor::from_floats([3.0, 5.0], &devices[1]);
    assert_eq!((sum.to_device(&devices[0]) - first).into_data().try_to_vec::<f32>().unwrap(), [3.0, 5.0]);
}

#[test]
fn the_device_of_the_environment() {
    if !is_child() {
        let environment = [(CHILD, "1"), ("BURN_DEVICE", "rocm"), ("BURN_ROCM_PROVIDER", "cpu")];
        again(&["--exact", "devices::the_device_of_the_environment"], &environment);
        return;
    }
    assert_eq!(Device::default(), Device::rocm(0));
}

#[test]
fn a_device_says_what_it_is() {
    let identity = Device::rocm(0).identity().unwrap();
    let info = burn_cubecl::RocmDevice::new(0).info().unwrap();
    assert_eq!(identity.name, info.name);
    assert!(identity.fingerprint.contains(&info.architecture), "{}", identity.fingerprint);
}

#[test]
fn a_device_that_is_not_there() {
    let count = Device::enumerate(DeviceType::Rocm).len();
    let caught = std::panic::catch_unwind(|| Tensor::<1>::zeros([2], &Device::rocm(count + 6)));
    let text = caught.map(drop).unwrap_err();
    let text = text.downcast_ref::<String>().expect("a text");
    assert!(text.contains("device"), "{text}");
    // The process can still use the device.
    assert_eq!(Tensor::<1>::ones([2], &Device::rocm(0)).sum().into_scalar::<f32>(), 2.0);
}
