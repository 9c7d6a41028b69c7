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
//!
//! The dtypes that tensors have by default are a device's, whichever type came first: see [`Rocm`].
//!
//! # Where Burn leaves the answer open
//!
//! - *Scalars.* Comparisons and remainders take a scalar as an element of the tensor's dtype, rounded or, of integers, wrapped into
//!   it: `x.equal_elem(0.1)` of f16 finds the f16 nearest to 0.1, as `x.equal(full(0.1))` does, and as burn-flex has it. Arithmetic in
//!   f16 and bf16 takes it in f32, which burn-flex rounds first: `x / 70000` of f16 stays a number.
//! - *`clamp`* ignores a bound that is NaN, as Burn's definition of it does (masks of what is lower or greater than the bound) and as
//!   burn-ndarray and burn-flex's `clamp_min` and `clamp_max` do; burn-flex's `clamp` panics there, libtorch's gives NaN. An element
//!   that is NaN stays. Of bounds in the wrong order the upper counts. An integer bound past the dtype's end is that end.
//! - *`mean_dim`* along an axis without elements is [`RocmError::Invalid`], as a panic of burn-flex and burn-ndarray: Burn computes `var`
//!   and its kin from it, and would make 0 of NaN. `mean` of no element is NaN, as burn-flex has it.
//! - *`Distribution::Uniform`* over a range wider than the dtype's is drawn from the part within its finite numbers; bounds that are not
//!   finite are [`RocmError::Invalid`]. Burn's CPU backends panic at both.

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
