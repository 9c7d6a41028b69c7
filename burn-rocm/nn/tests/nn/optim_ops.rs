//! Compares the steps themselves with their formulas in f64, over dtypes, sizes and layouts.

use burn::tensor::TensorPrimitive;
use burn_rocm::fused::optim::{Adam, Clip, Decay, Momentum, Rule, Sgd, State, Step};
use burn_rocm::{Rocm, RocmTensor};
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FLOATS, assert_close};

use crate::support::*;

fn float(data: &TensorData, dtype: DType) -> RocmTensor {
    let tensor = Tensor::<Rocm, 2>::from_data(data.clone(), (&Default::default(), dtype));
    tensor.into_primitive().tensor()
}

/// The same values in every other column of a larger tensor.
fn strided(data: &TensorData, dtype: DType) -> RocmTensor {
    let tensor = Tensor::<Rocm, 2>::from_data(data.clone(), (&Default::default(), dtype));
    let [rows, columns] = tensor.dims();
    let wide = Tensor::stack::<3>(vec![tensor.clone(), tensor.zeros_like()], 2).reshape([rows, 2 * columns]);
    let every_other = wide.slice([burn::tensor::s![..], burn::tensor::s![..;2]]);
    every_other.into_primitive().tensor()
}

fn read(tensor: RocmTensor) -> TensorData {
    Tensor::<Rocm, 2>::from_primitive(TensorPrimitive::Float(tensor)).into_data()
}

fn values(data: &TensorData) -> Vec<f64> {
    data.iter::<f64>().collect()
}

/// The new parameter and states by the definition of the rule.
fn expected(
    rule: Rule,
    clip: Clip,
    time: usize,
    param: &[f64],
    grad: &[f64],
    old: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let norm = grad.iter().map(|g| g * g).sum::<f64>().sqrt();
    let clipped = |g: f64| match clip {
        Clip::None => g,
        Clip::Value(limit) => g.clamp(-f64::from(limit), limit.into()),
        Clip::Norm(most) => g * (f64::from(most) / norm).min(1.0),
    };
    let old = |k: usize, i: usize| old.get(k).map(|old| old[i]);
    let each = |i: usize| -> Vec<f64> {
        let (p, g) = (param[i], clipped(grad[i]));
        match rule {
            Rule::Adam(adam) => {
                let (b1, b2) = (f64::from(adam.beta_1), f64::from(adam.beta_2));
                let g = match adam.decay {
                    Decay::Penalty(penalty) => g + f64::from(penalty) * p,
                    Decay::Decoupled { .. } => g,
                };
                let m = b1 * old(0, i).unwrap_or(0.0) + (1.0 - b1) * g;
                let v = b2 * old(1, i).unwrap_or(0.0) + (1.0 - b2) * g * g;
                let largest = old(2, i).unwrap_or(v).max(v);
                let used = if adam.amsgrad { largest } else { v };
                let decay = match adam.decay {
                    Decay::Penalty(_) => 0.0,
                    Decay::Decoupled { cautious: true, .. } if (p >= 0.0) != (m >= 0.0) => 0.0,
                    Decay::Decoupled { rate, .. } => adam.lr * f64::from(rate),
                };
                let time = time as i32;
                let step = m
                    / (1.0 - b1.powi(time))
                    / ((used / (1.0 - b2.powi(time))).sqrt() + f64::from(adam.epsilon));
                let mut all = vec![p - decay * p - adam.lr * step, m, v];
                all.extend(adam.amsgrad.then_some(largest));
                all
            }
            Rule::Sgd(sgd) => {
                let g = g + f64::from(sgd.penalty) * p;
                let Some(Momentum { momentum, dampening, nesterov }) = sgd.momentum else {
                    return vec![p - sgd.lr * g];
                };
                let velocity = old(0, i).map_or(g, |old| momentum * old + (1.0 - dampening) * g);
                let step = if nesterov { momentum * velocity + g } else { velocity };
                vec![p - sgd.lr * step, velocity]
            }
        }
    };
    let each: Vec<Vec<f64>> = (0..param.len()).map(each).collect();
    let results = match rule {
        Rule::Adam(adam) => 3 + usize::from(adam.amsgrad),
        Rule::Sgd(sgd) => 1 + usize::from(sgd.momentum.is_some()),
    };
    (0..results).map(|k| each.iter().map(|all| all[k]).collect()).collect()
}

#[test]
fn steps_are_their_formulas() {
    let random = Random::new();
    let adam = |amsgrad, decay| {
        // A second moment that f16 and bf16 can represent.
        Rule::Adam(Adam { lr: 0.125, beta_1: 0.75, beta_2: 0.5, epsilon: 1e-3, amsgrad, decay })
    };
    let sgd = |momentum| Rule::Sgd(Sgd { lr: 0.125, penalty: 0.25, momentum });
    let momentum = |nesterov| Some(Momentum { momentum: 0.75, dampening: 0.25, nesterov });
    let rules = [
        adam(false, Decay::Penalty(0.0)),
        adam(true, Decay::Penalty(0.25)),
        adam(false, Decay::Decoupled { rate: 0.5, cautious: false }),
        adam(true, Decay::Decoupled { rate: 0.5, cautious: true }),
        sgd(None),
        sgd(momentum(false)),
        sgd(momentum(true)),
    ];
    let shapes = [[1, 1], [3, 5], [0, 4], [64, 64], [1, 4097], [5, 2459], [1, 7]];
    // The dtypes of parameters and gradients. If the gradients are narrower, only every other
    // tensor has them.
    let dtypes = FLOATS.map(|dtype| (dtype, dtype)).into_iter().chain([
        (DType::F32, DType::F16),
        (DType::F32, DType::BF16),
        (DType::F64, DType::BF16),
        (DType::F64, DType::F32),
    ]);
    for (dtype, by) in dtypes {
        for rule in fewer(rules, 3, &random) {
            for clip in [Clip::None, Clip::Value(0.5), Clip::Norm(0.75)] {
                for old in [false, true] {
                    let states = expected(rule, clip, 1, &[], &[], &[]).len() - 1;
                    let mut step = Step::new(rule, clip);
                    let mut cases = Vec::new();
                    for (k, shape) in shapes.iter().enumerate() {
                        let make = if k % 3 == 1 { strided } else { float };
                        let by = if k % 2 == 0 { dtype } else { by };
                        let one = |low, dtype| {
                            let n = shape.iter().product();
                            let data: Vec<f64> = (0..n).map(|_| random.uniform(low, 2.0)).collect();
                            // Rounded to the dtype.
                            read(float(&TensorData::new(data, shape.to_vec()), dtype))
                        };
                        let (param, grad) = (one(-2.0, dtype), one(-2.0, by));
                        // Second moments are positive.
                        let kept: Vec<_> = (0..if old { states } else { 0 })
                            .map(|k| one(if k > 0 { 0.1 } else { -2.0 }, dtype))
                            .collect();
                        let mut before = State::default();
                        if old {
                            let tensors = kept.iter().map(|data| make(data, dtype)).collect();
                            before = State { time: 2, tensors, clock: None };
                        }
                        let (new, state) =
                            step.add(make(&param, dtype), make(&grad, by), &mut before).unwrap();
                        let kept: Vec<_> = kept.iter().map(values).collect();
                        let time = if old { 3 } else { 1 };
                        let expected = expected(rule, clip, time, &values(&param), &values(&grad), &kept);
                        let expected: Vec<_> = expected
                            .into_iter()
                            .map(|values| TensorData::new(values, shape.to_vec()).convert_dtype(dtype))
                            .collect();
                        if matches!(rule, Rule::Adam(_)) {
                            assert_eq!(state.time, time);
                        }
                        cases.push((shape, new, state, expected));
                    }
                    step.run().unwrap();
                    for (shape, new, state, expected) in cases {
                        let found: Vec<_> = [new].into_iter().chain(state.tensors).map(read).collect();
                        let what = format!("{rule:?} {clip:?} {shape:?} {dtype:?} by {by:?} old {old}");
                        assert_close(&what, &found, &expected, Tolerance::of(dtype).times(6.0));
                    }
                }
            }
        }
    }
}

/// Kernels read f16 and bf16 gradients of f32 parameters. No cast comes before them.
#[test]
fn half_gradients_are_read_as_they_are() {
    let data = TensorData::ones::<f32, _>([3, 5]);
    for clip in [Clip::None, Clip::Norm(0.5)] {
        for (by, name) in [(DType::F16, "f16"), (DType::BF16, "bf16")] {
            let mut step = Step::new(Rule::Sgd(Sgd { lr: 1.0, penalty: 0.0, momentum: None }), clip);
            step.add(float(&data, DType::F32), float(&data, by), &mut State::default()).unwrap();
            let ((), lines) = during(|| step.run().unwrap());
            let kernel = format!("optim_sgd<f32, {name}, 0, 0>");
            assert!(lines.last().is_some_and(|line| line.contains(&kernel)), "{lines:#?}");
            assert_eq!(lines.len(), if clip == Clip::None { 1 } else { 3 }, "{lines:#?}");
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_not_hidden() {
    let data = |values: [f64; 3]| TensorData::new(values.to_vec(), [1, 3]);
    for clip in [Clip::None, Clip::Value(0.5), Clip::Norm(0.5)] {
        let rule = Rule::Sgd(Sgd { lr: 1.0, penalty: 0.0, momentum: None });
        let mut step = Step::new(rule, clip);
        let (param, _) = step
            .add(
                float(&data([1.0; 3]), DType::F32),
                float(&data([0.25, f64::NAN, 0.25]), DType::F32),
                &mut State::default(),
            )
            .unwrap();
        step.run().unwrap();
        let found = values(&read(param));
        assert!(found[1].is_nan(), "{clip:?}: {found:?}");
        // If gradients are clipped to a norm, a NaN spreads to the whole tensor, as in Burn.
        assert_eq!(found[0].is_nan(), matches!(clip, Clip::Norm(_)), "{clip:?}: {found:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let data = |shape: [usize; 2]| TensorData::ones::<f32, _>(shape);
    let rule = Rule::Adam(Adam {
        lr: 0.1,
        beta_1: 0.9,
        beta_2: 0.999,
        epsilon: 1e-5,
        amsgrad: false,
        decay: Decay::Penalty(0.0),
    });
    let f32 = DType::F32;
    let param = float(&data([2, 3]), f32);
    let mut step = Step::new(rule, Clip::None);
    let mut refused = |grad: RocmTensor, mut state: State| {
        let error = step.add(param.clone(), grad, &mut state).unwrap_err();
        assert!(matches!(error, burn_rocm::RocmError::Invalid { op: "adam", .. }), "{error}");
    };
    refused(float(&data([3, 2]), f32), State::default());
    // The step refuses a wider gradient: the caller decides whether to round it.
    refused(float(&data([2, 3]), DType::F64), State::default());
    let state = |shape| State {
        time: 1,
        tensors: vec![float(&data([2, 3]), f32), float(&data(shape), f32)],
        clock: None,
    };
    refused(float(&data([2, 3]), f32), state([1, 3]));
    step.run().unwrap();
    assert_eq!(values(&read(param)), [1.0; 6]);
}
