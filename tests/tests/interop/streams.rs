//! Streams for an app's own work.

use burn_rocm::RocmError;
use burn_rocm::graph::Graph;
use burn_rocm::interop::*;
use burn_rocm_tests::*;
use hip::MemorySpace;
use serial_test::serial;

use crate::{device, numbers, open, ours, read};

#[test]
#[serial]
fn an_apps_stream_is_ordered_with_the_backends() {
    let values = numbers(1 << 16);
    for priority in [Priority::Low, Priority::Normal, Priority::High] {
        let stream = Stream::named(&device(), "copies of the test", priority).unwrap();
        assert_eq!((stream.name(), stream.device()), ("copies of the test", device()));
        assert!(!stream.handle().is_null() && stream.handle() != backend_stream(&device()).unwrap());
        for round in 1..20 {
            let factor = f64::from(round);
            let x = R::float_mul_scalar(ours(&values, &[1 << 16]), Scalar::Float(factor));
            let y = R::float_zeros(Shape::from(vec![1 << 16]), &device(), FloatDType::F32);
            // SAFETY: the stream is alive; it waits for both tensors, and `backend_after` is before
            // their end.
            let [from, to] = [&x, &y].map(|tensor| unsafe { as_raw(tensor, Ready::Unordered).unwrap() });
            stream.after_backend().unwrap();
            // The host stands for a library. It knows no stream, so it waits for this one.
            let host = open().info().memory == MemorySpace::Host;
            stream.enqueue("a copy", |handle| {
                assert_eq!(handle, stream.handle());
                stream.synchronize().unwrap();
                if host {
                    // SAFETY: both tensors have that many elements, and are two.
                    unsafe {
                        to.pointer.cast::<f32>().copy_from_nonoverlapping(from.pointer.cast(), 1 << 16)
                    };
                }
            });
            stream.backend_after().unwrap();
            drop(x);
            let sum = read(&R::float_add_scalar(y, Scalar::Float(1.0)));
            let expected: Vec<f32> = values.iter().map(|x| x * factor as f32 + 1.0).collect();
            assert!(!host || sum == expected, "round {round}");
        }
        stream.synchronize().unwrap();
    }
}

#[test]
#[serial]
fn profiles_name_an_apps_stream_and_its_work() {
    let (_, profile) = burn_rocm::profile(|| {
        let stream = Stream::named(&device(), "statistics", Priority::Low).unwrap();
        stream.after_backend().unwrap();
        stream.enqueue("histogram", |_| ());
    });
    let table = profile.to_string();
    assert!(table.contains("histogram"), "{table}");
}

#[test]
#[serial]
fn a_captured_step_can_not_be_ordered_with_a_stream() {
    let stream = Stream::named(&device(), "a", Priority::Normal).unwrap();
    let captured = Graph::capture_after(&device(), 0, || {
        assert!(matches!(stream.after_backend(), Err(RocmError::Capture { .. })));
        assert!(matches!(stream.backend_after(), Err(RocmError::Capture { .. })));
    });
    assert!(captured.is_err());
}
