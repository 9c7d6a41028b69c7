//! Burn's tensors in captured steps: see [`burn_rocm::graph`].
//!
//! ```
//! use burn::backend::Autodiff;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{GradientsParams, Optimizer};
//! use burn::tensor::Tensor;
//! use burn_rocm::{Rocm, RocmDevice, graph::Graph};
//! use burn_rocm_nn::{graph, optim::AdamConfig};
//!
//! type B = Autodiff<Rocm>;
//! let device = RocmDevice::default();
//! let mut model: Option<Linear<B>> = Some(LinearConfig::new(3, 1).init(&device));
//! let mut optimizer = AdamConfig::new().init();
//! // Every replay reads its batch from this memory.
//! let batch = Tensor::<B, 2>::ones([4, 3], &device);
//!
//! let (step, loss) = Graph::capture(&device, || {
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
//!     println!("{}", loss.clone().into_scalar());
//! }
//! // The model's parameters are the trained ones.
//! assert_eq!(model.unwrap().weight.dims(), [3, 1]);
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```

use burn::tensor::backend::Backend;
use burn::tensor::{Bool, DType, Int, Tensor};
use burn_rocm::{RocmError, graph};

use crate::fuse::{Route, primitive};

fn route<B: Backend>() -> Result<Route<B>, RocmError> {
    let elsewhere = || RocmError::Invalid {
        op: "graph::write",
        expected: "a tensor of burn-rocm".into(),
        found: std::any::type_name::<B>().into(),
    };
    Route::of("graph::write").ok_or_else(elsewhere)
}

/// Copies `value` into the memory of `target`, for the next replay to read. Clones of `target` see
/// the new elements too.
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices differ, if the target is quantised, or if `B` is not this
/// project's backend; an error of the device.
pub fn write<B: Backend, const D: usize>(
    target: &Tensor<B, D>,
    value: Tensor<B, D>,
) -> Result<(), RocmError> {
    let route = route::<B>()?;
    if let DType::QFloat(_) = target.dtype() {
        // It would be dequantised, and the copy written.
        let (expected, found) = ("a target that is not quantised".into(), format!("{:?}", target.dtype()));
        return Err(RocmError::Invalid { op: "graph::write", expected, found });
    }
    graph::write(&route.inner(primitive(target.clone())), route.inner(primitive(value)))
}

/// [`write()`] for ints.
///
/// # Errors
/// As [`write()`].
pub fn write_int<B: Backend, const D: usize>(
    target: &Tensor<B, D, Int>,
    value: Tensor<B, D, Int>,
) -> Result<(), RocmError> {
    let route = route::<B>()?;
    graph::write(&route.int(target.clone()), route.int(value))
}

/// [`write()`] for bools.
///
/// # Errors
/// As [`write()`].
pub fn write_bool<B: Backend, const D: usize>(
    target: &Tensor<B, D, Bool>,
    value: Tensor<B, D, Bool>,
) -> Result<(), RocmError> {
    let route = route::<B>()?;
    graph::write(&route.bool(target.clone()), route.bool(value))
}
