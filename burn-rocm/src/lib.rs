//! A [Burn](https://burn.dev) backend for AMD GPUs. Matrix products run on rocBLAS, convolution and
//! pooling on MIOpen, and everything else on HIP kernels that hipRTC compiles for the GPU.
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
//! [`Config`] has the settings, and [`RocmDevice`] the devices and their memory. [`provider()`] is
//! the provider in use, and [`code_cache`] manages the compiled kernels.
//!
//! Quantised values of the types E5M2, E4M3 and E2M1, and quantised values packed along another dim
//! than the last, are not supported. They raise [`RocmError::Unsupported`] with the method's name.
//!
//! Only a kernel sees that an index in a tensor is out of range or that an integer is divided by
//! zero. It then accesses no memory for that element and gives 0. The op's result is faulty, and so
//! is everything that is computed from it: each read of these fails with the op's name, in every
//! thread ([`read_with_fault`] gives the elements too). Reads of other tensors don't fail.
//! [`Backend::sync`](burn_backend::Backend::sync) reports once each fault that no read has
//! reported. Apart from reads, `bool_argwhere` is the only op that waits for the device every
//! time, because it must read the size of its result. The guide's page on thread safety lists the
//! rare others.
//!
//! Default dtypes belong to a device, not to a backend type: see [`Rocm`].
//!
//! # Where Burn leaves the answer open
//!
//! - *Scalars.* Comparisons and remainders first convert a scalar to the tensor's dtype: floats
//!   round, integers wrap. So `x.equal_elem(0.1)` of f16 finds the f16 nearest to 0.1, as
//!   `x.equal(full(0.1))` and burn-flex do. Arithmetic in f16 and bf16 takes a scalar in f32, so
//!   `x / 70000` of f16 stays finite; burn-flex rounds the scalar to the dtype first.
//! - *`clamp`* ignores a NaN bound. So does Burn's definition, by masks of the elements below and
//!   above the bounds, and so do burn-ndarray and burn-flex's `clamp_min` and `clamp_max`.
//!   burn-flex's `clamp` panics, and libtorch's gives NaN. NaN elements stay NaN. If the lower
//!   bound exceeds the upper one, the upper one counts. An integer bound outside the dtype's range
//!   becomes the nearer end of that range.
//! - *`mean_dim`* along an axis without elements is [`RocmError::Invalid`]; burn-flex and
//!   burn-ndarray panic too. Burn computes `var` and related ops from `mean_dim`, and would turn a
//!   NaN mean into a variance of 0. `mean` of no elements is NaN, as in burn-flex.
//! - *`Distribution::Uniform`* over a range wider than the dtype's draws from the finite numbers of
//!   the dtype. Bounds that are not finite are [`RocmError::Invalid`]. Burn's CPU backends panic
//!   for both.

// Only the other version of Burn uses some ops. Its build still finds unused ones.
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
mod pinned;
mod qtensor;
mod scales;
mod staging;
mod tensor;
mod waiting;

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
