//! Data parallel training: every rank has the whole model on its own device and computes a part of
//! each batch, and the ranks' gradients are averaged.
//!
//! A rank is a thread or a process. Ranks that start with the same parameters and the same
//! optimizer state keep them equal, bit by bit, because all get the same averages.
//!
//! ```
//! # use burn::backend::Autodiff;
//! # use burn::nn::{Linear, LinearConfig};
//! # use burn::optim::Optimizer;
//! # use burn::tensor::{Tensor, TensorData};
//! use burn_rocm::{Communicator, Rocm, RocmDevice};
//! # use burn_rocm_nn::optim::AdamConfig;
//! use burn_rocm_nn::parallel::{DataParallel, Shards};
//!
//! type B = Autodiff<Rocm>;
//!
//! fn train(communicator: Communicator, data: &[[f32; 4]]) -> Linear<B> {
//!     let device = communicator.device();
//!     let mut ranks = DataParallel::new(communicator);
//!     // Rank 0's parameters, on every rank.
//!     let mut model = ranks.broadcast::<B, _>(LinearConfig::new(4, 2).init(&device));
//!     let mut optimizer = AdamConfig::new().init();
//!     for part in Shards::new(data.len(), 8, ranks.rank(), ranks.size()).shuffled(42).epoch(0) {
//!         let rows: Vec<f32> = part.indices.iter().flat_map(|&index| data[index]).collect();
//!         let x = Tensor::<B, 2>::from_data(TensorData::new(rows, [part.indices.len(), 4]), &device);
//!         let loss = model.forward(x).powf_scalar(2.0).mean();
//!         let grads = ranks.backward(&model, Some(loss));
//!         let grads = ranks.reduce(&model, grads, part.share);
//!         model = optimizer.step(1e-3, model, grads);
//!     }
//!     model
//! }
//!
//! let data: Vec<[f32; 4]> = (0..20).map(|i| [0.1, 0.2, 0.3, 0.4].map(|x| x * i as f32)).collect();
//! std::thread::scope(|scope| {
//!     for communicator in Communicator::local(&RocmDevice::all()?)? {
//!         scope.spawn(|| train(communicator, &data));
//!     }
//!     Ok::<(), burn_rocm::RocmError>(())
//! })?;
//! # Ok::<(), burn_rocm::RocmError>(())
//! ```
//!
//! - **Accumulation.** Add up the gradients of several backward passes with Burn's
//!   `GradientsAccumulator` and call [`DataParallel::reduce`] once for the sum.
//! - **Mixed precision.** Call [`DataParallel::reduce`] with the converted copy, before
//!   [`GradScaler::step`](crate::amp::GradScaler::step). An overflow on one rank makes the average
//!   infinite or NaN on all of them, so all skip the step and lower the scale.
//! - **Sharded optimizers.** With [`ShardedOptimizer`] each rank keeps a part of the optimizer's state
//!   and of the averaged gradients. With [`ShardedModel`] it keeps a part of the parameters, too.
//! - **Batch norms** have the statistics of each rank's own samples, unless the module is a
//!   [`SyncBatchNorm`].
//! - **Weights divided among ranks.** [`ColumnLinear`] and [`RowLinear`] are a pair of linear
//!   layers of which each rank has a part. [`ParallelFeedForward`] and [`ParallelAttention`] are
//!   blocks made of such pairs. Their ranks are a group of their own, other than the group of
//!   `DataParallel`. All else must be the same on these ranks: seed the devices alike if a dropout
//!   is outside the pair. [`clip_global_norm`] clips by the whole model's norm, and an overflow on
//!   one of the ranks makes `GradScaler` skip the step on all. An optimizer's own clipping by norm
//!   sees one rank's part of a parameter; `with_global_norm` refuses such a model.
//! - **A failed rank.** If a rank panics, drop its communicator or let the process end: the other
//!   ranks then get an error within `BURN_ROCM_COLLECTIVE_TIMEOUT`.

mod batch_norm;
mod blocks;
mod broadcast;
mod build;
mod config;
mod linear;
mod model;
mod optimizer;
mod share;

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::{AutodiffModule, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm::fused::optim::scale_to_norm;
use burn_rocm::{Communicator, ReduceOp, RocmTensor, raise, trace};

use crate::divided::Divided;
use crate::fuse::{from_rocm, is_rocm, refuse, rocm};
use crate::ops::buckets::Entry;
use crate::ops::divided::refuse_own;
use crate::ops::parallel::Buckets;
pub use crate::ops::parallel::Overlap;
use crate::ties::Ties;
pub use batch_norm::SyncBatchNorm;
pub use blocks::{ParallelAttention, ParallelFeedForward};
pub use config::ShardedModelConfig;
pub use linear::{ColumnLinear, RowLinear};
pub use model::ShardedModel;
pub use optimizer::ShardedOptimizer;
pub use share::{Part, Shards, Share};

/// The size of a bucket unless [`DataParallel::with_bucket_bytes`] sets another.
const BUCKET_BYTES: usize = 25 << 20;

/// One rank of a data parallel training.
///
/// The methods panic with the typed error, as Burn's ops do
/// ([`take_last_error`](burn_rocm::take_last_error) returns it): with `Collective` if another rank
/// or the library has failed, with `Mismatch` if the ranks' calls differ, with `Unsupported` on a
/// backend other than [`Rocm`](burn_rocm::Rocm) under autodiff.
pub struct DataParallel {
    communicator: Communicator,
    /// The group whose threads of this process wait for each other in [`backward`](Self::backward).
    pub(crate) threads: Communicator,
    /// Locked by one call at a time: a rank is one thread.
    buckets: Mutex<Buckets>,
}

impl DataParallel {
    /// This communicator's rank.
    pub fn new(communicator: Communicator) -> Self {
        let buckets = Mutex::new(Buckets::new(communicator.clone(), BUCKET_BYTES, false));
        Self { buckets, threads: communicator.clone(), communicator }
    }

    /// Sets the group whose threads wait for each other in [`backward`](Self::backward) and in
    /// [`ShardedModel`]; the default is this rank's own group. If this process has several groups, such
    /// as one for each part of divided layers, pass a communicator of all training threads. Otherwise
    /// gradients can be lost ([burn#5573](https://github.com/tracel-ai/burn/issues/5573)). Only Burn 0.21
    /// needs this, and only where a process has several threads.
    pub fn with_threads_of(self, all: &Communicator) -> Self {
        Self { threads: all.clone(), ..self }
    }

    /// Sets the size of a bucket, 25 MiB by default. If the gradients of a dtype have more than
    /// half of it together, they are in several buckets, of which the last ones are smaller. The
    /// size must be the same on every rank.
    pub fn with_bucket_bytes(self, bytes: usize) -> Self {
        let overlap = self.buckets().overlap();
        self.with_buckets(bytes, overlap)
    }

    /// Sets whether buckets are reduced beside the backward pass, as soon as the device has
    /// computed their gradients; off by default. A single bucket is reduced after the pass,
    /// because it is not complete before. The memory for the small gradients of all buckets is
    /// then taken before the pass begins. If it is not there, that step reduces after the pass.
    /// Without the overlap the memory is taken after the pass. The results have the same bits.
    /// The ranks need not agree.
    pub fn with_overlap(self, overlap: bool) -> Self {
        let bytes = self.buckets().bytes();
        self.with_buckets(bytes, overlap)
    }

    fn with_buckets(self, bytes: usize, overlap: bool) -> Self {
        let buckets = Mutex::new(Buckets::new(self.communicator.clone(), bytes, overlap));
        Self { buckets, ..self }
    }

    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        // A panic ends the training: the other ranks miss this rank's calls.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much of the last [`reduce`](Self::reduce) ran beside the backward pass.
    pub fn last_overlap(&self) -> Overlap {
        self.buckets().last()
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// The communicator, for other collectives.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// The gradients of this rank's loss; none for a rank without samples, which passes `None`.
    ///
    /// Every rank of this process must call this as often as the others. The threads wait for each
    /// other before and after: a backward pass of Burn 0.21 drops nodes that another thread is just
    /// recording, and the other thread's gradients are wrong without an error
    /// ([burn#5573](https://github.com/tracel-ai/burn/issues/5573)). For the same reason the ranks
    /// must not record a graph elsewhere while one of them is in a backward pass. If threads of several
    /// groups train in one process, see [`with_threads_of`](Self::with_threads_of).
    pub fn backward<B: AutodiffBackend, M: AutodiffModule<B>, const D: usize>(
        &self,
        module: &M,
        loss: Option<Tensor<B, D>>,
    ) -> GradientsParams {
        let meet = || self.threads.meet().unwrap_or_else(|error| raise(error));
        let mut params = Params { seen: HashSet::new(), entries: vec![] };
        visit::<B, M>(module, &mut params);
        meet();
        let grads = loss.map(|loss| {
            let grads = self.buckets().backward(params.entries, || loss.backward());
            grads.unwrap_or_else(|error| raise(error))
        });
        meet();
        grads.map_or_else(GradientsParams::new, |grads| GradientsParams::from_grads(grads, module))
    }

    /// The gradients averaged over all ranks, with each rank's weighted by its share of the
    /// samples. So if each rank's loss is the mean over its samples, the result is the gradient of
    /// the mean over all samples.
    ///
    /// `module` is the one that computed the gradients. A parameter without a gradient on this rank
    /// counts as one with a gradient of 0, unless no rank has a gradient for it; then it has none
    /// in the result either. Every rank must call this, even one without any samples.
    ///
    /// The gradients are reduced in buckets, each by one call of the library. Gradients of at
    /// least a 25th of a bucket are reduced in their own memory, unless something else holds it.
    /// One launch packs up to 55 of the others; on a GPU, those that are not whole units of 16 bytes
    /// have a launch of their own. With the overlap, a bucket is reduced as soon as
    /// the device has computed its gradients, beside the rest of the pass that
    /// [`backward`](Self::backward) enqueued. If something else used the gradients too, such as
    /// an accumulation or a conversion after the pass, it waits for all earlier work. The host
    /// waits for the device only if this rank lacks a gradient, and in the third call, in which the
    /// ranks agree on the order in memory of convolutions' gradients.
    pub fn reduce<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        module: &M,
        grads: GradientsParams,
        share: Share,
    ) -> GradientsParams {
        const OP: &str = "DataParallel::reduce";
        on_rocm::<B>(OP);
        let apart = refuse_own(OP, self.communicator(), &Divided::of::<B>(module).groups);
        apart.unwrap_or_else(|error| raise(error));
        let _op = trace::op("nn_reduce", || "");
        let mut take = Take::new(Ties::of::<B>(module), grads);
        visit::<B, M>(module, &mut take);
        let Take { ids, entries, tensors, .. } = take;
        let reduced = self.buckets().reduce(entries, tensors, share.weight());
        let reduced = reduced.unwrap_or_else(|error| raise(error));
        let all = ids.into_iter().zip(reduced).filter_map(|(id, grad)| Some((id, grad?)));
        let mut give = Give { grads: all.collect(), done: GradientsParams::new() };
        visit::<B, M>(module, &mut give);
        give.done
    }

    /// A value averaged over all ranks, with each rank's weighted by its share of the samples, such
    /// as the loss of a batch. Every rank must call this; one without samples passes zeros.
    pub fn mean<B: Backend, const D: usize>(&self, value: Tensor<B, D>, share: Share) -> Tensor<B, D> {
        const OP: &str = "DataParallel::mean";
        if !is_rocm::<B>() {
            refuse(OP, "a tensor of the backend Rocm", std::any::type_name::<B>());
        }
        let communicator = self.communicator();
        let mean = match share.weight() {
            None => communicator.all_reduce(ReduceOp::Average, rocm(value)),
            Some(weight) => communicator.all_reduce(ReduceOp::Sum, rocm(value.mul_scalar(weight))),
        };
        from_rocm(mean.and_then(|mean| mean.join()).unwrap_or_else(|error| raise(error)))
    }
}

/// The gradients scaled by `min(1, most / norm)`, and their Euclidean norm over all parameters
/// before that, of shape `[1]`. Burn's own clipping by norm takes the norm of each parameter.
///
/// The gradients of [`DataParallel::reduce`] are the same on all ranks, so this is too. If layers
/// are divided among ranks ([`ColumnLinear`]), a rank has a part of their gradients. The norm is
/// then the whole model's: it counts every rank's parts, and counts once what all ranks share. So
/// all ranks of those groups must call this. Does not wait for the device.
///
/// # Panics
/// With `Unsupported` on a backend other than [`Rocm`](burn_rocm::Rocm) under autodiff, with
/// `Invalid` if there is no gradient.
pub fn clip_global_norm<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: GradientsParams,
    most: f32,
) -> (GradientsParams, Tensor<B::InnerBackend, 1>) {
    on_rocm::<B>("clip_global_norm");
    let _op = trace::op("nn_clip_global_norm", || "");
    let mut take = Take::new(Ties::of::<B>(module), grads);
    visit::<B, M>(module, &mut take);
    let with_grad = take.ids.into_iter().zip(take.tensors).filter_map(|(id, grad)| Some((id, grad?)));
    let (ids, tensors): (Vec<ParamId>, Vec<RocmTensor>) = with_grad.unzip();
    let norm = Divided::of::<B>(module).norm(&ids, &tensors).unwrap_or_else(|error| raise(error));
    let clipped = scale_to_norm(&tensors, norm.clone(), most).unwrap_or_else(|error| raise(error));
    let mut give = Give { grads: ids.into_iter().zip(clipped).collect(), done: GradientsParams::new() };
    visit::<B, M>(module, &mut give);
    (give.done, from_rocm(norm))
}

/// Refuses other backends: only this project's device has collectives.
fn on_rocm<B: AutodiffBackend>(op: &'static str) {
    if !is_rocm::<B::InnerBackend>() {
        refuse(op, "the backend Rocm under autodiff", std::any::type_name::<B>());
    }
}

fn visit<B: AutodiffBackend, M: AutodiffModule<B>>(module: &M, visitor: &mut impl ModuleVisitor<B>) {
    module.visit(visitor);
}

/// Lists the parameters that get gradients, as [`Take`] does.
struct Params {
    seen: HashSet<ParamId>,
    entries: Vec<Entry>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Params {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let value = param.val();
        if value.is_require_grad() && self.seen.insert(param.id) {
            self.entries.push(Entry { dims: value.dims().to_vec(), dtype: value.dtype() });
        }
    }
}

/// Takes the gradients of the parameters visited, in the order of the module.
struct Take {
    ties: Ties,
    grads: GradientsParams,
    /// A parameter that the module holds twice has one gradient.
    seen: HashSet<ParamId>,
    ids: Vec<ParamId>,
    entries: Vec<Entry>,
    tensors: Vec<Option<RocmTensor>>,
}

impl Take {
    fn new(ties: Ties, grads: GradientsParams) -> Self {
        Self { ties, grads, seen: HashSet::new(), ids: vec![], entries: vec![], tensors: vec![] }
    }
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Take {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        // Its gradient is taken at the trained place, where ranks without gradients have its
        // entry, too.
        if self.ties.is_frozen_clone(param) {
            return;
        }
        let value = param.val();
        let grad = self.grads.remove::<B::InnerBackend, D>(param.id);
        // Running statistics and other frozen parameters have none, on all ranks.
        if (!value.is_require_grad() && grad.is_none()) || !self.seen.insert(param.id) {
            return;
        }
        self.ids.push(param.id);
        self.entries.push(Entry { dims: value.dims().to_vec(), dtype: value.dtype() });
        self.tensors.push(grad.map(rocm));
    }
}

/// Puts the gradients back.
struct Give {
    grads: HashMap<ParamId, RocmTensor>,
    done: GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Give {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.grads.remove(&param.id) {
            self.done.register(param.id, from_rocm::<B::InnerBackend, D>(grad));
        }
    }
}
