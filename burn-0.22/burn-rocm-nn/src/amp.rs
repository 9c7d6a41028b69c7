//! Training in mixed precision: forward and backward pass in f16 or bf16, parameters and optimizer
//! states in f32 ([Micikevicius et al. 2017](https://arxiv.org/abs/1710.03740)).
//!
//! [`Mixed`] takes such a step in one call:
//!
//! ```
//! # use burn::nn::{Linear, LinearConfig};
//! # use burn::tensor::{FloatDType, Tensor};
//! # use burn_rocm_nn_022 as burn_rocm_nn;
//! # use burn_rocm_nn::amp::Mixed;
//! # use burn_rocm_nn::optim::AdamConfig;
//! # let (device, lr) = (burn::tensor::Device::rocm(0).autodiff(), 1e-3);
//! # let mut model: Linear = LinearConfig::new(4, 2).init(&device);
//! # let mut optimizer = AdamConfig::new().init();
//! # let inputs = Tensor::<2>::ones([3, 4], &device);
//! # let compute_loss = |model: &Linear| model.forward(inputs.clone().cast(FloatDType::BF16)).mean();
//! # let loss;
//! let mut mixed = Mixed::bf16(); // or `Mixed::f16()`, which scales the loss
//! (model, loss) = mixed.step(&mut optimizer, lr, model, |half| compute_loss(half));
//! # assert_eq!((model.weight.dims(), loss.dims()), ([4, 2], [1]));
//! ```
//!
//! Its parts, for loops that do more with the gradients:
//!
//! ```
//! # use burn::nn::{Linear, LinearConfig};
//! # use burn::optim::GradientsParams;
//! # use burn::tensor::{FloatDType, Tensor};
//! # use burn_rocm_nn_022 as burn_rocm_nn;
//! # use burn_rocm_nn::amp::{GradScalerConfig, Precision};
//! # use burn_rocm_nn::optim::AdamConfig;
//! # let (device, lr) = (burn::tensor::Device::rocm(0).autodiff(), 1e-3);
//! # let mut model: Linear = LinearConfig::new(4, 2).init(&device);
//! # let mut optimizer = AdamConfig::new().init();
//! # let inputs = Tensor::<2>::ones([3, 4], &device);
//! let mut scaler = GradScalerConfig::new().init();
//! // Each step: a copy of the f32 parameters, in f16.
//! let half = Precision::new(FloatDType::F16).convert(&model);
//! let output = half.forward(inputs.cast(FloatDType::F16));
//! let loss = output.cast(FloatDType::F32).mean();
//! let grads = GradientsParams::from_grads(scaler.scale(loss).backward(), &half);
//! // In f32, or not at all.
//! model = scaler.step(&mut optimizer, lr, model, grads);
//! # assert_eq!(model.weight.dims(), [4, 2]);
//! ```
//!
//! bf16 has f32's range and needs no scaler: `optimizer.step(lr, model, grads)` takes the gradients
//! of `loss.backward()`. The optimizers of this crate accept bf16 gradients as they are and compute
//! in the parameters' dtype.

#[path = "../../../burn-rocm/nn/src/amp/mixed.rs"]
mod mixed;
#[path = "../../../burn-rocm/nn/src/amp/names.rs"]
mod names;
#[path = "../../../burn-rocm/nn/src/amp/scaler.rs"]
mod scaler;

use std::collections::{BTreeSet, HashMap};

use burn::config::Config;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_rocm::fused::amp::{self, Growth, Scale};
use burn_rocm::fused::optim::unless;
use burn_rocm::{RocmTensor, graph, raise, trace};

use crate::divided::Divided;
use crate::fuse::{from_rocm, on_rocm, refuse, rocm, say_elsewhere};
use crate::ops::divided::{self, agreed};
use crate::optim::Optimize;
use crate::ties::Ties;
pub use mixed::Mixed;
use names::names;
pub(crate) use names::visit_layer;
pub use scaler::{GradScaler, GradScalerConfig};

/// The norms that a conversion leaves as they are.
const BATCH_NORMS: [&str; 2] = ["BatchNorm", "SyncBatchNorm"];

/// The dtypes of a converted module's parameters.
#[derive(Clone, Debug)]
pub struct Precision {
    dtype: FloatDType,
    kept: Vec<String>,
}

impl Precision {
    /// Converts all float parameters to `dtype`, except those of `BatchNorm` and `SyncBatchNorm`.
    pub fn new(dtype: FloatDType) -> Self {
        Self { dtype, kept: BATCH_NORMS.map(String::from).to_vec() }
    }

    /// Also leaves modules of this type, and everything in them, unconverted. `LinearAct` and
    /// `ConvAct` match their own names and those of the Burn layers that they replace.
    ///
    /// Burn's `BatchNorm` on this project's device and the norms of this crate accept an input of
    /// the converted dtype together with f32 parameters. For other kept modules the caller must
    /// cast the inputs to their dtype, and the outputs back.
    pub fn keep(mut self, module: &str) -> Self {
        self.kept.push(module.into());
        self
    }

    /// A copy of the module in this precision. Its parameters are new tensors but have the ids of
    /// the originals, so an optimizer applies their gradients to the originals. On this project's
    /// device one launch converts up to 165 parameters.
    ///
    /// The copy shares running statistics with the original. They keep their dtype, because a
    /// 16-bit float would round away what one batch adds to them.
    ///
    /// # Panics
    /// If no module in `module` has a name that was given to [`keep`](Self::keep). The error lists
    /// the names that exist. Modules without parameters are not among them.
    ///
    /// If a trained parameter is both inside a kept module and outside: it would need one gradient in
    /// two dtypes.
    pub fn convert<M: Module>(&self, module: &M) -> M {
        let mut all = Collect {
            kept: Kept::new(self),
            names: BTreeSet::new(),
            places: Vec::new(),
            values: Vec::new(),
            untrained: GradientsParams::new(),
        };
        let _op = trace::op("nn_convert", || "");
        module.visit(&mut all);
        let mut named = self.kept.iter().skip(BATCH_NORMS.len());
        if let Some(unknown) = named.find(|name| !all.names.contains(*name)) {
            let names: Vec<&str> = all.names.iter().map(String::as_str).collect();
            let expected = format!("a module of the model: {}", names.join(", "));
            refuse("Precision::keep", expected, unknown);
        }
        let mut ties = Ties::of(module);
        ties.retain(|place, first| {
            let (place, first) = (all.places[place], all.places[first]);
            if place.kept != first.kept && place.trained {
                let expected = "all places of a trained parameter inside kept modules, or all outside";
                refuse("Precision::convert", expected, "a parameter with places inside and outside");
            }
            place.kept == first.kept
        });
        // One tensor for all places of a leaf.
        let values = all.values.into_iter().filter(|(place, _)| ties.first(*place) == *place);
        let (places, tensors): (Vec<usize>, Vec<RocmTensor>) = values.unzip();
        let tensors = amp::cast_all(tensors, self.dtype.into()).unwrap_or_else(|error| raise(error));
        let mut convert = Convert {
            kept: Kept::new(self),
            dtype: self.dtype,
            place: 0,
            ties: &ties,
            converted: places.into_iter().zip(tensors).collect(),
        };
        let converted = module.clone().map(&mut convert);
        let converted = ties.restore(converted);
        if all.untrained.is_empty() {
            return converted;
        }
        let mut shared = Shared { place: 0, before: all.untrained, changed: GradientsParams::new() };
        module.visit(&mut shared);
        match shared.changed.is_empty() {
            true => converted,
            false => converted.map(&mut Restore { place: 0, before: shared.changed }),
        }
    }
}

/// Tracks whether the visitor is inside a kept module.
struct Kept<'a> {
    precision: &'a Precision,
    /// How many of the enclosing modules are kept.
    depth: usize,
}

impl<'a> Kept<'a> {
    fn new(precision: &'a Precision) -> Self {
        Self { precision, depth: 0 }
    }

    fn has(&self, container: &str) -> bool {
        names(container).any(|name| self.precision.kept.iter().any(|module| module == name))
    }

    fn enter(&mut self, container: &str) {
        self.depth += usize::from(self.has(container));
    }

    fn exit(&mut self, container: &str) {
        self.depth -= usize::from(self.has(container));
    }

    fn here(&self) -> bool {
        self.depth > 0
    }
}

/// Collects the parameters that are converted together.
struct Collect<'a> {
    kept: Kept<'a>,
    /// The names of all modules.
    names: BTreeSet<String>,
    places: Vec<Place>,
    /// The tensors that are converted, by their places.
    values: Vec<(usize, RocmTensor)>,
    /// Tensors without a gradient, by [`key`]: frozen parameters and running statistics that are to be
    /// converted. Read before the conversion, because several places may share one.
    untrained: GradientsParams,
}

/// The key of a place. Ids won't do: clones that were trained apart share one.
fn key(place: usize) -> ParamId {
    ParamId::from(place as u64)
}

/// What the conversion does to a float parameter, in the order of the module.
#[derive(Clone, Copy)]
struct Place {
    kept: bool,
    trained: bool,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, _: &str, container: &str) {
        for name in names(container) {
            if !self.names.contains(name) {
                self.names.insert(name.into());
            }
        }
        self.kept.enter(container);
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        self.kept.exit(container);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Burn initialises a parameter when its value is first used. Using it here, before the copy
        // is made, gives the copy the same values.
        let tensor = param.val();
        let place = self.places.len();
        self.places.push(Place { kept: self.kept.here(), trained: tensor.is_require_grad() });
        let device = tensor.device();
        if !on_rocm(&device) {
            say_elsewhere("Precision", &device);
        }
        if self.kept.here() {
            return;
        }
        if !tensor.is_require_grad() {
            self.untrained.register(key(place), tensor.clone().inner());
        }
        if on_rocm(&device) {
            self.values.push((place, rocm(tensor)));
        }
    }
}

struct Convert<'a> {
    kept: Kept<'a>,
    dtype: FloatDType,
    place: usize,
    ties: &'a Ties,
    /// By the first places of leaves.
    converted: HashMap<usize, RocmTensor>,
}

impl ModuleMapper for Convert<'_> {
    fn enter_module(&mut self, _: &str, container: &str) {
        self.kept.enter(container);
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        self.kept.exit(container);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let place = self.ties.first(self.place);
        self.place += 1;
        if self.kept.here() {
            return Param::from_mapped_value(id, tensor, mapper);
        }
        let converted = match self.converted.get(&place) {
            Some(converted) => from_rocm(converted.clone()),
            None => tensor.clone().inner().cast(self.dtype),
        };
        Param::from_mapped_value(id, in_place_of(&tensor, converted), mapper)
    }
}

/// Finds the tensors of the original that the conversion of the copy changed: running statistics,
/// which both share.
struct Shared {
    place: usize,
    before: GradientsParams,
    changed: GradientsParams,
}

impl ModuleVisitor for Shared {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let key = key(self.place);
        self.place += 1;
        if let Some(before) = self.before.remove::<D>(key)
            && before.dtype() != param.val().dtype()
        {
            self.changed.register(key, before);
        }
    }
}

/// Restores these tensors.
struct Restore {
    place: usize,
    before: GradientsParams,
}

impl ModuleMapper for Restore {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let before = self.before.remove::<D>(key(self.place));
        self.place += 1;
        let value = match before {
            Some(before) => in_place_of(&tensor, before),
            None => tensor,
        };
        Param::from_mapped_value(id, value, mapper)
    }
}

/// `value`, which is without autodiff, with the autodiff settings of the parameter that it
/// replaces.
pub(crate) fn in_place_of<const D: usize>(tensor: &Tensor<D>, value: Tensor<D>) -> Tensor<D> {
    match tensor.gradient_checkpointing_strategy() {
        None => value,
        Some(strategy) => {
            let value = Tensor::from_inner(value).with_gradient_checkpointing_strategy(strategy);
            value.set_require_grad(tensor.is_require_grad())
        }
    }
}

/// The state of a [`GradScaler`], to save with a checkpoint of model and optimizer: its methods
/// `save` and `load` are those of Burn's configs. It does not hold the settings, which come from the
/// config.
#[derive(Config, Debug, PartialEq)]
pub struct GradScalerRecord {
    /// The factor of the loss.
    pub scale: f32,
    /// Steps with finite gradients since the scale changed.
    pub finite: usize,
    /// The number of steps skipped so far.
    pub skipped: usize,
}

impl GradScaler {
    /// The loss times [`factor`](Self::factor), on which to call `backward`. The loss should be
    /// f32, so that the product does not overflow.
    pub fn scale<const D: usize>(&self, loss: Tensor<D>) -> Tensor<D> {
        let here = on_rocm(&loss.device());
        let device = || rocm(loss.clone()).rocm_device();
        let Some(scale) = here.then(|| self.on_device_of(device)).flatten() else {
            return loss.mul_scalar(self.scale);
        };
        let factor = from_rocm::<1>(scale.factor()).cast(loss.dtype());
        let factor = match loss.gradient_checkpointing_strategy() {
            None => factor,
            Some(strategy) => Tensor::from_inner(factor).with_gradient_checkpointing_strategy(strategy),
        };
        loss * factor.reshape([1; D])
    }

    /// Takes the optimizer's step with the gradients of a scaled loss. Each gradient is divided by
    /// the scale in f32 and cast to its parameter's dtype. If a gradient is infinite or NaN, the
    /// module and the optimizer's state stay as they are. Either way, the scale is then set for the
    /// next step.
    ///
    /// If layers are divided among ranks ([`parallel`](crate::parallel)), a rank has part of their
    /// gradients. Then all ranks of those groups skip a step in which one of them found an
    /// overflow, and all must call this.
    ///
    /// Waits for the device once in each step, to read whether a gradient overflowed. On this
    /// project's device up to 165 gradients share a launch.
    ///
    /// In a capture ([`burn_rocm::graph`]) the device decides and nothing waits. The optimizer must
    /// be one of this crate. From then on the model must be on one device.
    pub fn step<M: Module>(
        &mut self,
        optimizer: &mut impl Optimize,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: GradientsParams,
    ) -> M {
        if let Some(scale) = self.on_device() {
            return step_on_device(scale, self.growth(), optimizer, lr.into(), module, grads);
        }
        let (grads, is_finite) = unscale(&module, grads, 1.0 / self.scale);
        self.update(is_finite);
        if is_finite { optimizer.optimize(lr.into(), module, grads) } else { module }
    }
}

impl Mixed {
    /// Takes a step. `loss` computes the loss by the converted copy of `module`, whose inputs it
    /// casts to the copy's dtype. Returns the module after the step and the loss in f32, without the
    /// scale.
    ///
    /// The loss should be computed in f32, from outputs that are cast to it. The gradient of a loss
    /// in f16 is the scale itself, which f16 holds only below 65536.
    ///
    /// With a scaler, a step whose gradients overflowed changes neither the module nor the
    /// optimizer's state ([`GradScaler::step`]). [Graphs](burn_rocm::graph) can capture the step.
    ///
    /// # Panics
    /// As [`Precision::convert`], for a name given to [`keep`](Self::keep) that no module has.
    pub fn step<M: Module, const D: usize>(
        &mut self,
        optimizer: &mut impl Optimize,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        loss: impl FnOnce(&M) -> Tensor<D>,
    ) -> (M, Tensor<D>) {
        let half = self.precision.convert(&module);
        let loss = loss(&half);
        let loss = if is_half(loss.dtype()) { loss.cast(FloatDType::F32) } else { loss };
        let value = loss.clone().inner();
        let loss = match &self.scaler {
            Some(scaler) => scaler.scale(loss),
            None => loss,
        };
        let grads = GradientsParams::from_grads(loss.backward(), &half);
        // Its memory is free for the step, and kept modules share their parameters with it.
        drop(half);
        let module = match &mut self.scaler {
            Some(scaler) => scaler.step(optimizer, lr, module, grads),
            None => optimizer.optimize(lr.into(), module, grads),
        };
        (module, value)
    }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// The step with a scale in device memory. In a capture the device decides whether it is taken.
fn step_on_device<M: Module>(
    scale: &Scale,
    growth: Growth,
    optimizer: &mut impl Optimize,
    lr: ModuleLearningRate,
    module: M,
    grads: GradientsParams,
) -> M {
    let ties = Ties::of(&module);
    let mut take = Take::new(&ties, grads, 1.0);
    module.visit(&mut take);
    let op = trace::op("nn_unscale", || "");
    let groups = Divided::of(&module).groups;
    let unscaled = divided::unscale(scale, growth, &groups, take.fused);
    let (grads, flag) = unscaled.unwrap_or_else(|error| raise(error));
    let grads = take.ids.into_iter().zip(grads).collect();
    let mut give = Give { ties: &ties, grads, done: take.done };
    module.visit(&mut give);
    drop(op);
    if graph::is_capturing() {
        let stepped = unless(&flag, || optimizer.optimize(lr, module, give.done));
        stepped.unwrap_or_else(|error| raise(error))
    } else if amp::any_set(vec![flag.clone()]).unwrap_or_else(|error| raise(error)) {
        module
    } else {
        optimizer.optimize(lr, module, give.done)
    }
}

/// The gradients times `factor`, in their parameters' dtypes, and whether all are finite.
fn unscale<M: Module>(module: &M, grads: GradientsParams, factor: f32) -> (GradientsParams, bool) {
    let ties = Ties::of(module);
    let mut take = Take::new(&ties, grads, factor);
    module.visit(&mut take);
    let lost = take.lost.map(|lost| lost.into_scalar::<f32>());
    let is_finite = lost.is_none_or(|lost| !lost.is_nan());
    let groups = Divided::of(module).groups;
    if take.fused.is_empty() && groups.is_empty() {
        return (take.done, is_finite);
    }
    let _op = trace::op("nn_unscale", || "");
    let (grads, flags) = amp::unscale(take.fused, factor).unwrap_or_else(|error| raise(error));
    let grads = take.ids.into_iter().zip(grads).collect();
    let mut give = Give { ties: &ties, grads, done: take.done };
    module.visit(&mut give);
    let flags = agreed(&groups, flags).unwrap_or_else(|error| raise(error));
    let found = amp::any_set(flags).unwrap_or_else(|error| raise(error));
    (give.done, is_finite && !found)
}

/// Takes the gradients of the parameters visited. A frozen clone leaves the gradient to the trained
/// parameter, and the gradient gets that parameter's dtype.
struct Take<'a> {
    ties: &'a Ties,
    grads: GradientsParams,
    factor: f32,
    /// Gradients on this project's device, which are scaled together.
    fused: Vec<RocmTensor>,
    ids: Vec<ParamId>,
    /// On other devices: the gradients, scaled one by one, and a sum that is 0, or NaN if one of
    /// them is not finite.
    done: GradientsParams,
    lost: Option<Tensor<1>>,
}

impl<'a> Take<'a> {
    fn new(ties: &'a Ties, grads: GradientsParams, factor: f32) -> Self {
        let (fused, ids, done) = (Vec::new(), Vec::new(), GradientsParams::new());
        Self { ties, grads, factor, fused, ids, done, lost: None }
    }
}

impl ModuleVisitor for Take<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.ties.is_frozen_clone(param) {
            return;
        }
        let Some(grad) = self.grads.remove::<D>(param.id) else { return };
        let device = grad.device();
        if on_rocm(&device) {
            self.ids.push(param.id);
            self.fused.push(rocm(grad));
            return;
        }
        say_elsewhere("GradScaler", &device);
        let grad = grad.cast(wide(param.val().dtype())).mul_scalar(self.factor);
        // Infinity or NaN times 0 is NaN.
        let lost = grad.clone().mul_scalar(0.0).sum().cast(FloatDType::F32);
        self.lost = Some(match self.lost.take() {
            Some(before) => {
                let lost = lost.to_device(&before.device());
                before + lost
            }
            None => lost,
        });
        self.done.register(param.id, as_param(grad, param));
    }
}

/// Puts the scaled gradients into the optimizer's gradients.
struct Give<'a> {
    ties: &'a Ties,
    grads: HashMap<ParamId, RocmTensor>,
    done: GradientsParams,
}

impl ModuleVisitor for Give<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.ties.is_frozen_clone(param) {
            return;
        }
        if let Some(grad) = self.grads.remove(&param.id) {
            self.done.register(param.id, as_param(from_rocm::<D>(grad), param));
        }
    }
}

/// The dtype in which gradients of a parameter of this dtype are scaled.
fn wide(dtype: DType) -> FloatDType {
    if dtype == DType::F64 { FloatDType::F64 } else { FloatDType::F32 }
}

/// The gradient in its parameter's dtype.
fn as_param<const D: usize>(grad: Tensor<D>, param: &Param<Tensor<D>>) -> Tensor<D> {
    let dtype = param.val().dtype();
    if grad.dtype() == dtype { grad } else { grad.cast(dtype) }
}
