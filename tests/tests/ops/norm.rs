//! Normalisations of rows: by MIOpen if it supports the dtype, and by this crate's kernel if
//! `BURN_ROCM_NORM` asks for it.

use burn_rocm::fused::rms_norm;
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_tests::limits;
use burn_rocm_tests::trace::during;
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

/// Lengths of rows that warps compute, if the rows fill the device. They range from one piece of 16
/// bytes to 16 pieces for each of 32 lanes; in some, not every lane has a last piece. Only a warp
/// of 64 lanes takes the longest.
const BY_WARPS: [usize; 6] = [8, 24, 768, 2056, 4096, 4104];

/// The types of rows and of their parameters.
const HALVES: [[DType; 2]; 4] = [
    [DType::BF16, DType::BF16],
    [DType::F16, DType::F32],
    [DType::F16, DType::F16],
    [DType::BF16, DType::F32],
];

/// More rows than fill the device if warps compute them. The last block has fewer rows than warps.
/// On the CPU device, whose blocks have one thread, few rows.
fn rows_for_warps() -> usize {
    let device = hip::Device::get(0).unwrap();
    let several = device.info().max_threads_per_block > 1;
    if several { 16 * device.info().compute_units as usize + 3 } else { 7 }
}

/// Values in -2 to 2. In some rows the first element is far from the mean, so the kernel needs a
/// second pass. Others are far from 0.
fn rows_with_outliers(random: &Random, [rows, len]: [usize; 2], dtype: DType) -> TensorData {
    let value = |at: usize| match (at / len % 7, at % len) {
        (3, 0) => 100.0,
        (5, _) => 50.0 + random.uniform(-2.0, 2.0),
        _ => random.uniform(-2.0, 2.0),
    };
    TensorData::new((0..rows * len).map(value).collect::<Vec<f64>>(), [rows, len]).convert_dtype(dtype)
}

fn parameter(random: &Random, len: usize, dtype: DType) -> TensorData {
    TensorData::new((0..len).map(|_| random.uniform(0.5, 1.5)).collect::<Vec<f64>>(), [len])
        .convert_dtype(dtype)
}

/// The tensor, in memory behind `skip` other elements.
fn behind(data: &TensorData, skip: usize) -> burn_backend::tensor::FloatTensor<R> {
    let (device, values) = (Default::default(), data.iter::<f64>());
    let values: Vec<f64> = std::iter::repeat_n(9.0, skip).chain(values).collect();
    let all = TensorData::new(values, [skip + data.num_elements()]).convert_dtype(data.dtype);
    let view = R::float_slice(R::float_from_data(all, &device), &[Slice::new(skip as isize, None, 1)]);
    R::float_reshape(view, Shape::from(data.shape.to_vec()))
}

/// Asserts that a warp computed each row of up to 4096 elements, unless the library did, or blocks
/// have one thread.
fn assert_by_warps(what: &str, lines: &[String], len: usize) {
    let by_warps = lines.iter().any(|line| line.contains("_norm_warps<"));
    let library = lines.iter().any(|line| line.contains("miopen"));
    let several = hip::Device::get(0).unwrap().info().max_threads_per_block > 1;
    assert!(by_warps || library || !several || len > 4096, "{what}: {lines:#?}");
}

/// The pairs of types to try for a length: one for long rows, which take a while.
fn types_for(place: usize, len: usize) -> Vec<[DType; 2]> {
    if len > 768 { vec![HALVES[place % HALVES.len()]] } else { HALVES.to_vec() }
}

#[test]
fn rows_by_warps() {
    let random = Random::new();
    let exact =
        |data: &TensorData| O::float_from_data(data.clone().convert_dtype(DType::F64), &Default::default());
    for (place, len) in BY_WARPS.into_iter().enumerate() {
        for [dtype, params] in types_for(place, len) {
            let x = rows_with_outliers(&random, [rows_for_warps(), len], dtype);
            let [gamma, beta] = [(); 2].map(|()| parameter(&random, len, params));
            let beta = (random.below(2) > 0).then_some(beta);
            let skip = random.below(2);
            let what = format!("{len} of {dtype:?}, {params:?}, beta {}, skip {skip}", beta.is_some());
            let operands = [&x, &gamma].map(|data| behind(data, skip));
            let shift = beta.as_ref().map(|beta| behind(beta, skip));
            let [input, scale] = operands;
            let (found, lines) = during(|| R::layer_norm(input, scale, shift, 1e-5));
            assert_by_warps(&what, &lines, len);
            let (found, exact_beta) = (read_float::<R>(found), beta.as_ref().map(exact));
            let operands = [&x, &gamma].map(exact);
            limits::assert_layer_norm::<O>(&what, &found, dtype, operands, exact_beta, 1e-5);
        }
    }
}

/// A NaN or an infinity makes its own row NaN, wherever it is.
#[test]
fn rows_by_warps_with_infinities() {
    let (random, len) = (Random::new(), 264);
    for dtype in [DType::F16, DType::BF16] {
        let x = rows_with_outliers(&random, [rows_for_warps(), len], dtype);
        let mut values: Vec<f64> = x.iter::<f64>().collect();
        let bad = [(0, 0, f64::NAN), (1, 263, f64::NAN), (2, 0, f64::INFINITY), (4, 100, f64::NEG_INFINITY)];
        for (row, at, value) in bad {
            values[row * len + at] = value;
        }
        let x = TensorData::new(values, x.shape.to_vec()).convert_dtype(dtype);
        let [x, gamma, beta] = [x, parameter(&random, len, DType::F32), parameter(&random, len, DType::F32)]
            .map(|data| R::float_from_data(data, &Default::default()));
        let (found, lines) = during(|| R::layer_norm(x, gamma, Some(beta), 1e-5));
        assert_by_warps(&format!("{dtype:?}"), &lines, len);
        let found: Vec<f64> = read_float::<R>(found).iter::<f64>().collect();
        for (row, values) in found.chunks(len).enumerate() {
            let nan = bad.iter().any(|&(bad, ..)| bad == row);
            let as_expected = values.iter().all(|y| if nan { y.is_nan() } else { y.is_finite() });
            assert!(as_expected, "{dtype:?}, row {row}: {values:?}");
        }
    }
}

/// The sum of a row's squares has no cancellation, so its relative error is that of a sum of
/// positive terms, and the root halves it. Mean, epsilon, root, reciprocal and both products add 6
/// roundings.
#[test]
fn rms_rows_by_warps() {
    let random = Random::new();
    for (place, len) in BY_WARPS.into_iter().enumerate() {
        for [dtype, params] in types_for(place, len) {
            let x = rows_with_outliers(&random, [rows_for_warps(), len], dtype);
            let gamma = parameter(&random, len, params);
            let what = format!("{len} of {dtype:?}, {params:?}");
            let [input, scale] = [&x, &gamma].map(|data| behind(data, 1));
            let (found, lines) = during(|| rms_norm(input, scale, 1e-5).expect("a norm"));
            assert_by_warps(&what, &lines, len);
            let found: Vec<f64> = read_float::<R>(found).iter::<f64>().collect();
            let [x, gamma] = [&x, &gamma].map(|data| data.iter::<f64>().collect::<Vec<f64>>());
            let wide =
                limits::growth(limits::in_turn(len) + 1, DType::F32) / 2.0 + 6.0 * limits::unit(DType::F32);
            let share = 1.01 * (wide + limits::unit(dtype));
            for (row, found) in x.chunks(len).zip(found.chunks(len)) {
                let squares = row.iter().map(|x| x * x).sum::<f64>() / len as f64;
                for ((x, gamma), y) in row.iter().zip(&gamma).zip(found) {
                    let expected = x / (squares + 1e-5).sqrt() * gamma;
                    let limit = share * expected.abs() + limits::least(dtype);
                    assert!((y - expected).abs() <= limit, "{what}: {y} instead of {expected} for {x}");
                }
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
