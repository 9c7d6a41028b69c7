//! Gated linear units.

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, gelu_approximate, silu};

use super::GateKind;
use crate::fuse::{Route, primitive, refuse, wrap};
use crate::ops::language::{GatedHalvesOp, GatedOp};

/// `act(gate) * up`, in one kernel, and the gradients of both in another.
///
/// # Shapes
/// - gate, up, output: the same
///
/// # Panics
/// With [`Invalid`](burn_rocm::RocmError::Invalid) if shapes differ.
pub fn gated<const D: usize>(kind: GateKind, gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    match Route::of("gated", &gate) {
        Some(route) => wrap(route.apply(GatedOp(kind.fused()), [primitive(gate), primitive(up)]).0),
        None => composed(kind, gate, up),
    }
}

/// `act(gate) * up`, where `gate` and `up` are the first and second half of the last axis, such as
/// the halves of a product with the weights of both layers. The kernel reads the halves in place,
/// and the gradient's kernel writes them in place.
///
/// # Shapes
/// - both: `[.., 2 features]`
/// - output: `[.., features]`
///
/// # Panics
/// With [`Invalid`](burn_rocm::RocmError::Invalid) for an odd last axis.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::language::{GateKind, gated_halves};
///
/// let both = Tensor::<2>::ones([3, 8], &device);
/// assert_eq!(gated_halves(GateKind::Silu, both).dims(), [3, 4]);
/// ```
pub fn gated_halves<const D: usize>(kind: GateKind, both: Tensor<D>) -> Tensor<D> {
    if D == 0 || !both.dims()[D - 1].is_multiple_of(2) {
        refuse("gated_halves", "a last axis with two halves", format!("{:?}", both.dims()));
    }
    match Route::of("gated_halves", &both) {
        Some(route) => route.unary(GatedHalvesOp(kind.fused()), both),
        None => {
            let half = both.dims()[D - 1] / 2;
            composed(kind, both.clone().narrow(D - 1, 0, half), both.narrow(D - 1, half, half))
        }
    }
}

fn composed<const D: usize>(kind: GateKind, gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    let gate = match kind {
        GateKind::Silu => silu(gate),
        GateKind::Gelu => gelu(gate),
        GateKind::GeluTanh => gelu_approximate(gate),
    };
    gate * up
}
