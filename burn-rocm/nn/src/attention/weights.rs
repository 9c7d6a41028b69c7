//! Attention weights, made when they are asked for.

use std::ops::Deref;
use std::sync::OnceLock;

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

use super::op::{Rule, WeightsOp};
use crate::fuse::{Route, primitive, wrap};

/// The weights `[batch, heads, queries, keys]` of an attention, which its own kernels do not put into memory: they are computed, and recorded for the
/// backward pass, when they are first looked at.
///
/// Stands where Burn has a `Tensor<B, 4>`, and derefs to one: `output.weights.dims()` and `output.weights.clone()` (a tensor) compile as with Burn. Only
/// a method that takes the tensor itself needs `output.weights.clone()` or [`into_tensor`](Self::into_tensor) ahead of it.
#[derive(Debug)]
pub struct MhaWeights<B: Backend> {
    made: OnceLock<Tensor<B, 4>>,
    recipe: Option<Recipe<B>>,
}

#[derive(Clone, Debug)]
struct Recipe<B: Backend> {
    query: Tensor<B, 4>,
    key: Tensor<B, 4>,
    rule: Rule,
}

impl<B: Backend> MhaWeights<B> {
    /// Weights to be made of these.
    pub(super) fn of(query: Tensor<B, 4>, key: Tensor<B, 4>, rule: Rule) -> Self {
        Self { made: OnceLock::new(), recipe: Some(Recipe { query, key, rule }) }
    }

    /// The tensor.
    pub fn into_tensor(self) -> Tensor<B, 4> {
        (*self).clone()
    }

    /// The tensor's data.
    pub fn into_data(self) -> TensorData {
        self.into_tensor().into_data()
    }

    /// Another holder of the same weights. Not `Clone`: `weights.clone()` is a tensor, as it is with Burn.
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
            let Recipe { query, key, rule } = self.recipe.clone().expect("made, or to be made");
            let route = Route::<B>::of().expect("a recipe is of a backend that has a route");
            wrap(route.apply(WeightsOp(rule), [primitive(query), primitive(key)]).0)
        })
    }
}
