//! How often tokens are drawn.

use burn::tensor::{DType, Tensor};
use burn_rocm::fused::decode::LateFloats;
use burn_rocm_nn::language::{self, SampleTables, Sampling};
use burn_rocm_tests::lockstep::in_lockstep;

use crate::sample::{drawn, logits, probabilities, state};
use crate::support::*;

/// Pearson's chi-square of the draws' frequencies. For `n - 1` degrees of freedom its mean is
/// `n - 1` and its deviation `sqrt(2 (n - 1))`. By Laurent and Massart (2000, lemma 1) it exceeds
/// `k + 2 sqrt(k t) + 2 t` with a probability of at most `e^-t`; `t = 25` is once in 7 * 10^10 runs.
/// Expected counts are at least 20, so the discrete distribution is near enough.
fn assert_frequencies(counts: &[usize], probabilities: &[f64], what: &str) {
    let draws: usize = counts.iter().sum();
    // Tokens of small probability count together.
    let (mut cells, mut rest) = (Vec::new(), (0.0, 0.0));
    for (&count, &probability) in counts.iter().zip(probabilities) {
        let expected = probability * draws as f64;
        match expected >= 20.0 {
            true => cells.push((count as f64, expected)),
            false => rest = (rest.0 + count as f64, rest.1 + expected),
        }
    }
    if rest.1 >= 20.0 {
        cells.push(rest);
    }
    assert!(cells.len() > 1, "{what}: nothing to compare");
    let chi: f64 = cells.iter().map(|(found, expected)| (found - expected).powi(2) / expected).sum();
    let (k, t) = (cells.len() as f64 - 1.0, 25.0);
    let limit = k + 2.0 * (k * t).sqrt() + 2.0 * t;
    assert!(chi <= limit, "{what}: {chi} of {k} degrees of freedom, limit {limit}");
}

#[test]
fn frequencies_are_the_probabilities() {
    let random = Random::new();
    let plain = Sampling { temperature: 1.0, ..Sampling::default() };
    for (count, sampling) in [
        (8, plain),
        (40, Sampling { temperature: 0.7, top_k: 12, ..plain }),
        (1500, Sampling { temperature: 1.4, top_p: 0.8, ..plain }),
        (5000, Sampling { min_p: 0.05, ..plain }),
    ] {
        let (rows, steps) = if in_lockstep() { (64, 4) } else { (512, 40) };
        let row: Vec<f64> = (0..count).map(|_| random.uniform(-2.0, 2.0)).collect();
        let (given, tensor) = logits(&row.repeat(rows), rows, DType::F32);
        let state = state(rows, count, SampleTables::default());
        for row in 0..rows {
            state.set(row, &Sampling { seed: random.bits(), ..sampling }, &[]).unwrap();
        }
        let mut counts = vec![0; count];
        for _ in 0..steps {
            language::sample(tensor.clone(), &state).unwrap();
            drawn(&state).into_iter().for_each(|token| counts[token] += 1);
        }
        let expected = probabilities(&given[..count], &sampling, &vec![0; count], &vec![false; count]);
        if count > 100 {
            // Many rare tokens: compare them in eight groups.
            let group = |of: usize| (0..count).filter(move |i| i * 8 / count == of);
            let counts: Vec<usize> = (0..8).map(|g| group(g).map(|i| counts[i]).sum()).collect();
            let expected: Vec<f64> = (0..8).map(|g| group(g).map(|i| expected[i]).sum()).collect();
            assert_frequencies(&counts, &expected, &format!("{sampling:?}"));
        } else {
            assert_frequencies(&counts, &expected, &format!("{sampling:?}"));
        }
    }
}

#[test]
fn a_seed_repeats_its_draws() {
    let random = Random::new();
    let (rows, count) = (4, 1000);
    let values: Vec<f64> = (0..count).map(|_| random.uniform(-1.0, 1.0)).collect();
    let (_, tensor) = logits(&values.repeat(rows), rows, DType::F32);
    let state = state(rows, count, SampleTables::default());
    // Rows 0 and 2 have the same seed.
    let seeds = [random.bits(), random.bits()];
    let start = || {
        for row in 0..rows {
            let seed = seeds[row % 2].wrapping_add((row / 3) as u64);
            state.set(row, &Sampling { temperature: 1.0, seed, ..Sampling::default() }, &[]).unwrap();
        }
    };
    let run = || {
        start();
        let mut all = Vec::new();
        for _ in 0..20 {
            language::sample(tensor.clone(), &state).unwrap();
            all.push(drawn(&state));
        }
        all
    };
    let first = run();
    assert_eq!(first, run());
    let column = |row: usize| -> Vec<usize> { first.iter().map(|tokens| tokens[row]).collect() };
    assert_eq!(column(0), column(2));
    assert_ne!(column(0), column(1));
    assert_ne!(column(1), column(3));
    assert!(column(0).windows(2).any(|pair| pair[0] != pair[1]), "each draw has its own number");
}

#[test]
fn a_sequence_goes_on_in_another_row_as_if_it_had_stayed() {
    let random = Random::new();
    let (count, steps, before) = (200, 24, 9);
    let values: Vec<f64> = (0..steps * count).map(|_| random.uniform(-1.0, 1.0)).collect();
    let others: Vec<f64> = (0..count).map(|_| random.uniform(-1.0, 1.0)).collect();
    let step = |step: usize| &values[step * count..][..count];
    // Penalties that change which tokens come next.
    let sampling = Sampling {
        temperature: 0.8,
        repetition_penalty: 1.5,
        presence_penalty: 0.5,
        frequency_penalty: 0.7,
        seed: random.bits(),
        ..Sampling::default()
    };
    let tables = SampleTables { counts: true, chances: true, ring: 0 };
    let prompt: Vec<u32> = (0..50).map(|_| random.below(count) as u32).collect();
    let stays = state(3, count, tables);
    stays.set(2, &sampling, &prompt).unwrap();
    let mut all = Vec::new();
    for at in 0..steps {
        let rows = [&others[..], &others, step(at)].concat();
        language::sample(logits(&rows, 3, DType::F32).1, &stays).unwrap();
        all.push(drawn(&stays)[2]);
    }
    // It goes on in the first row, of which alone is drawn.
    let goes = state(3, count, tables);
    goes.set_tokens(&[7, 8, 9]).unwrap();
    let answer: Vec<u32> = all[..before].iter().map(|&token| token as u32).collect();
    goes.resume(0, &sampling, &prompt, &answer).unwrap();
    let first = goes.first(1).unwrap();
    let mut rest = Vec::new();
    for at in before..steps {
        language::sample(logits(step(at), 1, DType::F32).1, &first).unwrap();
        rest.extend(drawn(&first));
    }
    assert_eq!(rest, all[before..]);
    assert_eq!(drawn(&goes), [rest[rest.len() - 1], 8, 9], "the rows share their memory");
    let chances = goes.chances().unwrap();
    let (chances, _) = burn_rocm::read_with_fault(chances).unwrap();
    let read = first.begin_read().unwrap().wait().unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].token as usize, rest[rest.len() - 1]);
    assert_eq!(read[0].chance, chances.iter::<f32>().next());
    let is_invalid = |rows: usize, state: &language::SampleState| {
        matches!(state.first(rows), Err(burn_rocm::RocmError::Invalid { .. }))
    };
    assert!(is_invalid(0, &goes) && is_invalid(4, &goes) && !is_invalid(3, &goes));
    assert!(is_invalid(1, &state(3, count, SampleTables { ring: 2, ..tables })));
    assert!(goes.resume(0, &sampling, &prompt, &[count as u32]).is_err());
}

#[test]
fn small_tensors_are_read_as_they_were() {
    let (values, tensor) = draw(&Random::new(), [3, 5, 7], DType::F32);
    let turned = tensor.clone().swap_dims(0, 2);
    let read = LateFloats::begin(turned.into_primitive().tensor()).unwrap();
    // In the same memory, if the device reuses it.
    let twice = tensor.mul_scalar(2.0);
    let expected = (0..7 * 5 * 3).map(|at| values[at % 3 * 35 + at / 3 % 5 * 7 + at / 15] as f32);
    assert_eq!(read.wait().unwrap(), expected.collect::<Vec<_>>());
    drop(twice);
    let is_invalid = |count: usize, dtype: DType| {
        let zeros = Tensor::<B, 1>::zeros([count], (&burn_rocm::RocmDevice::default(), dtype));
        let read = LateFloats::begin(zeros.into_primitive().tensor());
        matches!(read, Err(burn_rocm::RocmError::Invalid { .. }))
    };
    assert!(is_invalid(4, DType::F16) && is_invalid(LateFloats::MOST + 1, DType::F32));
    assert!(!is_invalid(LateFloats::MOST, DType::F32) && !is_invalid(0, DType::F32));
}
