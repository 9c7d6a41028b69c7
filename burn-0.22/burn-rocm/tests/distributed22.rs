//! Burn 0.22's `DistributedOps` on tensors without autodiff, as Burn's autodiff calls them, on the
//! CPU provider with two and four devices.
#![allow(missing_docs, clippy::unwrap_used, clippy::useless_conversion)]

#[expect(unreachable_pub, reason = "the file is a module of a library, too")]
#[path = "../../../tests/src/again.rs"]
mod again;

use burn_backend::distributed::{DistributedOps, ReduceOperation};
use burn_backend::ops::FloatTensorOps;
use burn_backend::{DeviceOps, TensorData};
use burn_rocm_022::{BurnDevice, Rocm, RocmDevice, RocmTensor, read_with_fault};

type R = Rocm;

/// Runs a test in processes with two and with four devices, in which a collective that never ends
/// is an error after 20 seconds. In such a process, returns the devices.
fn devices(test: &str) -> Option<Vec<BurnDevice>> {
    const DEVICES: &str = "BURN_ROCM_CPU_DEVICES";
    if let Ok(count) = std::env::var(DEVICES) {
        return Some((0..count.parse().unwrap()).map(|index| RocmDevice::new(index).into()).collect());
    }
    for count in ["2", "4"] {
        let environment =
            [(DEVICES, count), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_COLLECTIVE_TIMEOUT", "20")];
        again::again(&["--exact", test], &environment);
    }
    None
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
