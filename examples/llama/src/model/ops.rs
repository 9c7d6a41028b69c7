//! The steps of a layer, each of which a fused op may replace.

use burn::tensor::{DType, Int, Tensor, TensorData, TensorPrimitive};
use burn_rocm::fused::{self, Gate, RmsOptions, Rotary, RotaryPositions};
use burn_rocm::{Communicator, ReduceOp, RocmDevice, RocmTensor, bf16, f16};

use super::B;
use crate::config::{Activation, Config};
use crate::error::Result;

/// The backend's tensor.
pub(super) fn primitive<const D: usize>(tensor: Tensor<B, D>) -> RocmTensor {
    tensor.into_primitive().tensor()
}

/// Burn's tensor.
pub(super) fn wrap<const D: usize>(tensor: RocmTensor) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// Integers of 32 bits on the device.
pub(super) fn ints<const D: usize>(data: TensorData, device: &RocmDevice) -> Tensor<B, D, Int> {
    Tensor::from_data(data, (device, DType::I32))
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

/// The sum of the ranks' tensors, with the same bits on every rank.
pub(super) fn sum(x: Tensor<B, 2>, ranks: Option<&Communicator>) -> Result<Tensor<B, 2>> {
    Ok(match ranks {
        Some(ranks) => wrap(ranks.all_reduce_joined(ReduceOp::Sum, primitive(x))?),
        None => x,
    })
}

/// The ranks' columns side by side.
///
/// # Shapes
/// - x: `[rows, columns]`; output: `[rows, ranks * columns]`
pub(super) fn gathered(x: Tensor<B, 2>, ranks: &Communicator) -> Result<Tensor<B, 2>> {
    let [rows, columns] = x.dims();
    let all: Tensor<B, 3> = wrap(ranks.all_gather_joined(primitive(x))?);
    Ok(all.swap_dims(0, 1).reshape([rows, ranks.size() * columns]))
}

/// RMS norm along the last axis. The factor may be f32 where `x` is bf16 or f16.
///
/// # Shapes
/// - x, output: `[.., features]`; factor: `[features]`
pub(super) fn rms_norm(x: Tensor<B, 2>, factor: &Tensor<B, 1>, epsilon: f64) -> Result<Tensor<B, 2>> {
    Ok(wrap(fused::rms_norm(primitive(x), primitive(factor.clone()), epsilon)?))
}

/// `sum = residual + before(x)` and `after(sum)` in one kernel, with RMS norms as [`rms_norm`]'s.
///
/// # Shapes
/// - x, residual, outputs: `[tokens, features]`; factors: `[features]`
pub(super) fn residual_norm(
    x: Tensor<B, 2>,
    residual: Tensor<B, 2>,
    before: Option<&Tensor<B, 1>>,
    after: &Tensor<B, 1>,
    epsilon: f64,
) -> Result<[Tensor<B, 2>; 2]> {
    let before = before.cloned().map(primitive);
    let (residual, after) = (primitive(residual), primitive(after.clone()));
    let options = RmsOptions { epsilon, shift: 0.0 };
    let (sum, normed) = fused::residual_norm(primitive(x), Some(residual), before, Some(after), options)?;
    let normed = normed.unwrap_or_else(|| sum.clone());
    Ok([wrap(sum), wrap(normed)])
}

/// `activation(gate) * up`, where each row of `both` is a row of the gate and one of the other
/// factor.
pub(super) fn gated(activation: Activation, both: Tensor<B, 2>) -> Result<Tensor<B, 2>> {
    Ok(wrap(fused::gated_halves(gate(activation), primitive(both))?))
}

/// The activation of a gate.
pub(super) fn gate(activation: Activation) -> Gate {
    match activation {
        Activation::Silu => Gate::Silu,
        Activation::Gelu => Gate::Gelu,
        Activation::GeluTanh => Gate::GeluTanh,
    }
}

/// A rotary embedding on the device.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// `[pairs]`.
    pub(super) frequencies: Tensor<B, 1>,
    pub(super) factor: f64,
}

/// Packed heads `[tokens, (heads + 2 kv_heads) * head_dim]` and how they are rotated.
pub(super) struct Packed {
    /// `[sequences, tokens of each, features]`.
    pub(super) x: RocmTensor,
    pub(super) norms: Option<[RocmTensor; 2]>,
    pub(super) rotary: Rotary,
}

impl Packed {
    /// `positions`: starts `[sequences]` if each sequence has as many tokens, or else those of all
    /// tokens, `[1, tokens]`.
    pub(super) fn new(
        packed: Tensor<B, 2>,
        norms: Option<&[Tensor<B, 1>; 2]>,
        turns: &Turns,
        positions: RotaryPositions,
        config: &Config,
    ) -> Self {
        let Config { heads, kv_heads, epsilon, .. } = *config;
        let [tokens, features] = packed.dims();
        let sequences = match &positions {
            RotaryPositions::FromZero => 1,
            RotaryPositions::Starts(tensor) | RotaryPositions::Each(tensor) => tensor.dims()[0],
        };
        let rotary = Rotary {
            heads,
            kv_heads,
            frequencies: primitive(turns.frequencies.clone()),
            factor: turns.factor,
            interleaved: false,
            positions,
            norms: RmsOptions { epsilon, shift: 0.0 },
        };
        let x = primitive(packed.reshape([sequences, tokens / sequences, features]));
        Self { x, norms: norms.map(|norms| norms.clone().map(primitive)), rotary }
    }

    /// Queries, keys and values, with queries and keys normed and rotated, in one kernel.
    ///
    /// # Shapes
    /// - outputs: `[tokens, heads, head_dim]`, and twice `[tokens, kv_heads, head_dim]`
    pub(super) fn heads(self) -> Result<[Tensor<B, 3>; 3]> {
        let (heads, kv_heads) = (self.rotary.heads, self.rotary.kv_heads);
        let all: Tensor<B, 3> = wrap(fused::rotary(self.x, self.norms, &self.rotary)?);
        let ([sequences, length, features], total) = (all.dims(), heads + 2 * kv_heads);
        let all = all.reshape([sequences * length, total, features / total]);
        let of = |first, count| all.clone().narrow(1, first, count);
        Ok([of(0, heads), of(heads, kv_heads), of(heads + kv_heads, kv_heads)])
    }
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
