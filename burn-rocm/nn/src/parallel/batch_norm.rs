//! Batch norm with the statistics of all ranks' samples.

use burn::module::{Module, Param, RunningState};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_rocm::fused::{self, BatchStatistics};
use burn_rocm::{Communicator, ReduceOp, RocmError, RocmTensor, graph};

use crate::BatchNorm;
use crate::fuse::{Route, primitive, refuse, wrap};
use crate::ops::{Applied, Gradients, Kept, Op};

/// A [`BatchNorm`] that in training normalises with the mean and the variance of all ranks'
/// samples. In a [`BatchNorm`], a rank has the statistics of its own samples only, which are poor
/// if these are few.
///
/// With [`DataParallel`](super::DataParallel), the gradients are those of one device that has all
/// samples, on two conditions. A rank's loss must be the mean over its samples. And a rank's weight
/// must be its share of the elements, which [`Share`](super::Share) gives for samples of one size.
/// Every rank must have a sample in each step.
///
/// A forward pass has one all-gather of `2 * channels + 1` numbers, a backward pass one all-reduce of
/// `2 * channels`. Both passes read the input twice as often as [`BatchNorm`]'s.
#[derive(Module, Debug)]
pub struct SyncBatchNorm<B: Backend> {
    /// The scale of each channel.
    pub gamma: Param<Tensor<B, 1>>,
    /// The shift of each channel.
    pub beta: Param<Tensor<B, 1>>,
    /// The running mean.
    pub running_mean: RunningState<Tensor<B, 1>>,
    /// The running variance, biased as Burn's.
    pub running_var: RunningState<Tensor<B, 1>>,
    /// The part of the running statistics that each batch replaces.
    pub momentum: f64,
    /// Added to the variance.
    pub epsilon: f64,
    #[module(skip)]
    ranks: Communicator,
}

impl<B: Backend> SyncBatchNorm<B> {
    /// A batch norm over these ranks. Its parameters and running statistics must be the same on
    /// every rank.
    pub fn of(norm: BatchNorm<B>, ranks: &Communicator) -> Self {
        let BatchNorm { gamma, beta, running_mean, running_var, momentum, epsilon } = norm;
        Self { gamma, beta, running_mean, running_var, momentum, epsilon, ranks: ranks.clone() }
    }

    /// Normalises each channel: on an autodiff backend with the statistics of all ranks' inputs,
    /// else with the running statistics.
    ///
    /// # Shapes
    /// - input, output: `[batch_size, channels, ..]`; ranks may have other batch sizes
    ///
    /// # Panics
    /// With `Invalid` on a backend other than [`Rocm`](burn_rocm::Rocm), or if the input does not fit
    /// or is empty; with `Collective` or `Mismatch` if the ranks fail or differ; with `Capture` in a
    /// capture.
    pub fn forward<const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        if !B::ad_enabled(&input.device()) {
            return self.alone().forward(input);
        }
        let route = Route::<B>::of("SyncBatchNorm")
            .unwrap_or_else(|| refuse("SyncBatchNorm", "the backend Rocm", std::any::type_name::<B>()));
        let device = input.device();
        let [mean, variance] = [&self.running_mean, &self.running_var]
            // An update before a capture is not part of it.
            .map(|state| graph::uncaptured(|| state.value_sync()))
            .map(|value| primitive(value.to_device(&device).detach()));
        // If a graph has captured their memory they stay there, because the next replay updates them.
        let is_of_graph = |value: &FloatTensor<B>| graph::is_of_graph(&route.inner(value.clone()));
        let in_place = graph::is_capturing() || [&mean, &variance].into_iter().any(is_of_graph);
        let (momentum, epsilon, ranks) = (self.momentum, self.epsilon, self.ranks.clone());
        let op = SyncBatchNormTrain { momentum, epsilon, ranks, in_place };
        let [gamma, beta] = [&self.gamma, &self.beta].map(|param| primitive(param.val()));
        let (output, saved) = route.apply(op, [primitive(input), gamma, beta, mean, variance]);
        let [_, _, _, mean, variance] = saved.try_into().expect("`SyncBatchNormTrain` saves five");
        if !in_place {
            self.running_mean.update(route.constant(mean));
            self.running_var.update(route.constant(variance));
        }
        wrap(output)
    }

    /// The same norm, of this rank alone.
    fn alone(&self) -> BatchNorm<B> {
        BatchNorm {
            gamma: self.gamma.clone(),
            beta: self.beta.clone(),
            running_mean: self.running_mean.clone(),
            running_var: self.running_var.clone(),
            momentum: self.momentum,
            epsilon: self.epsilon,
        }
    }
}

/// The inputs are x, gamma, beta, running mean and running variance. Saves the whole batch's
/// statistics and the new running statistics.
#[derive(Debug)]
struct SyncBatchNormTrain {
    momentum: f64,
    epsilon: f64,
    ranks: Communicator,
    /// Whether the running statistics are written where they are.
    in_place: bool,
}

impl Op<5> for SyncBatchNormTrain {
    fn names(&self) -> [&'static str; 2] {
        ["nn_sync_batch_norm", "nn_sync_batch_norm_backward"]
    }

    fn reads(&self) -> [bool; 5] {
        [true, true, false, false, false]
    }

    fn forward(&self, inputs: [RocmTensor; 5]) -> Result<Applied, RocmError> {
        // Otherwise the other ranks wait for this one.
        self.normalise(inputs).inspect_err(|_| self.ranks.abort())
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<5>, _: [bool; 5]) -> Gradients<5> {
        self.gradients(grad, kept).inspect_err(|_| self.ranks.abort())
    }
}

impl SyncBatchNormTrain {
    fn normalise(&self, [x, gamma, beta, mean, variance]: [RocmTensor; 5]) -> Result<Applied, RocmError> {
        let elements = match x.dims() {
            [_, 0, ..] | [] | [_] => 0,
            dims => x.len() / dims[1],
        };
        if elements == 0 {
            return Err(RocmError::Invalid {
                op: "SyncBatchNorm",
                expected:
                    "[batch_size, channels, ..] with at least one element of each channel on every rank"
                        .into(),
                found: format!("{:?}", x.dims()),
            });
        }
        let running = [mean.clone(), variance.clone()];
        let own = fused::batch_norm_train(
            x.clone(),
            gamma.clone(),
            beta.clone(),
            running,
            self.momentum,
            self.epsilon,
        )?;
        let part = fused::batch_part(own.statistics, elements)?;
        let parts = self.ranks.all_gather(part)?.join()?;
        let of = fused::batch_of_parts(parts, self.epsilon)?;
        let moments = of.mean_and_variance()?;
        let output = fused::batch_norm_infer(x, gamma, beta, moments.clone(), self.epsilon)?;
        let [new_mean, new_variance] = moments;
        let new_mean = fused::running_after(mean.clone(), new_mean, self.momentum)?;
        let new_variance = fused::running_after(variance.clone(), new_variance, self.momentum)?;
        let mut saved = vec![of.normal, of.moments, of.count];
        if self.in_place {
            // Where the next replay finds them.
            graph::write(&mean, new_mean)?;
            graph::write(&variance, new_variance)?;
            saved.extend([mean, variance]);
        } else {
            saved.extend([new_mean, new_variance]);
        }
        Ok((output, saved))
    }

    fn gradients(&self, grad: RocmTensor, mut kept: Kept<5>) -> Gradients<5> {
        let [x, gamma] = kept.first();
        let [normal, moments, count, _, _] = kept.saved.try_into().expect("five are saved");
        let of = BatchStatistics { normal, moments, count };
        let part = fused::part_gradients(x.clone(), gamma.clone(), &of, grad, self.epsilon)?;
        let all = self.ranks.all_reduce(ReduceOp::Sum, part.weighted.clone())?.join()?;
        let [by_gamma, by_beta] = part.by_parameters(&gamma)?;
        let by_x = fused::gradient_of_parts(x, gamma, &of, part, all, self.epsilon)?;
        Ok([Some(by_x), Some(by_gamma), Some(by_beta), None, None])
    }
}
