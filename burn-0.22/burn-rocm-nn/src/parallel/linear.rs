//! Linear layers whose weights are divided among ranks ([Shoeybi et al.
//! 2019](https://arxiv.org/abs/1909.08053)).

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::module::linear;
use burn_rocm::Communicator;

use crate::divided::Ranks;
use crate::fuse::{Route, refuse};
use crate::ops::ranks::{Same, Sum};

/// A linear layer of which each rank has some columns of the weight: it computes some features of
/// the output.
///
/// With a [`RowLinear`] behind it, and anything between the two that works on each feature alone,
/// the pair has one all-reduce forward and one backward. The input, and its gradient, are the same
/// on every rank.
///
/// The layer's parameters are this rank's own: `DataParallel` must not average them over the same
/// ranks.
#[derive(Module, Debug)]
pub struct ColumnLinear {
    /// `[d_input, d_output / ranks]`.
    pub weight: Param<Tensor<2>>,
    /// `[d_output / ranks]`.
    pub bias: Option<Param<Tensor<1>>>,
    ranks: Ranks,
}

impl ColumnLinear {
    /// This rank's columns of a layer that is the same on every rank. An adapter that Burn attached
    /// to it ([`Module::apply_lora`]) is merged into the weight ([`Module::materialize`]), so it is
    /// not trained any more.
    ///
    /// # Panics
    /// With `Invalid` unless the number of ranks divides the output's features.
    pub fn of(layer: Linear, ranks: &Communicator) -> Self {
        let layer = layer.materialize();
        let [_, features] = layer.weight.dims();
        let (begin, count) = own("ColumnLinear", features, ranks);
        Self {
            weight: layer.weight.map(|weight| part(weight, 1, begin, count)),
            bias: layer.bias.map(|bias| bias.map(|bias| part(bias, 0, begin, count))),
            ranks: Ranks::new(ranks, [2, 2]),
        }
    }

    /// This rank's features of the output.
    ///
    /// # Shapes
    /// - input: `[.., d_input]`, the same on every rank
    /// - output: `[.., d_output / ranks]`
    ///
    /// # Panics
    /// With `Invalid` on another project's device; with `Collective` or `Mismatch` if the ranks fail
    /// or differ.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let input = route("ColumnLinear", &input).unary(Same(self.ranks.communicator()), input);
        linear(input, self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}

/// A linear layer of which each rank has some rows of the weight: it computes with some features of
/// the input. The output is the same on every rank.
///
/// The weight is this rank's own, see [`ColumnLinear`]. The bias, and its gradient, are the same on
/// every rank.
#[derive(Module, Debug)]
pub struct RowLinear {
    /// `[d_input / ranks, d_output]`.
    pub weight: Param<Tensor<2>>,
    /// `[d_output]`.
    pub bias: Option<Param<Tensor<1>>>,
    ranks: Ranks,
}

impl RowLinear {
    /// This rank's rows of a layer that is the same on every rank. Adapters are merged as in
    /// [`ColumnLinear::of`].
    ///
    /// # Panics
    /// With `Invalid` unless the number of ranks divides the input's features.
    pub fn of(layer: Linear, ranks: &Communicator) -> Self {
        let layer = layer.materialize();
        let [features, _] = layer.weight.dims();
        let (begin, count) = own("RowLinear", features, ranks);
        Self {
            weight: layer.weight.map(|weight| part(weight, 0, begin, count)),
            bias: layer.bias,
            // Only the weight is divided.
            ranks: Ranks::new(ranks, [1, 2]),
        }
    }

    /// The output.
    ///
    /// # Shapes
    /// - input: `[.., d_input / ranks]`, this rank's features
    /// - output: `[.., d_output]`, the same on every rank
    ///
    /// # Panics
    /// As [`ColumnLinear::forward`].
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let part = linear(input, self.weight.val(), None);
        let sum = route("RowLinear", &part).unary(Sum(self.ranks.communicator()), part);
        biased(sum, self.bias.as_ref())
    }
}

/// A sum over ranks, and a bias that is the same on every rank.
pub(super) fn biased<const D: usize>(sum: Tensor<D>, bias: Option<&Param<Tensor<1>>>) -> Tensor<D> {
    match bias {
        Some(bias) => sum + bias.val().unsqueeze(),
        None => sum,
    }
}

/// The first and the number of this rank's features.
pub(super) fn own(op: &'static str, features: usize, ranks: &Communicator) -> (usize, usize) {
    if !features.is_multiple_of(ranks.size()) {
        refuse(op, format!("features that {} ranks divide", ranks.size()), features.to_string());
    }
    let count = features / ranks.size();
    (ranks.rank() * count, count)
}

/// Some features of a parameter, as a parameter of their own. The product makes a copy, because a
/// view would keep the memory of all ranks' parts.
pub(super) fn part<const D: usize>(whole: Tensor<D>, dim: usize, begin: usize, count: usize) -> Tensor<D> {
    let trained = whole.is_require_grad();
    // While `whole` lives, the product can't overwrite its memory.
    let copied = whole.clone().detach().narrow(dim, begin, count).mul_scalar(1.0);
    drop(whole);
    copied.detach().set_require_grad(trained)
}

pub(super) fn route<const D: usize>(module: &'static str, input: &Tensor<D>) -> Route {
    Route::of(module, input)
        .unwrap_or_else(|| refuse(module, "a tensor on `Device::rocm`", format!("{:?}", input.device())))
}
