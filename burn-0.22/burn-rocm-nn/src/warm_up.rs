//! Training steps ahead of time: see [`burn_rocm::warm_up()`].
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::GradientsParams;
//! use burn::tensor::{Device, Tensor};
//! # use burn_rocm_nn_022 as burn_rocm_nn;
//! use burn_rocm::RocmDevice;
//! use burn_rocm_nn::optim::{AdamConfig, ModuleOptimizer};
//! use burn_rocm_nn::warm_up;
//!
//! let device = Device::rocm(0).autodiff();
//! let model = LinearConfig::new(3, 1).init(&device);
//! let optimizer = AdamConfig::new().init();
//!
//! // A batch of the usual size. Its elements don't matter.
//! let batch = Tensor::<2>::ones([4, 3], &device);
//! let step = |model: Linear, mut optimizer: ModuleOptimizer| {
//!     let loss = model.forward(batch.clone()).powf_scalar(2.0).mean();
//!     let grads = GradientsParams::from_grads(loss.backward(), &model);
//!     optimizer.step(1e-2, model, grads)
//! };
//! let before = model.weight.val().into_data();
//! warm_up(&RocmDevice::default(), &model, &optimizer, step)?;
//! assert_eq!(model.weight.val().into_data(), before);
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```

use std::collections::HashMap;

use burn::backend::GradientCheckpointingStrategy;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType, Int, Tensor};
use burn_rocm::{RocmDevice, RocmError, fused, raise};

use crate::fuse::{from_rocm, on_rocm, refuse, rocm};

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
/// outside of its parameters. Parameters that Burn has not initialised yet are initialised first,
/// in the order of the module's fields.
///
/// Updates of running statistics that other threads have made are averaged now, as
/// `valid` does.
///
/// For a module without a gradient, call [`burn_rocm::warm_up()`]: inference changes nothing.
///
/// # Errors
/// Those of [`burn_rocm::warm_up()`], and `Invalid` if a parameter is not on this project's device.
///
/// # Panics
/// As [`burn_rocm::warm_up()`].
pub fn warm_up<M, O, T>(
    device: &RocmDevice,
    model: &M,
    optimizer: &O,
    mut step: impl FnMut(M, O) -> T,
) -> Result<T, RocmError>
where
    M: Module,
    O: Clone,
{
    // Initialises the parameters, which would otherwise draw their values in the warm-up: clones
    // are initialised together.
    let mut apart = Apart(HashMap::new());
    model.visit(&mut apart);
    burn_rocm::warm_up(device, || {
        // Clones share their running statistics. `valid` and `train` make new ones.
        step(model.valid().train().map(&mut apart), optimizer.clone())
    })
}

/// Copies float tensors to memory of their own. Gives all tensors back the checkpointing strategies
/// of the original, which `valid` drops.
struct Apart(HashMap<ParamId, Option<GradientCheckpointingStrategy>>);

impl Apart {
    /// The strategy of the parameter. `None` without autodiff.
    fn of(&self, id: ParamId) -> Option<GradientCheckpointingStrategy> {
        self.0.get(&id).copied().flatten()
    }
}

impl ModuleVisitor for Apart {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.insert(param.id, param.base().gradient_checkpointing_strategy());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.insert(param.id, param.base().gradient_checkpointing_strategy());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.insert(param.id, param.base().gradient_checkpointing_strategy());
    }
}

impl ModuleMapper for Apart {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let device = tensor.device();
        if !on_rocm(&device) {
            refuse("warm_up", "a module on this project's device", format!("a parameter on {device:?}"));
        }
        let is_require_grad = tensor.is_require_grad();
        let own = match tensor.dtype() {
            DType::QFloat(_) => tensor.inner(),
            _ => from_rocm(fused::copied(&rocm(tensor)).unwrap_or_else(|error| raise(error))),
        };
        let own = match self.of(id) {
            Some(strategy) => Tensor::from_inner(own).with_gradient_checkpointing_strategy(strategy),
            None => own,
        };
        Param::from_mapped_value(id, own.set_require_grad(is_require_grad), mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let strategy = self.of(param.id);
        param.map(|tensor| match strategy {
            Some(strategy) => Tensor::from_inner(tensor).with_gradient_checkpointing_strategy(strategy),
            None => tensor.inner(),
        })
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let strategy = self.of(param.id);
        param.map(|tensor| match strategy {
            Some(strategy) => Tensor::from_inner(tensor).with_gradient_checkpointing_strategy(strategy),
            None => tensor.inner(),
        })
    }
}
