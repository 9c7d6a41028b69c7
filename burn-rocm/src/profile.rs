//! Profiles of Burn's ops: which kernels and library calls computed each, how long they took on the
//! device, and what they moved.
//!
//! ```
//! use burn::tensor::Tensor;
//! use burn_rocm::profile::Detail;
//! use burn_rocm::{Rocm, RocmDevice, profile, region};
//!
//! let device = RocmDevice::default();
//! let step = || {
//!     let _forward = region("forward");
//!     let x = Tensor::<Rocm, 2>::ones([64, 64], &device);
//!     x.clone().matmul(x)
//! };
//! step(); // compiles the kernels
//! let (_, profile) = profile(step);
//! println!("{profile}");
//! let product = profile.rows(Detail::Op).into_iter().find(|row| &*row.op == "float_matmul");
//! assert_eq!(product.unwrap().calls, 1);
//! assert_eq!(&*profile.regions()[0].path, "forward");
//! ```

pub use hip::profile::{
    Correlator, Detail, DeviceTime, Profile, Region, RegionTime, Row, WorkKind, correlate, region, write,
};

use crate::waiting::enqueue_own;

/// As [`hip::profile()`]: runs `body` and profiles the work that all threads give to all devices
/// meanwhile.
///
/// Ops of Burn that this backend puts off are enqueued before the profile begins and before it
/// ends, so that each op of `body` counts, and no other.
pub fn profile<T>(body: impl FnOnce() -> T) -> (T, Profile) {
    // An error stays with the op's result, whose reads report it.
    let _ = enqueue_own();
    hip::profile(|| {
        let result = body();
        let _ = enqueue_own();
        result
    })
}

/// As [`hip::optimization_summary`]: runs `body`, and says which kernels and libraries computed all
/// threads' ops meanwhile, which ops shared a launch, and what fell back and why.
///
/// Ops of Burn that this backend puts off are enqueued before the summary begins and before it
/// ends, so that each op of `body` counts, and no other.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_rocm::{Rocm, RocmDevice, optimization_summary};
///
/// let device = RocmDevice::default();
/// let x = Tensor::<Rocm, 2>::ones([64, 64], &device);
/// let (_, summary) = optimization_summary(|| x.clone().matmul(x));
/// println!("{summary}");
/// let product = summary.of_op("float_matmul").next().unwrap();
/// assert_eq!(product.rocblas + product.kernels, 1);
/// ```
pub fn optimization_summary<T>(body: impl FnOnce() -> T) -> (T, hip::Summary) {
    // An error stays with the op's result, whose reads report it.
    let _ = enqueue_own();
    hip::optimization_summary(|| {
        let result = body();
        let _ = enqueue_own();
        result
    })
}
