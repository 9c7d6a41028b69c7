//! The op of losses over rows that have one class each.

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use burn_rocm::fused::{self, ClassScores, ClassTargets};

use crate::fuse::{Route, primitive, say_composed, wrap};
use crate::ops::loss::ClassLoss;

/// The options of a loss other than the class weights.
pub(super) struct Options<'a> {
    pub(super) scores: ClassScores,
    pub(super) smoothing: Option<f32>,
    pub(super) pad_tokens: &'a [usize],
}

/// The loss of scores `[rows, classes]` by the fused op, if there is a route and the weights
/// require no gradient.
pub(super) fn class_loss<B: Backend>(
    module: &'static str,
    names: [&'static str; 2],
    options: Options<'_>,
    weights: Option<&Tensor<B, 1>>,
    scores: &Tensor<B, 2>,
    targets: &Tensor<B, 1, Int>,
) -> Option<Tensor<B, 1>> {
    let route = Route::<B>::of(module)?;
    if options.pad_tokens.len() > fused::MAX_PAD_TOKENS {
        say_composed::<B>(module, "it has more pad tokens than the fused op takes");
        return None;
    }
    let weights = match weights {
        None => None,
        Some(weights) => Some(route.untracked(module, weights)?),
    };
    let op = ClassLoss {
        names,
        weights,
        of: ClassTargets {
            scores: options.scores,
            targets: route.int(targets.clone()),
            smoothing: options.smoothing,
            pad_tokens: options.pad_tokens.to_vec(),
        },
    };
    Some(wrap(route.apply(op, [primitive(scores.clone())]).0))
}
