//! Attention weights that are computed on demand.

use std::ops::Deref;
use std::sync::OnceLock;

use burn::tensor::backend::Backend;
use burn::tensor::module::linear;
use burn::tensor::{Tensor, TensorData};

use crate::fuse::{Route, primitive, wrap};
use crate::ops::attention::{Rule, WeightsOp};

/// The weights `[batch, heads, queries, keys]` of an attention. The attention kernels need not
/// store them. So they are computed, and recorded for the backward pass, when they are first used.
///
/// Replaces Burn's `Tensor<B, 4>` and derefs to one. So `output.weights.dims()` and
/// `output.weights.clone()` (a tensor) compile as with Burn. A method that takes the tensor by
/// value needs `output.weights.clone()` or [`into_tensor`](Self::into_tensor) first.
///
/// It holds what the weights are computed from: queries and keys, or the tokens and the parameters
/// of the layers that make these. An optimizer does not write a parameter in place while something
/// holds it, and a [graph](burn_rocm::graph) can't capture such a step. Keep only the output's
/// context where the weights are not needed.
#[derive(Debug)]
pub struct MhaWeights<B: Backend> {
    made: OnceLock<Tensor<B, 4>>,
    recipe: Option<Recipe<B>>,
}

#[derive(Clone, Debug)]
struct Recipe<B: Backend> {
    operands: Operands<B>,
    rule: Rule,
}

/// The queries and keys, or the tensors from which they are computed.
#[derive(Clone, Debug)]
enum Operands<B: Backend> {
    /// Queries and keys `[batch, heads, sequence, d_k]`.
    Heads([Tensor<B, 4>; 2]),
    /// Tokens `[sequence, batch, d_model]`, the layers that make queries and keys from them, and
    /// the number of features of a head.
    Tokens(Tensor<B, 3>, [Layer<B>; 2], usize),
}

/// The weight and the bias of a linear layer.
pub(super) type Layer<B> = (Tensor<B, 2>, Tensor<B, 1>);

/// The heads `[batch, heads, sequence, d_k]` of `d_k` features in `[sequence, batch, heads * d_k]`.
pub(super) fn heads_of<B: Backend>(features: Tensor<B, 3>, d_k: usize) -> Tensor<B, 4> {
    let [sequence, batch, width] = features.dims();
    features.reshape([sequence, batch, width / d_k.max(1), d_k]).permute([1, 2, 0, 3])
}

impl<B: Backend> Operands<B> {
    fn heads(self) -> [Tensor<B, 4>; 2] {
        match self {
            Self::Heads(heads) => heads,
            Self::Tokens(tokens, layers, d_k) => {
                layers.map(|(weight, bias)| heads_of(linear(tokens.clone(), weight, Some(bias)), d_k))
            }
        }
    }
}

impl<B: Backend> MhaWeights<B> {
    /// The weights of these queries and keys.
    pub(super) fn of(query: Tensor<B, 4>, key: Tensor<B, 4>, rule: Rule) -> Self {
        Self::to_be_made(Operands::Heads([query, key]), rule)
    }

    /// The weights of self-attention over tokens. These layers make the queries and keys.
    pub(super) fn of_tokens(tokens: Tensor<B, 3>, layers: [Layer<B>; 2], d_k: usize, rule: Rule) -> Self {
        Self::to_be_made(Operands::Tokens(tokens, layers, d_k), rule)
    }

    fn to_be_made(operands: Operands<B>, rule: Rule) -> Self {
        Self { made: OnceLock::new(), recipe: Some(Recipe { operands, rule }) }
    }

    /// The tensor.
    pub fn into_tensor(self) -> Tensor<B, 4> {
        (*self).clone()
    }

    /// The tensor's data.
    pub fn into_data(self) -> TensorData {
        self.into_tensor().into_data()
    }

    /// Another handle of the same weights. This type is not `Clone`, so that `weights.clone()` is a
    /// tensor, as with Burn.
    pub(super) fn again(&self) -> Self {
        Self { made: self.made.clone(), recipe: self.recipe.clone() }
    }
}

impl<B: Backend> From<Tensor<B, 4>> for MhaWeights<B> {
    fn from(weights: Tensor<B, 4>) -> Self {
        Self { made: OnceLock::from(weights), recipe: None }
    }
}

impl<B: Backend> From<MhaWeights<B>> for Tensor<B, 4> {
    fn from(weights: MhaWeights<B>) -> Self {
        weights.into_tensor()
    }
}

impl<B: Backend> Deref for MhaWeights<B> {
    type Target = Tensor<B, 4>;

    fn deref(&self) -> &Tensor<B, 4> {
        self.made.get_or_init(|| {
            let Recipe { operands, rule } = self.recipe.clone().expect("made, or to be made");
            let route =
                Route::<B>::of("MultiHeadAttention").expect("a recipe is of a backend that has a route");
            wrap(route.apply(WeightsOp(rule), operands.heads().map(primitive)).0)
        })
    }
}
