//! The op behind losses of differences.

use burn::nn::loss::Reduction;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::fused::{self, Residual, Total};
use burn_rocm::{RocmError, RocmTensor};

use crate::fuse::{Applied, Gradients, Kept, Op, Route, primitive, wrap};

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

impl Op<2> for ResidualLoss {
    fn names(&self) -> [&'static str; 2] {
        self.names
    }

    fn reads(&self) -> [bool; 2] {
        [true, true]
    }

    fn memory_bound(&self) -> bool {
        self.total == Total::Each
    }

    fn forward(&self, [a, b]: [RocmTensor; 2]) -> Result<Applied, RocmError> {
        Ok((fused::residual_loss(self.kind, a, b, self.total)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<2>, wanted: [bool; 2]) -> Gradients<2> {
        let [a, b] = kept.first();
        // Of b as of a: the loss is even.
        let of = |first: &RocmTensor, second: &RocmTensor| {
            fused::residual_loss_backward(self.kind, first.clone(), second.clone(), grad.clone(), self.total)
        };
        let by_a = wanted[0].then(|| of(&a, &b)).transpose()?;
        let by_b = wanted[1].then(|| of(&b, &a)).transpose()?;
        Ok([by_a, by_b])
    }
}
