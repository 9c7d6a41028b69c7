//! Fourier transforms by their definition, in f64. (The oracle uses f32 tables.)

use burn_rocm_tests::limits;
use burn_rocm_tests::*;
use std::f64::consts::TAU;

/// The product of the sizes before a dim, its own size, and the product of those after it.
fn lines(shape: &[usize], dim: usize) -> [usize; 3] {
    [shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product()]
}

/// Data of `shape` with size `n` in dim `dim`. `number` gets a line's index and the position in the
/// line.
fn along(shape: &[usize], dim: usize, n: usize, number: impl Fn(usize, usize) -> f64) -> TensorData {
    let [outer, _, inner] = lines(shape, dim);
    let mut to = shape.to_vec();
    to[dim] = n;
    let all = (0..outer * n * inner).map(|i| number(i / (n * inner) * inner + i % inner, i / inner % n));
    TensorData::new(all.collect::<Vec<f64>>(), Shape::from(to))
}

/// The numbers of each line along a dim.
fn split(data: &TensorData, dim: usize) -> Vec<Vec<f64>> {
    let [outer, n, inner] = lines(&data.shape, dim);
    let all: Vec<f64> = data.iter::<f64>().collect();
    let line = |line: usize| {
        (0..n).map(|t| all[(line / inner * n + t) * inner + line % inner]).collect::<Vec<f64>>()
    };
    (0..outer * inner).map(line).collect()
}

/// Cosine and sine of `2 pi k t / n`.
fn turn(k: usize, t: usize, n: usize) -> [f64; 2] {
    let angle = TAU * ((k * t) % n) as f64 / n as f64;
    [angle.cos(), angle.sin()]
}

/// The real and imaginary parts of the first half of a real signal's spectrum, each with its
/// limits.
pub(crate) fn rfft(x: &TensorData, dim: usize, dtype: DType) -> Vec<TensorData> {
    let n = x.shape[dim];
    let signals = split(x, dim);
    let squares = along(&x.shape, dim, n / 2 + 1, |line, _| signals[line].iter().map(|x| x * x).sum());
    let part = |sign: f64, part: usize| {
        let sum = |line: usize, k: usize| -> f64 {
            signals[line].iter().enumerate().map(|(t, x)| sign * x * turn(k, t, n)[part]).sum()
        };
        let reference = along(&x.shape, dim, n / 2 + 1, sum);
        let limits = limits::fourier(&reference, &squares, n, dtype);
        [reference, limits]
    };
    [part(1.0, 0), part(-1.0, 1)].concat()
}

/// The real signal with this first half of the spectrum, with its limits.
pub(crate) fn irfft(parts: &[TensorData; 2], dim: usize, dtype: DType) -> Vec<TensorData> {
    let n = 2 * (parts[0].shape[dim] - 1);
    let [re, im] = parts.each_ref().map(|part| split(part, dim));
    // The other half is the conjugate of this one. The first and last bin have no partner there and
    // count as real.
    let bins = |line: usize| {
        let whole = re[line].iter().zip(&im[line]).enumerate();
        whole.map(move |(k, (re, im))| if k % (n / 2) == 0 { [*re, 0.0, 1.0] } else { [*re, *im, 2.0] })
    };
    let number = |line: usize, t: usize| {
        let of = |(k, [re, im, times]): (usize, [f64; 3])| {
            let [cos, sin] = turn(k, t, n);
            times * (re * cos - im * sin)
        };
        bins(line).enumerate().map(of).sum::<f64>() / n as f64
    };
    let square = |line: usize, _| {
        bins(line).map(|[re, im, times]| times * (re * re + im * im)).sum::<f64>() / (n * n) as f64
    };
    let reference = along(&parts[0].shape, dim, n, number);
    let squares = along(&parts[0].shape, dim, n, square);
    let limits = limits::fourier(&reference, &squares, n, dtype);
    vec![reference, limits]
}
