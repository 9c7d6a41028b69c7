//! The steps of a layer, each of which a fused op may replace.

use burn::tensor::activation::{gelu, gelu_approximate};
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_rocm::fused;
use burn_rocm::{RocmTensor, bf16, f16};

use super::B;
use crate::config::Activation;
use crate::error::Result;

/// The backend's tensor.
pub(super) fn primitive<const D: usize>(tensor: Tensor<B, D>) -> RocmTensor {
    tensor.into_primitive().tensor()
}

/// Burn's tensor.
pub(super) fn wrap<const D: usize>(tensor: RocmTensor) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// `x weight^T + bias`.
///
/// # Shapes
/// - x: `[tokens, inputs]`; weight: `[outputs, inputs]`; bias: `[outputs]`
/// - output: `[tokens, outputs]`
pub(super) fn linear(x: Tensor<B, 2>, weight: &Tensor<B, 2>, bias: Option<&Tensor<B, 1>>) -> Tensor<B, 2> {
    let product = x.matmul(weight.clone().transpose());
    match bias {
        Some(bias) => product + bias.clone().unsqueeze(),
        None => product,
    }
}

/// RMS norm along the last axis. The factor may be f32 where `x` is bf16 or f16.
///
/// # Shapes
/// - x, output: `[.., features]`; factor: `[features]`
pub(super) fn rms_norm<const D: usize>(
    x: Tensor<B, D>,
    factor: &Tensor<B, 1>,
    epsilon: f64,
) -> Result<Tensor<B, D>> {
    Ok(wrap(fused::rms_norm(primitive(x), primitive(factor.clone()), epsilon)?))
}

/// `activation(gate) * up`.
pub(super) fn gated(activation: Activation, gate: Tensor<B, 2>, up: Tensor<B, 2>) -> Result<Tensor<B, 2>> {
    Ok(match activation {
        Activation::Silu => wrap(fused::silu_mul(primitive(gate), primitive(up))?),
        Activation::Gelu => gelu(gate) * up,
        Activation::GeluTanh => gelu_approximate(gate) * up,
    })
}

/// Cosines and sines of the positions of a call, `[tokens, pairs]` each.
#[derive(Clone, Debug)]
pub(super) struct Angles {
    pub(super) cos: Tensor<B, 2>,
    pub(super) sin: Tensor<B, 2>,
}

/// Rotary position embedding: rotates features `i` and `i + pairs` of each head. Later features
/// stay.
///
/// # Shapes
/// - x, output: `[1, heads, tokens, features]`
pub(super) fn rotate(x: Tensor<B, 4>, angles: &Angles) -> Tensor<B, 4> {
    let [_, _, _, features] = x.dims();
    let [_, pairs] = angles.cos.dims();
    let (cos, sin) = (angles.cos.clone().unsqueeze::<4>(), angles.sin.clone().unsqueeze::<4>());
    let first = x.clone().narrow(3, 0, pairs);
    let second = x.clone().narrow(3, pairs, pairs);
    let mut parts =
        vec![first.clone() * cos.clone() - second.clone() * sin.clone(), second * cos + first * sin];
    if features > 2 * pairs {
        parts.push(x.narrow(3, 2 * pairs, features - 2 * pairs));
    }
    Tensor::cat(parts, 3)
}

/// What attention does to its scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scores {
    pub(super) scale: f64,
    pub(super) softcap: Option<f64>,
    pub(super) window: Option<usize>,
}

/// `cap * tanh(x / cap)`.
pub(super) fn softcap(x: Tensor<B, 2>, cap: f64) -> Tensor<B, 2> {
    (x / cap).tanh() * cap
}

/// The number that a tensor of this dtype would hold.
pub(crate) fn rounded(number: f64, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f64(number).to_f64(),
        DType::F16 => f16::from_f64(number).to_f64(),
        DType::F32 => (number as f32).into(),
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;
    use burn_rocm::RocmDevice;

    use super::*;

    #[test]
    fn features_after_the_rotated_ones_stay() {
        let device = RocmDevice::default();
        let random = |shape| Tensor::<B, 2>::random(shape, Distribution::Default, &device);
        let angles = Angles { cos: random([5, 3]), sin: random([5, 3]) };
        let x = random([2 * 5, 10]).reshape([1, 2, 5, 10]);
        let found = rotate(x.clone(), &angles);
        let rotated = rotate(x.clone().narrow(3, 0, 6), &angles);
        let expected = Tensor::cat(vec![rotated.clone(), x.clone().narrow(3, 6, 4)], 3);
        assert_eq!(found.into_data(), expected.into_data());
        // Feature 1 and feature 4 of a head are a pair.
        let one = |x: &Tensor<B, 4>, at| x.clone().slice([0..1, 1..2, 2..3, at..at + 1]).into_scalar();
        let angle = |x: &Tensor<B, 2>| x.clone().slice([2..3, 1..2]).into_scalar();
        let expected = one(&x, 1) * angle(&angles.cos) - one(&x, 4) * angle(&angles.sin);
        assert!((one(&rotated, 1) - expected).abs() < 1e-6);
    }
}
