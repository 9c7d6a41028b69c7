//! Tensors in memory that this backend shares with other libraries: raw pointers and DLPack.
//!
//! | from | to | |
//! |---|---|---|
//! | [`from_raw`] | [`as_raw`] | pointer, shape, strides and dtype |
//! | [`from_dlpack_versioned`] | [`to_dlpack_versioned`] | DLPack 1.x: `dltensor_versioned` |
//! | [`from_dlpack`] | [`to_dlpack`] | DLPack before 1.0: `dltensor` |
//!
//! DLPack's device is `kDLROCM` on an AMD GPU, `kDLCUDA` on an NVIDIA GPU and `kDLCPU` on the CPU
//! device: [`dlpack_device`].
//!
//! # Order
//!
//! The backend enqueues all work of a device on one stream.
//!
//! - An import reads memory that another library wrote. If that library has streams, it must make
//!   [`backend_stream`] wait for its work: pass the handle as `stream` to the producer's
//!   `__dlpack__`. Or the host waits before the import.
//! - An export takes [`Ready`], which says who waits for the backend's work. For the `stream` of
//!   Python's `__dlpack__`, an address is [`Ready::OnStream`] and -1 is [`Ready::Unordered`].
//!   `None` is [`Ready::OnStream`] with null on a GPU, and [`Ready::OnHost`] on the CPU device.
//!
//! # Burn's tensors
//!
//! The functions take and return `RocmTensor`, the backend's tensor primitive:
//!
//! ```
//! use burn::tensor::{DType, Tensor, TensorPrimitive};
//! use burn_rocm::{Rocm, RocmDevice, interop};
//! # use burn_rocm::ProviderKind;
//! # if burn_rocm::provider()?.kind() != ProviderKind::Cpu { return Ok(()) }
//!
//! let device = RocmDevice::default();
//! // On the CPU device, a vector of the host is memory of the device.
//! let mut numbers = vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
//! let pointer = numbers.as_mut_ptr().cast();
//! let keeper = move || drop(numbers);
//! // SAFETY: the keeper owns the vector, which nobody else can access.
//! let primitive =
//!     unsafe { interop::from_raw(&device, pointer, &[2, 3], None, DType::F32, keeper)? };
//! let x = Tensor::<Rocm, 2>::from_primitive(TensorPrimitive::Float(primitive));
//!
//! let y = (x * 2.0).transpose();
//! let primitive = y.into_primitive().tensor();
//! // SAFETY: `OnHost` names no stream.
//! let raw = unsafe { interop::as_raw(&primitive, interop::Ready::OnHost)? };
//! assert_eq!((raw.shape, raw.strides), (&[3, 2][..], &[1, 3][..]));
//! // SAFETY: this device's memory is the host's, and the host has waited.
//! assert_eq!(unsafe { raw.pointer.cast::<f32>().add(5).read() }, 12.0);
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```
//!
//! An int or bool tensor is made by `from_primitive(primitive)` and gives its primitive by
//! `into_primitive()`. A tensor of `Autodiff<Rocm>` gives `inner()` first; `from_inner` makes one.

mod dlpack;
mod export;
mod import;
mod stream;

use core::ffi::c_void;

pub use dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_BITMASK_IS_COPIED,
    DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_VERSION, DLPackVersion, DLTensor, kDLBfloat, kDLBool, kDLCPU,
    kDLCUDA, kDLFloat, kDLInt, kDLROCM, kDLUInt,
};
pub use export::{RawTensor, as_raw, to_dlpack, to_dlpack_versioned};
pub use hip::{Priority, Ready};
pub use import::{from_dlpack, from_dlpack_versioned, from_raw};
pub use stream::Stream;

use hip::MemorySpace;

use crate::device::RocmDevice;
use crate::waiting::enqueue_own;

/// The device as DLPack names it. The id is the device's index; all CPU devices have the host's
/// memory, whose id is 0.
///
/// # Errors
/// As [`RocmDevice::info`].
pub fn dlpack_device(device: &RocmDevice) -> hip::Result<DLDevice> {
    let open = device.open()?;
    let index = open.info().index as i32;
    let (device_type, device_id) = match open.info().memory {
        MemorySpace::Rocm => (kDLROCM, index),
        MemorySpace::Cuda => (kDLCUDA, index),
        MemorySpace::Host => (kDLCPU, 0),
    };
    Ok(DLDevice { device_type, device_id })
}

/// The handle of the stream on which the device's ops run: a `hipStream_t`, or a `CUstream` on an
/// NVIDIA GPU. It lives as long as the process. Work that is enqueued on it comes after all ops
/// that this thread has called, and before those that it calls next.
///
/// # Errors
/// The error of an earlier matrix product that this call enqueues; `Capture` if this thread
/// captures a graph, whose ops run on another stream; as [`RocmDevice::info`].
pub fn backend_stream(device: &RocmDevice) -> hip::Result<*mut c_void> {
    enqueue_own()?;
    let open = device.open()?;
    open.refuse_dry("interop::backend_stream", "it has no stream")?;
    open.refuse_captured("interop::backend_stream", "captured work runs on another stream")?;
    Ok(open.compute_stream().as_raw())
}
