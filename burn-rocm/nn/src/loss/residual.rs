//! The op of losses over residuals.

use burn::nn::loss::Reduction;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::fused::{Residual, Total};

use crate::fuse::{Route, primitive, say_composed, wrap};
use crate::ops::loss::{ResidualLoss, ResidualsLoss};

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

/// The fused op's form of a reduction. `None` for a reduction that Burn's losses lack, with which
/// they panic.
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

/// The loss of each residual by the fused op, if there is a route.
pub(super) fn loss_of_residuals<B: Backend, const D: usize>(
    module: &'static str,
    names: [&'static str; 2],
    kind: Residual,
    residuals: &Tensor<B, D>,
) -> Option<Tensor<B, D>> {
    Some(Route::of(module)?.unary(ResidualsLoss { names, kind }, residuals.clone()))
}
