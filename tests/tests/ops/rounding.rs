//! Results that a library computes in f16 and bf16 are rounded to nearest: they are at most half a
//! unit in the last place from the result of the same op in f32.

use burn_rocm::fused::{
    Act, Conv2dOptions, batch_norm_backward, batch_norm_infer, batch_norm_train, conv_act, group_norm,
    rms_norm,
};
use burn_rocm::{RocmError, RocmTensor};
use burn_rocm_tests::limits;
use burn_rocm_tests::*;

/// Half a unit in the last place of `y` in `dtype`, plus the rounding error of f32 sums of up to
/// 192 terms, the most in these tests.
fn half_a_unit(y: f64, dtype: DType) -> f64 {
    2f64.powi(y.abs().max(limits::least(dtype)).log2().floor() as i32) * limits::unit(dtype)
        + 1e-5 * (1.0 + y.abs())
}

/// Compares `found`, of `dtype`, with the same result in f32. If elements differ by more than
/// [`half_a_unit`], returns a text that counts them and shows the first.
fn misrounded(what: &str, dtype: DType, found: RocmTensor, exact: RocmTensor) -> Option<String> {
    let [found, exact] = [found, exact].map(read_float::<R>);
    assert_eq!((found.dtype, exact.dtype), (dtype, DType::F32), "{what}");
    assert_eq!(found.shape, exact.shape, "{what}");
    let far = |(x, y): &(f64, f64)| (x - y).abs() > half_a_unit(*y, dtype);
    let wrong: Vec<(f64, f64)> = found.iter().zip(exact.iter()).filter(far).collect();
    let (x, y) = wrong.first()?;
    let all = found.num_elements();
    Some(format!("{what} {dtype:?}: {} of {all} elements, the first {x} instead of {y}", wrong.len()))
}

#[test]
fn halves_are_rounded_to_nearest() -> Result<(), RocmError> {
    let (random, device) = (Random::new(), Default::default());
    let (batch, channels, side) = (3, 64, 8);
    let wide = |tensor: RocmTensor| R::float_cast(tensor, FloatDType::F32);
    let mut wrong = Vec::new();
    for dtype in [DType::F16, DType::BF16] {
        let drawn = |shape: &[usize], low, high| {
            float(&random, shape, dtype, View::Contiguous, low, high).float::<R>(&device)
        };
        let mut check = |what, found, exact| wrong.extend(misrounded(what, dtype, found, exact));
        let x = drawn(&[batch, channels, side, side], -2.0, 2.0);
        let dy = drawn(&[batch, channels, side, side], -1.0, 1.0);
        let row = || drawn(&[channels], 0.5, 1.5);
        let (gamma, beta, mean, variance) = (row(), row(), row(), row());

        let weight = drawn(&[4, channels, 1, 1], -1.0, 1.0);
        let options = burn_backend::ops::ConvOptions::new([1; 2], [0; 2], [1; 2], 1);
        let conv = |x, w| R::conv2d(x, w, None, options.clone());
        let exact = conv(wide(x.clone()), wide(weight.clone()));
        check("conv2d", conv(x.clone(), weight.clone()), exact.clone());
        let options = Conv2dOptions { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 };
        let found = conv_act(Act::Relu, x.clone(), weight, None, options)?;
        check("conv_act", found, R::relu(exact));

        let rows = drawn(&[40, 96], -2.0, 2.0);
        let (scale, shift) = (drawn(&[96], 0.5, 1.5), drawn(&[96], -0.5, 0.5));
        let normed = |x, scale, shift| R::layer_norm(x, scale, Some(shift), 1e-5);
        check(
            "layer_norm",
            normed(rows.clone(), scale.clone(), shift.clone()),
            normed(wide(rows.clone()), wide(scale.clone()), wide(shift)),
        );
        let normed = rms_norm(rows.clone(), scale.clone(), 1e-5)?;
        check("rms_norm", normed, rms_norm(wide(rows), wide(scale), 1e-5)?);

        // MIOpen has kernels only for group norms with 32 groups or more.
        let normed = group_norm(x.clone(), Some([gamma.clone(), beta.clone()]), 32, 1e-5)?;
        let params = [wide(gamma.clone()), wide(beta.clone())];
        check("group_norm", normed, group_norm(wide(x.clone()), Some(params), 32, 1e-5)?);

        let infer = |x, of: &dyn Fn(RocmTensor) -> RocmTensor| {
            let [gamma, beta, mean, variance] = [&gamma, &beta, &mean, &variance].map(|t| of(t.clone()));
            batch_norm_infer(x, gamma, beta, [mean, variance], 1e-5)
        };
        check("batch_norm_infer", infer(x.clone(), &|t| t)?, infer(wide(x.clone()), &wide)?);

        let train = |x, of: &dyn Fn(RocmTensor) -> RocmTensor| {
            let [gamma, beta, mean, variance] = [&gamma, &beta, &mean, &variance].map(|t| of(t.clone()));
            batch_norm_train(x, gamma, beta, [mean, variance], 0.1, 1e-5)
        };
        let (narrow, exact) = (train(x.clone(), &|t| t)?, train(wide(x.clone()), &wide)?);
        check("batch_norm_train", narrow.output, exact.output);

        let statistics = exact.statistics;
        let of = |x, gamma, dy| batch_norm_backward(x, gamma, statistics.clone(), dy, 1e-5);
        let [dx, ..] = of(x.clone(), gamma.clone(), dy.clone())?;
        let [exact, ..] = of(wide(x), wide(gamma), wide(dy))?;
        check("batch_norm_backward", dx, exact);
    }
    assert!(wrong.is_empty(), "not rounded to nearest:\n{}", wrong.join("\n"));
    Ok(())
}
