//! Gated linear units, against the formulas in f64.

use burn_rocm_nn::language::{GateKind, gated, gated_halves};
use burn_rocm_tests::FLOATS;
use burn_rocm_tests::limits::{least, unit, wide};
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;

use crate::refused;
use crate::support::*;

const KINDS: [GateKind; 3] = [GateKind::Silu, GateKind::Gelu, GateKind::GeluTanh];

/// The error function of a number below 2, by its Taylor series: the terms end below 2^-60.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// An activation and its slope, and for each the largest error that the kernel may make in units of
/// the compute type.
///
/// SiLU is `z s(z)`: an exponential, a sum, a quotient and products, each within two units. Its
/// slope adds `z (1 - s)`, whose difference is off by a unit of 1. GELU is `z Phi(z)` with an
/// absolute error of Phi of a few units, and for f16 and bf16 that of [`of_gelu`]. The argument of
/// the sigmoid in GELU by tanh has four roundings; the exponential turns them into that many units
/// times the argument.
fn activation(kind: GateKind, z: f64) -> ([f64; 2], [f64; 2]) {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match kind {
        GateKind::Silu => {
            let s = sigmoid(z);
            ([z * s, s * (1.0 + z * (1.0 - s))], [10.0 * (z * s).abs(), 12.0 * s * (1.0 + z.abs())])
        }
        GateKind::Gelu => {
            let phi = 0.5 * (1.0 + erf(z * std::f64::consts::FRAC_1_SQRT_2));
            let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
            ([z * phi, phi + z * density], [8.0 * z.abs(), 8.0 + 12.0 * z.abs()])
        }
        GateKind::GeluTanh => {
            let c = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
            let (inner, slope) = (c * (z + 0.044715 * z * z * z), c * (1.0 + 0.134145 * z * z));
            let (s, share) = (sigmoid(inner), 10.0 + 5.0 * inner.abs());
            let more = z * s * (1.0 - s) * slope;
            ([z * s, s + more], [share * (z * s).abs(), share * (s + 2.0 * (z * s * slope).abs())])
        }
    }
}

/// The output and the gradients of both factors, with limits.
fn expected(kind: GateKind, [gate, up, grad]: [&TensorData; 3], dtype: DType) -> Vec<[TensorData; 2]> {
    let mut all = [(); 3].map(|()| (Vec::new(), Vec::new()));
    let r = unit(wide(dtype));
    let stored = if wide(dtype) == dtype { 0.0 } else { unit(dtype) };
    let more = if kind == GateKind::Gelu { of_gelu(dtype) } else { 0.0 };
    for ((z, u), g) in gate.iter::<f64>().zip(up.iter::<f64>()).zip(grad.iter::<f64>()) {
        let ([value, slope], [off, slope_off]) = activation(kind, z);
        let (off, slope_off) = (off * r + more * z.abs(), slope_off * r + more);
        let results = [
            (value * u, off * u.abs()),
            (g * u * slope, (g * u).abs() * slope_off),
            (g * value, off * g.abs()),
        ];
        for ((values, limits), (value, off)) in all.iter_mut().zip(results) {
            values.push(value);
            let off = off + 4.0 * r * value.abs();
            limits.push(sides(dtype) * (off + stored * (value.abs() + off) + least(dtype)));
        }
    }
    all.map(|(values, limits)| [values, limits].map(|data| TensorData::new(data, gate.shape.clone()))).into()
}

/// Rows with and without pieces of 16 bytes, and around a block's edge.
const SHAPES: &[[usize; 2]] = &[[0, 4], [1, 1], [3, 5], [2, 8], [5, 24], [1, 2049], [4, 264], [3, 1023]];

#[test]
fn two_tensors_and_two_halves() {
    let random = Random::new();
    for dtype in FLOATS {
        for &shape in SHAPES {
            for kind in fewer(KINDS, 3, &random) {
                let [gate, up, grad] = [(); 3].map(|()| uniform(&random, &shape).convert_dtype(dtype));
                let expected = expected(kind, [&gate, &up, &grad], dtype);
                let what = format!("{kind:?} of {shape:?} {dtype:?}");
                within_limits!(what, dtype, expected.clone(), |B| {
                    let [a, b] = [&gate, &up].map(|data| tensor::<B, 2>(data, dtype).require_grad());
                    let out = gated(kind, a.clone(), b.clone());
                    let grads = (out.clone() * tensor::<B, 2>(&grad, dtype)).sum().backward();
                    vec![
                        out.into_data(),
                        a.grad(&grads).unwrap().into_data(),
                        b.grad(&grads).unwrap().into_data(),
                    ]
                });
                within_limits!(format!("{what}, halves"), dtype, expected, |B| {
                    let both = Tensor::cat(vec![tensor::<B, 2>(&gate, dtype), tensor(&up, dtype)], 1);
                    let both = both.detach().require_grad();
                    let out = gated_halves(kind, both.clone());
                    let grads = (out.clone() * tensor::<B, 2>(&grad, dtype)).sum().backward();
                    let by_both = both.grad(&grads).unwrap();
                    // Burn makes an empty slice in its default type.
                    let half =
                        |at| by_both.clone().narrow(1, at * shape[1], shape[1]).cast(dtype).into_data();
                    vec![out.into_data(), half(0), half(1)]
                });
            }
        }
    }
}

/// Operands whose rows are not neighbours, and whose elements are not.
#[test]
fn views_are_read_as_they_are() {
    let random = Random::new();
    let data = [(); 3].map(|()| uniform(&random, &[6, 10]).convert_dtype(DType::F32));
    let [gate, up, grad] = &data;
    let expected = expected(GateKind::Silu, [gate, up, grad], DType::F32);
    within_limits!("transposed", DType::F32, expected.clone(), |B| {
        let [a, b] = [gate, up].map(|data| tensor::<B, 2>(data, DType::F32));
        let a = a.transpose().mul_scalar(1.0).detach().transpose().require_grad();
        let b = Tensor::cat(vec![b.clone(), b], 1).narrow(1, 10, 10).detach().require_grad();
        let out = gated(GateKind::Silu, a.clone(), b.clone());
        let grads = (out.clone() * tensor::<B, 2>(grad, DType::F32)).sum().backward();
        vec![out.into_data(), a.grad(&grads).unwrap().into_data(), b.grad(&grads).unwrap().into_data()]
    });
}

/// Where the sigmoid is 0 or 1, nothing becomes NaN.
#[test]
fn large_gates() {
    for kind in KINDS {
        let z =
            Tensor::<Ours, 1>::from_data([-1e30f32, -200.0, 200.0, 1e30], &Default::default()).require_grad();
        let out = gated(kind, z.clone(), z.ones_like());
        let by = z.grad(&out.clone().sum().backward()).unwrap();
        assert_eq!(out.into_data().to_vec::<f32>().unwrap(), [0.0, 0.0, 200.0, 1e30], "{kind:?}");
        assert_eq!(by.into_data().to_vec::<f32>().unwrap(), [0.0, 0.0, 1.0, 1.0], "{kind:?}");
    }
}

#[test]
fn halves_take_one_launch_each_way() {
    let both = tensor::<Ours, 2>(&uniform(&Random::new(), &[3, 16]), DType::F32).require_grad();
    let (_, lines) = during(|| gated_halves(GateKind::GeluTanh, both).sum().backward());
    for line in [
        "nn_gated_halves f32: kernel gated<GeluTanh, f32>",
        "nn_gated_halves_backward f32: kernel gated_backward",
    ] {
        assert_eq!(lines.iter().filter(|found| found.starts_with(line)).count(), 1, "{line} in {lines:#?}");
    }
}

#[test]
fn other_shapes_are_refused() {
    let of = |shape: [usize; 2]| Tensor::<Ours, 2>::zeros(shape, &Default::default());
    refused("gated_halves", "[2, 3]", || gated_halves(GateKind::Silu, of([2, 3])));
    refused("gated", "[2, 4]", || gated(GateKind::Silu, of([2, 3]), of([2, 4])));
}
