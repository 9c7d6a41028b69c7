//! Burn 0.22's `DistributedOps` on tensors without autodiff, as Burn's autodiff calls them, on the
//! CPU provider with two and four devices. If `BURN_ROCM_PROVIDER` names another provider, its devices
//! are used instead.
#![allow(missing_docs, clippy::unwrap_used, clippy::useless_conversion)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::time::Duration;

#[expect(unreachable_pub, reason = "the file is a module of a library, too")]
#[path = "../../../tests/src/again.rs"]
mod again;

use burn_backend::distributed::{
    DistributedConfig, DistributedOps, DistributedParamId, DistributedParams, ReduceOperation, TensorRef,
};
use burn_backend::ops::FloatTensorOps;
use burn_backend::{DeviceOps, TensorData};
use burn_rocm_022::{BurnDevice, Rocm, RocmDevice, RocmError, RocmTensor, read_with_fault, take_last_error};

type R = Rocm;

/// Runs a test in processes with two and with four devices, in which a collective that never ends
/// is an error after 20 seconds. In such a process, returns the devices.
fn devices(test: &str) -> Option<Vec<BurnDevice>> {
    if let Ok(count) = std::env::var(CHILD) {
        return Some((0..count.parse().unwrap()).map(|index| RocmDevice::new(index).into()).collect());
    }
    for count in sizes() {
        // A GPU compiles kernels while the other ranks wait.
        let timeout = if provider() == "cpu" { "20" } else { "120" };
        again::again(&["--exact", test], &environment(&count, timeout));
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

/// The numbers of devices to test: two and four on the CPU provider, else all that the provider has.
fn sizes() -> Vec<String> {
    match provider() {
        "cpu" => vec!["2".into(), "4".into()],
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

/// Whole numbers of a device, so that sums and means are exact.
fn numbers(index: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| (4 * (index + 1) * (at % 16)) as f32).collect()
}

fn on(device: &BurnDevice, index: usize, count: usize) -> RocmTensor {
    R::float_from_data(TensorData::new(numbers(index, count), [count]), device)
}

fn mean(devices: usize, count: usize) -> Vec<f32> {
    let sum = |at| (0..devices).map(|index| numbers(index, count)[at]).sum::<f32>();
    (0..count).map(|at| sum(at) / devices as f32).collect()
}

fn read(tensor: RocmTensor) -> Vec<f32> {
    read_with_fault(tensor).unwrap().0.try_to_vec().unwrap()
}

#[test]
fn tensors_of_every_device_are_reduced() {
    let Some(devices) = devices("tensors_of_every_device_are_reduced") else { return };
    let ids: Vec<_> = devices.iter().map(DeviceOps::id).collect();
    let started: Vec<_> = devices
        .iter()
        .enumerate()
        .map(|(index, device)| R::all_reduce(on(device, index, 33), ReduceOperation::Mean, ids.clone()))
        .collect();
    for (device, result) in devices.iter().zip(started) {
        R::sync_collective(device);
        // SAFETY: the line above.
        let result = unsafe { result.assume_resolved() };
        assert_eq!(read(result), mean(devices.len(), 33));
    }
}

/// The other device's thread has panicked, and its gradients never come.
#[test]
fn a_device_that_never_comes_is_an_error() {
    const TEST: &str = "a_device_that_never_comes_is_an_error";
    if std::env::var_os(CHILD).is_none() {
        // It also bounds the forming of the group, which takes longer between GPUs.
        let timeout = if provider() == "cpu" { "1" } else { "20" };
        again::again(&["--exact", TEST], &environment("2", timeout));
        return;
    }
    let devices: [BurnDevice; 2] = [0, 1].map(|index| RocmDevice::new(index).into());
    let config = DistributedConfig { all_reduce_op: ReduceOperation::Mean };
    R::start_communication_server(&devices, config);
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let param = DistributedParams { param_id: DistributedParamId::from(7) };
        R::register_sync_parameters(&devices[0], vec![param.clone()]);
        let mut gradient = on(&devices[0], 0, 5);
        R::submit_gradient_sync(TensorRef(&mut gradient), param);
        let panicked = catch_unwind(AssertUnwindSafe(|| R::submit_sync_collective(&devices[0])));
        ended.send((panicked.is_err(), take_last_error())).unwrap();
    });
    let found = end.recv_timeout(Duration::from_secs(60)).expect("an error after a second");
    assert!(matches!(found, (true, Some(RocmError::Collective { .. }))), "{found:?}");
}
