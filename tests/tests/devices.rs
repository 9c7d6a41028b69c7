//! Several devices, and several threads on one.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_tests::*;

/// Runs on the CPU provider in a separate process, because a process reads the number of devices
/// once.
#[test]
fn two_devices() {
    const CHILD: &str = "BURN_ROCM_TEST_TWO_DEVICES_CHILD";
    if std::env::var_os(CHILD).is_none() {
        again(
            &["--exact", "two_devices", "--nocapture"],
            &[(CHILD, "1"), ("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")],
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
            let (there, lines) = trace::during(|| R::float_to_device(here, &second));
            assert_eq!(R::float_device(&there), second);
            let copies = lines.iter().filter(|line| line.contains("copy from another device")).count();
            assert_eq!(copies, usize::from(!expected.bytes.is_empty()), "{shape:?} {view:?}: {lines:?}");
            // Work that is queued on the second device sees the copy, and the copy back sees that
            // work.
            let doubled = R::float_mul_scalar(there, Scalar::Float(2.0));
            let back = R::float_div_scalar(R::float_to_device(doubled, &first), Scalar::Float(2.0));
            assert_eq!(R::float_device(&back), first);
            assert_eq!(read_float::<R>(back), expected, "{shape:?} {view:?}");
        }
    }
    operands_on_two_devices(&first, &second);
}

/// Operands on different devices are refused, and all stay intact.
fn operands_on_two_devices(first: &RocmDevice, second: &RocmDevice) {
    let floats = |device: &RocmDevice, shape: &[usize]| {
        R::float_ones(Shape::from(shape.to_vec()), device, FloatDType::F32)
    };
    let (a, b) = (floats(first, &[2, 2]), floats(second, &[2, 2]));
    let at = |device: &RocmDevice| R::int_zeros(Shape::from(vec![2, 2]), device, IntDType::I32);
    let list = |device: &RocmDevice| R::int_zeros(Shape::from(vec![2]), device, IntDType::I32);
    let mask = |device: &RocmDevice| R::bool_ones(Shape::from(vec![2, 2]), device, BoolDType::Native);
    let image = |device: &RocmDevice| floats(device, &[1, 1, 4, 4]);
    let native = BoolDType::Native;
    macro_rules! refused {
        ($($name:ident: $body:expr;)*) => {$(
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop($body)));
            assert!(caught.is_err(), "{} takes operands of two devices", stringify!($name));
            let error = burn_rocm::take_last_error().expect("the error is kept");
            assert!(matches!(error, burn_rocm::RocmError::Invalid { .. }), "{}: {error}", stringify!($name));
            let text = error.to_string();
            assert!(text.contains("rocm:0") && text.contains("rocm:1"), "{}: {text}", stringify!($name));
        )*};
    }
    refused! {
        float_add: R::float_add(a.clone(), b.clone());
        float_powf: R::float_powf(b.clone(), a.clone());
        float_equal: R::float_equal(a.clone(), b.clone(), native);
        float_matmul: R::float_matmul(a.clone(), b.clone());
        float_cross: R::float_cross(floats(first, &[3]), floats(second, &[3]), 0);
        float_cat: R::float_cat(vec![a.clone(), b.clone()], 0);
        float_slice_assign: R::float_slice_assign(a.clone(), &[], b.clone());
        float_mask_where: R::float_mask_where(a.clone(), mask(first), b.clone());
        float_mask_fill: R::float_mask_fill(a.clone(), mask(second), Scalar::Int(1));
        float_gather: R::float_gather(0, a.clone(), at(second));
        float_scatter_add: R::float_scatter_add(0, a.clone(), at(first), b.clone());
        float_select: R::float_select(a.clone(), 0, list(second));
        float_select_add: R::float_select_add(a.clone(), 0, list(first), b.clone());
        float_gather_nd: R::float_gather_nd(a.clone(), at(second));
        float_scatter_nd: R::float_scatter_nd(
            a.clone(),
            at(second),
            floats(first, &[2]),
            burn_backend::tensor::IndexingUpdateOp::Add
        );
        bool_and: R::bool_and(mask(first), mask(second));
        int_div: R::int_div(list(first), list(second));
        embedding: R::embedding(a.clone(), at(second));
        conv2d: R::conv2d(
            image(first),
            floats(second, &[1, 1, 3, 3]),
            None,
            ConvOptions::new([1, 1], [0, 0], [1, 1], 1)
        );
        layer_norm: R::layer_norm(a.clone(), floats(second, &[2]), None, 1e-5);
    }
    assert_eq!(read_float::<R>(a).to_vec::<f32>().unwrap(), [1.0; 4]);
    assert_eq!(read_float::<R>(b).to_vec::<f32>().unwrap(), [1.0; 4]);
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

/// A tensor is made on one thread, used on another, and dropped on a third.
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
