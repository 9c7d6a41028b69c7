//! The op behind losses of rows with one class each.

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use burn_rocm::fused::{self, ClassScores, ClassTargets};
use burn_rocm::{RocmError, RocmTensor};

use super::constant_weights;
use crate::fuse::{Applied, Gradients, Kept, Op, Route, primitive, wrap};

/// The options of a loss, beside the class weights.
pub(super) struct Options<'a> {
    pub(super) scores: ClassScores,
    pub(super) smoothing: Option<f32>,
    pub(super) pad_tokens: &'a [usize],
}

/// The loss of scores `[rows, classes]` by the fused op, where there is a route.
pub(super) fn class_loss<B: Backend>(
    names: [&'static str; 2],
    options: Options<'_>,
    weights: Option<&Tensor<B, 1>>,
    scores: &Tensor<B, 2>,
    targets: &Tensor<B, 1, Int>,
) -> Option<Tensor<B, 1>> {
    let route = Route::<B>::of()?;
    if options.pad_tokens.len() > fused::MAX_PAD_TOKENS {
        return None;
    }
    let op = ClassLoss {
        names,
        weighted: weights.is_some(),
        of: ClassTargets {
            scores: options.scores,
            targets: route.int(targets.clone()),
            smoothing: options.smoothing,
            pad_tokens: options.pad_tokens.to_vec(),
        },
    };
    let scores = primitive(scores.clone());
    let loss = match weights {
        Some(weights) => route.apply(op, [scores, primitive(weights.clone())]).0,
        None => route.apply(op, [scores]).0,
    };
    Some(wrap(loss))
}

#[derive(Debug)]
struct ClassLoss {
    names: [&'static str; 2],
    /// Whether class weights are the second input.
    weighted: bool,
    of: ClassTargets,
}

impl<const N: usize> Op<N> for ClassLoss {
    fn names(&self) -> [&'static str; 2] {
        self.names
    }

    fn reads(&self) -> [bool; N] {
        [true; N]
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let scores = inputs.next().expect("the scores come first");
        let (loss, saved) = fused::cross_entropy(scores, inputs.next(), &self.of)?;
        Ok((loss, vec![saved]))
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        if wanted.get(1) == Some(&true) {
            return constant_weights(self.names[1]);
        }
        let mut inputs = kept.inputs.into_iter().flatten();
        let scores = inputs.next().expect("the scores are kept");
        let found = fused::cross_entropy_backward(scores, inputs.next(), &self.of, &kept.saved[0], grad)?;
        let mut found = Some(found);
        Ok(std::array::from_fn(|_| found.take()))
    }
}
