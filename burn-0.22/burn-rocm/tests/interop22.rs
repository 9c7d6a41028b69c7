//! Tensors of Burn 0.22 in memory that other libraries share. The source is that of Burn 0.21,
//! whose tests look at every case.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Scalar, TensorData};
use burn_rocm_022::interop::{self, Priority, Ready, Stream};
use burn_rocm_022::{Rocm, RocmDevice, read_with_fault};
use burn_std::DType;

#[test]
fn a_tensor_goes_out_and_in() {
    let device = RocmDevice::new(0);
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    #[allow(clippy::useless_conversion, reason = "with the feature `dispatch` Burn's device is another type")]
    let x = Rocm::float_from_data(TensorData::new(values.clone(), vec![3, 4]), &device.clone().into());
    let view = Rocm::float_swap_dims(x, 0, 1);
    // SAFETY: the struct goes to one consumer, this backend.
    let back = unsafe {
        let managed = interop::to_dlpack_versioned(view, Ready::Unordered).unwrap();
        interop::from_dlpack_versioned(&device, managed).unwrap()
    };
    assert_eq!((back.dims(), back.layout().strides()), (&[4, 3][..], &[1, 4][..]));
    let sum = Rocm::float_add_scalar(back, Scalar::Float(1.0));
    let expected: Vec<f32> = (0..12).map(|i| values[i % 3 * 4 + i / 3] + 1.0).collect();
    assert_eq!(read_with_fault(sum).unwrap().0.try_to_vec::<f32>().unwrap(), expected);
}

#[test]
fn the_keeper_is_called_after_the_last_op() {
    let device = RocmDevice::new(0);
    let hip = hip::Device::get(0).unwrap();
    // Stands for another library's memory.
    let memory = hip.upload(&[1f32, 2.0, 3.0, 4.0].map(f32::to_ne_bytes).concat()).unwrap();
    let (pointer, over) = (memory.address() as *mut _, Arc::new(AtomicBool::new(false)));
    let keeper = {
        let over = over.clone();
        move || {
            over.store(true, Ordering::SeqCst);
            drop(memory);
        }
    };
    // SAFETY: the keeper holds the memory, which has four numbers and is not written.
    let x = unsafe { interop::from_raw(&device, pointer, &[4], None, DType::F32, keeper).unwrap() };
    let stream = Stream::named(&device, "own", Priority::High).unwrap();
    stream.after_backend().unwrap();
    stream.backend_after().unwrap();
    let doubled = Rocm::float_mul_scalar(x.clone(), Scalar::Float(2.0));
    assert!(!over.load(Ordering::SeqCst));
    drop(x);
    assert_eq!(read_with_fault(doubled).unwrap().0.try_to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0]);
    device.synchronize().unwrap();
    assert!(over.load(Ordering::SeqCst));
}
