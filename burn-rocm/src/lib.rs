//! A [Burn](https://burn.dev) backend for AMD GPUs: matrix products on rocBLAS, convolution and pooling on MIOpen,
//! everything else on HIP kernels compiled for the GPU found.
//!
//! ```no_run
//! use burn_rocm::{Rocm, RocmDevice};
//! type Backend = Rocm; // f32, i32 and one-byte bools by default; `Rocm<f16>` for others
//! let device = RocmDevice::default();
//! # let _ = (device, core::marker::PhantomData::<Backend>);
//! ```
//!
//! Not computed yet, but for the default methods of Burn that need them: each raises [`RocmError::Unsupported`] with
//! the method's name.
//!
//! - quantised values of E5M2, E4M3 and E2M1, and those packed along another dim than the last.
//!
//! An index out of range or an integer division by zero in a tensor is found by the kernel: it touches no memory and gives 0 there.
//! The op's result is then faulty, and so is what is computed from it: each read of either fails, in whichever thread, with the op's
//! name ([`read_with_fault`] gives the elements too), and reads of other tensors don't.
//! [`Backend::sync`](burn_backend::Backend::sync) reports each fault that no read has reported, once.
//! `bool_argwhere` is the only op that waits for the device: the size of its result is data, and is read.

mod backend;
mod device;
mod dtype;
mod error;
pub mod fused;
mod layout;
mod ops;
mod qtensor;
mod staging;
mod tensor;

pub use backend::{BoolElement, FloatElement, IntElement, Rocm};
pub use burn_std::{bf16, f16};
pub use device::RocmDevice;
pub use error::{raise, take_last_error};
pub use hip::trace;
pub use hip::{Error as RocmError, is_available, rocm_device_count};
pub use layout::Layout;
pub use ops::data::read_with_fault;
pub use qtensor::RocmQTensor;
pub use tensor::RocmTensor;
