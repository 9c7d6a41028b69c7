//! Training in mixed precision: forward and backward pass in f16 or bf16, parameters and optimizer
//! states in f32 ([Micikevicius et al. 2017](https://arxiv.org/abs/1710.03740)).
//!
//! [`Mixed`] takes such a step in one call:
//!
//! ```
//! # use burn::backend::Autodiff;
//! # use burn::nn::{Linear, LinearConfig};
//! # use burn::tensor::{FloatDType, Tensor};
//! # use burn_rocm::Rocm;
//! # use burn_rocm_nn::amp::Mixed;
//! # use burn_rocm_nn::optim::AdamConfig;
//! # type B = Autodiff<Rocm>;
//! # let (device, lr) = (Default::default(), 1e-3);
//! # let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
//! # let mut optimizer = AdamConfig::new().init();
//! # let inputs = Tensor::<B, 2>::ones([3, 4], &device);
//! # let compute_loss = |model: &Linear<B>| model.forward(inputs.clone().cast(FloatDType::BF16)).mean();
//! # let loss;
//! let mut mixed = Mixed::bf16(); // or `Mixed::f16()`, which scales the loss
//! (model, loss) = mixed.step(&mut optimizer, lr, model, |half| compute_loss(half));
//! # assert_eq!((model.weight.dims(), loss.dims()), ([4, 2], [1]));
//! ```
//!
//! Its parts, for loops that do more with the gradients:
//!
//! ```
//! # use burn::backend::Autodiff;
//! # use burn::nn::{Linear, LinearConfig};
//! # use burn::optim::{GradientsParams, Optimizer};
//! # use burn::tensor::{FloatDType, Tensor};
//! # use burn_rocm::Rocm;
//! # use burn_rocm_nn::amp::{GradScalerConfig, Precision};
//! # use burn_rocm_nn::optim::AdamConfig;
//! # type B = Autodiff<Rocm>;
//! # let (device, lr) = (Default::default(), 1e-3);
//! # let mut model: Linear<B> = LinearConfig::new(4, 2).init(&device);
//! # let mut optimizer = AdamConfig::new().init();
//! # let inputs = Tensor::<B, 2>::ones([3, 4], &device);
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

mod mixed;
mod names;
mod scaler;

use std::collections::{BTreeSet, HashMap};

use burn::module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, LearningRate, Optimizer};
use burn::record::Record;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_rocm::fused::amp::{self, Growth, Scale};
use burn_rocm::fused::optim::unless;
use burn_rocm::{RocmTensor, graph, raise, trace};

use crate::divided::Divided;
use crate::fuse::{Route, from_rocm, is_rocm, refuse, rocm, say_elsewhere};
use crate::ops::divided::{self, agreed};
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
    /// Whether batch norms keep their dtype too.
    batch_norm: bool,
}

impl Precision {
    /// Converts all float parameters to `dtype`, except those of `BatchNorm` and `SyncBatchNorm`.
    pub fn new(dtype: FloatDType) -> Self {
        Self { dtype, kept: vec![], batch_norm: true }
    }

    /// Also leaves modules of this type, and everything in them, unconverted. `LinearAct` and
    /// `ConvAct` match their own names and those of the Burn layers that they replace.
    ///
    /// The norms of this crate accept an input of the converted dtype together with f32 parameters.
    /// For other kept modules the caller must cast the inputs to their dtype, and the outputs back.
    pub fn keep(mut self, module: &str) -> Self {
        self.kept.push(module.into());
        self
    }

    /// Converts the parameters of all modules, including batch norms. Running statistics stay f32.
    /// Burn's own `BatchNorm` fails on such a mix, but this crate's does not.
    pub fn keep_none(mut self) -> Self {
        self.kept.clear();
        self.batch_norm = false;
        self
    }

    /// A copy of the module in this precision. Its parameters are new tensors but have the ids of
    /// the originals, so an optimizer applies their gradients to the originals. On
    /// [`Rocm`](burn_rocm::Rocm) one launch converts up to 165 parameters.
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
    pub fn convert<B: AutodiffBackend, M: AutodiffModule<B>>(&self, module: &M) -> M {
        let mut all = Collect {
            kept: Kept::new(self),
            names: BTreeSet::new(),
            places: Vec::new(),
            values: Vec::new(),
            untrained: GradientsParams::new(),
        };
        let _op = trace::op("nn_convert", || "");
        if !is_rocm::<B::InnerBackend>() {
            say_elsewhere::<B>("Precision");
        }
        module.visit(&mut all);
        if let Some(unknown) = self.kept.iter().find(|name| !all.names.contains(*name)) {
            let names: Vec<&str> = all.names.iter().map(String::as_str).collect();
            let expected = format!("a module of the model: {}", names.join(", "));
            refuse("Precision::keep", expected, unknown);
        }
        let mut ties = Ties::of::<B>(module);
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
        let converted = ties.restore::<B, M>(converted);
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
        let Precision { kept, batch_norm, .. } = self.precision;
        let by_default = |name| *batch_norm && BATCH_NORMS.contains(&name);
        names(container).any(|name| by_default(name) || kept.iter().any(|module| module == name))
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

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_> {
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

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        // Burn initialises a parameter when its value is first used. Using it here, before the copy
        // is made, gives the copy the same values.
        let tensor = param.val();
        let place = self.places.len();
        self.places.push(Place { kept: self.kept.here(), trained: tensor.is_require_grad() });
        if self.kept.here() {
            return;
        }
        if !tensor.is_require_grad() {
            self.untrained.register(key(place), tensor.clone().inner());
        }
        if is_rocm::<B::InnerBackend>() {
            self.values.push((place, rocm(tensor.inner())));
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

impl<B: AutodiffBackend> ModuleMapper<B> for Convert<'_> {
    fn enter_module(&mut self, _: &str, container: &str) {
        self.kept.enter(container);
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        self.kept.exit(container);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let place = self.ties.first(self.place);
        self.place += 1;
        if self.kept.here() {
            return Param::from_mapped_value(id, tensor, mapper);
        }
        let is_require_grad = tensor.is_require_grad();
        let tensor = match self.converted.get(&place) {
            Some(converted) => from_rocm(converted.clone()),
            None => tensor.inner().cast(self.dtype),
        };
        let tensor = Tensor::from_inner(tensor).set_require_grad(is_require_grad);
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Finds the tensors of the original that the conversion of the copy changed: running statistics,
/// which both share.
struct Shared {
    place: usize,
    before: GradientsParams,
    changed: GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Shared {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let key = key(self.place);
        self.place += 1;
        if let Some(before) = self.before.remove::<B::InnerBackend, D>(key)
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

impl<B: AutodiffBackend> ModuleMapper<B> for Restore {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let before = self.before.remove::<B::InnerBackend, D>(key(self.place));
        self.place += 1;
        Param::from_mapped_value(id, before.map_or(tensor, Tensor::from_inner), mapper)
    }
}

/// The state of a [`GradScaler`], to save with a checkpoint of model and optimizer. It does not
/// hold the settings, which come from the config.
#[derive(Record, Clone, Debug, PartialEq)]
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
    pub fn scale<B: AutodiffBackend, const D: usize>(&self, loss: Tensor<B, D>) -> Tensor<B, D> {
        let route = Route::<B>::of("GradScaler");
        let Some(scale) = route.and_then(|route| self.on_device_of(|| route.device(&loss.device()))) else {
            return loss.mul_scalar(self.scale);
        };
        let factor: Tensor<B::InnerBackend, 1> = from_rocm(scale.factor());
        let factor = Tensor::from_inner(factor.cast(loss.dtype())).reshape([1; D]);
        loss * factor
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
    /// Waits for the device once in each step, to read whether a gradient overflowed. On
    /// [`Rocm`](burn_rocm::Rocm) up to 165 gradients share a launch.
    ///
    /// In a capture ([`burn_rocm::graph`]) the device decides and nothing waits. The optimizer must
    /// be one of this crate. From then on the model must be on one device.
    pub fn step<B: AutodiffBackend, M: AutodiffModule<B>, O: Optimizer<M, B>>(
        &mut self,
        optimizer: &mut O,
        lr: LearningRate,
        module: M,
        grads: GradientsParams,
    ) -> M {
        if let Some(scale) = self.on_device() {
            return step_on_device(scale, self.growth(), optimizer, lr, module, grads);
        }
        let (grads, is_finite) = unscale::<B, M>(&module, grads, 1.0 / self.scale);
        self.update(is_finite);
        if is_finite { optimizer.step(lr, module, grads) } else { module }
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
    pub fn step<B: AutodiffBackend, M: AutodiffModule<B>, O: Optimizer<M, B>, const D: usize>(
        &mut self,
        optimizer: &mut O,
        lr: LearningRate,
        module: M,
        loss: impl FnOnce(&M) -> Tensor<B, D>,
    ) -> (M, Tensor<B::InnerBackend, D>) {
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
            None => optimizer.step(lr, module, grads),
        };
        (module, value)
    }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// The step with a scale in device memory. In a capture the device decides whether it is taken.
fn step_on_device<B: AutodiffBackend, M: AutodiffModule<B>, O: Optimizer<M, B>>(
    scale: &Scale,
    growth: Growth,
    optimizer: &mut O,
    lr: LearningRate,
    module: M,
    grads: GradientsParams,
) -> M {
    let ties = Ties::of::<B>(&module);
    let mut take = Take::new(&ties, grads, 1.0);
    module.visit(&mut take);
    let op = trace::op("nn_unscale", || "");
    let groups = Divided::of::<B>(&module).groups;
    let unscaled = divided::unscale(scale, growth, &groups, take.fused);
    let (grads, flag) = unscaled.unwrap_or_else(|error| raise(error));
    let grads = take.ids.into_iter().zip(grads).collect();
    let mut give = Give { ties: &ties, grads, done: GradientsParams::new() };
    module.visit(&mut give);
    drop(op);
    if graph::is_capturing() {
        let stepped = unless(&flag, || optimizer.step(lr, module, give.done));
        stepped.unwrap_or_else(|error| raise(error))
    } else if amp::any_set(vec![flag.clone()]).unwrap_or_else(|error| raise(error)) {
        module
    } else {
        optimizer.step(lr, module, give.done)
    }
}

/// The gradients times `factor`, in their parameters' dtypes, and whether all are finite.
fn unscale<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: GradientsParams,
    factor: f32,
) -> (GradientsParams, bool) {
    let ties = Ties::of::<B>(module);
    let mut take = Take::<B>::new(&ties, grads, factor);
    module.visit(&mut take);
    if !is_rocm::<B::InnerBackend>() {
        say_elsewhere::<B>("GradScaler");
        let lost = take.lost.map(|lost: Tensor<B::InnerBackend, 1>| lost.into_scalar());
        let is_finite = lost.is_none_or(|lost| !burn::tensor::ElementConversion::elem::<f64>(lost).is_nan());
        return (take.done, is_finite);
    }
    let _op = trace::op("nn_unscale", || "");
    let (grads, flags) = amp::unscale(take.fused, factor).unwrap_or_else(|error| raise(error));
    let grads = take.ids.into_iter().zip(grads).collect();
    let mut give = Give { ties: &ties, grads, done: GradientsParams::new() };
    module.visit(&mut give);
    let groups = Divided::of::<B>(module).groups;
    let flags = agreed(&groups, flags).unwrap_or_else(|error| raise(error));
    let found = amp::any_set(flags).unwrap_or_else(|error| raise(error));
    (give.done, !found)
}

/// Takes the gradients of the parameters visited. A frozen clone leaves the gradient to the trained
/// parameter, and the gradient gets that parameter's dtype.
struct Take<'a, B: AutodiffBackend> {
    ties: &'a Ties,
    grads: GradientsParams,
    factor: f32,
    /// Gradients that are scaled together.
    fused: Vec<RocmTensor>,
    ids: Vec<ParamId>,
    /// On other backends: the gradients, scaled one by one, and a sum that is 0, or NaN if one of
    /// them is not finite.
    done: GradientsParams,
    lost: Option<Tensor<B::InnerBackend, 1>>,
}

impl<'a, B: AutodiffBackend> Take<'a, B> {
    fn new(ties: &'a Ties, grads: GradientsParams, factor: f32) -> Self {
        let (fused, ids, done) = (Vec::new(), Vec::new(), GradientsParams::new());
        Self { ties, grads, factor, fused, ids, done, lost: None }
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Take<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.ties.is_frozen_clone(param) {
            return;
        }
        let Some(grad) = self.grads.remove::<B::InnerBackend, D>(param.id) else { return };
        if is_rocm::<B::InnerBackend>() {
            self.ids.push(param.id);
            self.fused.push(rocm(grad));
            return;
        }
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

impl<B: AutodiffBackend> ModuleVisitor<B> for Give<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.ties.is_frozen_clone(param) {
            return;
        }
        if let Some(grad) = self.grads.remove(&param.id) {
            let grad: Tensor<B::InnerBackend, D> = from_rocm(grad);
            self.done.register(param.id, as_param(grad, param));
        }
    }
}

/// The dtype in which gradients of a parameter of this dtype are scaled.
fn wide(dtype: DType) -> FloatDType {
    if dtype == DType::F64 { FloatDType::F64 } else { FloatDType::F32 }
}

/// The gradient in its parameter's dtype.
fn as_param<B: AutodiffBackend, const D: usize>(
    grad: Tensor<B::InnerBackend, D>,
    param: &Param<Tensor<B, D>>,
) -> Tensor<B::InnerBackend, D> {
    let dtype = param.val().dtype();
    if grad.dtype() == dtype { grad } else { grad.cast(dtype) }
}
