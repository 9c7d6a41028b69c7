//! The optimizer of a module, built from an update rule.

use std::marker::PhantomData;

use burn::grad_clipping::{GradientClipping, GradientClippingConfig};
use burn::module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId};
pub use burn::optim::adaptor::GradAdaptor;
use burn::optim::adaptor::OptimizerAdaptor as BurnAdaptor;
use burn::optim::record::AdaptorRecord;
use burn::optim::{GradientsParams, LearningRate, MultiGradientsParams, Optimizer, SimpleOptimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm::fused::optim::{Clip, Rule, State, Step};
use burn_rocm::{RocmError, raise, trace};
use std::collections::HashMap;

use crate::fuse::{from_rocm, is_rocm, refuse, rocm, say_elsewhere};
use crate::ties::Ties;

/// An update rule with a fused step, and Burn's optimizer that it replaces.
pub trait Rules<B: Backend>: Clone + Send + Sync {
    /// The optimizer's name in the log.
    const NAME: &'static str;

    /// Burn's optimizer, whose record this optimizer shares.
    type Burn: SimpleOptimizer<B>;

    /// Burn's optimizer with the same settings.
    fn burn(&self) -> Self::Burn;

    /// The rule at this learning rate.
    fn rule(&self, lr: LearningRate) -> Rule;

    /// Converts Burn's state to this crate's.
    fn keep<const D: usize>(state: <Self::Burn as SimpleOptimizer<B>>::State<D>, device: &B::Device)
    -> State;

    /// Converts this crate's state to Burn's.
    fn give<const D: usize>(state: State) -> <Self::Burn as SimpleOptimizer<B>>::State<D>;
}

/// Updates a module's parameters. Replaces [`burn::optim::adaptor::OptimizerAdaptor`] and has the
/// same record.
///
/// On [`Rocm`](burn_rocm::Rocm) under autodiff the parameters share launches. On other backends
/// Burn's optimizer runs. Gradients may be of a narrower float type than their parameters, as in a
/// model that [`amp`](crate::amp) converted. On [`Rocm`](burn_rocm::Rocm) kernels read f16 and bf16
/// gradients of f32 parameters as they are; all others are cast first.
///
/// If a parameter has frozen clones in the module, its gradient updates the trained one on
/// [`Rocm`](burn_rocm::Rocm). Burn's optimizer updates the one that the module lists first.
#[derive(Clone)]
pub struct OptimizerAdaptor<O, M, B>
where
    O: Rules<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    rules: O,
    /// The state of each parameter. Empty on other backends.
    states: HashMap<ParamId, Held<O, B>>,
    /// On other backends, takes the steps. On this project's backend, only holds the gradient
    /// clipping.
    burn: BurnAdaptor<O::Burn, M, B>,
    module: PhantomData<M>,
}

/// The state of a parameter between steps.
#[expect(clippy::large_enum_variant, reason = "nearly all are `Kept`")]
enum Held<O: Rules<B::InnerBackend>, B: AutodiffBackend> {
    /// A loaded record of a parameter that no step has reached yet.
    Loaded(AdaptorRecord<O::Burn, B>),
    /// The state after a step, of a parameter of this rank.
    Kept { rank: usize, state: State },
}

impl<O: Rules<B::InnerBackend>, B: AutodiffBackend> Clone for Held<O, B> {
    fn clone(&self) -> Self {
        match self {
            Self::Loaded(record) => Self::Loaded(record.clone()),
            Self::Kept { rank, state } => Self::Kept { rank: *rank, state: state.clone() },
        }
    }
}

impl<O, M, B> From<O> for OptimizerAdaptor<O, M, B>
where
    O: Rules<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    fn from(rules: O) -> Self {
        let burn = BurnAdaptor::from(rules.burn());
        Self { rules, states: HashMap::new(), burn, module: PhantomData }
    }
}

impl<O, M, B> OptimizerAdaptor<O, M, B>
where
    O: Rules<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    /// The optimizer of these rules, with gradients clipped as configured.
    pub(super) fn clipped(rules: O, clipping: Option<&GradientClippingConfig>) -> Self {
        let adaptor = Self::from(rules);
        match clipping {
            Some(config) => adaptor.with_grad_clipping(config.init()),
            None => adaptor,
        }
    }

    /// The update rule.
    pub fn optim(&self) -> &O {
        &self.rules
    }

    /// Whether gradients are clipped.
    pub fn has_gradient_clipping(&self) -> bool {
        self.burn.has_gradient_clipping()
    }

    /// How gradients are clipped.
    pub fn grad_clipping(&self) -> Option<&GradientClipping> {
        self.burn.grad_clipping()
    }

    /// The optimizer with clipped gradients: each element to a value, or each parameter's gradient
    /// to a norm.
    pub fn with_grad_clipping(self, gradient_clipping: GradientClipping) -> Self {
        Self { burn: self.burn.with_grad_clipping(gradient_clipping), ..self }
    }

    fn fused(&mut self, lr: LearningRate, module: M, grads: GradAdaptor) -> M {
        let clip = match self.burn.grad_clipping() {
            None => Clip::None,
            Some(GradientClipping::Value(limit)) => Clip::Value(*limit),
            Some(GradientClipping::Norm(most)) => Clip::Norm(*most),
        };
        let rule = self.rules.rule(lr);
        let name = match rule {
            Rule::Adam(_) => "nn_adam",
            Rule::Sgd(_) => "nn_sgd",
        };
        let _op = trace::op(name, || "");
        let states = &mut self.states;
        let mut gather = Gather { step: Step::new(rule, clip), states, grads, before: vec![], after: vec![] };
        let ties = Ties::of::<B>(&module);
        let module = ties.release::<B, M>(module).map(&mut gather);
        gather.run().unwrap_or_else(|error| raise(error));
        ties.restore::<B, M>(module)
    }
}

/// Gives each parameter that has a gradient its new tensor, which [`Step::run`] fills afterwards.
/// If this fails (a gradient does not fit, or memory runs out), the states are restored to those
/// before the step.
struct Gather<'a, O: Rules<B::InnerBackend>, B: AutodiffBackend> {
    step: Step,
    states: &'a mut HashMap<ParamId, Held<O, B>>,
    grads: GradAdaptor,
    /// The old states of the parameters gathered so far.
    before: Vec<(ParamId, Held<O, B>)>,
    /// Their new states.
    after: Vec<(ParamId, Held<O, B>)>,
}

impl<O: Rules<B::InnerBackend>, B: AutodiffBackend> Gather<'_, O, B> {
    fn run(&mut self) -> Result<(), RocmError> {
        self.step.run()?;
        self.before.clear();
        self.states.extend(self.after.drain(..));
        Ok(())
    }
}

impl<O: Rules<B::InnerBackend>, B: AutodiffBackend> Drop for Gather<'_, O, B> {
    fn drop(&mut self) {
        self.states.extend(self.before.drain(..));
    }
}

impl<O: Rules<B::InnerBackend>, B: AutodiffBackend> ModuleMapper<B> for Gather<'_, O, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        let Some((grad, device)) = self.grads.remove::<B::InnerBackend, D>(id) else {
            return Param::from_mapped_value(id, tensor, mapper);
        };
        let is_require_grad = tensor.is_require_grad();
        // As in Burn, the parameter moves to the gradient's device.
        let tensor = if tensor.device() == device { tensor } else { tensor.to_device(&device) };
        let before = self.states.remove(&id).map(|held| match held {
            Held::Kept { state: State { time, tensors, clock }, .. } => {
                let there = |tensor| rocm(from_rocm::<B::InnerBackend, D>(tensor).to_device(&device));
                State { time, tensors: tensors.into_iter().map(there).collect(), clock }
            }
            Held::Loaded(record) => {
                let state = record.into_state::<D>();
                O::keep(<O::Burn as SimpleOptimizer<B::InnerBackend>>::to_device(state, &device), &device)
            }
        });
        let had = before.is_some();
        let mut before = before.unwrap_or_default();
        let added = self.step.add(rocm(tensor.inner()), rocm(grad), &mut before);
        if had {
            self.before.push((id, Held::Kept { rank: D, state: before }));
        }
        let (tensor, state) = added.unwrap_or_else(|error| raise(error));
        self.after.push((id, Held::Kept { rank: D, state }));
        let tensor = Tensor::from_inner(from_rocm(tensor)).set_require_grad(is_require_grad);
        Param::from_mapped_value(id, tensor, mapper)
    }
}

impl<O, M, B> Optimizer<M, B> for OptimizerAdaptor<O, M, B>
where
    O: Rules<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    type Record = <BurnAdaptor<O::Burn, M, B> as Optimizer<M, B>>::Record;

    fn step(&mut self, lr: LearningRate, module: M, grads: GradientsParams) -> M {
        match is_rocm::<B::InnerBackend>() {
            true => self.fused(lr, module, grads.into()),
            false => {
                say_elsewhere::<B>(O::NAME);
                let grads = Widen::all(&module, grads);
                self.burn.step(lr, module, grads)
            }
        }
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, grads: MultiGradientsParams) -> M {
        // Burn adds up the gradients of several devices, so each is cast first.
        let of_device = |(grads, device)| (Widen::all(&module, grads), device);
        let grads = MultiGradientsParams { grads: grads.grads.into_iter().map(of_device).collect() };
        match is_rocm::<B::InnerBackend>() {
            true => self.fused(lr, module, grads.into()),
            false => {
                say_elsewhere::<B>(O::NAME);
                self.burn.step_multi(lr, module, grads)
            }
        }
    }

    fn to_record(&self) -> Self::Record {
        if !is_rocm::<B::InnerBackend>() {
            return self.burn.to_record();
        }
        let record = |(&id, held): (&ParamId, &Held<O, B>)| match held {
            Held::Loaded(record) => (id, record.clone()),
            Held::Kept { rank, state } => (id, given::<O, B>(*rank, state.clone())),
        };
        self.states.iter().map(record).collect()
    }

    fn load_record(mut self, record: Self::Record) -> Self {
        if is_rocm::<B::InnerBackend>() {
            self.states = record.into_iter().map(|(id, record)| (id, Held::Loaded(record))).collect();
        } else {
            self.burn = self.burn.load_record(record);
        }
        self
    }
}

/// Casts gradients to the dtypes of their parameters if those are wider.
struct Widen {
    ties: Ties,
    grads: GradientsParams,
}

impl Widen {
    fn all<B: AutodiffBackend, M: AutodiffModule<B>>(module: &M, grads: GradientsParams) -> GradientsParams {
        let mut widen = Self { ties: Ties::of::<B>(module), grads };
        module.visit(&mut widen);
        widen.grads
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Widen {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.ties.is_frozen_clone(param) {
            return;
        }
        let Some(grad) = self.grads.get::<B::InnerBackend, D>(param.id) else { return };
        let dtype = param.val().dtype();
        if grad.dtype().size() < dtype.size() {
            self.grads.register(param.id, grad.cast(dtype));
        }
    }
}

/// Burn's record of the state of a parameter of this rank.
fn given<O: Rules<B::InnerBackend>, B: AutodiffBackend>(
    rank: usize,
    state: State,
) -> AdaptorRecord<O::Burn, B> {
    match rank {
        0 => AdaptorRecord::from_state(O::give::<0>(state)),
        1 => AdaptorRecord::from_state(O::give::<1>(state)),
        2 => AdaptorRecord::from_state(O::give::<2>(state)),
        3 => AdaptorRecord::from_state(O::give::<3>(state)),
        4 => AdaptorRecord::from_state(O::give::<4>(state)),
        5 => AdaptorRecord::from_state(O::give::<5>(state)),
        6 => AdaptorRecord::from_state(O::give::<6>(state)),
        7 => AdaptorRecord::from_state(O::give::<7>(state)),
        8 => AdaptorRecord::from_state(O::give::<8>(state)),
        _ => {
            let expected = "parameters of ranks 0 to 8, as Burn's records have";
            refuse("optimizer record", expected, format!("one of rank {rank}"))
        }
    }
}
