//! Fourier transforms: against the oracle where it supports the length (powers of two), and against
//! the defining sum in f64 for every length.

use burn_rocm_tests::*;
use std::f64::consts::TAU;

/// `exp(-2 pi i k / n)` for k in 0..n.
fn roots(n: usize) -> Vec<(f64, f64)> {
    (0..n).map(|k| (TAU * k as f64 / n as f64).sin_cos()).map(|(sin, cos)| (cos, -sin)).collect()
}

/// The first `n / 2 + 1` bins of the signal, which is cut or padded with zeros to `n`.
fn bins(signal: &[f64], n: usize) -> Vec<(f64, f64)> {
    let roots = roots(n);
    let bin = |k: usize| {
        let terms = signal.iter().take(n).enumerate().map(|(j, x)| (x, roots[j * k % n]));
        terms.fold((0.0, 0.0), |sum, (x, root)| (sum.0 + x * root.0, sum.1 + x * root.1))
    };
    (0..n / 2 + 1).map(bin).collect()
}

/// The `n` samples of the real signal that has these bins.
fn samples(bins: &[(f64, f64)], n: usize) -> Vec<f64> {
    let roots = roots(n);
    let sample = |j: usize| {
        let mut sum = 0.0;
        for (k, &(re, im)) in bins.iter().enumerate().take(n / 2 + 1) {
            let root = roots[j * k % n];
            sum += if k == 0 || 2 * k == n { re * root.0 } else { 2.0 * (re * root.0 + im * root.1) };
        }
        sum / n as f64
    };
    (0..n).map(sample).collect()
}

/// Asserts that the largest difference, as a share of the expected values' norm, is within
/// `tolerance`.
#[track_caller]
fn near(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
    let apart = found.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    assert!(apart <= tolerance * norm + f64::MIN_POSITIVE, "{what}: {} of the norm", apart / norm);
}

fn values(data: &TensorData) -> Vec<f64> {
    data.iter::<f64>().collect()
}

/// Checks both transforms, with `n` samples, of lines along the middle axis of the shape
/// `[outer, len, inner]`.
fn against_the_sum(random: &Random, shape: [usize; 3], n: Option<usize>, dtype: DType, view: View) {
    let device = Default::default();
    let what = format!("{dtype:?} {shape:?} n {n:?} {view:?}");
    let tolerance = match dtype {
        DType::F64 => 2e-14,
        DType::F32 => 1e-6,
        DType::F16 => 1e-3,
        _ => 1e-2,
    };
    let line = |data: &[f64], len: usize, o: usize, i: usize| -> Vec<f64> {
        (0..len).map(|k| data[(o * len + k) * shape[2] + i]).collect()
    };

    let x = float(random, &shape, dtype, view, -1.0, 1.0);
    let signal = values(&read_float::<R>(x.float::<R>(&device)));
    let len = n.unwrap_or(shape[1]);
    let (re, im) = R::rfft(x.float::<R>(&device), 1, n);
    let (re, im) = (read_float::<R>(re), read_float::<R>(im));
    assert_eq!((re.dtype, im.dtype), (dtype, dtype), "{what}");
    assert_eq!(re.shape, Shape::from([shape[0], len / 2 + 1, shape[2]]), "{what}");
    let (re, im) = (values(&re), values(&im));
    for o in 0..shape[0] {
        for i in 0..shape[2] {
            let expected = bins(&line(&signal, shape[1], o, i), len);
            let found = line(&re, len / 2 + 1, o, i).into_iter().chain(line(&im, len / 2 + 1, o, i));
            let expected = expected.iter().map(|bin| bin.0).chain(expected.iter().map(|bin| bin.1));
            near(
                &format!("rfft {what}"),
                &found.collect::<Vec<_>>(),
                &expected.collect::<Vec<_>>(),
                tolerance,
            );
        }
    }

    let (re, im) = (x, float(random, &shape, dtype, view, -1.0, 1.0));
    let len = n.unwrap_or(2 * (shape[1] - 1));
    if len == 0 {
        return;
    }
    let out = read_float::<R>(R::irfft(re.float::<R>(&device), im.float::<R>(&device), 1, n));
    assert_eq!(out.dtype, dtype, "{what}");
    assert_eq!(out.shape, Shape::from([shape[0], len, shape[2]]), "{what}");
    let out = values(&out);
    let imaginary = values(&read_float::<R>(im.float::<R>(&device)));
    for o in 0..shape[0] {
        for i in 0..shape[2] {
            let bins: Vec<_> =
                std::iter::zip(line(&signal, shape[1], o, i), line(&imaginary, shape[1], o, i)).collect();
            near(&format!("irfft {what}"), &line(&out, len, o, i), &samples(&bins, len), tolerance);
        }
    }
}

#[test]
fn fft_of_any_length() {
    let random = Random::new();
    for len in (1..=64).chain([97, 100, 127, 128, 134, 1000, 1009, 4096]) {
        for dtype in [DType::F32, DType::F64] {
            let shape = if len > 64 { [1, len, 1] } else { [2, len, 3] };
            against_the_sum(&random, shape, Some(len), dtype, View::Contiguous);
        }
    }
}

#[test]
fn fft_cut_and_filled() {
    let random = Random::new();
    for dtype in FLOATS {
        for view in View::ALL {
            for (len, n) in [
                (8, None),
                (9, None),
                (5, Some(16)),
                (16, Some(5)),
                (7, Some(1)),
                (3, Some(67)),
                (70, Some(67)),
            ] {
                against_the_sum(&random, [3, len, 2], n, dtype, view);
            }
        }
    }
}

/// The allowed difference between two implementations' transforms of `n` numbers, and between their
/// round trips, as shares of the results' norms.
///
/// Each side's error is the share that [`limits::fourier`] gives, with f32's unit, because the
/// oracle's roots are f32 and it computes the inverse of f64 in f32. A round trip adds the shares
/// of both transforms and the rounding of the bins. Each side rounds its result once. One percent
/// allows for the products of such shares.
fn apart(n: usize, dtype: DType) -> [f64; 2] {
    let share = 7.0 * ((n as f64).log2().ceil() + 1.0) * limits::unit(DType::F32);
    let rounding = if matches!(dtype, DType::F16 | DType::BF16) { limits::unit(dtype) } else { 0.0 };
    [share + rounding, 2.0 * (share + rounding)].map(|side| 2.02 * side)
}

/// The real parts of the bins, then the imaginary parts; and the samples of the round trip.
fn there_and_back<B: Backend>(x: &Input, dtype: DType, dim: usize, n: usize) -> [Vec<f64>; 2] {
    let read = |tensor| {
        let data = read_float::<B>(tensor);
        assert_eq!(data.dtype, dtype);
        values(&data)
    };
    let (re, im) = B::rfft(x.float::<B>(&Default::default()), dim, Some(n));
    let mut bins = read(re.clone());
    bins.extend(read(im.clone()));
    [bins, read(B::irfft(re, im, dim, Some(n)))]
}

#[test]
fn fft_of_powers_of_two() {
    trace::to_file();
    let random = Random::new();
    for dtype in FLOATS {
        for (shape, n) in [
            (&[1usize] as &[usize], None),
            (&[2], None),
            (&[64], None),
            (&[1024], None),
            (&[4, 16], Some(32)),
            (&[8, 4, 2], None),
            (&[8, 32, 4], Some(8)),
        ] {
            for dim in 0..shape.len() {
                let view = View::ALL[random.below(5)];
                let x = float(&random, shape, dtype, view, -1.0, 1.0);
                let what = format!("{dtype:?} {shape:?} dim {dim} n {n:?} {view:?}");
                let n = n.unwrap_or(shape[dim]);
                let [bins, samples] = there_and_back::<R>(&x, dtype, dim, n);
                let [bins_of_oracle, samples_of_oracle] = there_and_back::<O>(&x, dtype, dim, n);
                let [there, back] = apart(n, dtype);
                near(&format!("rfft {what}"), &bins, &bins_of_oracle, there);
                near(&format!("round trip {what}"), &samples, &samples_of_oracle, back);
            }
        }
    }
}

#[test]
fn fft_without_lines() {
    let device = Default::default();
    let x = || R::float_zeros(Shape::from([0, 6]), &device, FloatDType::F32);
    let (re, im) = R::rfft(x(), 1, None);
    assert_eq!((re.shape(), im.shape()), (Shape::from([0, 4]), Shape::from([0, 4])));
    assert_eq!(R::irfft(x(), x(), 1, None).shape(), Shape::from([0, 10]));
    // A signal without samples, padded with zeros.
    let none = R::float_zeros(Shape::from([2, 0]), &device, FloatDType::F32);
    assert_eq!(values(&read_float::<R>(R::rfft(none, 1, Some(4)).0)), [0.0; 6]);
}
