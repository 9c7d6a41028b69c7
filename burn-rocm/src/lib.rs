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
//! - float and int: `gather_nd`, `scatter_nd`;
//! - module: `deform_conv2d` and its gradient, `ctc_loss`;
//! - every quantised op.
//!
//! `bool_argwhere` reads the tensor on the host: the size of its result is data.

mod backend;
mod device;
mod dtype;
mod error;
mod layout;
mod ops;
mod qtensor;
mod tensor;

pub use backend::{BoolElement, FloatElement, IntElement, Rocm};
pub use device::RocmDevice;
pub use error::take_last_error;
pub use hip::trace;
pub use hip::{Error as RocmError, is_available, rocm_device_count};
pub use layout::Layout;
pub use qtensor::RocmQTensor;
pub use tensor::RocmTensor;
