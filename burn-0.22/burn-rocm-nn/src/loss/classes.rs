//! The op of losses over rows that have one class each.

use burn::tensor::{DType, FloatDType, Int, Tensor};
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
pub(super) fn class_loss(
    module: &'static str,
    names: [&'static str; 2],
    options: Options<'_>,
    weights: Option<&Tensor<1>>,
    scores: &Tensor<2>,
    targets: &Tensor<1, Int>,
) -> Option<Tensor<1>> {
    let route = Route::of(module, scores)?;
    if options.pad_tokens.len() > fused::MAX_PAD_TOKENS {
        say_composed(module, &scores.device(), "it has more pad tokens than the fused op takes");
        return None;
    }
    if weights.is_some() && options.pad_tokens.iter().any(|&token| token >= scores.dims()[1]) {
        say_composed(module, &scores.device(), "it has weights, and a pad token that is not a class");
        return None;
    }
    let class_weights = match weights {
        None => None,
        Some(weights) => Some(route.untracked(module, weights)?),
    };
    let op = ClassLoss {
        names,
        weights: class_weights,
        of: ClassTargets {
            scores: options.scores,
            targets: route.int(targets.clone()),
            smoothing: options.smoothing,
            pad_tokens: options.pad_tokens.to_vec(),
        },
    };
    let loss = wrap(route.apply(op, [primitive(scores.clone())]).0);
    Some(match options.pad_tokens {
        [] => loss,
        pads => over_other_rows(loss, weights, targets, pads),
    })
}

/// Turns the fused op's loss into the mean without the rows of pad tokens, which Burn 0.22
/// computes. The fused op divides by the number of all rows, or by the sum of all targets' weights.
fn over_other_rows(
    loss: Tensor<1>,
    weights: Option<&Tensor<1>>,
    targets: &Tensor<1, Int>,
    pads: &[usize],
) -> Tensor<1> {
    let targets = targets.clone().inner();
    let is_pad = pads.iter().map(|&token| targets.clone().equal_scalar(token as i64));
    let Some(is_pad) = is_pad.reduce(|one, other| one.bool_or(other)) else { return loss };
    let dtype = FloatDType::from(loss.dtype());
    let wide = if dtype == FloatDType::F64 { FloatDType::F64 } else { FloatDType::F32 };
    let of_rows = match weights {
        Some(weights) => weights.clone().inner().cast(wide).gather(0, targets),
        None => Tensor::ones(is_pad.dims(), (&is_pad.device(), DType::from(wide))),
    };
    let ratio = of_rows.clone().sum() / of_rows.mask_fill(is_pad, 0).sum();
    (loss.cast(wide) * ratio).cast(dtype)
}
