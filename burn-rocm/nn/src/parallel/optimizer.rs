//! Optimizers whose step the ranks divide among themselves.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_backend::tensor::FloatTensor;
use burn_rocm::fused::optim::Clip;
use burn_rocm::{RocmError, RocmTensor, raise, trace};

use super::{BUCKET_BYTES, DataParallel, Share, on_rocm, visit};
use crate::divided::Divided;
use crate::fuse::{from_rocm, primitive, refuse, rocm, wrap};
use crate::ops::checkpoint::Paths;
use crate::ops::divided::{refuse_divided, refuse_own};
use crate::ops::sharded::{Sharded, Update};
use crate::optim::OptimizerConfig;
use crate::ties::Ties;

/// What `with_global_norm` refuses, in errors.
pub(super) const NORM_OF_DIVIDED: &str = "a global norm of a model with layers divided among ranks";

/// An optimizer of which each rank takes a part of the step: stages 1 and 2 of ZeRO ([Rajbhandari et
/// al. 2020](https://arxiv.org/abs/1910.02054)).
///
/// A rank keeps only its part of the optimizer's state and of the averaged gradients. The parameters
/// stay whole on every rank. Parameters of f16 or bf16 have an f32 copy, of which a rank keeps its
/// part, too. The step updates this copy and rounds it. A step moves as many bytes between ranks as
/// [`DataParallel::reduce`]: it reduces and scatters gradients, and gathers parameters.
///
/// The numbers are those of the same optimizer after [`DataParallel::reduce`], up to the order in
/// which a sum over ranks is rounded, except in two cases. A parameter that has no gradient on any
/// rank has one of 0 here, so its moments and the decay still move it. And with f16 or bf16
/// parameters, the optimizer after [`DataParallel::reduce`] has no f32 copy.
///
/// ```text
/// let mut optimizer = ShardedOptimizer::new(&ranks, AdamWConfig::new());
/// let grads = ranks.backward(&model, Some(loss));
/// model = optimizer.step(lr, model, grads, part.share);      // reduces the gradients itself
/// ```
///
/// Leave [`with_overlap`](DataParallel::with_overlap) off: it reserves memory for buckets that this
/// optimizer does not use. [`new`](Self::new) warns of that and changes nothing, because the same
/// `DataParallel` may reduce another model's gradients. An error of one rank, such as a gradient that
/// does not fit, leaves the other ranks waiting, as [with all collectives](super): drop the
/// communicator then.
///
/// If something other than the last step has set the parameters (a record, for instance), the next
/// step begins with these, and drops the f32 copies.
pub struct ShardedOptimizer {
    config: OptimizerConfig,
    clip: Clip,
    most: Option<f32>,
    sharded: Sharded,
}

impl ShardedOptimizer {
    /// This rank's part of an optimizer.
    ///
    /// # Panics
    /// With `Invalid` if the configuration clips each parameter's gradient by its norm, because a
    /// rank has only a part of a parameter. [`with_global_norm`](Self::with_global_norm) clips by
    /// the norm of all gradients.
    pub fn new(ranks: &DataParallel, config: impl Into<OptimizerConfig>) -> Self {
        let config = config.into();
        let clip = match config.clipping() {
            None => Clip::None,
            Some(GradientClippingConfig::Value(limit)) => Clip::Value(*limit),
            Some(other) => {
                refuse("ShardedOptimizer::new", "clipping by value, or none", format!("{other:?}"))
            }
        };
        if ranks.buckets().overlap() {
            log::warn!(
                "burn_rocm_nn: a ShardedOptimizer does not use the memory that with_overlap(true) reserves"
            );
        }
        let sharded = Sharded::new(ranks.communicator().clone(), BUCKET_BYTES);
        Self { config, clip, most: None, sharded }
    }

    /// Scales all gradients by `min(1, most / norm)` before the step, where `norm` is the Euclidean
    /// norm of the averaged gradients of all parameters, as
    /// [`clip_global_norm`](super::clip_global_norm) does. [`step`](Self::step) then refuses a model
    /// with layers that are divided among ranks: a bucket may hold divided parameters and others.
    pub fn with_global_norm(self, most: f32) -> Self {
        Self { most: Some(most), ..self }
    }

    /// Sets the size of a bucket: the bytes of parameters that are reduced and gathered together,
    /// 25 MiB by default. Every rank must set the same size, before the first step.
    pub fn with_bucket_bytes(self, bytes: usize) -> Self {
        Self { sharded: self.sharded.with_bytes(bytes), ..self }
    }

    /// The module after a step with the ranks' gradients, averaged as
    /// [`DataParallel::reduce`] describes it. Every rank must call this, even one without samples.
    ///
    /// The module's parameters must be the same on all ranks. Their number, shapes and dtypes must
    /// be those of the step before.
    ///
    /// # Panics
    /// With `Invalid` if they are not, or if a gradient does not fit its parameter; with `Unsupported`
    /// for a global norm and a model with divided layers; with `Collective`
    /// or `Mismatch` if the ranks fail or differ; with `Capture` in a capture before which this
    /// optimizer has taken no step with these parameters.
    pub fn step<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        lr: f64,
        module: M,
        grads: GradientsParams,
        share: Share,
    ) -> M {
        const OP: &str = "ShardedOptimizer::step";
        on_rocm::<B>(OP);
        let groups = Divided::of::<B>(&module).groups;
        let norm = self.most.map_or(Ok(()), |_| refuse_divided(OP, NORM_OF_DIVIDED, &groups));
        let apart = norm.and_then(|()| refuse_own(OP, &self.sharded.communicator, &groups));
        apart.unwrap_or_else(|error| raise(error));
        let _op = trace::op("nn_sharded_step", || "");
        let mut take = Take::new(grads);
        visit::<B, M>(&module, &mut take);
        let Take { ids, params, tensors, .. } = take;
        let update = Update { rule: self.config.rule(lr), clip: self.clip, most: self.most };
        let stepped = self.sharded.step(&params, tensors, share.weight(), update);
        let stepped = stepped.unwrap_or_else(|error| raise(error));
        put::<B, M>(module, ids.into_iter().zip(stepped))
    }

    /// Writes the module's trained parameters and the optimizer's state into a new folder. Each
    /// rank writes its part into a file of its own, f16 and bf16 parameters in f32. The folder gets
    /// its final name when all ranks have written. Any number of ranks can [`load`](Self::load) it.
    /// Every rank must call this, and all must see the same file system. Waits for the device.
    ///
    /// Save everything else, such as running statistics and frozen parameters, as a record of the
    /// module; it is whole on every rank.
    ///
    /// Each group of ranks needs a folder of its own, such as one for each part of
    /// [divided layers](super::ColumnLinear). If two groups save to one path at once, one of them gets
    /// it, and the other an error. If a process dies while it saves, a folder whose name ends in
    /// `.partial-` and a number stays; it can be deleted.
    ///
    /// # Errors
    /// `Config` if the folder exists, or if a rank can't write; `Collective` or `Mismatch` if the ranks
    /// fail or differ; an error of the device.
    pub fn save<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        folder: impl AsRef<Path>,
        module: &M,
    ) -> Result<(), RocmError> {
        on_rocm::<B>("ShardedOptimizer::save");
        let mut take = Take::new(GradientsParams::new());
        visit::<B, M>(module, &mut take);
        let paths = Paths::Module(paths::<B, M>(module));
        self.sharded.save(folder.as_ref(), &take.params, paths, self.config.rule(0.0))
    }

    /// Returns the module with the parameters that [`save`](Self::save) wrote, and gives this
    /// optimizer its saved state. The number of ranks may differ from that of the save. Every rank
    /// must call this.
    ///
    /// # Errors
    /// `Config` if the folder is no checkpoint, is not whole, fails its hash check, or is of other
    /// parameters (their number, shapes, dtypes and paths such as `layers.0.weight`) or another
    /// optimizer; else as [`save`](Self::save). The paths of a
    /// [`ShardedModel`](super::ShardedModel)'s checkpoint start at its parts, so they are not compared.
    pub fn load<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        folder: impl AsRef<Path>,
        module: M,
    ) -> Result<M, RocmError> {
        on_rocm::<B>("ShardedOptimizer::load");
        let mut take = Take::new(GradientsParams::new());
        visit::<B, M>(&module, &mut take);
        let paths = Paths::Module(paths::<B, M>(&module));
        let loaded = self.sharded.load(folder.as_ref(), &take.params, &paths, self.config.rule(0.0))?;
        Ok(put::<B, M>(module, take.ids.into_iter().zip(loaded)))
    }
}

/// The module with new parameters. Of places with one id, the first one gets them, and those that
/// share its leaf; clones that were trained apart stay.
fn put<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: M,
    params: impl Iterator<Item = (ParamId, RocmTensor)>,
) -> M {
    let ties = Ties::of::<B>(&module);
    ties.restore::<B, M>(module.map(&mut Put { once: true, ..Put::<B>::new(params, true) }))
}

/// Takes the parameters that are trained, and their gradients, in the order of the module.
pub(super) struct Take {
    grads: GradientsParams,
    /// A parameter that the module holds twice has one gradient.
    seen: HashSet<ParamId>,
    pub(super) ids: Vec<ParamId>,
    pub(super) params: Vec<RocmTensor>,
    pub(super) tensors: Vec<Option<RocmTensor>>,
}

impl Take {
    pub(super) fn new(grads: GradientsParams) -> Self {
        Self { grads, seen: HashSet::new(), ids: vec![], params: vec![], tensors: vec![] }
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Take {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let value = param.val();
        if !value.is_require_grad() || !self.seen.insert(param.id) {
            return;
        }
        self.ids.push(param.id);
        self.params.push(rocm(value.inner()));
        self.tensors.push(self.grads.remove::<B::InnerBackend, D>(param.id).map(rocm));
    }
}

/// The paths of the parameters that [`Take`] takes, in its order.
pub(super) fn paths<B: AutodiffBackend, M: AutodiffModule<B>>(module: &M) -> Vec<String> {
    let mut names = Names { seen: HashSet::new(), inside: Vec::new(), paths: Vec::new() };
    visit::<B, M>(module, &mut names);
    names.paths
}

/// Lists paths. [`Take`] does not, because it runs in each step.
struct Names {
    seen: HashSet<ParamId>,
    /// The fields and indices that lead to where the visitor is.
    inside: Vec<String>,
    paths: Vec<String>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Names {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.inside.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.inside.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if param.val().is_require_grad() && self.seen.insert(param.id) {
            self.paths.push(self.inside.join("."));
        }
    }
}

/// Puts new parameters in place of those that [`Take`] took.
pub(super) struct Put<B: AutodiffBackend> {
    params: HashMap<ParamId, RocmTensor>,
    /// Whether the new ones get gradients.
    tracked: bool,
    /// Whether only the first place of an id gets the new parameter.
    once: bool,
    /// Else they are one leaf, so that its gradient is that of all uses.
    leaves: HashMap<ParamId, FloatTensor<B>>,
}

impl<B: AutodiffBackend> Put<B> {
    pub(super) fn new(params: impl Iterator<Item = (ParamId, RocmTensor)>, tracked: bool) -> Self {
        Self { params: params.collect(), tracked, once: false, leaves: HashMap::new() }
    }
}

impl<B: AutodiffBackend> ModuleMapper<B> for Put<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let (id, tensor, mapper) = param.consume();
        // A frozen clone has the same id, but was not taken.
        if !tensor.is_require_grad() {
            return Param::from_mapped_value(id, tensor, mapper);
        }
        let tensor = match (self.leaves.get(&id), self.params.remove(&id)) {
            (Some(leaf), _) => wrap(leaf.clone()),
            (None, Some(new)) => {
                let leaf = Tensor::from_inner(from_rocm(new)).set_require_grad(self.tracked);
                if !self.once {
                    self.leaves.insert(id, primitive(leaf.clone()));
                }
                leaf
            }
            (None, None) => tensor,
        };
        Param::from_mapped_value(id, tensor, mapper)
    }
}
