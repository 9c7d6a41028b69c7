//! Batch norm with the statistics of all ranks' samples.

use burn::module::{Module, Param, RunningState};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_rocm::{Communicator, graph};

use crate::BatchNorm;
use crate::fuse::{Route, primitive, refuse, wrap};
use crate::ops::ranks::SyncBatchNormTrain;

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
    /// or is empty; with `Collective` or `Mismatch` if the ranks fail or differ.
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
