//! The op of losses over residuals.

use burn::nn::loss::Reduction;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::fused::{self, Residual, Total};
use burn_rocm::{RocmError, RocmTensor};

use crate::fuse::{Applied, Gradients, Kept, Op, Route, primitive, say_composed, wrap};

/// The loss of `a - b` by the fused op, if there is a route and nothing to broadcast.
pub(super) fn residual_loss<B: Backend, const D: usize, const OUT: usize>(
    module: &'static str,
    names: [&'static str; 2],
    kind: Residual,
    a: &Tensor<B, D>,
    b: &Tensor<B, D>,
    total: Total,
) -> Option<Tensor<B, OUT>> {
    let route = Route::<B>::of(module)?;
    if a.dims() != b.dims() {
        say_composed::<B>(module, "its inputs differ in shape");
        return None;
    }
    let op = ResidualLoss { names, kind, total };
    Some(wrap(route.apply(op, [primitive(a.clone()), primitive(b.clone())]).0))
}

/// The fused op's form of a reduction. `None` for a reduction that Burn's losses lack; they panic.
pub(super) fn total<B: Backend>(module: &'static str, reduction: &Reduction) -> Option<Total> {
    match reduction {
        Reduction::Mean | Reduction::Auto => Some(Total::Mean),
        Reduction::Sum => Some(Total::Sum),
        Reduction::BatchMean => {
            say_composed::<B>(module, "the fused op has no mean over the batch");
            None
        }
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
        let of = |first, second, both| {
            fused::residual_loss_backward(self.kind, first, second, grad, self.total, both)
        };
        match wanted {
            [false, false] => Ok([None, None]),
            // The loss is even, so the gradient with respect to b is that of a with the inputs
            // swapped.
            [false, true] => Ok([None, Some(of(b, a, false)?.0)]),
            [true, both] => of(a, b, both).map(|(by_a, by_b)| [Some(by_a), by_b]),
        }
    }
}

/// The loss of each residual by the fused op, if there is a route.
pub(super) fn loss_of_residuals<B: Backend, const D: usize>(
    module: &'static str,
    names: [&'static str; 2],
    kind: Residual,
    residuals: &Tensor<B, D>,
) -> Option<Tensor<B, D>> {
    Some(Route::of(module)?.unary(ResidualsLoss { names, kind }, residuals.clone()))
}

#[derive(Debug)]
struct ResidualsLoss {
    names: [&'static str; 2],
    kind: Residual,
}

impl Op<1> for ResidualsLoss {
    fn names(&self) -> [&'static str; 2] {
        self.names
    }

    fn reads(&self) -> [bool; 1] {
        [true]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, [residuals]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((fused::loss_of_residuals(self.kind, residuals)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        let [residuals] = kept.first();
        Ok([Some(fused::loss_of_residuals_backward(self.kind, residuals, grad)?)])
    }
}
