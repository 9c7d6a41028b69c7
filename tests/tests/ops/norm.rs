//! Normalisations of rows: by MIOpen if it supports the dtype, and by this crate's kernel if
//! `BURN_ROCM_NORM` asks for it.

use burn_rocm::{RocmError, take_last_error};
use burn_rocm_tests::limits;
use burn_rocm_tests::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Asserts that the layer norm of `x` is within its rounding bounds.
fn assert_normed(what: &str, x: &Input, gamma: &Input, beta: Option<&Input>, epsilon: f64) {
    let device = Default::default();
    let operand = |input: &Input| input.float::<R>(&device);
    let dtype = operand(x).dtype();
    let found = R::layer_norm(operand(x), operand(gamma), beta.map(operand), epsilon);
    let device = Default::default();
    let exact = |input: &Input| limits::exact::<O>(input, false, &device);
    let (found, operands) = (read_float::<R>(found), [x, gamma].map(exact));
    limits::assert_layer_norm::<O>(&what, &found, dtype, operands, beta.map(exact), epsilon);
}

#[test]
fn layer_norm() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in
            [&[4usize, 8] as &[usize], &[2, 3, 33], &[1, 1], &[7], &[3, 1000], &[2, 4097], &[0, 5], &[5, 0]]
        {
            let width = shape[shape.len() - 1];
            // A single row expanded from one value would give only rounding errors, scaled up.
            let view = View::ALL[random.below(if shape.len() == 1 { 4 } else { 5 })];
            let x = float(&random, shape, dtype, view, -2.0, 2.0);
            let gamma = float(&random, &[width], dtype, View::ALL[random.below(5)], 0.5, 1.5);
            let beta = float(&random, &[width], dtype, View::ALL[random.below(5)], -0.5, 0.5);
            let what = format!("layer_norm {dtype:?} {shape:?} {view:?}");
            for (beta, epsilon) in [(Some(&beta), 1e-5), (None, 1e-5), (None, 0.25)] {
                assert_normed(&what, &x, &gamma, beta, epsilon);
            }
        }
    }
}

/// The variance of rows far from 0, and of constant rows, whose variance is 0.
#[test]
fn layer_norm_of_a_large_mean() {
    let (random, device) = (Random::new(), Default::default());
    let (rows, len) = (6, 768);
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let x: Vec<f64> = (0..rows * len)
            .map(|i| if i / len % 2 == 0 { 1000.1 } else { 500.0 + random.uniform(-2.0, 2.0) })
            .collect();
        let x = TensorData::new(x, [rows, len]).convert_dtype(dtype);
        let values: Vec<f64> = x.iter::<f64>().collect();
        let ones = || R::float_ones(Shape::from([len]), &device, dtype.into());
        let out = R::layer_norm(R::float_from_data(x, &device), ones(), Some(ones()), 1e-5);
        let out: Vec<f64> = read_float::<R>(out).iter::<f64>().collect();
        for (row, found) in values.chunks(len).zip(out.chunks(len)) {
            let mean = row.iter().sum::<f64>() / len as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / len as f64;
            for (x, y) in row.iter().zip(found) {
                let expected = (x - mean) / (variance + 1e-5).sqrt() + 1.0;
                // The rounding of the mean, in standard deviations.
                let tolerance = if dtype == DType::F64 { 1e-6 } else { 0.2 };
                assert!((y - expected).abs() < tolerance, "{dtype:?}: {y} instead of {expected} for {x}");
            }
        }
    }
}

#[test]
fn layer_norm_refuses_what_does_not_fit() {
    let zeros =
        |shape: &[usize], dtype| R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), dtype);
    let wide = FloatDType::F32;
    let check = |found: &str, body: &dyn Fn() -> burn_backend::tensor::FloatTensor<R>| {
        catch_unwind(AssertUnwindSafe(body)).expect_err(found);
        match take_last_error() {
            Some(error @ RocmError::Invalid { op: "layer_norm", .. }) => {
                assert!(error.to_string().contains(found), "{error} does not name {found}");
            }
            other => panic!("{found}: {other:?}"),
        }
    };
    let run = |gamma: &[usize], beta: &[usize], dtype| {
        R::layer_norm(zeros(&[2, 3], wide), zeros(gamma, dtype), Some(zeros(beta, wide)), 1e-5)
    };
    check("[4]", &|| run(&[4], &[3], wide));
    check("[1, 3]", &|| run(&[1, 3], &[3], wide));
    check("[2]", &|| run(&[3], &[2], wide));
    check("f16", &|| run(&[3], &[3], FloatDType::F16));
}

/// Runs tests of this file in a process with this `BURN_ROCM_NORM`.
fn child(test: &str, norm: &str) -> String {
    again(&[test, "--include-ignored", "--test-threads", "1", "--nocapture"], &[("BURN_ROCM_NORM", norm)])
}

/// Runs tests of this file again with this crate's kernel.
#[test]
fn by_the_own_kernel_natively() {
    let text = child("norm::layer_norm", "own");
    assert!(text.contains("3 passed"), "{text}");
}

/// MIOpen alone: where it supports the dtype it agrees with the kernel, and other dtypes are
/// errors.
#[test]
fn by_miopen_alone_natively() {
    let text = child("norm::miopen_or_an_error", "miopen");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by the test above, with the setting in the environment"]
fn miopen_or_an_error() {
    let (random, device) = (Random::new(), Default::default());
    let here = hip::Device::get(0).unwrap();
    let refused = |dtype: DType| {
        let ones = |shape: &[usize]| R::float_ones(Shape::from(shape.to_vec()), &device, dtype.into());
        let run = AssertUnwindSafe(|| R::layer_norm(ones(&[2, 3]), ones(&[3]), None, 1e-5));
        catch_unwind(run).expect_err("MIOpen has no such layer norm");
        assert!(matches!(take_last_error(), Some(RocmError::Unsupported { .. })), "{dtype:?}");
    };
    let has = here.dnn().unwrap().has_layer_norm(hip::DType::F32).is_ok();
    for dtype in [DType::F32, DType::F16] {
        if !has {
            refused(dtype);
            continue;
        }
        let x = float(&random, &[3, 100], dtype, View::Contiguous, -2.0, 2.0);
        let gamma = float(&random, &[100], dtype, View::Contiguous, 0.5, 1.5);
        assert_normed(&format!("layer_norm {dtype:?}"), &x, &gamma, None, 1e-5);
    }
    // MIOpen does not round bf16 to nearest.
    refused(DType::BF16);
    refused(DType::F64);
}
