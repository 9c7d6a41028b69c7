//! The optimizer of a module.

use burn::grad_clipping::{GradientClipping, GradientClippingConfig};
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ParamGroup};
use burn::optim::{self, DynOptimizer, GradientsParams, MultiGradientsParams, Optimizer, OptimizerRecord};
use burn::store::RecordError;
use burn::tensor::Bytes;
use burn_rocm::raise;

use super::gather::Gathering;
use crate::ties::Ties;

/// Updates a module's parameters. Replaces [`burn::optim::ModuleOptimizer`] and has the same record.
///
/// On this project's device the parameters share launches. On other devices Burn's optimizers run.
/// Gradients may be of a narrower float type than their parameters, as in a model that
/// [`amp`](crate::amp) converted. On this project's device kernels read f16 and bf16 gradients of
/// f32 parameters as they are; all others are cast first.
///
/// If a parameter has frozen clones in the module, its gradient updates the trained one.
///
/// If a step fails on the device, the step panics with the error and the optimizer loses its
/// states.
#[derive(Clone)]
pub struct ModuleOptimizer {
    burn: optim::ModuleOptimizer,
    /// Whether the fused step clips the gradients of the first group, rather than the group's
    /// optimizer.
    fuses_clipping: bool,
    /// The clipping for the fused step.
    clipping: Option<GradientClipping>,
}

impl<O: Optimizer> From<O> for ModuleOptimizer {
    fn from(optim: O) -> Self {
        Self::from_burn(optim.into())
    }
}

impl From<ModuleOptimizer> for optim::ModuleOptimizer {
    fn from(optim: ModuleOptimizer) -> Self {
        match optim.clipping {
            // Burn's state of a parameter keeps the clipping with which it began, here none. A record that
            // is loaded gets the present one.
            Some(clipping) => {
                let record = optim.burn.to_record();
                optim.burn.with_grad_clipping(clipping).load_record(record)
            }
            None => optim.burn,
        }
    }
}

impl ModuleOptimizer {
    /// The optimizer for a config. `optim` leaves its clipping to the fused step.
    pub(super) fn fused(optim: impl Optimizer, clipping: Option<&GradientClippingConfig>) -> Self {
        let clipping = clipping.map(GradientClippingConfig::init);
        Self { burn: optim.into(), fuses_clipping: true, clipping }
    }

    /// Burn's optimizer, whose step is taken as by [`step`].
    pub fn from_burn(burn: optim::ModuleOptimizer) -> Self {
        Self { burn, fuses_clipping: false, clipping: None }
    }

    /// Whether a group's gradients are clipped.
    pub fn has_gradient_clipping(&self) -> bool {
        self.clipping.is_some() || self.burn.has_gradient_clipping()
    }

    /// How the gradients of the first group are clipped.
    pub fn grad_clipping(&self) -> Option<&GradientClipping> {
        self.clipping.as_ref().or_else(|| self.burn.grad_clipping())
    }

    /// The optimizer with clipped gradients in the first group: each element to a value, or each
    /// parameter's gradient to a norm.
    pub fn with_grad_clipping(self, gradient_clipping: GradientClipping) -> Self {
        match self.fuses_clipping {
            true => Self { clipping: Some(gradient_clipping), ..self },
            false => Self { burn: self.burn.with_grad_clipping(gradient_clipping), ..self },
        }
    }

    /// The optimizer with another optimizer for the parameters of a group, as
    /// [`burn::optim::ModuleOptimizer::with_group`] describes it.
    pub fn with_group<O>(self, group: ParamGroup, optim: O, grad_clipping: Option<GradientClipping>) -> Self
    where
        O: DynOptimizer + 'static,
    {
        Self { burn: self.burn.with_group(group, optim, grad_clipping), ..self }
    }

    /// Updates the module's parameters with these gradients.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: GradientsParams,
    ) -> M {
        together(&mut self.burn, self.clipping.clone(), module, |burn, module| burn.step(lr, module, grads))
    }

    /// [`step`](Self::step) with the sums of gradients from several devices.
    pub fn step_multi<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: MultiGradientsParams,
    ) -> M {
        let step = |burn: &mut optim::ModuleOptimizer, module| burn.step_multi(lr, module, grads);
        together(&mut self.burn, self.clipping.clone(), module, step)
    }

    /// The states, for saving. Their format is that of Burn's optimizers.
    pub fn to_record(&self) -> OptimizerRecord {
        self.burn.to_record()
    }

    /// The optimizer with the states of a record, of this crate's optimizer or of Burn's.
    pub fn load_record(self, record: OptimizerRecord) -> Self {
        Self { burn: self.burn.load_record(record), ..self }
    }

    /// The states in Burn's file format.
    ///
    /// # Errors
    /// As [`OptimizerRecord::into_bytes`].
    pub fn into_bytes(&self) -> Result<Bytes, RecordError> {
        self.burn.into_bytes()
    }

    /// The optimizer with the states of [`into_bytes`](Self::into_bytes).
    ///
    /// # Errors
    /// As [`OptimizerRecord::from_bytes`].
    pub fn from_bytes(self, bytes: Bytes) -> Result<Self, RecordError> {
        Ok(Self { burn: self.burn.from_bytes(bytes)?, ..self })
    }

    /// Saves the states to a file.
    ///
    /// # Errors
    /// As [`OptimizerRecord::save`].
    pub fn save<P: AsRef<std::path::Path>>(&self, path: P) -> Result<(), RecordError> {
        self.burn.save(path)
    }

    /// The optimizer with the states of a file.
    ///
    /// # Errors
    /// As [`OptimizerRecord::load`].
    pub fn load<P: AsRef<std::path::Path>>(self, path: P) -> Result<Self, RecordError> {
        Ok(Self { burn: self.burn.load(path)?, ..self })
    }
}

/// The step of Burn's `ModuleOptimizer`. Parameters share launches if their optimizers come from
/// this crate.
///
/// ```
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::optim::GradientsParams;
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0).autodiff();
/// use burn_rocm_nn::optim::{self, AdamConfig};
///
/// let model = LinearConfig::new(4, 2).init(&device);
/// let mut optimizer: burn::optim::ModuleOptimizer = AdamConfig::new().init().into();
/// let loss = model.forward(Tensor::<2>::ones([3, 4], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// let model: Linear = optim::step(&mut optimizer, 1e-3, model, grads);
/// assert_eq!(model.weight.dims(), [4, 2]);
/// ```
pub fn step<M: Module>(
    optim: &mut optim::ModuleOptimizer,
    lr: impl Into<ModuleLearningRate>,
    module: M,
    grads: GradientsParams,
) -> M {
    together(optim, None, module, |optim, module| optim.step(lr, module, grads))
}

fn together<M: Module>(
    optim: &mut optim::ModuleOptimizer,
    clipping: Option<GradientClipping>,
    module: M,
    step: impl FnOnce(&mut optim::ModuleOptimizer, M) -> M,
) -> M {
    let ties = Ties::of(&module);
    let gathering = Gathering::begin(clipping);
    let module = step(optim, ties.release(module));
    if let Err(error) = gathering.run() {
        *optim = optim.clone().load_record(OptimizerRecord::default());
        raise(error);
    }
    ties.restore(module)
}

/// An optimizer of modules: this crate's or Burn's.
pub trait Optimize {
    /// Updates the module's parameters with these gradients.
    fn optimize<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M;
}

impl Optimize for ModuleOptimizer {
    fn optimize<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.step(lr, module, grads)
    }
}

impl Optimize for optim::ModuleOptimizer {
    fn optimize<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        step(self, lr, module, grads)
    }
}
