//! Burn's tensors in captured steps: see [`burn_rocm::graph`].
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::optim::GradientsParams;
//! use burn::tensor::{Device, Tensor};
//! # use burn_rocm_nn_022 as burn_rocm_nn;
//! use burn_rocm::{RocmDevice, graph::Graph};
//! use burn_rocm_nn::{graph, optim::AdamConfig};
//!
//! let device = Device::rocm(0).autodiff();
//! let mut model = Some(LinearConfig::new(3, 1).init(&device));
//! let mut optimizer = AdamConfig::new().init();
//! // Every replay reads its batch from this memory.
//! let batch = Tensor::<2>::ones([4, 3], &device);
//!
//! let (step, loss) = Graph::capture(&RocmDevice::new(0), || {
//!     let before = model.take().unwrap();
//!     let loss = before.forward(batch.clone()).powf_scalar(2.0).mean();
//!     let grads = GradientsParams::from_grads(loss.backward(), &before);
//!     model = Some(optimizer.step(1e-2, before, grads));
//!     loss.inner()
//! })?;
//! for number in 1..=3 {
//!     graph::write(&batch, Tensor::ones([4, 3], &device) * number)?;
//!     step.set_learning_rate(1e-2 / f64::from(number))?;
//!     step.replay()?;
//!     println!("{}", loss.clone().into_scalar::<f32>());
//! }
//! // The model's parameters are the trained ones.
//! assert_eq!(model.unwrap().weight.dims(), [3, 1]);
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```
//!
//! Burn 0.22 keeps Adam's count of steps itself, on the host, where captures and replays don't
//! count. While a graph lives, all steps of its parameters take the device's count. A saved record,
//! and steps after the graph was dropped, have the host's count.

use burn::tensor::{Bool, DType, Device, Int, Tensor};
use burn_rocm::{RocmError, graph};

use crate::fuse::{Route, rocm};

fn route(target: &Device, value: &Device) -> Result<Route, RocmError> {
    let elsewhere = |device: &Device| RocmError::Invalid {
        op: "graph::write",
        expected: "a tensor of burn-rocm".into(),
        found: format!("one on {device:?}"),
    };
    Route::on(value).ok_or_else(|| elsewhere(value))?;
    Route::on(target).ok_or_else(|| elsewhere(target))
}

/// Copies `value` into the memory of `target`, for the next replay to read. Clones of `target` see
/// the new elements too.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ, if the target is quantised, or if a tensor is not
/// on this project's device; an error of the device.
pub fn write<const D: usize>(target: &Tensor<D>, value: Tensor<D>) -> Result<(), RocmError> {
    route(&target.device(), &value.device())?;
    if let DType::QFloat(_) = target.dtype() {
        // It would be dequantised, and the copy written.
        let (expected, found) = ("a target that is not quantised".into(), format!("{:?}", target.dtype()));
        return Err(RocmError::Invalid { op: "graph::write", expected, found });
    }
    graph::write(&rocm(target.clone()), rocm(value))
}

/// [`write()`] for ints.
///
/// # Errors
/// As [`write()`].
pub fn write_int<const D: usize>(target: &Tensor<D, Int>, value: Tensor<D, Int>) -> Result<(), RocmError> {
    let route = route(&target.device(), &value.device())?;
    graph::write(&route.int(target.clone()), route.int(value))
}

/// [`write()`] for bools.
///
/// # Errors
/// As [`write()`].
pub fn write_bool<const D: usize>(target: &Tensor<D, Bool>, value: Tensor<D, Bool>) -> Result<(), RocmError> {
    let route = route(&target.device(), &value.device())?;
    graph::write(&route.bool(target.clone()), route.bool(value))
}
