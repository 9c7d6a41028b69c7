//! A [Burn](https://burn.dev) backend for AMD GPUs: matrix products on rocBLAS, convolution and pooling on MIOpen,
//! everything else on HIP kernels compiled for the GPU found.
//!
//! ```
//! use burn::tensor::Tensor;
//! use burn_rocm::{Rocm, RocmDevice};
//! type B = Rocm; // f32, i32 and one-byte bools by default; `Rocm<f16>` for others
//!
//! let device = RocmDevice::default();
//! let ones = Tensor::<B, 2>::ones([2, 3], &device);
//! let product = ones.clone().matmul(ones.transpose());
//! assert_eq!(product.into_data().as_slice::<f32>().unwrap(), [3.0; 4]);
//! ```
//!
//! [`Config`] has the settings, [`RocmDevice`] the devices and their memory. [`provider()`] is the provider that
//! serves, and [`code_cache`] has the compiled kernels.
//!
//! Not computed: quantised values of E5M2, E4M3 and E2M1, and those packed along another dim than the last. They raise
//! [`RocmError::Unsupported`] with the method's name.
//!
//! Only the kernel sees an index out of range or an integer division by zero in a tensor. It then
//! touches no memory for that element and gives 0. The op's result is faulty, and so is what is
//! computed from it: each read of either fails with the op's name, in every thread
//! ([`read_with_fault`] gives the elements too). Reads of other tensors don't fail.
//! [`Backend::sync`](burn_backend::Backend::sync) reports once each fault that no read has
//! reported. `bool_argwhere` is the only op that waits for the device: it must read the size of its
//! result.
//!
//! Default dtypes belong to a device, not to a backend type: see [`Rocm`].
//!
//! # Where Burn leaves the answer open
//!
//! - *Scalars.* Comparisons and remainders take a scalar as an element of the tensor's dtype:
//!   rounded, or for integers wrapped. `x.equal_elem(0.1)` of f16 finds the f16 nearest to 0.1, as
//!   `x.equal(full(0.1))` and burn-flex do. Arithmetic in f16 and bf16 takes a scalar in f32, so
//!   `x / 70000` of f16 stays finite; burn-flex rounds the scalar to the dtype first.
//! - *`clamp`* ignores a NaN bound. Burn's definition does so too (masks of what is lower or
//!   greater than the bound), and so do burn-ndarray and burn-flex's `clamp_min` and `clamp_max`;
//!   burn-flex's `clamp` panics, libtorch's gives NaN. NaN elements stay. If the bounds are in the
//!   wrong order, the upper one counts. An integer bound past the dtype's end becomes that end.
//! - *`mean_dim`* along an axis without elements is [`RocmError::Invalid`]; burn-flex and
//!   burn-ndarray panic too. Burn computes `var` and its kin from it, and would turn a NaN mean
//!   into a variance of 0. `mean` of no elements is NaN, as burn-flex has it.
//! - *`Distribution::Uniform`* over a range wider than the dtype's draws from the part that the
//!   dtype's finite numbers cover; bounds that are not finite are [`RocmError::Invalid`]. Burn's
//!   CPU backends panic for both.

// Some ops are asked for by the other version of Burn alone, whose build finds what nothing asks for.
#![allow(dead_code)]

mod arg;
mod backend;
mod burn;
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
pub use device::{DeviceInfo, RocmDevice};
#[doc(hidden)]
pub use error::raise;
pub use error::take_last_error;
pub use hip::trace;
pub use hip::{
    CacheStats, CodeCache, Config, Counters, Error as RocmError, F16Alternative, FindMode,
    PoolStats as MemoryStats, Provider, ProviderKind, ProviderReport, Route, Versions, code_cache,
    is_available, passed_over, provider, rocm_device_count, select_provider, survey,
};
pub use layout::Layout;
pub use ops::transfer::read_with_fault;
pub use qtensor::RocmQTensor;
pub use tensor::RocmTensor;
