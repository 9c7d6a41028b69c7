//! RMS norm with the residual connection, against the formulas in f64.

use burn::module::Param;
use burn::tensor::backend::AutodiffBackend;
use burn_rocm_nn::language::{Norm, NormConfig, residual_norm};
use burn_rocm_tests::FLOATS;
use burn_rocm_tests::limits::{least, unit, wide};
use burn_rocm_tests::lockstep::{fewer, in_lockstep};
use burn_rocm_tests::trace::during;

use crate::refused;
use crate::support::*;

const EPSILON: f64 = 1e-5;

fn norm<B: AutodiffBackend>(weight: &TensorData, dtype: DType, adds_one: bool) -> Norm<B> {
    let config = NormConfig::new(weight.shape[0]).with_epsilon(EPSILON).with_adds_one(adds_one);
    let mut norm = config.init::<B>(&Default::default());
    norm.weight = Param::from_tensor(tensor(weight, dtype));
    norm
}

/// A row's scale and normed elements.
fn normed(row: &[f64]) -> (f64, Vec<f64>) {
    let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + EPSILON).sqrt();
    (scale, row.iter().map(|x| x * scale).collect())
}

/// Results and their limits.
#[derive(Default)]
struct Expected {
    values: Vec<f64>,
    limits: Vec<f64>,
}

impl Expected {
    /// A result within `share` units of the compute type of `magnitude`, which is rounded to
    /// `dtype` up to `roundings` times.
    fn push(&mut self, value: f64, magnitude: f64, share: f64, roundings: f64, dtype: DType) {
        let stored = if wide(dtype) == dtype { 0.0 } else { unit(dtype) };
        let off = share * unit(wide(dtype)) * magnitude;
        self.values.push(value);
        self.limits.push(sides(dtype) * (off + 1.01 * roundings * stored * (magnitude + off) + least(dtype)));
    }

    fn data(self, shape: &[usize]) -> [TensorData; 2] {
        [self.values, self.limits].map(|data| TensorData::new(data, shape.to_vec()))
    }
}

/// The norm and its gradients from the rows, with `onto` added to that of the rows.
///
/// A sum of n squares is off by n + 2 units, its root by half as many; the scale, two products and
/// the sum with 1 add 6. In the gradient, the mean of n products has n + 2 more, and each of its
/// factors the errors of the norm.
fn norm_of(
    rows: &[f64],
    weight: &[f64],
    shift: f64,
    grad: &[f64],
    onto: &[f64],
    [dtype, by]: [DType; 2],
) -> [Expected; 3] {
    let len = weight.len();
    let share = len as f64 / 2.0 + 8.0;
    let count = rows.len() / len.max(1);
    let mut all = [(); 3].map(|()| Expected::default());
    let mut sums = vec![(0.0, 0.0); len];
    for at in 0..count {
        let range = at * len..(at + 1) * len;
        let (scale, n) = normed(&rows[range.clone()]);
        let grad = &grad[range.clone()];
        let h: Vec<f64> = grad.iter().zip(weight).map(|(g, w)| g * (w + shift)).collect();
        let large: Vec<f64> = grad.iter().zip(weight).map(|(g, w)| g.abs() * (w.abs() + shift)).collect();
        let mean = h.iter().zip(&n).map(|(h, n)| h * n).sum::<f64>() / len as f64;
        let mean_large = large.iter().zip(&n).map(|(h, n)| h * n.abs()).sum::<f64>() / len as f64;
        for i in 0..len {
            all[0].push(
                n[i] * (weight[i] + shift),
                n[i].abs() * (weight[i].abs() + shift),
                share,
                1.0,
                dtype,
            );
            let value = scale * (h[i] - n[i] * mean) + onto[range.start + i];
            let magnitude = scale * (large[i] + n[i].abs() * mean_large) + onto[range.start + i].abs();
            all[1].push(value, magnitude, 4.0 * share, 2.0, dtype);
            sums[i].0 += grad[i] * n[i];
            sums[i].1 += (grad[i] * n[i]).abs();
        }
    }
    for (value, magnitude) in sums {
        all[2].push(value, magnitude, share + count as f64 + 4.0, 1.0, by);
    }
    all
}

fn values(data: &TensorData) -> Vec<f64> {
    data.iter::<f64>().collect()
}

/// The sum and the norm of a residual connection; the gradients of x, of the residual and of the
/// weight.
fn forward<B: AutodiffBackend>(
    [x, residual, weight, by_sum, by_normed]: [&TensorData; 5],
    [dtype, of_weight]: [DType; 2],
    adds_one: bool,
) -> Vec<TensorData> {
    let norm = norm::<B>(weight, of_weight, adds_one);
    let [a, b] = [x, residual].map(|data| tensor::<B, 2>(data, dtype).require_grad());
    let (sum, normed) = norm.forward_residual(a.clone(), b.clone());
    let loss =
        (sum.clone() * tensor(by_sum, dtype)).sum() + (normed.clone() * tensor(by_normed, dtype)).sum();
    let grads = loss.backward();
    let mut all = vec![sum.into_data(), normed.into_data()];
    all.extend([a, b].map(|leaf| leaf.grad(&grads).unwrap().into_data()));
    all.extend(gradients_of(&norm, &grads));
    all
}

fn shapes() -> Vec<[usize; 2]> {
    let mut all = vec![[1, 1], [3, 5], [7, 8], [6, 64], [2, 130], [5, 257], [2, 1024]];
    // Around the longest row that a block keeps in registers, 16 elements for each of 256 threads.
    all.extend(if in_lockstep() { vec![[1, 4104]] } else { vec![[2, 4095], [2, 4096], [3, 8200]] });
    all
}

/// The norm is held against that of the sum that was found, since it is the norm of the rounded
/// sum.
#[test]
fn the_sum_and_its_norm() {
    let random = Random::new();
    let pairs = FLOATS.map(|dtype| [dtype, dtype]).into_iter();
    let pairs = pairs.chain([[DType::F16, DType::F32], [DType::BF16, DType::F32]]);
    for [dtype, of_weight] in pairs {
        for shape in shapes() {
            for adds_one in fewer([false, true], 2, &random) {
                let of = |shape: &[usize], dtype| uniform(&random, shape).convert_dtype(dtype);
                let [x, residual, by_sum, by_normed] = [(); 4].map(|()| of(&shape, dtype));
                let weight = of(&shape[1..], of_weight);
                let what = format!("{shape:?} {dtype:?} with {of_weight:?}, adds one: {adds_one}");
                let given = [&x, &residual, &weight, &by_sum, &by_normed];
                let mut results = vec![forward::<Ours>(given, [dtype, of_weight], adds_one)];
                results.push(forward::<Balanced>(given, [dtype, of_weight], adds_one));
                for mut found in results {
                    let mut sums = Expected::default();
                    for (x, r) in x.iter::<f64>().zip(residual.iter::<f64>()) {
                        sums.push(x + r, (x + r).abs(), 1.0, 1.0, dtype);
                    }
                    let shift = if adds_one { 1.0 } else { 0.0 };
                    let types = [dtype, of_weight];
                    let [normed, by_rows, by_weight] = norm_of(
                        &values(&found[0]),
                        &values(&weight),
                        shift,
                        &values(&by_normed),
                        &values(&by_sum),
                        types,
                    );
                    let by_rows = by_rows.data(&shape);
                    let last = found.pop().unwrap();
                    let expected = [sums.data(&shape), normed.data(&shape), by_rows.clone(), by_rows];
                    assert_limits(&what, dtype, &found, &expected);
                    assert_limits(
                        &format!("{what}, weight"),
                        of_weight,
                        &[last],
                        &[by_weight.data(&shape[1..])],
                    );
                    assert_eq!(found[2], found[3], "{what}: one gradient for both");
                }
            }
        }
    }
}

/// A norm before the sum, alone and with one after it.
#[test]
fn a_norm_before_the_sum() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in shapes() {
            let of = |shape: &[usize]| uniform(&random, shape).convert_dtype(dtype);
            let [x, residual, grad] = [(); 3].map(|()| of(&shape));
            let [first, second] = [(); 2].map(|()| of(&shape[1..]));
            let what = format!("a norm before, {shape:?} {dtype:?}");
            let zeros = vec![0.0; x.iter::<f64>().count()];
            let [normed, by_x, by_weight] =
                norm_of(&values(&x), &values(&first), 1.0, &values(&grad), &zeros, [dtype; 2]);
            // The norm is rounded, then the sum.
            let mut sums = Expected::default();
            for ((value, off), r) in normed.values.iter().zip(&normed.limits).zip(residual.iter::<f64>()) {
                sums.push(value + r, value.abs() + r.abs() + off, 1.0, 1.0, dtype);
                *sums.limits.last_mut().unwrap() += off;
            }
            let mut by_residual = Expected::default();
            grad.iter::<f64>().for_each(|g| by_residual.push(g, 0.0, 0.0, 0.0, dtype));
            let expected = vec![
                sums.data(&shape),
                by_x.data(&shape),
                by_residual.data(&shape),
                by_weight.data(&shape[1..]),
            ];
            within_limits!(what, dtype, expected, |B| {
                let norm = norm::<B>(&first, dtype, true);
                let [a, b] = [&x, &residual].map(|data| tensor::<B, 2>(data, dtype).require_grad());
                let sum = norm.forward_before(a.clone(), b.clone());
                let grads = (sum.clone() * tensor::<B, 2>(&grad, dtype)).sum().backward();
                let mut all = vec![sum.into_data()];
                all.extend([a, b].map(|leaf| leaf.grad(&grads).unwrap().into_data()));
                all.extend(gradients_of(&norm, &grads));
                all
            });
            // Both norms in one kernel give the bits of one after the other.
            let [before, after] = [&first, &second].map(|weight| norm::<Ours>(weight, dtype, true));
            let [a, b] = [&x, &residual].map(|data| tensor::<Ours, 2>(data, dtype));
            let (sum, both) = residual_norm(a.clone(), b.clone(), Some(&before), Some(&after));
            let alone = before.forward_before(a, b);
            assert_eq!(sum.into_data(), alone.clone().into_data(), "{what}: the sum");
            assert_eq!(both.unwrap().into_data(), after.forward(alone).into_data(), "{what}: the norm");
        }
    }
}

/// Empty tensors, transposed operands, and operands that stay in use.
#[test]
fn views_and_empty_tensors() {
    let random = Random::new();
    let norm = norm::<Ours>(&uniform(&random, &[8]), DType::F32, false);
    let empty = || tensor::<Ours, 2>(&uniform(&random, &[0, 8]), DType::F32);
    let (sum, normed) = norm.forward_residual(empty(), empty());
    assert_eq!([sum.dims(), normed.dims()], [[0, 8]; 2]);
    let [x, residual] = [(); 2].map(|()| tensor::<Ours, 2>(&uniform(&random, &[8, 6]), DType::F32));
    let before = [x.clone(), residual.clone()].map(Tensor::into_data);
    let found = norm.forward_residual(x.clone().transpose(), residual.clone().transpose());
    let copies = [x.clone(), residual.clone()].map(|x| x.transpose().mul_scalar(1.0));
    let [a, b] = copies;
    let expected = norm.forward_residual(a, b);
    assert_eq!(found.0.into_data(), expected.0.into_data());
    assert_eq!(found.1.into_data(), expected.1.into_data());
    assert_eq!([x, residual].map(Tensor::into_data), before, "operands in use are not overwritten");
}

#[test]
fn one_launch_forward() {
    let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[4, 16]), DType::F32);
    let norm = NormConfig::new(16).init::<Ours>(&Default::default());
    let (_, lines) = during(|| norm.forward_residual(x.clone(), x));
    let of_norm: Vec<_> =
        lines.iter().filter(|line| line.starts_with("nn_") && line.contains("kernel")).collect();
    assert_eq!(of_norm.len(), 1, "{lines:#?}");
    assert!(of_norm[0].starts_with("nn_residual_sum f32: kernel residual_norm<f32, f32>"), "{lines:#?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Default::default();
    let of = |shape: [usize; 2]| Tensor::<Ours, 2>::zeros(shape, &device);
    let norm = NormConfig::new(8).init::<Ours>(&device);
    refused("residual_norm", "[2, 8]", || norm.forward_residual(of([3, 8]), of([2, 8])));
    refused("residual_norm", "[8]", || norm.forward_residual(of([3, 4]), of([3, 4])));
    let other = NormConfig::new(8).with_adds_one(true).init::<Ours>(&device);
    refused("residual_norm", "shift: 1.0", || {
        residual_norm(of([3, 8]), of([3, 8]), Some(&norm), Some(&other))
    });
    refused("NormConfig", "0", || NormConfig::new(8).with_epsilon(0.0).init::<Ours>(&device));
}
