//! Batch norm with channels last.

use burn_rocm::fused::{BatchNormed, batch_norm_backward, batch_norm_infer, batch_norm_train};
use burn_rocm_tests::limits;
use burn_rocm_tests::*;

use crate::{is_last, on, packed};

/// Statistics, outputs and gradients are those of the other order within the rounding bounds of
/// their sums.
#[test]
fn batch_norm_in_both_orders() {
    on();
    let random = Random::new();
    let device = Default::default();
    for dtype in FLOATS {
        for [n, c, h, w] in [[2, 3, 4, 5], [3, 40, 2, 2], [2, 7, 9, 8]] {
            let draw = |shape: &[usize]| float(&random, shape, dtype, View::Contiguous, -1.0, 1.0);
            let (x, g) = (draw(&[n, h, w, c]), draw(&[n, h, w, c]));
            let (gamma, beta) = (draw(&[c]), draw(&[c]));
            let run = |last: bool, as_f64: bool| {
                let of = |input: &Input| {
                    let tensor = input.float::<R>(&device);
                    if as_f64 { R::float_cast(tensor, FloatDType::F64) } else { tensor }
                };
                let image = |input: &Input| {
                    let image = R::float_permute(of(input), &[0, 3, 1, 2]);
                    if last { image } else { packed(&image) }
                };
                let (zeros, ones) = (of(&beta), of(&gamma));
                let BatchNormed { output, statistics, running } =
                    batch_norm_train(image(&x), of(&gamma), of(&beta), [zeros, ones], 0.5, 1e-2).unwrap();
                assert_eq!(is_last(&output), last && c > 1, "{dtype:?}");
                let [dx, dgamma, dbeta] =
                    batch_norm_backward(image(&x), of(&gamma), statistics, image(&g), 1e-2).unwrap();
                assert_eq!(is_last(&dx), last && c > 1, "{dtype:?}");
                let infer = batch_norm_infer(
                    image(&x),
                    of(&gamma),
                    of(&beta),
                    [of(&beta), R::float_abs(of(&gamma))],
                    1e-2,
                );
                let [mean, variance] = running;
                [output, dx, infer.unwrap(), dgamma, dbeta, mean, variance].map(read_float::<R>)
            };
            let (found, exact) = (run(true, false), run(false, true));
            let count = n * h * w;
            // With |x|, |dy|, |gamma|, |beta| <= 1 and 1 / sqrt(var + epsilon) <= 10: sums over
            // `count` elements are off by `growth` of their magnitudes, and a variance by twice
            // that. 1 / sqrt(var + epsilon) is then off by 10^3 / 2 times it, and the gradient's
            // product of three such factors by no more than 10^4 times. Each result is rounded once.
            let sum = limits::growth(count + 8, limits::wide(dtype));
            for (part, (found, exact)) in found.iter().zip(&exact).enumerate() {
                let terms = if matches!(part, 3 | 4) { count as f64 } else { 1.0 };
                for (found, exact) in found.iter::<f64>().zip(exact.iter::<f64>()) {
                    let bound =
                        1e4 * terms * sum + 2.0 * limits::unit(dtype) * exact.abs() + limits::least(dtype);
                    let what = format!("{dtype:?} {:?}, part {part}", [n, c, h, w]);
                    assert!((found - exact).abs() <= bound, "{what}: {found} instead of {exact}");
                }
            }
        }
    }
}
