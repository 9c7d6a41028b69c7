//! GELU after a bias in f16 and bf16, for each number that these types have. There the kernels
//! approximate the normal distribution (`normal.h`).

use burn_rocm::fused::{Act, bias_act, bias_act_backward};
use burn_rocm_tests::limits::{assert_within, least, unit};
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::*;
use burn_std::{bf16, f16};

/// The normal distribution's density, and its distribution function at `-a`, `a >= 0`. Near 0 by
/// the series of Marsaglia 2004, "Evaluating the Normal Distribution"; further out by the continued
/// fraction of Laplace, whose relative error does not grow where the function is small.
fn below(a: f64) -> [f64; 2] {
    let density = (-a * a / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if a > 2.5 {
        let fraction = (1..400).rev().fold(a, |rest, k| a + f64::from(k) / rest);
        return [density, density / fraction];
    }
    let (mut sum, mut term, mut k) = (a, a, 1.0);
    while term > 1e-17 * sum {
        k += 2.0;
        term *= a * a / k;
        sum += term;
    }
    [density, 0.5 - sum * density]
}

/// GELU of `z` and its slope with their limits, for results of `dtype`.
///
/// The error that `normal.h` states is `2^-18 + (24 + 1.5 z^2) u` of `a Phi(-a)`, and for the slope
/// of `Phi(-a) + a phi(a)`, where `a = |z|` and `u` is the unit of f32. Above 0 both are subtracted
/// from a greater number, and one more product may follow: `2 u` of the result. The result is
/// rounded to `dtype`.
fn expected(z: f64, dtype: DType) -> [[f64; 2]; 2] {
    let (a, u) = (z.abs(), unit(DType::F32));
    if !z.is_finite() {
        // 0 times an infinity is NaN in Burn's formulas too.
        return [[if z > 0.0 { z } else { f64::NAN }, 0.0], [f64::NAN, 0.0]];
    }
    let [density, below] = below(a);
    let by_density = if a * density == 0.0 { 0.0 } else { a * density };
    let own = 2f64.powi(-18) + (24.0 + 1.5 * a * a) * u;
    let result = |negative: f64, parts: f64, from: f64| {
        let value = if z < 0.0 { negative } else { from - negative };
        let off = if parts == 0.0 { 0.0 } else { own * parts };
        let off = off + 2.0 * u * value.abs();
        [value, off + unit(dtype) * (value.abs() + off) + least(dtype)]
    };
    // gelu(z) = z - gelu'(-z): -a Phi(-a) below 0, and a - a Phi(-a) above.
    let gelu = if z < 0.0 { result(-a * below, a * below, 0.0) } else { result(a * below, a * below, a) };
    [gelu, result(below - by_density, below + by_density, 1.0)]
}

#[test]
fn gelu_of_every_half() {
    let (random, device) = (Random::new(), Default::default());
    for dtype in [DType::F16, DType::BF16] {
        let all: Vec<f64> = fewer(0..=u16::MAX, 64, &random)
            .map(|bits| match dtype {
                DType::F16 => f16::from_bits(bits).to_f64(),
                _ => bf16::from_bits(bits).to_f64(),
            })
            .collect();
        // Rows without and with a bias, whole and part of 16 bytes; planes.
        for (shape, axis, bias) in [
            ([all.len() / 64, 64], 1, false),
            ([all.len() / 64, 64], 1, true),
            ([64, all.len() / 64], 0, true),
            ([all.len() / 2, 2], 1, true),
        ] {
            let tensor = |values: Vec<f64>, shape: &[usize]| {
                R::float_from_data(TensorData::new(values, shape.to_vec()).convert_dtype(dtype), &device)
            };
            let x = || tensor(all.clone(), &shape);
            let bias = || bias.then(|| tensor(vec![0.0; shape[axis]], &[shape[axis]]));
            let ones = tensor(vec![1.0; all.len()], &shape);
            let gelu = bias_act(Act::Gelu, x(), bias(), axis).expect("valid");
            let (slope, _) = bias_act_backward(Act::Gelu, x(), bias(), ones, axis, false).expect("valid");
            let (reference, limits): (Vec<_>, Vec<_>) = all
                .iter()
                .map(|&z| expected(z, dtype))
                .map(|[[y, limit], [slope, of_slope]]| ([y, slope], [limit, of_slope]))
                .unzip();
            for (k, (name, found)) in [("gelu", gelu), ("slope", slope)].into_iter().enumerate() {
                let data = |of: &[[f64; 2]]| {
                    TensorData::new(of.iter().map(|both| both[k]).collect::<Vec<_>>(), shape)
                };
                let what = format!("{name} {shape:?} axis {axis}");
                assert_within(&what, &read_float::<R>(found), &data(&reference), &data(&limits));
            }
        }
    }
}
