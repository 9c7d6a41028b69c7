//! The op behind losses of differences.

use burn::nn::loss::Reduction;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::fused::{self, Residual, Total};
use burn_rocm::{RocmError, RocmTensor};

use crate::fuse::{Applied, Kept, Op, Route, primitive, wrap};

/// The loss of `a - b` by the fused op, where there is a route and nothing to broadcast.
pub(super) fn residual_loss<B: Backend, const D: usize, const OUT: usize>(
    names: [&'static str; 2],
    kind: Residual,
    a: &Tensor<B, D>,
    b: &Tensor<B, D>,
    total: Total,
) -> Option<Tensor<B, OUT>> {
    let route = Route::<B>::of()?;
    if a.dims() != b.dims() {
        return None;
    }
    let op = ResidualLoss { names, kind, total };
    Some(wrap(route.apply(op, [primitive(a.clone()), primitive(b.clone())]).0))
}

/// What a reduction asks for, `None` where Burn's losses have no such one.
pub(super) fn total(reduction: &Reduction) -> Option<Total> {
    match reduction {
        Reduction::Mean | Reduction::Auto => Some(Total::Mean),
        Reduction::Sum => Some(Total::Sum),
        Reduction::BatchMean => None,
    }
}

#[derive(Debug)]
struct ResidualLoss {
    names: [&'static str; 2],
    kind: Residual,
    total: Total,
}

impl Op for ResidualLoss {
    fn names(&self) -> [&'static str; 2] {
        self.names
    }

    fn reads(&self) -> &'static [bool] {
        &[true, true]
    }

    fn memory_bound(&self) -> bool {
        self.total == Total::Each
    }

    fn forward(&self, inputs: Vec<RocmTensor>) -> Result<Applied, RocmError> {
        let [a, b] = inputs.try_into().expect("two inputs");
        Ok((fused::residual_loss(self.kind, a, b, self.total)?, vec![]))
    }

    fn backward(
        &self,
        grad: RocmTensor,
        kept: Kept,
        wanted: &[bool],
    ) -> Result<Vec<Option<RocmTensor>>, RocmError> {
        let [a, b] = kept.inputs.try_into().expect("two inputs");
        let (a, b) = (a.expect("kept"), b.expect("kept"));
        // Of b as of a: the loss is even.
        let of = |first: &RocmTensor, second: &RocmTensor| {
            fused::residual_loss_backward(self.kind, first.clone(), second.clone(), grad.clone(), self.total)
        };
        let by_a = wanted[0].then(|| of(&a, &b)).transpose()?;
        let by_b = wanted[1].then(|| of(&b, &a)).transpose()?;
        Ok(vec![by_a, by_b])
    }
}
