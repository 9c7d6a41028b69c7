//! The functions that `check.py` calls by ctypes: a small module with tensors of this backend, as
//! another library would bind it to Python.
//!
//! A tensor is a pointer that `interop_free` takes back. A function that fails returns null and
//! keeps a message for `interop_error`.
#![allow(clippy::missing_safety_doc, reason = "each is called by check.py only, as its text says")]

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use burn_rocm::interop::{self, Ready};
use burn_rocm::{RocmDevice, RocmTensor};
use burn_rocm_tests::*;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Runs a body. A panic, such as that of an op, is an error too.
fn run<T>(body: impl FnOnce() -> Result<T, burn_rocm::RocmError>) -> Option<T> {
    let text = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => burn_rocm::take_last_error().map_or("a panic".into(), |error| error.to_string()),
    };
    ERROR.set(CString::new(text).expect("a text"));
    None
}

fn made(body: impl FnOnce() -> Result<RocmTensor, burn_rocm::RocmError>) -> *mut RocmTensor {
    run(body).map_or(null_mut(), |tensor| Box::into_raw(Box::new(tensor)))
}

fn device() -> RocmDevice {
    RocmDevice::default()
}

/// The message of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn interop_error() -> *const c_char {
    ERROR.with_borrow(|text| text.as_ptr())
}

/// Writes DLPack's device type and id, and returns the handle of the backend's stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn interop_device(found: *mut i32) -> *mut c_void {
    run(|| {
        let own = interop::dlpack_device(&device())?;
        // SAFETY: two numbers.
        unsafe { found.copy_from([own.device_type, own.device_id].as_ptr(), 2) };
        interop::backend_stream(&device())
    })
    .unwrap_or(null_mut())
}

/// The numbers 0, 1, 2, ... as f32 in this shape.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn interop_range(shape: *const usize, rank: usize) -> *mut RocmTensor {
    made(|| {
        // SAFETY: `rank` sizes.
        let shape = unsafe { std::slice::from_raw_parts(shape, rank) }.to_vec();
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
        Ok(R::float_from_data(TensorData::new(values, Shape::from(shape)), &device()))
    })
}

/// Takes over the struct of a capsule.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn interop_import(managed: *mut c_void, versioned: bool) -> *mut RocmTensor {
    // SAFETY: the capsule's pointer; its producer has made the backend's stream wait.
    made(|| unsafe {
        match versioned {
            true => interop::from_dlpack_versioned(&device(), managed.cast()),
            false => interop::from_dlpack(&device(), managed.cast()),
        }
    })
}

/// Makes the struct of a capsule. `stream` is what `__dlpack__` gets: -2 stands for None, which is
/// the host of a CPU device, and else the default stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn interop_export(
    tensor: *mut RocmTensor,
    stream: i64,
    versioned: bool,
) -> *mut c_void {
    run(|| {
        // SAFETY: a tensor of this library, and a stream of the consumer.
        unsafe {
            let tensor = (*tensor).clone();
            let on_host = interop::dlpack_device(&device())?.device_type == interop::kDLCPU;
            let ready = match stream {
                -1 => Ready::Unordered,
                -2 if on_host => Ready::OnHost,
                -2 => Ready::OnStream(null_mut()),
                handle => Ready::OnStream(handle as *mut c_void),
            };
            Ok(match versioned {
                true => interop::to_dlpack_versioned(tensor, ready)?.cast(),
                false => interop::to_dlpack(tensor, ready)?.cast::<c_void>(),
            })
        }
    })
    .unwrap_or(null_mut())
}

/// A float tensor times a number, plus the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn interop_axpx(tensor: *mut RocmTensor, by: f64) -> *mut RocmTensor {
    made(|| {
        // SAFETY: a tensor of this library.
        let x = unsafe { (*tensor).clone() };
        Ok(R::float_add(R::float_mul_scalar(x.clone(), Scalar::Float(by)), x))
    })
}

/// The view with its first and last dim swapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn interop_swapped(tensor: *mut RocmTensor) -> *mut RocmTensor {
    made(|| {
        // SAFETY: as above.
        let x = unsafe { (*tensor).clone() };
        let last = x.dims().len() - 1;
        Ok(R::float_swap_dims(x, 0, last))
    })
}

/// Copies a tensor's elements into the memory of another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn interop_write(target: *mut RocmTensor, value: *mut RocmTensor) -> bool {
    // SAFETY: as above.
    run(|| unsafe { burn_rocm::graph::write(&*target, (*value).clone()) }).is_some()
}

/// Drops a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn interop_free(tensor: *mut RocmTensor) {
    // SAFETY: it came from a function above, and the script frees it once.
    drop(unsafe { Box::from_raw(tensor) });
}

/// Waits for the device.
#[unsafe(no_mangle)]
pub extern "C" fn interop_sync() -> bool {
    run(|| device().synchronize()).is_some()
}
