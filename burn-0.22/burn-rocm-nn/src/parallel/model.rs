//! Models whose parameters the ranks divide among themselves.

use std::path::Path;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_rocm::fused::one_value;
use burn_rocm::fused::optim::Clip;
use burn_rocm::{Communicator, RandomMark, RocmError, RocmTensor, raise, trace};

use super::build::Build;
use super::config::ShardedModelConfig;
use super::optimizer::{Put, Take, paths};
use super::{DataParallel, Share};
use crate::amp::GradScaler;
use crate::fuse::{Route, from_rocm, primitive, rocm, wrap};
use crate::ops::checkpoint::Paths;
use crate::ops::refuse;
use crate::ops::sharded::Update;
use crate::ops::units::{Gathering, Parts, Scattering, Seed, Units};

/// A model of which each rank keeps a part of the parameters, gradients and optimizer's state:
/// stage 3 of ZeRO ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)).
///
/// The model is a first part, a number of blocks of one type, and a last part: for a language model
/// the embedding, the layers, and the output layer with the loss. Each is a *unit*. A rank has the
/// whole parameters of a unit only while it computes with the unit, and gathers those of the next
/// one meanwhile.
///
/// A step computes the forward pass unit by unit, and keeps each block's input only. Then it
/// computes each unit again, from the last one to the first, differentiates it, reduces its
/// gradients among the ranks beside the next unit's work, and updates this rank's part of its
/// parameters.
///
/// ```
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor, activation};
/// # use burn_rocm::{Communicator, RocmDevice, RocmError};
/// # use burn_rocm_nn::optim::AdamWConfig;
/// use burn_rocm_nn::parallel::{DataParallel, ShardedModel, ShardedModelConfig, Share};
///
/// fn train(ranks: DataParallel) -> Result<(), RocmError> {
///     let device = Device::rocm(ranks.communicator().device().index).autodiff();
///     let linear = |from, to| LinearConfig::new(from, to).init(&device);
///     let config = ShardedModelConfig::new(AdamWConfig::new());
///     let mut model =
///         ShardedModel::build(&ranks, config, || linear(4, 16), 8, |_| linear(16, 16), || linear(16, 1))?;
///     let x = Tensor::<2>::ones([3, 4], &device);
///     for _ in 0..2 {
///         let loss = model.step(
///             1e-3,
///             Share::EVEN,
///             |first: &Linear| first.forward(x.clone()),
///             |_, block: &Linear, x| activation::relu(block.forward(x)),
///             |last: &Linear, x| last.forward(x).mean(),
///         );
///         println!("{}", ranks.mean(loss, Share::EVEN).into_scalar::<f32>());
///     }
///     Ok(())
/// }
///
/// std::thread::scope(|scope| {
///     for communicator in Communicator::local(&RocmDevice::all()?)? {
///         scope.spawn(|| train(DataParallel::new(communicator)));
///     }
///     Ok::<(), RocmError>(())
/// })?;
/// # Ok::<(), RocmError>(())
/// ```
///
/// - **The numbers** are those of a [`ShardedOptimizer`](super::ShardedOptimizer) that trains the
///   same model, up to rounding: a parameter without a gradient has one of 0.
/// - **The functions** of a step must compute the same when they are called again. So a block has
///   no running statistics. Random numbers are no obstacle: the second call draws those of the
///   first one again ([`RandomMark`]), if the function's own thread draws them on the
///   communicator's device. So units may have dropout. The functions may use tensors of their own,
///   which get no gradients.
/// - **Parameters** with one id are one parameter, in one unit or in several. So an embedding's
///   weight may be the output layer's, too: [`build`](Self::build) says how. Frozen parameters and
///   running statistics stay whole on every rank, which is logged once, at the level `Info`.
/// - **Accumulation**: [`accumulate`](Self::accumulate) adds up the gradients of several batches.
/// - **Memory** of a rank, with Adam and computation in bf16: 12 bytes for each of its `n / ranks`
///   parameters, the blocks' inputs, up to 12 bytes for each parameter of the largest unit, and what
///   that unit's backward pass keeps.
/// - **Communication**: a step gathers all parameters twice and reduces the gradients once, 1.5
///   times the bytes of [`DataParallel::reduce`].
/// - **Errors.** If a rank fails within a step, the parameters are partly those of the next step.
///   The other ranks get an error, as [with all collectives](super): load a checkpoint.
///
/// The methods panic with the typed error, unless they return it: with `Collective` if another rank
/// or the library has failed, with `Mismatch` if the ranks' calls differ, with `Invalid` for
/// tensors of another device. Every rank must call each of them.
pub struct ShardedModel<F, M, L> {
    communicator: Communicator,
    units: Units,
    /// The modules with placeholders instead of the parameters that are divided.
    first: F,
    blocks: Vec<M>,
    last: L,
    config: ShardedModelConfig,
    clip: Clip,
}

impl<F: Module, M: Module, L: Module> ShardedModel<F, M, L> {
    /// Builds the units one after the other on the ranks' devices, and keeps this rank's part of
    /// each before it builds the next. The parameters are those that rank 0 has built.
    ///
    /// If a unit has a parameter with the id of an earlier unit's, such as a clone of it, both are
    /// one parameter. So blocks that are clones of one block share its parameters. The
    /// log says how many parameters are those of earlier units, at the level `Info`.
    ///
    /// ```text
    /// let embedding = EmbeddingConfig::new(tokens, width).init(&device);
    /// let weight = embedding.weight.clone();
    /// let last = || Output { norm, weight };          // computes x.matmul(weight.transpose())
    /// ShardedModel::build(&ranks, config, || embedding, layers, layer, last)?;
    /// ```
    ///
    /// For the later unit the ranks gather all parameters that the earlier one has in the same
    /// dtype. So the earlier one should have few others. The tied ones are updated when the earlier
    /// unit's gradients are there. Until then a rank keeps its part of the later one's, in f32 if
    /// the model computes in bf16.
    ///
    /// # Errors
    /// `Invalid` if the optimizer clips each parameter's gradient by its norm, because a rank has
    /// only a part of a parameter, or if a tied parameter differs in shape, dtype or values from the
    /// earlier unit's; `Unsupported` for parameters in f16 without a scaler, and for a global
    /// norm with layers that are divided among ranks; an error of the collectives or of the device.
    ///
    /// # Panics
    /// As the functions, and on another device.
    pub fn build(
        ranks: &DataParallel,
        config: ShardedModelConfig,
        first: impl FnOnce() -> F,
        blocks: usize,
        block: impl FnMut(usize) -> M,
        last: impl FnOnce() -> L,
    ) -> Result<Self, RocmError> {
        const OP: &str = "ShardedModel::build";
        let clip = match config.optimizer.clipping() {
            None => Clip::None,
            Some(GradientClippingConfig::Value(limit)) => Clip::Value(*limit),
            Some(other) => {
                let (expected, found) = ("clipping by value, or none".into(), format!("{other:?}"));
                return Err(RocmError::Invalid { op: OP, expected, found });
            }
        };
        let _op = trace::op("nn_sharded_build", || "");
        let communicator = ranks.communicator().clone();
        let mut build = Build::new(ranks, &config);
        let first = build.unit(first())?;
        let blocks = (0..blocks).map(block).map(|block| build.unit(block));
        let blocks = blocks.collect::<Result<_, _>>()?;
        let last = build.unit(last())?;
        build.say();
        let units = build.units;
        Ok(Self { communicator, units, first, blocks, last, config, clip })
    }

    /// The scaler of the loss, if the configuration has one: its factor, how many steps it skipped, and
    /// its record.
    pub fn scaler(&self) -> Option<&GradScaler> {
        self.config.scaler.as_ref()
    }

    /// The unit of the last part.
    fn end(&self) -> usize {
        self.blocks.len() + 1
    }

    /// Takes a training step. Returns this rank's loss, in f64 if the model computes with a
    /// parameter in f64, else in f32. The functions of a rank without samples, whose `share` says
    /// so, are not called, and its loss is 0.
    ///
    /// The gradients are averaged as [`DataParallel::reduce`] does: if each rank's loss is the mean
    /// over its samples, they are those of the mean over all samples.
    ///
    /// The functions compute the units: `first` the input of block 0, `block` a block's output,
    /// which is the next one's input, from its index and input, `last` the loss. `first` and
    /// `block` are called twice in each step. All blocks' inputs have the same rank.
    ///
    /// Waits for the device only with a scaler, to read whether a gradient overflowed.
    pub fn step<const D: usize>(
        &mut self,
        lr: f64,
        share: Share,
        first: impl Fn(&F) -> Tensor<D>,
        block: impl Fn(usize, &M, Tensor<D>) -> Tensor<D>,
        last: impl FnOnce(&L, Tensor<D>) -> Tensor<1>,
    ) -> Tensor<1> {
        let _op = trace::op("nn_sharded_model_step", || "");
        self.pass(Some(lr), share, first, block, last)
    }

    /// A step without the update: adds the gradients to those that the next [`step`](Self::step)
    /// uses. So several batches give the gradients of one loss, the *sum* of theirs. For
    /// the mean over `n` batches of equal size, the functions divide the loss by `n`.
    ///
    /// ```text
    /// for batch in &batches[..n - 1] {
    ///     model.accumulate(share, ..);
    /// }
    /// model.step(lr, share, ..);      // with batches[n - 1]
    /// ```
    ///
    /// The ranks reduce the gradients of each batch, and a rank keeps its part of the sum: in f32
    /// if the model computes in bf16, so 4 bytes for each of its `n / ranks` parameters. Memory
    /// does not grow with the number of batches. [`save`](Self::save) refuses until the next step,
    /// and [`load`](Self::load) drops the sum.
    pub fn accumulate<const D: usize>(
        &mut self,
        share: Share,
        first: impl Fn(&F) -> Tensor<D>,
        block: impl Fn(usize, &M, Tensor<D>) -> Tensor<D>,
        last: impl FnOnce(&L, Tensor<D>) -> Tensor<1>,
    ) -> Tensor<1> {
        let _op = trace::op("nn_sharded_model_accumulate", || "");
        self.pass(None, share, first, block, last)
    }

    /// The forward and the backward pass of a step, with an update if there is a learning rate.
    fn pass<const D: usize>(
        &mut self,
        lr: Option<f64>,
        share: Share,
        first: impl Fn(&F) -> Tensor<D>,
        block: impl Fn(usize, &M, Tensor<D>) -> Tensor<D>,
        last: impl FnOnce(&L, Tensor<D>) -> Tensor<1>,
    ) -> Tensor<1> {
        let (weight, end) = (share.weight(), self.end());
        let idle = weight == Some(0.0);
        let (mut inputs, marks, mut gathering) = self.forward(idle, &first, &block);
        let mut backward = Backward { weight, lr, scattering: None, complete: Vec::new() };
        let (mut loss, dtype) = (None, self.units.loss_dtype());
        let scaler = self.config.scaler.clone();

        let module = self.tracked(&self.last, end, &mut gathering);
        let (grads, mut seed) = self.gradients(&module, inputs.pop(), |input| {
            let root = last(&module, input?);
            loss = Some(root.clone().inner().cast(dtype));
            Some(match &scaler {
                Some(scaler) => scaler.scale(wide(root)),
                None => root,
            })
        });
        drop(module);
        backward.reduce(self, end, grads);

        for unit in (1..end).rev() {
            let module = self.tracked(&self.blocks[unit - 1], unit, &mut gathering);
            // Without a gradient of its output, the unit has none.
            let input = inputs.pop().filter(|_| seed.is_some());
            let root = |input: Option<Tensor<D>>| {
                let input = input?;
                seeded(marks[unit].again(|| block(unit - 1, &module, input)), seed.take()?)
            };
            let (grads, by_input) = self.gradients(&module, input, root);
            drop(module);
            seed = by_input;
            backward.reduce(self, unit, grads);
        }

        let module = self.tracked(&self.first, 0, &mut gathering);
        let root = |_| seed.and_then(|seed| seeded(marks[0].again(|| first(&module)), seed));
        let (grads, _) = self.gradients::<D, _>(&module, None, root);
        drop(module);
        backward.reduce(self, 0, grads);
        backward.finish(self);
        loss.unwrap_or_else(|| {
            let device = self.communicator.device();
            from_rocm(ok(one_value(&device, 0.0, dtype)))
        })
    }

    /// Computes the model without gradients, and returns what `last` returns.
    ///
    /// Dropout is active, because the parts are on the autodiff device. To turn it off, a function
    /// computes with the part's `valid()`.
    pub fn evaluate<const D: usize, T>(
        &self,
        first: impl Fn(&F) -> Tensor<D>,
        block: impl Fn(usize, &M, Tensor<D>) -> Tensor<D>,
        last: impl FnOnce(&L, Tensor<D>) -> T,
    ) -> T {
        let _op = trace::op("nn_sharded_model_evaluate", || "");
        let mut gathering = ok(self.units.gather(0));
        let mut x = None;
        for unit in 0..self.end() {
            let params = ok(self.units.join(gathering));
            gathering = ok(self.units.gather(unit + 1));
            x = Some(self.untracked(unit, params, x, &first, &block));
        }
        let module = filled::<L>(&self.last, ok(self.units.join(gathering)), false);
        match x {
            Some(x) => last(&module, x),
            None => refuse("ShardedModel::evaluate", "a first part", "none"),
        }
    }

    /// The first part with all its parameters, in the dtype of the computation.
    pub fn whole_first(&self) -> F {
        filled::<F>(&self.first, ok(self.units.gather(0).and_then(|all| self.units.join(all))), true)
    }

    /// A block with all its parameters, in the dtype of the computation.
    ///
    /// # Panics
    /// With `Invalid` if there is no such block.
    pub fn whole_block(&self, index: usize) -> M {
        let Some(block) = self.blocks.get(index) else {
            let expected = format!("one of {} blocks", self.blocks.len());
            refuse("ShardedModel::whole_block", expected, index.to_string())
        };
        filled::<M>(block, ok(self.units.gather(index + 1).and_then(|all| self.units.join(all))), true)
    }

    /// The last part with all its parameters, in the dtype of the computation.
    pub fn whole_last(&self) -> L {
        let params = self.units.gather(self.end()).and_then(|all| self.units.join(all));
        filled::<L>(&self.last, ok(params), true)
    }

    /// Writes the parameters and the optimizer's state into a new folder, in the format of
    /// [`ShardedOptimizer::save`](super::ShardedOptimizer::save): any number of ranks can read it,
    /// and so can a `ShardedOptimizer` whose module has the units' parameters in their order. Each
    /// rank reads its part to the host as a whole.
    ///
    /// # Errors
    /// As [`ShardedOptimizer::save`](super::ShardedOptimizer::save).
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), RocmError> {
        self.units.save(folder.as_ref(), self.paths(), self.config.optimizer.rule(0.0))
    }

    /// Takes the parameters and the optimizer's state that [`save`](Self::save) wrote, with any
    /// number of ranks, or [`ShardedOptimizer::save`](super::ShardedOptimizer::save).
    ///
    /// # Errors
    /// As [`ShardedOptimizer::load`](super::ShardedOptimizer::load).
    pub fn load(&mut self, folder: impl AsRef<Path>) -> Result<(), RocmError> {
        self.units.load(folder.as_ref(), &self.paths(), self.config.optimizer.rule(0.0))
    }

    /// Where the parts have their parameters.
    fn paths(&self) -> Paths {
        let within = |part: &str, paths: Vec<String>| -> Vec<String> {
            paths.into_iter().map(|path| format!("{part}.{path}")).collect()
        };
        let blocks = self.blocks.iter().enumerate();
        let blocks = blocks.map(|(index, block)| within(&format!("blocks.{index}"), paths(block)));
        let first = within("first", paths(&self.first));
        let last = within("last", paths(&self.last));
        self.units.paths(std::iter::once(first).chain(blocks).chain([last]))
    }

    /// The forward pass up to the last part. Returns the blocks' inputs and the last part's; where
    /// each unit began to draw random numbers; and the last part's parameters, which are being
    /// gathered.
    fn forward<const D: usize>(
        &self,
        idle: bool,
        first: &impl Fn(&F) -> Tensor<D>,
        block: &impl Fn(usize, &M, Tensor<D>) -> Tensor<D>,
    ) -> (Vec<Tensor<D>>, Vec<RandomMark>, Option<Gathering>) {
        let mut gathering = ok(self.units.gather(0));
        let (mut inputs, mut marks) = (Vec::with_capacity(self.end()), Vec::with_capacity(self.end()));
        let device = self.communicator.device();
        for unit in 0..self.end() {
            let params = ok(self.units.join(gathering));
            // Before this unit's ops are enqueued, so that it runs beside them.
            gathering = ok(self.units.gather(unit + 1));
            marks.push(RandomMark::of(&device));
            if !idle {
                inputs.push(self.untracked(unit, params, inputs.last().cloned(), first, block));
            }
        }
        (inputs, marks, Some(gathering))
    }

    /// The output of a unit that is not the last one.
    fn untracked<const D: usize>(
        &self,
        unit: usize,
        params: Vec<Option<RocmTensor>>,
        input: Option<Tensor<D>>,
        first: &impl Fn(&F) -> Tensor<D>,
        block: &impl Fn(usize, &M, Tensor<D>) -> Tensor<D>,
    ) -> Tensor<D> {
        let output = match (unit.checked_sub(1), input) {
            (Some(index), Some(input)) => {
                let module = filled::<M>(&self.blocks[index], params, false);
                block(index, &module, input)
            }
            _ => first(&filled::<F>(&self.first, params, false)),
        };
        output.detach()
    }

    /// The unit's module with the gathered parameters. Starts to gather those of the unit before
    /// it.
    fn tracked<N: Module>(&self, module: &N, unit: usize, gathering: &mut Option<Gathering>) -> N {
        let params = gathering.take().map(|gathering| ok(self.units.join(gathering)));
        *gathering = unit.checked_sub(1).map(|before| ok(self.units.gather(before)));
        filled::<N>(module, params.unwrap_or_default(), true)
    }

    /// The gradients of a unit's parameters and of its input. `root` computes from the input what
    /// is differentiated.
    fn gradients<const D: usize, N: Module>(
        &self,
        module: &N,
        input: Option<Tensor<D>>,
        root: impl FnOnce(Option<Tensor<D>>) -> Option<Tensor<1>>,
    ) -> (Vec<Option<RocmTensor>>, Option<Tensor<D>>) {
        let input = input.map(Tensor::require_grad);
        let root = root(input.clone());
        let grads = root.filter(Tensor::is_tracked).map(|root| root.backward());
        let Some(mut grads) = grads else { return (Vec::new(), None) };
        let by_input = input.and_then(|input| input.grad_remove(&mut grads));
        let mut take = Take::new(GradientsParams::from_grads(grads, module));
        module.visit(&mut take);
        (take.tensors, by_input)
    }
}

/// What a backward pass has to do with the gradients.
struct Backward {
    weight: Option<f64>,
    /// `None` if the update comes after a later pass.
    lr: Option<f64>,
    /// The gradients of the unit before, until this unit's pass is enqueued, so that they are
    /// reduced beside it.
    scattering: Option<Scattering>,
    /// Gradients that are to be used, those of earlier units too if they are clipped by the norm of
    /// all.
    complete: Parts,
}

impl Backward {
    fn reduce<F, M, L>(
        &mut self,
        model: &mut ShardedModel<F, M, L>,
        unit: usize,
        grads: Vec<Option<RocmTensor>>,
    ) {
        let scattering = ok(model.units.reduce(unit, grads, self.weight));
        if let Some(before) = self.scattering.replace(scattering) {
            self.take(model, before);
        }
    }

    fn take<F, M, L>(&mut self, model: &mut ShardedModel<F, M, L>, of: Scattering) {
        self.complete.extend(ok(model.units.scattered(of, self.lr.is_none())));
        if !model.config.keeps_gradients() {
            self.update(model);
        }
    }

    fn update<F, M, L>(&mut self, model: &mut ShardedModel<F, M, L>) {
        let Some(lr) = self.lr else { return };
        let ShardedModelConfig { optimizer, most, scaler, .. } = &mut model.config;
        let update = Update { rule: optimizer.rule(lr), clip: model.clip, most: *most };
        let mut parts = Some(std::mem::take(&mut self.complete));
        if let Some(scaler) = scaler {
            parts = ok(model.units.unscaled(parts.unwrap_or_default(), 1.0 / scaler.factor()));
            scaler.update(parts.is_some());
        }
        parts.into_iter().for_each(|parts| ok(model.units.update(parts, update)));
    }

    fn finish<F, M, L>(&mut self, model: &mut ShardedModel<F, M, L>) {
        if let Some(last) = self.scattering.take() {
            self.take(model, last);
        }
        if model.config.keeps_gradients() {
            self.update(model);
        }
    }
}

/// The module with these parameters in place of its placeholders.
fn filled<N: Module>(module: &N, params: Vec<Option<RocmTensor>>, tracked: bool) -> N {
    let mut take = Take::new(GradientsParams::new());
    module.visit(&mut take);
    let params = take.ids.into_iter().zip(params).filter_map(|(id, param)| Some((id, param?)));
    module.clone().map(&mut Put::new(params, tracked))
}

/// A root of a backward pass in which `output` gets this gradient.
fn seeded<const D: usize>(output: Tensor<D>, grad: Tensor<D>) -> Option<Tensor<1>> {
    let route = Route::of("ShardedModel", &output)?;
    if grad.dims() != output.dims() || grad.dtype() != output.dtype() {
        let text = |dims: [usize; D], dtype: DType| format!("{dims:?} of {}", dtype.name());
        let (expected, found) = (text(grad.dims(), grad.dtype()), text(output.dims(), output.dtype()));
        refuse("ShardedModel::step", format!("an output as in the forward pass: {expected}"), found);
    }
    Some(wrap(route.apply(Seed(rocm(grad)), [primitive(output)]).0))
}

/// The loss in f32 if it is in 16 bits, in which a scaled loss overflows.
fn wide(loss: Tensor<1>) -> Tensor<1> {
    match loss.dtype() {
        DType::F16 | DType::BF16 => loss.cast(FloatDType::F32),
        _ => loss,
    }
}

fn ok<T>(result: Result<T, RocmError>) -> T {
    result.unwrap_or_else(|error| raise(error))
}
