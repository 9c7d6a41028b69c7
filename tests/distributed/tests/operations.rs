//! Burn 0.21's `DistributedBackend`, as Burn's server calls it: from one thread for all devices, or
//! from a thread for each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use burn::tensor::backend::distributed::{
    CollectiveTensor, DistributedBackend, DistributedConfig, DistributedParamId, DistributedParams,
    ReduceOperation, TensorRef,
};
use burn::tensor::backend::{Backend, DeviceId, DeviceOps};
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_rocm::{Rocm, RocmDevice, RocmError, take_last_error};

use crate::again::again;
use crate::{CHILD, environment, provider};

type R = Rocm;

/// Numbers of a device, whose sum and mean over up to four devices every float type holds exactly.
fn numbers(device: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((device + 1) * (i % 16)) as f32 - 8.0).collect()
}

fn expected(devices: usize, op: ReduceOperation, count: usize) -> Vec<f32> {
    let mut sums = vec![0.0; count];
    for device in 0..devices {
        sums.iter_mut().zip(numbers(device, count)).for_each(|(sum, x)| *sum += x);
    }
    if op == ReduceOperation::Mean {
        sums.iter_mut().for_each(|sum| *sum /= devices as f32);
    }
    sums
}

fn ids(devices: &[RocmDevice]) -> Vec<DeviceId> {
    devices.iter().map(DeviceOps::id).collect()
}

fn on<B: Backend<Device = RocmDevice>>(index: usize, count: usize, dtype: DType) -> Tensor<B, 1> {
    let data = TensorData::new(numbers(index, count), [count]).convert_dtype(dtype);
    Tensor::from_data(data, (&RocmDevice::new(index), dtype))
}

fn start(
    index: usize,
    count: usize,
    dtype: DType,
    op: ReduceOperation,
    devices: &[RocmDevice],
) -> CollectiveTensor<R> {
    R::all_reduce(on::<R>(index, count, dtype).into_primitive().tensor(), op, ids(devices))
}

fn read(tensor: CollectiveTensor<R>) -> Vec<f32> {
    let tensor = Tensor::<R, 1>::from_primitive(TensorPrimitive::Float(tensor.resolve()));
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn all_reduces_of_threads_and_of_one_thread() {
    const TEST: &str = "operations::all_reduces_of_threads_and_of_one_thread";
    let Some(devices) = crate::devices(TEST) else { return };
    let (all, count) = (&devices, devices.len());
    for op in [ReduceOperation::Sum, ReduceOperation::Mean] {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let started: Vec<_> = (0..count).map(|index| start(index, 37, dtype, op, all)).collect();
            for tensor in started {
                assert_eq!(read(tensor), expected(count, op, 37), "{op:?} {dtype:?}");
            }
        }
        thread::scope(|scope| {
            for index in 0..count {
                scope.spawn(move || {
                    for round in 0..10 {
                        let tensor = start(index, 40 + round, DType::F32, op, all);
                        assert_eq!(read(tensor), expected(count, op, 40 + round));
                    }
                });
            }
        });
    }
}

#[test]
fn calls_that_differ_are_an_error_on_each_device() {
    const TEST: &str = "operations::calls_that_differ_are_an_error_on_each_device";
    let Some(devices) = crate::devices(TEST) else { return };
    let start = |device, count| start(device, count, DType::F32, ReduceOperation::Sum, &devices[..2]);
    for tensor in [start(0, 3), start(1, 4)] {
        catch_unwind(AssertUnwindSafe(|| drop(tensor.resolve()))).expect_err("shapes differ");
        let error = take_last_error().expect("the typed error is kept");
        let text = error.to_string();
        assert!(matches!(error, RocmError::Mismatch { .. }), "{text}");
        assert!(text.contains("[3] of f32") && text.contains("[4] of f32"), "{text}");
    }
    for tensor in [start(0, 5), start(1, 5)] {
        assert_eq!(read(tensor), expected(2, ReduceOperation::Sum, 5));
    }
}

/// The other device's thread has panicked, and its gradients never come.
#[test]
fn a_device_that_never_comes_is_an_error() {
    const TEST: &str = "operations::a_device_that_never_comes_is_an_error";
    if std::env::var_os(CHILD).is_none() {
        // It also bounds the forming of the group, which takes longer between GPUs.
        let timeout = if provider() == "cpu" { "1" } else { "20" };
        again(&["--exact", TEST], &environment("2", timeout));
        return;
    }
    let devices = [0, 1].map(RocmDevice::new);
    R::start_communication_server(&devices, DistributedConfig { all_reduce_op: ReduceOperation::Mean });
    let (ended, end) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let param = DistributedParams { param_id: DistributedParamId::from(7) };
        let mut gradient = on::<R>(0, 5, DType::F32).into_primitive().tensor();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            R::register_sync_parameters(&devices[0], vec![param.clone()]);
            R::submit_gradient_sync(TensorRef(&mut gradient), param);
            R::submit_sync_collective(&devices[0]);
        }));
        ended.send((panicked.is_err(), take_last_error())).unwrap();
    });
    let found = end.recv_timeout(Duration::from_secs(60)).expect("an error after a second");
    assert!(matches!(found, (true, Some(RocmError::Collective { .. }))), "{found:?}");
}
