//! Several devices, and several threads on one.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_tests::*;

/// In a process of its own: the number of CPU devices is read once.
#[test]
fn two_devices() {
    const CHILD: &str = "BURN_ROCM_TEST_TWO_DEVICES_CHILD";
    if std::env::var_os(CHILD).is_none() {
        if !matches!(std::env::var("BURN_ROCM_PROVIDER").as_deref(), Err(_) | Ok("auto" | "cpu")) {
            return; // a real provider shows the devices there are
        }
        let output =
            std::process::Command::new(std::env::current_exe().expect("the test program has a path"))
                .args(["--exact", "two_devices", "--nocapture"])
                .env(CHILD, "1")
                .env("BURN_ROCM_CPU_DEVICES", "2")
                .env("BURN_ROCM_PROVIDER", "cpu")
                .output()
                .expect("the test program starts");
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    let (first, second) = (RocmDevice::new(0), RocmDevice::new(1));
    assert_eq!(Rocm::<f32>::device_count(0), 2);
    let random = Random::new();
    for &shape in SHAPES {
        for view in View::ALL {
            let input = float(&random, shape, DType::F32, view, -1.0, 1.0);
            let here = input.float::<R>(&first);
            let expected = read_float::<R>(here.clone());
            let there = R::float_to_device(here, &second);
            assert_eq!(R::float_device(&there), second);
            // Work queued on the second device sees the copy, and the way back sees that work.
            let doubled = R::float_mul_scalar(there, Scalar::Float(2.0));
            let back = R::float_div_scalar(R::float_to_device(doubled, &first), Scalar::Float(2.0));
            assert_eq!(R::float_device(&back), first);
            assert_eq!(read_float::<R>(back), expected, "{shape:?} {view:?}");
        }
    }
    // Operands on different devices are refused, and both stay whole.
    let a = R::float_from_data(TensorData::from([1.0f32, 2.0]), &first);
    let b = R::float_from_data(TensorData::from([3.0f32, 4.0]), &second);
    let refused =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| R::float_add(a.clone(), b.clone())));
    assert!(refused.is_err());
    let error = burn_rocm::take_last_error().expect("the error is kept");
    assert!(matches!(error, burn_rocm::RocmError::Invalid { .. }), "{error}");
    assert_eq!(read_float::<R>(a).to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(read_float::<R>(b).to_vec::<f32>().unwrap(), [3.0, 4.0]);
}

#[test]
fn threads_share_a_device() {
    let device = RocmDevice::default();
    let shared = R::float_from_data(TensorData::from([1.0f32; 1000]), &device);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (shared, device) = (shared.clone(), device.clone());
            scope.spawn(move || {
                let mut sum = R::float_from_data(TensorData::from([thread as f32; 1000]), &device);
                for _ in 0..50 {
                    sum = R::float_add(sum, shared.clone());
                }
                let values = read_float::<R>(sum).to_vec::<f32>().unwrap();
                assert!(values.iter().all(|&v| v == thread as f32 + 50.0), "thread {thread}");
            });
        }
    });
    assert!(read_float::<R>(shared).to_vec::<f32>().unwrap().iter().all(|&v| v == 1.0));
}

/// A tensor made on one thread, used on another, dropped on a third.
#[test]
fn tensors_travel_between_threads() {
    let device = RocmDevice::default();
    let (to_worker, worker) = std::sync::mpsc::channel();
    let (to_last, last) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for tensor in worker {
                to_last.send(R::float_add_scalar(tensor, Scalar::Float(1.0))).unwrap();
            }
        });
        scope.spawn(move || {
            for (i, tensor) in last.into_iter().enumerate() {
                assert_eq!(read_float::<R>(tensor).to_vec::<f32>().unwrap(), [i as f32 + 1.0; 257]);
            }
        });
        for i in 0..100 {
            to_worker.send(R::float_from_data(TensorData::from([i as f32; 257]), &device)).unwrap();
        }
        drop(to_worker);
    });
}
