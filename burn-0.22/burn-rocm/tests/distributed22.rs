//! Burn 0.22's `DistributedOps` on tensors without autodiff, as Burn's autodiff calls them, on the
//! CPU provider with two and four devices.
#![allow(missing_docs, clippy::unwrap_used, clippy::useless_conversion)]

#[expect(unreachable_pub, reason = "the file is a module of a library, too")]
#[path = "../../../tests/src/again.rs"]
mod again;

use std::thread;

use burn_backend::distributed::{
    DistributedConfig, DistributedOps, DistributedParamId, DistributedParams, ReduceOperation, TensorRef,
};
use burn_backend::ops::FloatTensorOps;
use burn_backend::{DeviceOps, TensorData, TensorMetadata};
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

/// Two rounds of what a backward pass does on each device: it announces its parameters, hands over
/// each gradient, and waits. The gradients are then the means, in place. Sizes are below and above
/// that at which all-reduces are issued at once.
#[test]
fn gradients_that_are_handed_over_are_reduced_in_place() {
    let Some(devices) = devices("gradients_that_are_handed_over_are_reduced_in_place") else { return };
    let config = DistributedConfig { all_reduce_op: ReduceOperation::Mean };
    R::start_communication_server(&devices, config);
    let sizes = [5, 40_000, 1 << 20, 64, 1 << 19];
    let count = devices.len();
    thread::scope(|scope| {
        for (index, device) in devices.iter().enumerate() {
            scope.spawn(move || {
                for _ in 0..2 {
                    let params =
                        |at: usize| DistributedParams { param_id: DistributedParamId::from(at as u64) };
                    R::register_sync_parameters(device, (0..sizes.len()).map(params).collect());
                    let mut grads: Vec<RocmTensor> =
                        sizes.iter().map(|&size| on(device, index, size)).collect();
                    let mut order: Vec<usize> = (0..sizes.len()).collect();
                    order.rotate_left(index);
                    let all = grads.as_mut_ptr();
                    for at in order {
                        // SAFETY: the vector outlives the wait below, and nothing else uses it
                        // until then.
                        let grad = TensorRef::<R>(unsafe { all.add(at) });
                        // SAFETY: the server changes the tensor only after it was submitted.
                        let (found, copy) = unsafe { (R::comm_device(&grad), R::float_from_ref(&grad)) };
                        assert_eq!((found, copy.dims()), (device.clone(), &[sizes[at]][..]));
                        R::submit_gradient_sync(grad, params(at));
                    }
                    R::submit_sync_collective(device);
                    for (grad, size) in grads.into_iter().zip(sizes) {
                        assert_eq!(grad.device(), *device);
                        assert!(read(grad) == mean(count, size), "{size} elements on device {index}");
                    }
                }
            });
        }
    });
    R::close_communication_server(&devices[0]);
}
