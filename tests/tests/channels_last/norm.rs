//! Batch norm with channels last.

use burn_rocm::fused::{BatchNormed, batch_norm_backward, batch_norm_infer, batch_norm_train};
use burn_rocm_tests::limits;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

use crate::{in_last, is_last, on, packed, stored_last};

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

/// Batch norm of 16-bit images with a multiple of 8 channels, by kernels that access 16 bytes, against
/// f64. The channels' means are large beside their deviations, and their sizes fill no block. Every
/// run gives the same bits.
///
/// With `e` the error of a sum of all rows in f32: `|x - mean| <= 1`, so deviations from any row are
/// at most 2 and their sums are off by `2 e` each row, and the squares' by `4 e`. That makes `4 e` for
/// the mean and `16 e` for the variance, joins of parts included. The variance is at least 1/4, so
/// `rstd <= 2` is off by `4 * 16 e`. With `|dy|`, `|gamma|`, `|beta|` <= 1, an output is off by
/// `64 e + 2 * 4 e`, less than `150 e`, and the mean of `dy n` by as much. In the gradient, this has a
/// factor of at most `rstd^2 |x - mean|` and `rstd` occurs three times: less than `2500 e`.
#[test]
fn batch_norm_of_wide_pixels() {
    on();
    let random = Random::new();
    let device = Default::default();
    for (dtype, far) in [(DType::F16, 62.0), (DType::BF16, 6.0)] {
        for [n, c, h, w] in [[3, 8, 5, 7], [2, 24, 9, 8], [2, 64, 7, 5], [1, 16, 20, 30], [11, 72, 3, 2]] {
            let (rows, what) = (n * h * w, format!("{dtype:?} {:?}", [n, c, h, w]));
            let draw = |count: usize| -> Vec<f64> {
                (0..count).map(|_| random.below(65) as f64 / 32.0 - 1.0).collect()
            };
            // Half of the rows are at either end, so the variance is nearly 1 at most and 1/4 at least.
            let x: Vec<f64> = (0..rows * c)
                .map(|i| {
                    let side = if i / c % 2 == 0 { 1.0 } else { -1.0 };
                    far + (i % c % 3) as f64 * 0.5 + side * (0.75 + 0.25 * random.below(2) as f64)
                })
                .collect();
            let (g, gamma, beta) = (draw(rows * c), draw(c), draw(c));
            let param = |values: &[f64]| {
                R::float_from_data(TensorData::new(values.to_vec(), [c]).convert_dtype(DType::F32), &device)
            };
            let image = |values: &[f64]| stored_last(values, [n, c, h, w], dtype, false);
            let run = || {
                let before = [param(&vec![0.0; c]), param(&vec![0.0; c])];
                let done =
                    batch_norm_train(image(&x), param(&gamma), param(&beta), before, 1.0, 1e-5).unwrap();
                let statistics = done.statistics.clone();
                let [dx, dgamma, dbeta] =
                    batch_norm_backward(image(&x), param(&gamma), statistics, image(&g), 1e-5).unwrap();
                let infer =
                    batch_norm_infer(image(&x), param(&gamma), param(&beta), done.running.clone(), 1e-5);
                assert!(is_last(&done.output) && is_last(&dx), "{what}");
                let rows = |image| read_float::<R>(R::float_permute(image, &[0, 2, 3, 1]));
                let [mean, variance] = done.running.map(read_float::<R>);
                let [output, dx, infer] = [done.output, dx, infer.unwrap()].map(rows);
                [output, dx, infer, mean, variance, read_float::<R>(dgamma), read_float::<R>(dbeta)]
            };
            let (found, lines) = during(run);
            assert_close(&what, &found, &run(), Tolerance::EXACT);
            if dtype == DType::BF16 {
                let by = |name: &str| lines.iter().any(|line| line.contains(name));
                // On a GPU and in lockstep, a few parts are joined by the kernels that need them.
                let blocks = hip::Device::get(0).unwrap().info().max_threads_per_block > 1;
                let joined = blocks && std::env::var_os("BURN_ROCM_LAUNCH_REACH").is_none();
                let kernels: &[_] = match joined {
                    true => &["moments", "apply_joined", "sums", "backward_joined"],
                    false => &["moments", "join", "apply", "sums", "total", "backward"],
                };
                assert!(kernels.iter().all(|name| by(&format!("batch_norm_rows_{name}<"))), "{lines:#?}");
            }
            let count = rows as f64;
            let of = |c0: usize, f: &dyn Fn(usize) -> f64| (0..rows).map(|row| f(row * c + c0)).sum::<f64>();
            let mut exact: [Vec<f64>; 7] = [0, 1, 2, 3, 4, 5, 6].map(|part| match part {
                0..=2 => vec![0.0; rows * c],
                _ => vec![0.0; c],
            });
            for k in 0..c {
                let mean = of(k, &|i| x[i]) / count;
                let variance = of(k, &|i| (x[i] - mean).powi(2)) / count;
                assert!(variance >= 0.25, "{what}");
                let rstd = 1.0 / (variance + 1e-5).sqrt();
                let (dgamma, dbeta) = (of(k, &|i| g[i] * (x[i] - mean) * rstd), of(k, &|i| g[i]));
                for i in (0..rows).map(|row| row * c + k) {
                    let normal = (x[i] - mean) * rstd;
                    exact[0][i] = normal * gamma[k] + beta[k];
                    exact[1][i] = gamma[k] * rstd * (g[i] - dbeta / count - normal * dgamma / count);
                }
                for (part, value) in [(3, mean), (4, variance), (5, dgamma), (6, dbeta)] {
                    exact[part][k] = value;
                }
            }
            exact[2] = exact[0].clone();
            // 16 more roundings for the steps that are not sums.
            let e = limits::growth(rows + 16, DType::F32);
            let shares = [150.0 * e, 2500.0 * e, 150.0 * e, 4.0 * e, 16.0 * e, 150.0 * e * count, e * count];
            for (part, (found, exact)) in found.iter().zip(&exact).enumerate() {
                let unit = if part < 3 { 2.0 * limits::unit(dtype) } else { 4.0 * limits::unit(DType::F32) };
                for (i, (found, exact)) in found.iter::<f64>().zip(exact).enumerate() {
                    let bound = shares[part] + unit * exact.abs();
                    let near = (found - exact).abs() <= bound;
                    assert!(near, "{what}, part {part}, element {i}: {found} instead of {exact}");
                }
            }
        }
    }
}

/// With `BURN_ROCM_NORM=miopen`, MIOpen gets a copy in its own order.
#[test]
fn miopen_alone_takes_both_orders() {
    if std::env::var("BURN_ROCM_NORM").is_err() {
        let only = ["--exact", "norm::miopen_alone_takes_both_orders"];
        again(&only, &[("BURN_ROCM_NORM", "miopen"), ("BURN_ROCM_PROVIDER", "cpu")]);
        return;
    }
    on();
    let device = Default::default();
    let dims = [3, 8, 5, 4];
    for dtype in [FloatDType::F32, FloatDType::F16] {
        let values: Vec<f32> = (0..480).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let given = |shape: &[usize]| {
            let count = shape.iter().product();
            let data = TensorData::new(values[..count].to_vec(), Shape::from(shape.to_vec()));
            R::float_cast(R::float_from_data(data, &device), dtype)
        };
        let results = [false, true].map(|last| {
            let image = || match last {
                true => in_last(&given(&dims)),
                false => given(&dims),
            };
            assert_eq!(is_last(&image()), last);
            let channel = || R::float_add_scalar(given(&[8]), 2.0.into());
            let done =
                batch_norm_train(image(), channel(), channel(), [channel(), channel()], 0.1, 1e-5).unwrap();
            let [dx, dgamma, dbeta] =
                batch_norm_backward(image(), channel(), done.statistics.clone(), image(), 1e-5).unwrap();
            let y = batch_norm_infer(image(), channel(), channel(), [channel(), channel()], 1e-5).unwrap();
            [done.output, dx, dgamma, dbeta, y].map(read_float::<R>)
        });
        assert_eq!(results[0], results[1], "{dtype:?}");
    }
}
