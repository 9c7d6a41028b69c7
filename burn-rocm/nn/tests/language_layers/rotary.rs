//! The rotary embedding with the split into heads and their norms, against the formulas in f64.

use burn::module::Param;
use burn::tensor::Int;
use burn::tensor::backend::AutodiffBackend;
use burn_rocm_nn::language::{
    Heads, Norm, NormConfig, Positions, RotaryConfig, RotaryEmbedding, RotaryFrequencies,
};
use burn_rocm_tests::FLOATS;
use burn_rocm_tests::limits::{least, unit, wide};
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;

use crate::refused;
use crate::support::*;

const EPSILON: f64 = 1e-5;

/// A call. Its positions are those of `starts`, one for each sequence.
#[derive(Clone, Debug)]
struct Case {
    length: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotated: usize,
    interleaved: bool,
    factor: f32,
    starts: Vec<i64>,
    /// Whether there are norms, and whether they add 1.
    norms: Option<bool>,
}

/// Results and their limits.
#[derive(Clone, Default)]
struct Expected {
    values: Vec<f64>,
    limits: Vec<f64>,
}

impl Expected {
    /// A result within `share` units of the compute type of `magnitude`, rounded to `dtype` once.
    fn push(&mut self, value: f64, magnitude: f64, share: f64, dtype: DType) {
        let stored = if wide(dtype) == dtype { 0.0 } else { unit(dtype) };
        let off = share * unit(wide(dtype)) * magnitude;
        self.values.push(value);
        self.limits.push(sides(dtype) * (off + 1.01 * stored * (value.abs() + off) + least(dtype)));
    }

    fn data(self, shape: &[usize]) -> [TensorData; 2] {
        [self.values, self.limits].map(|data| TensorData::new(data, shape.to_vec()))
    }
}

impl Case {
    fn batch(&self) -> usize {
        self.starts.len()
    }

    fn config(&self) -> RotaryConfig {
        RotaryConfig::new(self.head_dim).with_rotated(Some(self.rotated)).with_interleaved(self.interleaved)
    }

    fn embedding<B: AutodiffBackend>(&self) -> RotaryEmbedding<B> {
        let frequencies = RotaryFrequencies { factor: self.factor, ..self.config().frequencies() };
        RotaryEmbedding::new(&frequencies, self.head_dim, self.interleaved, &Default::default())
    }

    fn packed_shape(&self) -> [usize; 3] {
        [self.batch(), self.length, (self.heads + 2 * self.kv_heads) * self.head_dim]
    }

    fn shape(&self, which: usize) -> [usize; 4] {
        let heads = if which == 0 { self.heads } else { self.kv_heads };
        [self.batch(), heads, self.length, self.head_dim]
    }

    fn positions<B: AutodiffBackend>(&self) -> Positions<B> {
        if self.starts.iter().all(|&start| start == 0) {
            return Positions::FromZero;
        }
        let data = TensorData::new(self.starts.clone(), [self.batch()]);
        Positions::Starts(Tensor::<B, 1, Int>::from_data(data, &Default::default()))
    }

    /// The features of a pair.
    fn pair(&self, p: usize) -> [usize; 2] {
        if self.interleaved { [2 * p, 2 * p + 1] } else { [p, self.rotated / 2 + p] }
    }

    /// Cosine and sine of each pair at a position. The angle is rounded as the kernel rounds it.
    fn turns(&self, position: i64, dtype: DType) -> Vec<[f64; 2]> {
        let factor = f64::from(self.factor);
        let angle = |frequency: f32| match dtype {
            DType::F64 => position as f64 * f64::from(frequency),
            _ => f64::from(position as f32 * frequency),
        };
        let turn = |frequency: &f32| [angle(*frequency).cos() * factor, angle(*frequency).sin() * factor];
        self.config().frequencies().frequencies.iter().map(turn).collect()
    }

    /// A head's features turned by the angles, or back.
    fn turned(&self, head: &[f64], turns: &[[f64; 2]], back: f64) -> Vec<f64> {
        let mut out = head.to_vec();
        for (p, [c, s]) in turns.iter().enumerate() {
            let [a, b] = self.pair(p);
            out[a] = head[a] * c - back * head[b] * s;
            out[b] = head[b] * c + back * head[a] * s;
        }
        out
    }

    /// For each feature, the sum of the magnitudes of what a turn adds there.
    fn large(&self, head: &[f64]) -> Vec<f64> {
        let mut out: Vec<f64> = head.iter().map(|x| x.abs()).collect();
        for p in 0..self.rotated / 2 {
            let [a, b] = self.pair(p);
            let sum = (head[a].abs() + head[b].abs()) * f64::from(self.factor.abs());
            (out[a], out[b]) = (sum, sum);
        }
        out
    }

    /// Queries, keys and values; the gradients of the packed heads, and of both norms' weights.
    ///
    /// Cosine and sine are each off by `2^-23`, two units of f32 (in f64 by a unit of the result,
    /// and both are below 1); the factor and the turn round three times more. A norm's scale is off
    /// by half as many units as it adds squares, and its products and 1 by 8. In its gradient, the
    /// means of products add as many units as features, and each factor has its own errors.
    fn expected(
        &self,
        packed: &[f64],
        weights: &[Vec<f64>; 2],
        grads: &[Vec<f64>; 3],
        [dtype, by]: [DType; 2],
    ) -> Vec<[TensorData; 2]> {
        let (d, width) = (self.head_dim, self.packed_shape()[2]);
        let share = 8.0 + if self.norms.is_some() { d as f64 / 2.0 + 8.0 } else { 0.0 };
        let shift = if self.norms == Some(true) { 1.0 } else { 0.0 };
        let mut parts = [(); 3].map(|()| Expected::default());
        let mut by_packed = Expected { values: vec![0.0; packed.len()], limits: vec![0.0; packed.len()] };
        let mut sums = [(); 2].map(|()| vec![(0.0f64, 0.0f64); d]);
        let mut terms = [0.0; 2];
        for which in 0..3 {
            let [batch, heads, length, _] = self.shape(which);
            let first = [0, self.heads, self.heads + self.kv_heads][which];
            for (b, h, l) in
                (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..length).map(move |l| (b, h, l))))
            {
                let at = (b * length + l) * width + (first + h) * d;
                let x = &packed[at..at + d];
                let grad = &grads[which][((b * heads + h) * length + l) * d..][..d];
                if which == 2 {
                    x.iter().for_each(|&x| parts[2].push(x, 0.0, 0.0, DType::F64));
                    by_packed.values[at..at + d].copy_from_slice(grad);
                    continue;
                }
                let turns = self.turns(self.starts[b] + l as i64, dtype);
                let weight = &weights[which];
                let (scale, normed, large): (f64, Vec<f64>, Vec<f64>) = match self.norms {
                    None => (1.0, x.to_vec(), x.to_vec()),
                    Some(_) => {
                        let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / d as f64 + EPSILON).sqrt();
                        let of = |w: &dyn Fn(f64) -> f64| {
                            x.iter().zip(weight).map(|(x, v)| x * scale * w(*v)).collect()
                        };
                        (scale, of(&|w| w + shift), of(&|w| w.abs() + shift))
                    }
                };
                for (value, magnitude) in
                    self.turned(&normed, &turns, 1.0).into_iter().zip(self.large(&large))
                {
                    parts[which].push(value, magnitude, share, dtype);
                }
                let (dn, dn_large) = (self.turned(grad, &turns, -1.0), self.large(grad));
                let mut result = Expected::default();
                if self.norms.is_none() {
                    (0..d).for_each(|i| result.push(dn[i], dn_large[i], share, dtype));
                } else {
                    let n: Vec<f64> = x.iter().map(|x| x * scale).collect();
                    let mean = |dn: &[f64], w: &dyn Fn(f64) -> f64, n: &dyn Fn(f64) -> f64, of: &[f64]| {
                        (0..d).map(|i| dn[i] * w(weight[i]) * n(of[i])).sum::<f64>() / d as f64
                    };
                    let small = mean(&dn, &|w| w + shift, &|n| n, &n);
                    let most = mean(&dn_large, &|w| w.abs() + shift, &f64::abs, &n);
                    for i in 0..d {
                        let value = scale * (dn[i] * (weight[i] + shift) - n[i] * small);
                        let magnitude = scale * (dn_large[i] * (weight[i].abs() + shift) + n[i].abs() * most);
                        result.push(value, magnitude, 4.0 * share, dtype);
                        sums[which][i].0 += dn[i] * n[i];
                        sums[which][i].1 += dn_large[i] * n[i].abs();
                    }
                    terms[which] += 1.0;
                }
                by_packed.values[at..at + d].copy_from_slice(&result.values);
                by_packed.limits[at..at + d].copy_from_slice(&result.limits);
            }
        }
        let [query, key, value] = parts;
        let mut all = vec![query.data(&self.shape(0)), key.data(&self.shape(1)), value.data(&self.shape(2))];
        all.push(by_packed.data(&self.packed_shape()));
        for (sums, terms) in sums.into_iter().zip(terms).filter(|_| self.norms.is_some()) {
            let mut by_weight = Expected::default();
            sums.into_iter().for_each(|(value, large)| by_weight.push(value, large, share + terms + 4.0, by));
            all.push(by_weight.data(&[d]));
        }
        all
    }

    /// The same by the module.
    fn run<B: AutodiffBackend>(
        &self,
        packed: &TensorData,
        weights: &[TensorData; 2],
        grads: &[TensorData; 3],
        [dtype, by]: [DType; 2],
    ) -> Vec<TensorData> {
        let norms = self.norms.map(|adds_one| {
            weights.each_ref().map(|weight| {
                let config = NormConfig::new(self.head_dim).with_epsilon(EPSILON).with_adds_one(adds_one);
                let mut norm = config.init::<B>(&Default::default());
                norm.weight = Param::from_tensor(tensor(weight, by));
                norm
            })
        });
        let leaf = tensor::<B, 3>(packed, dtype).require_grad();
        let heads = [self.heads, self.kv_heads];
        let Heads { query, key, value } = self.embedding::<B>().forward(
            leaf.clone(),
            heads,
            &self.positions(),
            norms.as_ref().map(|[q, k]| [q, k]),
        );
        let part = |x: &Tensor<B, 4>, grad: &TensorData| (x.clone() * tensor::<B, 4>(grad, dtype)).sum();
        let loss = part(&query, &grads[0]) + part(&key, &grads[1]) + part(&value, &grads[2]);
        let grads = loss.backward();
        let mut all: Vec<TensorData> = [query, key, value].map(Tensor::into_data).into();
        all.push(leaf.grad(&grads).unwrap().into_data());
        let of = |norm: &Norm<B>| norm.weight.val().grad(&grads).unwrap().into_data();
        all.extend(norms.iter().flatten().map(of));
        all
    }

    /// Compares a call in these types.
    fn check(&self, random: &Random, types: [DType; 2]) {
        let [dtype, by] = types;
        let packed = uniform(random, &self.packed_shape()).convert_dtype(dtype);
        let weights = [(); 2].map(|()| uniform(random, &[self.head_dim]).convert_dtype(by));
        let grads = [0, 1, 2].map(|which| uniform(random, &self.shape(which)).convert_dtype(dtype));
        let values = |data: &TensorData| data.iter::<f64>().collect::<Vec<f64>>();
        let expected = self.expected(
            &values(&packed),
            &weights.each_ref().map(values),
            &grads.each_ref().map(values),
            types,
        );
        let what = format!("{self:?} in {dtype:?}, weights in {by:?}");
        for found in [
            self.run::<Ours>(&packed, &weights, &grads, types),
            self.run::<Balanced>(&packed, &weights, &grads, types),
        ] {
            assert_limits(&what, dtype, &found[..4], &expected[..4]);
            assert_limits(&format!("{what}, norms"), by, &found[4..], &expected[4..]);
        }
    }
}

/// Heads in pieces of 16 bytes and others, all or a part of the features, both kinds of pairs, one
/// or several heads of queries for each of keys.
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (starts, length, heads, kv_heads, head_dim, rotated) in [
        (vec![0, 0], 3, 4, 2, 16, 16),
        (vec![7], 5, 3, 1, 10, 10),
        (vec![0, 131_070, 3], 2, 4, 4, 32, 32),
        (vec![40, 2], 1, 2, 1, 24, 8),
        (vec![1000], 4, 4, 2, 64, 64),
        (vec![5, 9], 2, 2, 1, 128, 128),
        (vec![77], 1, 9, 3, 256, 64),
        (vec![12], 2, 1, 1, 2, 2),
    ] {
        for interleaved in [false, true] {
            for norms in [None, Some(false), Some(true)] {
                let (starts, factor) = (starts.clone(), if length == 2 { 1.25 } else { 1.0 });
                all.push(Case {
                    length,
                    heads,
                    kv_heads,
                    head_dim,
                    rotated,
                    interleaved,
                    factor,
                    starts,
                    norms,
                });
            }
        }
    }
    all
}

#[test]
fn heads_and_gradients() {
    let random = Random::new();
    for case in cases() {
        for dtype in fewer(FLOATS, 2, &random) {
            case.check(&random, [dtype, dtype]);
        }
        if case.norms.is_some() {
            case.check(&random, [DType::BF16, DType::F32]);
        }
    }
    case_of_many_tokens().check(&random, [DType::F32, DType::F32]);
}

/// More tokens than blocks, so that blocks take several.
fn case_of_many_tokens() -> Case {
    let starts = vec![3; 5];
    let norms = Some(false);
    Case {
        length: 13,
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        rotated: 8,
        interleaved: false,
        factor: 1.0,
        starts,
        norms,
    }
}

/// Against exact angles: rounding an angle to f32 moves it by up to half a unit, which is 2^-24 of
/// the angle. Cosine and sine have slopes of at most 1, and are off by 2^-23 themselves.
#[test]
fn angles_up_to_position_131072() {
    let config = RotaryConfig::new(64);
    let frequencies = config.frequencies().frequencies;
    let positions: Vec<i64> = (0..64).map(|at| at * 2081).chain([131_071, 131_072]).collect();
    let count = positions.len();
    let data = TensorData::new(positions.clone(), [count, 1]);
    let each = Positions::<Ours>::Each(Tensor::from_data(data, &Default::default()));
    // Heads of (1, 0), which a turn makes (cosine, sine).
    let ones: Vec<f64> = (0..count * 3 * 64).map(|at| f64::from(u8::from(at % 64 < 32))).collect();
    let packed = tensor::<Ours, 3>(&TensorData::new(ones, [count, 1, 3 * 64]), DType::F32);
    let heads = config.init::<Ours>(&Default::default()).forward(packed, [1, 1], &each, None);
    let found: Vec<f64> = heads.query.into_data().iter::<f64>().collect();
    for (row, position) in found.chunks(64).zip(positions) {
        for (p, &frequency) in frequencies.iter().enumerate() {
            let angle = position as f64 * f64::from(frequency);
            let limit = angle * 2f64.powi(-24) + 2f64.powi(-23);
            for (found, exact) in [(row[p], angle.cos()), (row[32 + p], angle.sin())] {
                let off = (found - exact).abs();
                assert!(
                    off <= limit,
                    "position {position}, pair {p}: {found}, not {exact}: {off} of {limit}"
                );
            }
        }
    }
}

/// On another backend the module composes Burn's ops. They compute the same.
#[test]
fn composed_as_fused() {
    let random = Random::new();
    for case in cases().into_iter().filter(|case| case.starts.iter().all(|&start| start < 100)) {
        let types = [DType::F32; 2];
        let packed = uniform(&random, &case.packed_shape());
        let weights = [(); 2].map(|()| uniform(&random, &[case.head_dim]));
        let grads = [0, 1, 2].map(|which| uniform(&random, &case.shape(which)));
        // Each is within the formula's limits, of which those of a gradient are the widest: of
        // order `head_dim * 2^-24` of numbers up to 100.
        let tolerance = Tolerance { absolute: 1e-3, relative: 1e-3 };
        against_burn!(format!("{case:?}"), tolerance, |B|
            theirs case.run::<B>(&packed, &weights, &grads, types),
            ours case.run::<B>(&packed, &weights, &grads, types));
    }
}

/// The composed module takes starts of any integer type.
#[test]
fn composed_with_starts_of_each_integer_type() {
    let random = Random::new();
    let case = Case { starts: vec![4, 9], ..case_of_many_tokens() };
    let packed = tensor::<Oracle, 3>(&uniform(&random, &case.packed_shape()), DType::F32);
    let found = [DType::I64, DType::I32, DType::I16].map(|dtype| {
        let data = TensorData::new(case.starts.clone(), [2]).convert_dtype(dtype);
        let starts = Tensor::from_data(data, (&Default::default(), dtype));
        let heads = [case.heads, case.kv_heads];
        let heads =
            case.embedding::<Oracle>().forward(packed.clone(), heads, &Positions::Starts(starts), None);
        [heads.query.into_data(), heads.key.into_data()]
    });
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
}

/// Positions of each token, in any order and with any strides, are those that starts give.
#[test]
fn positions_of_each_token() {
    let random = Random::new();
    let case = Case { starts: vec![4, 9], ..case_of_many_tokens() };
    let packed = tensor::<Ours, 3>(&uniform(&random, &case.packed_shape()), DType::F32);
    let embedding = case.embedding::<Ours>();
    let heads = [case.heads, case.kv_heads];
    let by_starts = embedding.forward(packed.clone(), heads, &case.positions(), None);
    let each: Vec<i64> = (0..case.length as i64).flat_map(|at| [4 + at, 9 + at]).collect();
    let each =
        Tensor::<Ours, 2, Int>::from_data(TensorData::new(each, [case.length, 2]), &Default::default());
    let by_each = embedding.forward(packed, heads, &Positions::Each(each.transpose()), None);
    assert_eq!(by_starts.query.into_data(), by_each.query.into_data());
    assert_eq!(by_starts.key.into_data(), by_each.key.into_data());
}

/// A part that the loss does not use has no gradient. The others' gradients arrive, and once.
#[test]
fn parts_without_a_gradient() {
    let random = Random::new();
    for case in [Case { norms: None, ..case_of_many_tokens() }, case_of_many_tokens()] {
        let packed = uniform(&random, &case.packed_shape());
        let weights = [(); 2].map(|()| uniform(&random, &[case.head_dim]));
        let grads = [0, 1, 2].map(|which| uniform(&random, &case.shape(which)));
        let all = case.run::<Ours>(&packed, &weights, &grads, [DType::F32; 2]);
        let zeros = |which: usize| TensorData::zeros::<f32, _>(case.shape(which).to_vec());
        let mut total: Option<Vec<f64>> = None;
        for which in 0..3 {
            let leaf = tensor::<Ours, 3>(&packed, DType::F32).require_grad();
            let only = [0, 1, 2].map(|part| if part == which { grads[which].clone() } else { zeros(part) });
            let with_zeros = case.run::<Ours>(&packed, &weights, &only, [DType::F32; 2]);
            let norms = case.norms.map(|_| {
                weights.each_ref().map(|weight| {
                    let mut norm = NormConfig::new(case.head_dim)
                        .with_epsilon(EPSILON)
                        .init::<Ours>(&Default::default());
                    norm.weight = Param::from_tensor(tensor(weight, DType::F32));
                    norm
                })
            });
            let heads = case.embedding::<Ours>().forward(
                leaf.clone(),
                [case.heads, case.kv_heads],
                &case.positions(),
                norms.as_ref().map(|[query, key]| [query, key]),
            );
            let part = [heads.query, heads.key, heads.value].into_iter().nth(which).unwrap();
            let grads = (part * tensor::<Ours, 4>(&grads[which], DType::F32)).sum().backward();
            let found = leaf.grad(&grads).unwrap().into_data();
            assert_eq!(found, with_zeros[3], "part {which}");
            let found = found.iter::<f64>();
            total = Some(match total {
                None => found.collect(),
                Some(total) => total.into_iter().zip(found).map(|(a, b)| a + b).collect(),
            });
        }
        let expected: Vec<f64> = all[3].iter::<f64>().collect();
        assert_eq!(total.unwrap(), expected, "each element has a gradient from one part");
    }
}

/// Without a gradient and another owner, heads are rotated in place; an input in use stays.
#[test]
fn an_input_in_use_is_not_overwritten() {
    let random = Random::new();
    let case = Case { norms: None, ..case_of_many_tokens() };
    let data = uniform(&random, &case.packed_shape()).convert_dtype(DType::F32);
    let packed = tensor::<Ours, 3>(&data, DType::F32);
    let kept = packed.clone();
    let embedding = case.embedding::<Ours>();
    let forward = |packed| embedding.forward(packed, [case.heads, case.kv_heads], &case.positions(), None);
    let first = forward(packed).query.into_data();
    assert_eq!(kept.clone().into_data(), data);
    let second = forward(kept).query.into_data();
    assert_eq!(first, second);
}

#[test]
fn one_launch_each_way() {
    let case = Case { norms: None, ..case_of_many_tokens() };
    let packed = uniform(&Random::new(), &case.packed_shape());
    let leaf = tensor::<Ours, 3>(&packed, DType::F32).require_grad();
    let embedding = case.embedding::<Ours>();
    let positions = case.positions();
    let (_, lines) = during(|| {
        let heads = embedding.forward(leaf.mul_scalar(1.0), [case.heads, case.kv_heads], &positions, None);
        (heads.query.sum() + heads.key.sum() + heads.value.sum()).backward()
    });
    let kernels =
        |op: &str| lines.iter().filter(|line| line.starts_with(op) && line.contains("kernel")).count();
    assert_eq!(
        [kernels("nn_rotary "), kernels("nn_heads"), kernels("nn_rotary_backward")][..2],
        [1, 0],
        "{lines:#?}"
    );
    let backward = lines.iter().filter(|line| line.contains("kernel rotary_backward<")).count();
    assert_eq!(backward, 1, "{lines:#?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Default::default();
    refused("RotaryConfig", "3", || RotaryConfig::new(8).with_rotated(Some(3)).frequencies());
    refused("RotaryConfig", "10", || RotaryConfig::new(8).with_rotated(Some(10)).frequencies());
    refused("RotaryConfig", "-1", || RotaryConfig::new(8).with_base(-1.0).frequencies());
    let embedding = RotaryConfig::new(8).init::<Ours>(&device);
    let packed = |features| Tensor::<Ours, 3>::zeros([2, 3, features], &device);
    refused("RotaryEmbedding", "[2, 3, 24]", || {
        embedding.forward(packed(24), [2, 1], &Positions::FromZero, None)
    });
    let starts = Positions::Starts(Tensor::<Ours, 1, Int>::zeros([3], &device));
    refused("rotary", "[3]", || embedding.forward(packed(32), [2, 1], &starts, None));
    let norm = NormConfig::new(4).init::<Ours>(&device);
    let norms = Some([&norm, &norm]);
    refused("rotary", "[4]", || embedding.forward(packed(32), [2, 1], &Positions::FromZero, norms));
}
