//! The op of losses over residuals.

use burn::nn::loss::Reduction;
use burn::tensor::{Device, Tensor};
use burn_rocm::fused::{Residual, Total};

use crate::fuse::{Route, primitive, say_composed, wrap};
use crate::ops::loss::{ResidualLoss, ResidualsLoss};

/// The loss of `a - b` by the fused op, if there is a route and nothing to broadcast.
pub(super) fn residual_loss<const D: usize, const OUT: usize>(
    module: &'static str,
    names: [&'static str; 2],
    kind: Residual,
    a: &Tensor<D>,
    b: &Tensor<D>,
    total: Total,
) -> Option<Tensor<OUT>> {
    let route = Route::of(module, a)?;
    if a.dims() != b.dims() {
        say_composed(module, &a.device(), "its inputs differ in shape");
        return None;
    }
    let op = ResidualLoss { names, kind, total };
    Some(wrap(route.apply(op, [primitive(a.clone()), primitive(b.clone())]).0))
}

/// The fused op's form of a reduction. `None` for a reduction that Burn's losses lack, with which
/// they panic.
pub(super) fn total(module: &'static str, device: &Device, reduction: &Reduction) -> Option<Total> {
    match reduction {
        Reduction::Mean | Reduction::Auto => Some(Total::Mean),
        Reduction::Sum => Some(Total::Sum),
        Reduction::BatchMean => {
            say_composed(module, device, "the fused op has no mean over the batch");
            None
        }
    }
}

/// The loss of each residual by the fused op, if there is a route.
pub(super) fn loss_of_residuals<const D: usize>(
    module: &'static str,
    names: [&'static str; 2],
    kind: Residual,
    residuals: &Tensor<D>,
) -> Option<Tensor<D>> {
    Some(Route::of(module, residuals)?.unary(ResidualsLoss { names, kind }, residuals.clone()))
}
