//! Which tokens may be drawn, against the same filters in f64, and what becomes of logits that are
//! not finite.

use burn::tensor::{DType, Tensor, TensorData};
use burn_rocm::{RocmDevice, RocmError};
use burn_rocm_nn::language::{self, LateDraws, SampleState, SampleTables, Sampling};

use burn_rocm_tests::lockstep::in_lockstep;

use crate::support::*;

pub(crate) fn state(rows: usize, vocabulary: usize, tables: SampleTables) -> SampleState {
    SampleState::new(&RocmDevice::default(), rows, vocabulary, tables).unwrap()
}

pub(crate) fn logits(values: &[f64], rows: usize, dtype: DType) -> (Vec<f64>, Tensor<B, 2>) {
    let data = TensorData::new(values.to_vec(), [rows, values.len() / rows]).convert_dtype(dtype);
    (data.iter::<f64>().collect(), Tensor::from_data(data, (&RocmDevice::default(), dtype)))
}

pub(crate) fn drawn(state: &SampleState) -> Vec<usize> {
    let tokens = language::tokens::<B>(state).unwrap().into_data();
    tokens.iter::<i64>().map(|token| token as usize).collect()
}

/// The probability of each token, by the order of `transformers`: penalties, temperature, top-k,
/// top-p, min-p. `counts`: how often each token is in the answer; `prompt`: whether in the prompt.
pub(crate) fn probabilities(logits: &[f64], s: &Sampling, counts: &[usize], prompt: &[bool]) -> Vec<f64> {
    let f = |x: f64| f64::from(x as f32); // as the device has the parameters
    let scores: Vec<f64> = (0..logits.len())
        .map(|i| {
            let mut x = logits[i];
            if counts[i] > 0 || prompt[i] {
                let penalty = f(s.repetition_penalty);
                x = if x < 0.0 { x * penalty } else { x / penalty };
            }
            if counts[i] > 0 {
                x -= f(s.frequency_penalty) * counts[i] as f64 + f(s.presence_penalty);
            }
            let x = if x.is_nan() { f64::NEG_INFINITY } else { x };
            if s.temperature > 0.0 { x / f(s.temperature) } else { x }
        })
        .collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    match (s.temperature, s.top_k) {
        (0.0, _) => order.truncate(1),
        (_, 0) => {}
        (_, k) => order.truncate(k),
    }
    let top = scores[order[0]];
    let weight = |i: usize| if scores[i] == top { 1.0 } else { (scores[i] - top).exp() };
    let total: f64 = order.iter().map(|&i| weight(i)).sum();
    let mut before = 0.0;
    let kept = order.iter().take_while(|&&i| {
        let keep = before < f(s.top_p) * total;
        before += weight(i);
        keep
    });
    let kept: Vec<usize> = kept.copied().filter(|&i| weight(i) >= f(s.min_p)).collect();
    let total: f64 = kept.iter().map(|&i| weight(i)).sum();
    let mut probabilities = vec![0.0; logits.len()];
    kept.iter().for_each(|&i| probabilities[i] = weight(i) / total);
    probabilities
}

/// Logits without ties: a shuffled ladder whose steps are far above the rounding of f32 scores.
fn ladder(random: &Random, count: usize, step: f64) -> Vec<f64> {
    let mut values: Vec<f64> = (0..count).map(|i| 8.0 - step * i as f64).collect();
    for i in (1..count).rev() {
        values.swap(i, random.below(i + 1));
    }
    values
}

/// Cuts are where the ladder's cumulative sums are nearest to halfway between two tokens, so that no
/// rounding moves them: the last token that stays and the first that goes are both drawn, or not, as
/// in f64. Enough draws see every token that may be drawn.
#[test]
fn only_the_tokens_that_survive_the_filters_are_drawn() {
    let random = Random::new();
    let (rows, count, times) = if in_lockstep() { (6, 300, 3) } else { (64, 300, 16) };
    let plain = Sampling { temperature: 1.0, ..Sampling::default() };
    let settings = [
        Sampling { top_k: 5, ..plain },
        Sampling { top_k: 1, ..plain },
        Sampling { top_k: 1000, top_p: 0.5, ..plain },
        Sampling { top_p: 0.77, temperature: 0.8, ..plain },
        Sampling { top_k: 7, top_p: 0.6, temperature: 1.7, ..plain },
        Sampling { min_p: 0.31, ..plain },
        Sampling { top_k: 9, top_p: 0.93, min_p: 0.123, temperature: 2.0, ..plain },
        Sampling { top_p: 1e-9, ..plain },
    ];
    for sampling in settings {
        let values = ladder(&random, count, 0.25);
        let (given, tensor) = logits(&values.repeat(rows), rows, DType::F32);
        let expected = probabilities(&given[..count], &sampling, &vec![0; count], &vec![false; count]);
        let state = state(rows, count, SampleTables::default());
        for row in 0..rows {
            let seed = random.bits();
            state.set(row, &Sampling { seed, ..sampling }, &[]).unwrap();
        }
        let mut seen = vec![0usize; count];
        for _ in 0..times {
            language::sample(tensor.clone(), &state).unwrap();
            drawn(&state).into_iter().for_each(|token| seen[token] += 1);
        }
        for (token, &probability) in expected.iter().enumerate() {
            assert!(probability > 0.0 || seen[token] == 0, "{token} was drawn, {sampling:?}");
            // So many draws miss a token of this probability once in e^20 times.
            assert!(
                probability < 20.0 / (rows * times) as f64 || seen[token] > 0,
                "{token} was not drawn, {sampling:?}"
            );
        }
    }
}

/// More tokens in a bin of 1/64 than are compared with each other.
#[test]
fn cuts_within_a_bin_of_many_tokens() {
    let random = Random::new();
    let (rows, count) = if in_lockstep() { (2, 2000) } else { (16, 5000) };
    let plain = Sampling { temperature: 1.0, ..Sampling::default() };
    // Weights fall by 1e-5 from token to token. The cut lies halfway between two.
    let halfway = |kept: usize| {
        let sums = |n: usize| (0..n).map(|i| (-1e-5 * i as f64).exp()).sum::<f64>();
        (sums(kept) + sums(kept + 1)) / 2.0 / sums(count)
    };
    let settings = [
        (2, Sampling { top_k: 2, ..plain }),
        (1, Sampling { top_k: 1, ..plain }),
        (700, Sampling { top_k: 700, ..plain }),
        (1501, Sampling { top_p: halfway(1500), ..plain }),
        (3, Sampling { top_p: halfway(2), ..plain }),
        (count, plain),
    ];
    for (kept, sampling) in settings {
        let values = ladder(&random, count, 1e-5);
        let (given, tensor) = logits(&values.repeat(rows), rows, DType::F32);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| given[b].total_cmp(&given[a]).then(a.cmp(&b)));
        let state = state(rows, count, SampleTables::default());
        for row in 0..rows {
            state.set(row, &Sampling { seed: random.bits(), ..sampling }, &[]).unwrap();
        }
        let mut seen = vec![0usize; count];
        for _ in 0..40 / rows.min(20) {
            language::sample(tensor.clone(), &state).unwrap();
            drawn(&state).into_iter().for_each(|token| seen[token] += 1);
        }
        assert!(order[kept..].iter().all(|&token| seen[token] == 0), "{sampling:?}");
        // 32 draws or more miss one of three once in e^13 times.
        assert!(kept > 3 || order[..kept].iter().all(|&token| seen[token] > 0), "{sampling:?}");
    }
}

/// Of equals, the smaller ids stay, also across the blocks of a long row.
#[test]
fn ties_are_cut_by_id() {
    let random = Random::new();
    for count in [6000, 37] {
        let mut values = vec![-3.0; count];
        let mut tied: Vec<usize> = (0..12).map(|_| random.below(count)).collect();
        tied.sort_unstable();
        tied.dedup();
        tied.iter().for_each(|&i| values[i] = 2.0);
        let (rows, times) = if in_lockstep() { (8, 8) } else { (32, 8) };
        let (_, tensor) = logits(&values.repeat(rows), rows, DType::BF16);
        let state = state(rows, count, SampleTables::default());
        for row in 0..rows {
            let sampling =
                Sampling { temperature: 1.0, top_k: 4, seed: random.bits(), ..Sampling::default() };
            state.set(row, &sampling, &[]).unwrap();
        }
        let mut seen = vec![false; count];
        for _ in 0..times {
            language::sample(tensor.clone(), &state).unwrap();
            drawn(&state).into_iter().for_each(|token| seen[token] = true);
        }
        // 64 draws miss one of four once in 2 * 10^7 times, 256 once in 10^31.
        let found: Vec<usize> = (0..count).filter(|&i| seen[i]).collect();
        assert_eq!(found, tied[..4], "of {tied:?}");
    }
}

#[test]
fn greedy_takes_the_first_of_the_greatest() {
    let random = Random::new();
    for (count, dtype) in [(1, DType::F32), (5000, DType::BF16), (4097, DType::F16), (9001, DType::F32)] {
        let rows = 3;
        let values: Vec<f64> = (0..rows * count).map(|_| random.uniform(-4.0, 4.0)).collect();
        let (given, tensor) = logits(&values, rows, dtype);
        let tables = SampleTables { chances: true, ring: 2, ..SampleTables::default() };
        let state = state(rows, count, tables);
        language::sample(tensor, &state).unwrap();
        let chances = read(language::chances::<B>(&state).unwrap().unwrap());
        for (row, token) in drawn(&state).into_iter().enumerate() {
            let row_of = &given[row * count..][..count];
            let top = row_of.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert_eq!(token, row_of.iter().position(|&x| x == top).unwrap());
            // A sum of `count` exponentials of differences of up to 8, each off by at most 12 u, in blocks
            // of 4096; and a logarithm.
            let expected = -row_of.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
            let limit = (12.0 + 4096.0f64.min(count as f64) + 8.0 + 4.0 * expected.abs()) * 2f64.powi(-24);
            assert!((chances[row] - expected).abs() <= limit, "{} for {expected}", chances[row]);
        }
    }
}

#[test]
fn penalties_follow_the_counts() {
    let random = Random::new();
    let (rows, count) = (2, 50);
    let tables = SampleTables { counts: true, ring: 8, ..SampleTables::default() };
    let state = state(rows, count, tables);
    let penalised = Sampling {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.21,
        ..Sampling::default()
    };
    let values: Vec<f64> = (0..rows * count).map(|_| random.uniform(-1.0, 1.0)).collect();
    let (given, tensor) = logits(&values, rows, DType::F32);
    let prompt: Vec<u32> = (0..20).map(|_| random.below(count) as u32).collect();
    state.set(0, &penalised, &prompt).unwrap();
    state.set(1, &Sampling::default(), &[]).unwrap();
    let mut counts = vec![0; count];
    let in_prompt: Vec<bool> = (0..count as u32).map(|token| prompt.contains(&token)).collect();
    let mut tokens = Vec::new();
    for _ in 0..if in_lockstep() { 9 } else { 30 } {
        language::sample(tensor.clone(), &state).unwrap();
        let found = drawn(&state);
        let expected = probabilities(&given[..count], &penalised, &counts, &in_prompt);
        assert_eq!(expected[found[0]], 1.0, "after {tokens:?}");
        let best = given[count..].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(given[count + found[1]], best, "a row without penalties");
        counts[found[0]] += 1;
        tokens.push(found[0] as i64);
    }
    let ring = burn_rocm::read_with_fault(state.ring().unwrap()).unwrap().0;
    let ring: Vec<i64> = ring.iter::<i64>().step_by(rows).collect();
    let expected: Vec<i64> =
        (0..8).map(|at| *tokens.iter().skip(at).step_by(8).next_back().unwrap()).collect();
    assert_eq!(ring, expected);
}

#[test]
fn logits_that_are_not_finite() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for (values, possible) in [
        (vec![1.0, nan, 3.0, nan], vec![0, 2]),
        (vec![-inf, 1.0, -inf, -inf], vec![1]),
        (vec![2.0, inf, 1.0, inf], vec![1, 3]),
        (vec![-inf, -inf, -inf], vec![0, 1, 2]),
        (vec![nan, nan], vec![0, 1]),
        // Penalties of a state that has none leave them alone; a distance of 40 has no weight.
        (vec![0.0, 40.0, -inf], vec![1]),
    ] {
        let rows = if in_lockstep() { 4 } else { 64 };
        let (_, tensor) = logits(&values.repeat(rows), rows, DType::F32);
        for sampling in [
            Sampling { temperature: 1.0, ..Sampling::default() },
            Sampling { temperature: 1.0, top_k: 3, top_p: 0.999, ..Sampling::default() },
            Sampling::default(),
        ] {
            let state = state(rows, values.len(), SampleTables::default());
            for row in 0..rows {
                state.set(row, &Sampling { seed: row as u64, ..sampling }, &[]).unwrap();
            }
            language::sample(tensor.clone(), &state).unwrap();
            let found = drawn(&state);
            assert!(found.iter().all(|token| possible.contains(token)), "{found:?} of {values:?}");
            if sampling.temperature == 0.0 {
                let first = *found.first().unwrap();
                let is_above = |j: usize, i: usize| values[j] > values[i];
                let greatest = possible.iter().copied().find(|&i| !possible.iter().any(|&j| is_above(j, i)));
                assert_eq!(Some(first), greatest, "{values:?}");
            } else if sampling.top_p == 1.0 && values[0].is_nan() && !in_lockstep() {
                // 64 draws miss one of two once in 10^19 times.
                assert!(possible.iter().all(|token| found.contains(token)), "{found:?} of {values:?}");
            }
        }
    }
}

/// Quotients by a temperature near 0 are finite, so unequal logits stay unequal.
#[test]
fn the_least_temperatures_draw_the_most_likely_token() {
    let rows = if in_lockstep() { 4 } else { 64 };
    let (_, tensor) = logits(&[1.0, 5.0, 20.0].repeat(rows), rows, DType::F32);
    for temperature in [1e-300, 1e-40, 1e-38, 1e-30] {
        let state = state(rows, 3, SampleTables::default());
        for row in 0..rows {
            let sampling = Sampling { temperature, seed: row as u64, ..Sampling::default() };
            state.set(row, &sampling, &[]).unwrap();
        }
        language::sample(tensor.clone(), &state).unwrap();
        assert_eq!(drawn(&state), vec![2; rows], "{temperature:e}");
    }
}

/// The passes of one state draw what single ones do, also with penalties, and one read returns all.
#[test]
fn passes_in_a_row_keep_their_draws() {
    let random = Random::new();
    let (rows, count, passes) = (3, 100, 4);
    let sampling = |row: usize| Sampling {
        temperature: 0.5 + row as f64,
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.21,
        seed: row as u64,
        ..Sampling::default()
    };
    for chances in [true, false] {
        let tables = SampleTables { counts: true, chances, ring: 5 };
        let single = state(rows, count, tables);
        let several = SampleState::of_passes(&RocmDevice::default(), rows, count, tables, passes).unwrap();
        for row in 0..rows {
            single.set(row, &sampling(row), &[3, 4]).unwrap();
            several.set(row, &sampling(row), &[3, 4]).unwrap();
        }
        for _ in 0..2 {
            let mut expected = Vec::new();
            for at in 0..passes {
                let values: Vec<f64> = (0..rows * count).map(|_| random.uniform(-1.0, 1.0)).collect();
                let (_, tensor) = logits(&values, rows, DType::F32);
                language::sample(tensor.clone(), &single).unwrap();
                language::sample(tensor, &several.pass(at).unwrap()).unwrap();
                assert_eq!(drawn(&several.pass(at).unwrap()), drawn(&single));
                expected.extend(single.begin_read().unwrap().wait().unwrap());
            }
            assert!(expected.iter().all(|draw| draw.chance.is_some() == chances));
            assert_eq!(several.begin_read_passes().unwrap().wait().unwrap(), expected);
            let last = &expected[rows * (passes - 1)..];
            assert_eq!(several.begin_read().unwrap().wait().unwrap(), last);
            assert_eq!(drawn(&several), drawn(&single));
            let first = several.pass(0).unwrap().begin_read_passes().unwrap().wait().unwrap();
            assert_eq!(first, expected[..rows], "a pass is a state of one pass");
        }
        let ring = |state: &SampleState| {
            let (ring, _) = burn_rocm::read_with_fault(state.ring().unwrap()).unwrap();
            ring.iter::<i64>().collect::<Vec<_>>()
        };
        assert_eq!(ring(&several), ring(&single));
    }
}

/// Of two passes of two rows, one read returns the first row's draws.
#[test]
fn passes_of_the_first_rows() {
    let device = RocmDevice::default();
    let tables = SampleTables { chances: true, ..SampleTables::default() };
    let all = SampleState::of_passes(&device, 2, 4, tables, 2).unwrap();
    let first = all.first(1).unwrap();
    // The other row's draws lie between those of the first one.
    all.set_tokens(&[0, 3]).unwrap();
    all.pass(0).unwrap().set_tokens(&[0, 3]).unwrap();
    for (at, values) in [[0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 7.0, 0.0]].into_iter().enumerate() {
        language::sample(logits(&values, 1, DType::F32).1, &first.pass(at).unwrap()).unwrap();
    }
    let found = first.begin_read_passes().unwrap().wait().unwrap();
    assert_eq!(found.iter().map(|draw| draw.token).collect::<Vec<_>>(), [1, 2]);
    // Three other tokens have e^-9 or e^-7 of the drawn one's probability. The rest is f32's rounding.
    for (draw, difference) in found.iter().zip([9.0f64, 7.0]) {
        let expected = -(3.0 * (-difference).exp()).ln_1p();
        assert!((f64::from(draw.chance.unwrap()) - expected).abs() < 1e-6, "{draw:?}, not {expected}");
    }
    assert_eq!(drawn(&all.pass(0).unwrap()), [1, 3]);
    assert_eq!(drawn(&all), [2, 3]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let state = state(2, 10, SampleTables::default());
    let is_invalid = |result: Result<(), RocmError>| matches!(result, Err(RocmError::Invalid { .. }));
    let plain = Sampling::default();
    for wrong in [
        Sampling { temperature: -1.0, ..plain },
        Sampling { temperature: f64::NAN, ..plain },
        Sampling { top_p: 0.0, ..plain },
        Sampling { top_p: 1.1, ..plain },
        Sampling { min_p: -0.1, ..plain },
        Sampling { repetition_penalty: 0.0, ..plain },
        Sampling { presence_penalty: f64::INFINITY, ..plain },
        // There are no counts.
        Sampling { frequency_penalty: 0.5, ..plain },
    ] {
        assert!(is_invalid(state.set(0, &wrong, &[])), "{wrong:?}");
    }
    assert!(is_invalid(state.set(2, &plain, &[])));
    assert!(is_invalid(state.set(0, &plain, &[10])));
    assert!(is_invalid(state.set_tokens(&[1])));
    assert!(is_invalid(state.set_tokens(&[1, 10])));
    assert!(state.set_tokens(&[1, 9]).is_ok());
    assert_eq!(drawn(&state), [1, 9]);
    assert!(is_invalid(language::sample(logits(&[0.0; 10], 1, DType::F32).1, &state)));
    assert!(is_invalid(language::sample(logits(&[0.0; 22], 2, DType::F32).1, &state)));
    let result = language::sample(logits(&[0.0; 20], 2, DType::F64).1, &state);
    assert!(matches!(result, Err(RocmError::Unsupported { .. })));
    let device = RocmDevice::default();
    for (rows, vocabulary) in [(0, 5), (5, 0), (1, (1 << 21) + 1)] {
        assert!(is_invalid(SampleState::new(&device, rows, vocabulary, SampleTables::default()).map(|_| ())));
    }
    let of_passes = |rows, passes, chances| {
        SampleState::of_passes(&device, rows, 3, SampleTables { chances, ..SampleTables::default() }, passes)
    };
    for passes in [0, usize::MAX] {
        assert!(is_invalid(of_passes(2, passes, false).map(|_| ())), "{passes} passes");
    }
    let most = LateDraws::MOST / 4;
    for (rows, fits) in [(most, true), (most + 1, false)] {
        let state = of_passes(rows, 4, true).unwrap();
        assert!(is_invalid(state.pass(4).map(|_| ())));
        assert_eq!(is_invalid(state.begin_read_passes().map(|_| ())), !fits, "{rows} rows");
        assert!(state.begin_read().is_ok(), "{rows} rows");
    }
}
