//! Training steps ahead of time: see [`burn_rocm::warm_up()`].
//!
//! ```
//! use burn::backend::Autodiff;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{GradientsParams, Optimizer};
//! use burn::tensor::Tensor;
//! use burn_rocm::{Rocm, RocmDevice};
//! use burn_rocm_nn::optim::adaptor::OptimizerAdaptor;
//! use burn_rocm_nn::optim::{Adam, AdamConfig};
//! use burn_rocm_nn::warm_up;
//!
//! type B = Autodiff<Rocm>;
//! type Optim = OptimizerAdaptor<Adam, Linear<B>, B>;
//! let device = RocmDevice::default();
//! let model: Linear<B> = LinearConfig::new(3, 1).init(&device);
//! let optimizer: Optim = AdamConfig::new().init();
//!
//! // A batch of the usual size. Its elements don't matter.
//! let batch = Tensor::<B, 2>::ones([4, 3], &device);
//! let step = |model: Linear<B>, mut optimizer: Optim| {
//!     let loss = model.forward(batch.clone()).powf_scalar(2.0).mean();
//!     let grads = GradientsParams::from_grads(loss.backward(), &model);
//!     optimizer.step(1e-2, model, grads)
//! };
//! let before = model.weight.val().into_data();
//! warm_up(&RocmDevice::default(), &model, &optimizer, step)?;
//! assert_eq!(model.weight.val().into_data(), before);
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```

use burn::module::{AutodiffModule, ModuleMapper, Param};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Tensor};
use burn_rocm::{RocmDevice, RocmError, fused, raise};

use crate::fuse::{Route, primitive};

/// [`burn_rocm::warm_up()`] with a training step, which gets a copy of a model and of its optimizer
/// in each run. Afterwards the model's parameters and running statistics, the optimizer's state and
/// the random numbers are what they were. On GPUs, MIOpen chooses its algorithms earlier than
/// without a warm-up, so the first steps may differ in the last digits. With
/// [`deterministic`](burn_rocm::Config::deterministic) they are the same.
///
/// Several models, such as those of a GAN, are a tuple, and so are several optimizers, a
/// [`GradScaler`](crate::amp::GradScaler) or anything else that is [`Clone`] and that a step changes.
///
/// The copy of the model takes as much memory again as the parameters. Its floats are in memory of
/// their own, so that a step writes parameters in place as usual, also those that a graph replays.
/// It shares the ints, the bools and the quantised tensors of the model, and what a module keeps
/// outside of its parameters. A parameter that Burn has not initialised yet stays so: the copy
/// initialises one of its own.
///
/// Updates of running statistics that other threads have made are averaged now, as
/// `valid` does.
///
/// For a module without a gradient, call [`burn_rocm::warm_up()`]: inference changes nothing.
///
/// # Errors
/// Those of [`burn_rocm::warm_up()`], and `Invalid` if `B` is not this project's backend.
///
/// # Panics
/// As [`burn_rocm::warm_up()`].
pub fn warm_up<B, M, O, T>(
    device: &RocmDevice,
    model: &M,
    optimizer: &O,
    mut step: impl FnMut(M, O) -> T,
) -> Result<T, RocmError>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
    O: Clone,
{
    let elsewhere = || RocmError::Invalid {
        op: "warm_up",
        expected: "a module of burn-rocm".into(),
        found: std::any::type_name::<B>().into(),
    };
    let route = Route::<B>::of("warm_up").ok_or_else(elsewhere)?;
    burn_rocm::warm_up(device, || {
        // Clones share their running statistics, and `from_inner` makes new ones. `valid` of the
        // model itself would initialise its parameters.
        let own = M::from_inner(model.clone().valid()).map(&mut Apart(&route));
        step(own, optimizer.clone())
    })
}

/// Copies float tensors to memory of their own.
struct Apart<'a, B>(&'a Route<B>);

impl<B: AutodiffBackend> ModuleMapper<B> for Apart<'_, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        if matches!(tensor.dtype(), DType::QFloat(_)) {
            return Param::from_mapped_value(id, tensor, mapper);
        }
        let is_require_grad = tensor.is_require_grad();
        let own = fused::copied(&self.0.inner(primitive(tensor))).unwrap_or_else(|error| raise(error));
        Param::from_mapped_value(id, self.0.constant(own).set_require_grad(is_require_grad), mapper)
    }
}
