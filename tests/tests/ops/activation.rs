//! Activations: special values as Burn's own definitions give them, and the activations that
//! `unary.rs` does not cover.

use burn_rocm::{RocmError, take_last_error};
use burn_rocm_tests::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

type T = burn_backend::tensor::FloatTensor<R>;

/// Every method and every view, with alphas of one value, of one value per channel and of one value
/// per element.
#[test]
fn prelu() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in [&[5usize, 7] as &[usize], &[2, 3, 9], &[2, 4, 3, 5], &[0, 3, 2], &[3, 16, 33, 2]] {
            for kind in 0..3 {
                let alpha: Vec<usize> = match kind {
                    0 => vec![1; shape.len()],
                    1 => shape.iter().enumerate().map(|(d, &n)| if d == 1 { n } else { 1 }).collect(),
                    _ => shape.to_vec(),
                };
                let (left, right) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
                let x = float(&random, shape, dtype, left, -3.0, 3.0);
                let alpha = float(&random, &alpha, dtype, right, -1.0, 1.0);
                let what = format!("prelu {dtype:?} {shape:?} {:?} {left:?} {right:?}", alpha.shape());
                differential!(what, Tolerance::of(dtype), |B, device| {
                    vec![read_float::<B>(B::prelu(x.float::<B>(&device), alpha.float::<B>(&device)))]
                });
            }
        }
    }
}

/// The error function in f64, from which Burn's definitions are computed.
fn erf(x: f64) -> f64 {
    // Near 0, 1 - erfc by its continued fraction is too coarse. The series is exact enough below 3;
    // beyond 6 the result is 1.
    if x.is_nan() {
        return x;
    }
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// In every float type NaN stays NaN, and the infinities give what Burn's definitions give.
#[test]
fn special_values() {
    let inf = f64::INFINITY;
    let values = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 30.0, -30.0, inf, -inf, f64::NAN];
    let device = Default::default();
    for dtype in FLOATS {
        let data = TensorData::from(values).convert_dtype(dtype);
        let ones = TensorData::from([1.0; 11]).convert_dtype(dtype);
        let x = || R::float_from_data(data.clone(), &device);
        let grad = || R::float_from_data(ones.clone(), &device);
        let slope = || R::float_full(Shape::from([1]), Scalar::Float(0.25), &device, dtype.into());
        let check = |name: &str, out: T, expected: &dyn Fn(f64) -> f64| {
            let out = read_float::<R>(out);
            assert_eq!(out.dtype, dtype, "{name}");
            // A function in the type in which it is computed (134 roundings in f32, of which it has
            // at most 8 and those of its argument), rounded once.
            let computed = limits::wide(dtype);
            let want = TensorData::new(data.iter::<f64>().map(expected).collect(), data.shape.clone());
            let limits = limits::rounded(&want, computed, dtype, Tolerance::of(computed).times(8.0));
            limits::assert_within(&format!("{name} of {values:?}"), &out, &want, &limits);
        };
        let keep = |x: f64, y: f64| if x.is_nan() { x } else { y };
        let phi = |x: f64| 0.5 * (1.0 + erf(x / 2f64.sqrt()));
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        check("relu", R::relu(x()), &|x| keep(x, x.max(0.0)));
        check("leaky_relu", R::leaky_relu(x(), Scalar::Float(0.25)), &|x| if x < 0.0 { x * 0.25 } else { x });
        check("prelu", R::prelu(x(), slope()), &|x| if x < 0.0 { x * 0.25 } else { x });
        check("gelu", R::gelu(x()), &|x| x * phi(x));
        check("sigmoid", R::sigmoid(x()), &sigmoid);
        check("hard_sigmoid", R::hard_sigmoid(x(), Scalar::Float(0.2), Scalar::Float(0.5)), &|x| {
            keep(x, (0.2 * x + 0.5).clamp(0.0, 1.0))
        });
        check("log_sigmoid", R::log_sigmoid(x()), &|x| keep(x, x.min(0.0) - (-x.abs()).exp().ln_1p()));
        // Burn's mask: the gradient passes unless the output is at most 0 (so it passes for NaN).
        check("relu_backward", R::relu_backward(x(), grad()), &|x| if x <= 0.0 { 0.0 } else { 1.0 });
        check("sigmoid_backward", R::sigmoid_backward(x(), grad()), &|y| y * (1.0 - y));
        check("log_sigmoid_backward", R::log_sigmoid_backward(x(), grad()), &|x| sigmoid(-x));
        // x * density(x) is NaN at infinity in every implementation of the formula.
        check("gelu_backward", R::gelu_backward(x(), grad()), &|x| {
            if x.is_infinite() { f64::NAN } else { phi(x) + x * density(x) }
        });
    }
}

/// Rows and columns that hold NaN, infinities, or nothing but -inf.
#[test]
fn softmax_of_special_values() {
    let inf = f64::INFINITY;
    let lines =
        [[0.0, 1.0, 2.0], [f64::NAN, 1.0, 2.0], [inf, 1.0, 2.0], [-inf, 1.0, 2.0], [-inf, -inf, -inf]];
    let device = Default::default();
    for dtype in FLOATS {
        for columns in [false, true] {
            // The lines to normalise are contiguous, or strided.
            let values = match columns {
                false => lines.concat(),
                true => (0..15).map(|i| lines[i % 5][i / 5]).collect(),
            };
            let shape = if columns { [3, 5] } else { [5, 3] };
            let data = TensorData::new(values, shape).convert_dtype(dtype);
            let along = |x: T, f: fn(T, usize) -> T| {
                let out = f(x, !columns as usize);
                let out = if columns { R::float_swap_dims(out, 0, 1) } else { out };
                read_float::<R>(out).iter::<f64>().collect::<Vec<f64>>()
            };
            let x = || R::float_from_data(data.clone(), &device);
            for (name, out) in [
                ("softmax", along(x(), R::softmax)),
                ("log_softmax", along(x(), R::log_softmax)),
                ("softmin", along(R::float_neg(x()), R::softmin)),
            ] {
                let e: Vec<f64> = [0f64, 1.0, 2.0].iter().map(|x| x.exp()).collect();
                let normal = |k: usize, from: usize| {
                    let share = if k < from { 0.0 } else { e[k] / e[from..].iter().sum::<f64>() };
                    if name == "log_softmax" { share.ln() } else { share }
                };
                for (k, &y) in out.iter().enumerate() {
                    let want = match k / 3 {
                        0 => normal(k % 3, 0),
                        3 => normal(k % 3, 1),
                        _ => f64::NAN,
                    };
                    let near = (y - want).abs() <= Tolerance::of(dtype).absolute * 8.0;
                    let same = y == want || (y.is_nan() && want.is_nan());
                    assert!(same || near, "{name} {dtype:?} columns {columns} {k}: {y} instead of {want}");
                }
            }
        }
    }
}

#[test]
fn activations_refuse_what_does_not_fit() {
    let zeros =
        |shape: &[usize]| R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F32);
    let check = |op: &str, body: &dyn Fn() -> T| {
        catch_unwind(AssertUnwindSafe(body)).expect_err(op);
        match take_last_error() {
            Some(RocmError::Invalid { op: of, .. }) => assert_eq!(of, op),
            other => panic!("{op}: {other:?}"),
        }
    };
    check("prelu", &|| R::prelu(zeros(&[2, 3]), zeros(&[1, 4])));
    check("relu_backward", &|| R::relu_backward(zeros(&[2, 3]), zeros(&[2, 4])));
    check("softmax", &|| R::softmax(zeros(&[2, 3]), 2));
    check("softmin", &|| R::softmin(zeros(&[2, 3]), 2));
    check("log_softmax", &|| R::log_softmax(zeros(&[2, 3]), 5));
}

/// ReLU's gradient is 0 where its output is 0, whatever the result's gradient is: the fused kernels
/// choose and don't multiply. A NaN passes the gradient on.
#[test]
fn relu_hides_gradients_that_are_not_finite() {
    use burn_rocm::fused::{Act, add_act_backward, bias_act_backward};
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let (outputs, gradients) = ([-1.0, 0.0, 2.0, nan], [inf, -inf, nan, 3.0]);
    let pairs: Vec<(f64, f64)> = outputs.iter().flat_map(|&x| gradients.map(|g| (x, g))).collect();
    for dtype in FLOATS {
        // Rows for 16-byte accesses, rows of single elements, planes.
        for (shape, axis) in [(vec![2, 16], 1), (vec![16, 3], 1), (vec![2, 4, 16], 1)] {
            let count: usize = shape.iter().product();
            let all: Vec<(f64, f64)> = (0..count).map(|at| pairs[at % pairs.len()]).collect();
            let tensor = |values: Vec<f64>| -> T {
                let data = TensorData::new(values, shape.clone()).convert_dtype(dtype);
                R::float_from_data(data, &Default::default())
            };
            let x = tensor(all.iter().map(|pair| pair.0).collect());
            let grad = tensor(all.iter().map(|pair| pair.1).collect());
            let zeros = tensor(vec![0.0; count]);
            let (by_bias, _) =
                bias_act_backward(Act::Relu, x.clone(), None, grad.clone(), axis, true).unwrap();
            let by_sum = add_act_backward(Act::Relu, x, zeros, grad).unwrap();
            for (what, found) in [("bias_act", by_bias), ("add_act", by_sum)] {
                let found: Vec<f64> = read_float::<R>(found).iter::<f64>().collect();
                for (&(x, g), &found) in all.iter().zip(&found) {
                    let expected = if x <= 0.0 { 0.0 } else { g };
                    let alike = found == expected || found.is_nan() && expected.is_nan();
                    assert!(alike, "{what} {dtype:?} {shape:?}: {found} of {g} at {x}");
                }
            }
        }
    }
}
