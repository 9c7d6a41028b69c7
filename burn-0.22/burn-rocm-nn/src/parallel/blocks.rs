//! Blocks of a transformer whose weights are divided among ranks ([Shoeybi et al.
//! 2019](https://arxiv.org/abs/1909.08053)).

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::nn::activation::Activation;
use burn::tensor::Tensor;
use burn_rocm::Communicator;

use super::linear::{biased, own, part, route};
use crate::attention::{MhaInput, MhaOutput, MultiHeadAttention};
use crate::divided::Ranks;
use crate::fuse::refuse;
use crate::ops::ranks::{Same, Sum};
use crate::transformer::PositionWiseFeedForward;

/// A [`PositionWiseFeedForward`] of which each rank has some of the `d_ff` features: columns of the
/// first layer, and rows of the second.
///
/// It takes one all-reduce forward and one backward. Input and output, and their gradients, are the
/// same on every rank. The parameters are this rank's own, except `bias`, which is the same on every
/// rank. With a dropout, seed the devices of the ranks differently: each drops its own features.
#[derive(Module, Debug)]
pub struct ParallelFeedForward {
    /// This rank's features. The second layer has no bias.
    pub part: PositionWiseFeedForward,
    /// The second layer's bias, `[d_model]`.
    pub bias: Option<Param<Tensor<1>>>,
    ranks: Ranks,
}

impl ParallelFeedForward {
    /// This rank's part of a block that is the same on every rank. Adapters are merged as in
    /// [`ColumnLinear::of`](super::ColumnLinear::of).
    ///
    /// # Panics
    /// With `Invalid` unless the number of ranks divides `d_ff`, or if the activation has parameters.
    pub fn of(block: PositionWiseFeedForward, ranks: &Communicator) -> Self {
        const MODULE: &str = "ParallelFeedForward";
        if matches!(block.activation, Activation::PRelu(_) | Activation::SwiGlu(_)) {
            refuse(MODULE, "an activation without parameters", format!("{:?}", block.activation));
        }
        let block = block.materialize();
        let [_, features] = block.linear_inner.weight.dims();
        let (begin, count) = own(MODULE, features, ranks);
        let (linear_outer, bias) = rows(block.linear_outer, begin, count);
        let linear_inner = columns(block.linear_inner, begin, count);
        let part = PositionWiseFeedForward { linear_inner, linear_outer, ..block };
        Self { part, bias, ranks: Ranks::new(ranks, [1, 2]) }
    }

    /// Runs the layers one after the other.
    ///
    /// # Shapes
    /// - input, output: `[.., d_model]`, the same on every rank
    ///
    /// # Panics
    /// As [`ColumnLinear::forward`](super::ColumnLinear::forward).
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let route = route("ParallelFeedForward", &input);
        let input = route.unary(Same(self.ranks.communicator()), input);
        let sum = route.unary(Sum(self.ranks.communicator()), self.part.forward(input));
        biased(sum, self.bias.as_ref())
    }
}

/// A [`MultiHeadAttention`] of which each rank has some heads.
///
/// It takes one all-reduce forward and one backward. Input and output, and their gradients, are the
/// same on every rank; [`MhaOutput::weights`] are those of this rank's heads. The parameters are this
/// rank's own, except `bias`, which is the same on every rank. With a dropout, seed the devices of the
/// ranks differently: each drops scores of its own heads.
#[derive(Module, Debug)]
pub struct ParallelAttention {
    /// This rank's heads. The output layer has no bias.
    pub part: MultiHeadAttention,
    /// The output layer's bias, `[d_model]`.
    pub bias: Option<Param<Tensor<1>>>,
    ranks: Ranks,
}

impl ParallelAttention {
    /// This rank's heads of a module that is the same on every rank. Adapters are merged as in
    /// [`ColumnLinear::of`](super::ColumnLinear::of).
    ///
    /// # Panics
    /// With `Invalid` unless the number of ranks divides the number of heads, and the number of
    /// heads of keys and values.
    pub fn of(attention: MultiHeadAttention, ranks: &Communicator) -> Self {
        const MODULE: &str = "ParallelAttention";
        let attention = attention.materialize();
        let width = attention.d_k.max(1);
        let (first, heads) = own(MODULE, attention.n_heads, ranks);
        let (kv_first, kv_heads) = own(MODULE, attention.key.weight.dims()[1] / width, ranks);
        let of_keys = |layer| columns(layer, kv_first * width, kv_heads * width);
        let (output, bias) = rows(attention.output, first * width, heads * width);
        let part = MultiHeadAttention {
            query: columns(attention.query, first * width, heads * width),
            key: of_keys(attention.key),
            value: of_keys(attention.value),
            output,
            n_heads: heads,
            ..attention
        };
        Self { part, bias, ranks: Ranks::new(ranks, [1, 2]) }
    }

    /// Attention of each query to the keys and values.
    ///
    /// # Shapes
    /// As [`MultiHeadAttention::forward`]; the input is the same on every rank.
    ///
    /// # Panics
    /// As [`MultiHeadAttention::forward`], and as
    /// [`ColumnLinear::forward`](super::ColumnLinear::forward).
    pub fn forward(&self, input: MhaInput) -> MhaOutput {
        let route = route("ParallelAttention", &input.query);
        let input = input.map(|tensor| route.unary(Same(self.ranks.communicator()), tensor));
        let MhaOutput { weights, context } = self.part.forward(input);
        let sum = route.unary(Sum(self.ranks.communicator()), context);
        MhaOutput { weights, context: biased(sum, self.bias.as_ref()) }
    }
}

/// Some output features of a layer.
fn columns(layer: Linear, begin: usize, count: usize) -> Linear {
    Linear {
        weight: layer.weight.map(|weight| part(weight, 1, begin, count)),
        bias: layer.bias.map(|bias| bias.map(|bias| part(bias, 0, begin, count))),
    }
}

/// Some input features of a layer, and its bias.
fn rows(layer: Linear, begin: usize, count: usize) -> (Linear, Option<Param<Tensor<1>>>) {
    let weight = layer.weight.map(|weight| part(weight, 0, begin, count));
    (Linear { weight, bias: None }, layer.bias)
}
