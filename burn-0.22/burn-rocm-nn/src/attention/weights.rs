//! Attention weights that are computed on demand.

use std::ops::Deref;
use std::sync::OnceLock;

use burn::tensor::module::linear;
use burn::tensor::{Tensor, TensorData};

use crate::fuse::{Route, primitive, wrap};
use crate::ops::attention::{Rule, WeightsOp};

/// The weights `[batch, heads, queries, keys]` of an attention. The attention kernels need not
/// store them. So they are computed, and recorded for the backward pass, when they are first used.
///
/// Replaces Burn's `Tensor<4>` and derefs to one. So `output.weights.dims()` and
/// `output.weights.clone()` (a tensor) compile as with Burn. A method that takes the tensor by
/// value needs `output.weights.clone()` or [`into_tensor`](Self::into_tensor) first.
///
/// It holds what the weights are computed from: queries and keys, or the tokens and the parameters
/// of the layers that make these. An optimizer does not write a parameter in place while something
/// holds it, and a [graph](burn_rocm::graph) can't capture such a step. Keep only the output's
/// context where the weights are not needed.
#[derive(Debug)]
pub struct MhaWeights {
    made: OnceLock<Tensor<4>>,
    recipe: Option<Recipe>,
}

#[derive(Clone, Debug)]
struct Recipe {
    operands: Operands,
    rule: Rule,
}

/// The queries and keys, or the tensors from which they are computed.
#[derive(Clone, Debug)]
enum Operands {
    /// Queries and keys `[batch, heads, sequence, d_k]`.
    Heads(Box<[Tensor<4>; 2]>),
    /// Tokens `[sequence, batch, d_model]`, the layers that make queries and keys from them, and
    /// the number of features of a head.
    Tokens(Box<(Tensor<3>, [Layer; 2], usize)>),
}

/// The weight and the bias of a linear layer.
pub(super) type Layer = (Tensor<2>, Tensor<1>);

/// The heads `[batch, heads, sequence, d_k]` of `d_k` features in `[sequence, batch, heads * d_k]`.
pub(super) fn heads_of(features: Tensor<3>, d_k: usize) -> Tensor<4> {
    let [sequence, batch, width] = features.dims();
    features.reshape([sequence, batch, width / d_k.max(1), d_k]).permute([1, 2, 0, 3])
}

impl Operands {
    fn heads(self) -> [Tensor<4>; 2] {
        match self {
            Self::Heads(heads) => *heads,
            Self::Tokens(made_of) => {
                let (tokens, layers, d_k) = *made_of;
                layers.map(|(weight, bias)| heads_of(linear(tokens.clone(), weight, Some(bias)), d_k))
            }
        }
    }
}

impl MhaWeights {
    /// The weights of these queries and keys.
    pub(super) fn of(query: Tensor<4>, key: Tensor<4>, rule: Rule) -> Self {
        Self::to_be_made(Operands::Heads(Box::new([query, key])), rule)
    }

    /// The weights of self-attention over tokens. These layers make the queries and keys.
    pub(super) fn of_tokens(tokens: Tensor<3>, layers: [Layer; 2], d_k: usize, rule: Rule) -> Self {
        Self::to_be_made(Operands::Tokens(Box::new((tokens, layers, d_k))), rule)
    }

    fn to_be_made(operands: Operands, rule: Rule) -> Self {
        Self { made: OnceLock::new(), recipe: Some(Recipe { operands, rule }) }
    }

    /// The tensor.
    pub fn into_tensor(self) -> Tensor<4> {
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

impl From<Tensor<4>> for MhaWeights {
    fn from(weights: Tensor<4>) -> Self {
        Self { made: OnceLock::from(weights), recipe: None }
    }
}

impl From<MhaWeights> for Tensor<4> {
    fn from(weights: MhaWeights) -> Self {
        weights.into_tensor()
    }
}

impl Deref for MhaWeights {
    type Target = Tensor<4>;

    fn deref(&self) -> &Tensor<4> {
        self.made.get_or_init(|| {
            let Recipe { operands, rule } = self.recipe.clone().expect("made, or to be made");
            let heads = operands.heads();
            let route = Route::of("MultiHeadAttention", &heads[0]);
            let route = route.expect("a recipe is of tensors that have a route");
            wrap(route.apply(WeightsOp(rule), heads.map(primitive)).0)
        })
    }
}
