//! Attention over the cache against its formula in f64.

use burn::tensor::DType;
use burn_rocm::RocmError;
use burn_rocm_nn::language::{CacheError, CacheType, DecodeOptions, SequenceId};
use burn_rocm_tests::lockstep::in_lockstep;

use crate::support::*;

/// The output of one query over keys and values `[tokens, heads, features]` of f64, and its limit.
///
/// With `u = 2^-24`: a score is a sum of `features` products, scaled and capped: it is off by at most
/// `d = (features + 8) u` times the sum of the products' magnitudes, and `exp` is off by `3 u` beside.
/// So a weight is off by `d + 4 u` of itself, and by `2 u` for each of up to `splits + 8` times that
/// its base changes by rounding; sums of weights and of weighted values are off by `keys u` more. The
/// quotient is off by twice all that, as a share of the weighted magnitudes of the values. On matrix
/// cores each weight, for i8 times the value's scale, is also rounded by up to the unit of its type.
/// The sum of the weights is not, so this counts once. The result is rounded to `dtype`.
fn expected(
    query: &[f64],
    given: &Given,
    [heads, head]: [usize; 2],
    position: usize,
    options: &DecodeOptions,
    (dtype, stored): (DType, CacheType),
) -> Vec<[f64; 2]> {
    let features = query.len();
    let scale = options.scale.unwrap_or(1.0 / (features as f64).sqrt());
    let first = options.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let row = |of: &[f64], key: usize| of[(key * heads + head) * features..][..features].to_vec();
    let (mut scores, mut greatest) = (Vec::new(), 0.0f64);
    for key in first..=position {
        let key = row(&given.keys, key);
        let products = query.iter().zip(&key).map(|(q, k)| q * k * scale);
        greatest = greatest.max(products.clone().map(f64::abs).sum());
        let score: f64 = products.sum();
        scores.push(options.softcap.map_or(score, |cap| cap * (score / cap).tanh()));
    }
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    let u = unit(DType::F32);
    let cap = options.softcap.unwrap_or(0.0);
    let share = (features as f64 + 8.0) * u * greatest
        + 8.0 * u * cap
        + (4.0 + 2.0 * 136.0 + weights.len() as f64) * u;
    (0..features)
        .map(|column| {
            let (mut value, mut magnitude) = (0.0, 0.0);
            for (at, weight) in weights.iter().enumerate() {
                let v = given.values[((first + at) * heads + head) * features + column];
                value += weight / total * v;
                magnitude += weight / total * v.abs();
            }
            let rounding = value.abs() * unit(dtype) + if dtype == DType::F16 { 2f64.powi(-25) } else { 0.0 };
            let weights = weight_unit(dtype, stored) * magnitude;
            [value, 2.1 * share * magnitude + 1.01 * (weights + rounding)]
        })
        .collect()
}

/// The unit by which matrix cores round weights; 0 if attention does not use them.
fn weight_unit(dtype: DType, stored: CacheType) -> f64 {
    let kind = match dtype {
        DType::F16 => hip::DType::F16,
        DType::BF16 => hip::DType::BF16,
        _ => return 0.0,
    };
    let device = hip::Device::get(0).unwrap();
    match (device.info().matrix_cores(kind, false).unwrap(), stored) {
        (None, _) => 0.0,
        // Integers are multiplied as bf16.
        (_, CacheType::I8) => unit(DType::BF16),
        _ => unit(dtype),
    }
}

struct Case {
    heads: usize,
    group: usize,
    features: usize,
    /// Tokens before the step, and of the step.
    rows: Vec<[usize; 2]>,
    options: DecodeOptions,
}

fn check(case: &Case, pair: (DType, CacheType), random: &Random) {
    let Case { heads, group, features, rows, options } = case;
    let longest = rows.iter().map(|row| row[0] + row[1]).max().unwrap();
    let blocks = rows.iter().map(|row| (row[0] + row[1]).div_ceil(16)).sum::<usize>() + 3;
    let most = rows.iter().map(|row| row[0].max(row[1])).max().unwrap();
    let mut setup = Setup::new([*heads, *features], [blocks, rows.len(), longest, most], pair);
    let ids: Vec<SequenceId> = rows.iter().map(|_| setup.create()).collect();
    let mut given = vec![Given::default(); rows.len()];
    let bound = |side: usize| -> Vec<_> {
        ids.iter().zip(rows).map(|(&id, row)| (row[0] + row[1] > 0).then_some((id, row[side]))).collect()
    };
    setup.append(random, &bound(0), &mut given);
    setup.cache.advance(&setup.batch).unwrap();
    // A batch of its own for the step, as a program has it.
    let step = rows.iter().map(|row| row[1]).max().unwrap().max(1);
    setup.batch =
        burn_rocm_nn::language::KvBatch::new(&Default::default(), rows.len(), longest, step).unwrap();
    setup.append(random, &bound(1), &mut given);
    let stored = setup.stored(&bound(1), true);
    let tokens: usize = rows.iter().map(|row| row[1]).sum();
    // Two tokens more than the rows have.
    let shape = [tokens + 2, heads * group, *features];
    let (queries, on_device) = draw(random, shape, pair.0);
    let found = read(setup.cache.attend(1, &setup.batch, on_device.clone(), options).unwrap());
    let again = read(setup.cache.attend(1, &setup.batch, on_device, options).unwrap());
    assert_eq!(found, again, "a second run gives the same bits");
    let mut token = 0;
    for (row, stored) in rows.iter().zip(&stored) {
        for position in row[0]..row[0] + row[1] {
            for head in 0..heads * group {
                let at = (token * heads * group + head) * features;
                let query = &queries[at..at + features];
                let limits = expected(query, stored, [*heads, head / group], position, options, pair);
                for (column, [value, limit]) in limits.into_iter().enumerate() {
                    let found = found[at + column];
                    assert!(
                        (found - value).abs() <= limit,
                        "{found} for {value}, limit {limit:e}: row {row:?}, position {position}, head {head}, \
                         column {column} of {heads} x {group} x {features}, {options:?}, {pair:?}"
                    );
                }
            }
            token += 1;
        }
    }
    assert!(found[tokens * heads * group * features..].iter().all(|&x| x == 0.0), "tokens of no row");
}

fn plain() -> DecodeOptions {
    DecodeOptions::default()
}

#[test]
fn one_token_of_rows_of_different_lengths() {
    let random = Random::new();
    let pairs = if in_lockstep() { vec![PAIRS[random.below(8)], PAIRS[2]] } else { PAIRS.to_vec() };
    for pair in pairs {
        for [heads, group, features] in
            [[2, 1, 32], [1, 3, 40], [2, 4, 64], [1, 8, 128], [1, 2, 256], [1, 1, 6], [2, 2, 83]]
        {
            let rows = vec![[0, 1], [15, 1], [16, 1], [0, 0], [130, 1], [333, 1]];
            check(&Case { heads, group, features, rows, options: plain() }, pair, &random);
        }
    }
}

#[test]
fn several_tokens_see_the_keys_up_to_their_own() {
    let random = Random::new();
    for (pair, group) in [(PAIRS[0], 1), (PAIRS[1], 5), (PAIRS[7], 8), (PAIRS[2], 2)] {
        let rows = vec![[0, 16], [77, 3], [5, 0], [64, 1], [63, 9]];
        check(&Case { heads: 2, group, features: 50, rows, options: plain() }, pair, &random);
    }
}

#[test]
fn windows_softcaps_and_scales() {
    let random = Random::new();
    for window in [Some(1), Some(16), Some(70), None] {
        for softcap in [None, Some(0.7)] {
            let options = DecodeOptions { scale: Some(0.3), softcap, window, splits: None };
            let rows = vec![[0, 5], [15, 2], [100, 16], [200, 1], [69, 4]];
            let pair = PAIRS[random.below(8)];
            check(&Case { heads: 1, group: 2, features: 64, rows, options }, pair, &random);
        }
    }
}

#[test]
fn one_long_row_and_many_short_ones() {
    let random = Random::new();
    let long = if in_lockstep() { 700 } else { 9000 };
    let rows = vec![[long, 1]];
    check(&Case { heads: 1, group: 4, features: 128, rows, options: plain() }, PAIRS[2], &random);
    // So many rows that each has one split, which writes the result.
    let rows = (0..300).map(|_| [random.below(20), 1]).collect();
    check(&Case { heads: 2, group: 2, features: 32, rows, options: plain() }, PAIRS[0], &random);
}

/// Splits beyond the keys of a row stay empty, and the others are joined.
#[test]
fn splits_as_asked_for() {
    let random = Random::new();
    for splits in [1, 2, 5, 1000] {
        let options = DecodeOptions { splits: Some(splits), ..plain() };
        let rows = vec![[400, 1], [0, 1], [64, 2], [191, 1]];
        let pairs = [PAIRS[0], PAIRS[1], PAIRS[2], PAIRS[6], PAIRS[7]];
        let pairs = if in_lockstep() { vec![PAIRS[0], pairs[1 + random.below(4)]] } else { pairs.to_vec() };
        for pair in pairs {
            check(&Case { heads: 1, group: 3, features: 72, rows: rows.clone(), options }, pair, &random);
        }
    }
}

/// A batch that allows more than 16 tokens gathers its keys.
#[test]
fn a_prompt_behind_other_tokens() {
    let random = Random::new();
    for pair in [PAIRS[0], PAIRS[2], PAIRS[5]] {
        let Case { heads, group, features, options, .. } = Case {
            heads: 2,
            group: 2,
            features: 32,
            rows: vec![],
            options: DecodeOptions { window: Some(30), ..plain() },
        };
        let mut setup = Setup::new([heads, features], [30, 2, 128, 64], pair);
        let ids = [setup.create(), setup.create()];
        let mut given = vec![Given::default(); 2];
        setup.append(&random, &[Some((ids[0], 33)), None], &mut given);
        setup.cache.advance(&setup.batch).unwrap();
        let rows = [Some((ids[0], 40)), Some((ids[1], 17))];
        setup.append(&random, &rows, &mut given);
        // Two tokens more than the rows have.
        let (queries, on_device) = draw(&random, [57 + 2, heads * group, features], pair.0);
        let found = read(setup.cache.attend(1, &setup.batch, on_device, &options).unwrap());
        assert_eq!(found.len(), queries.len());
        assert!(found[57 * heads * group * features..].iter().all(|&x| x == 0.0), "tokens of no row");
        let few = draw(&random, [56, heads * group, features], pair.0).1;
        let error = setup.cache.attend(1, &setup.batch, few, &options).unwrap_err();
        assert!(matches!(error, CacheError::Device(RocmError::Invalid { .. })), "{error}");
        // The gathered keys are rounded to the queries' type.
        let rounded = |of: &[f64]| on_device_values(of, pair.0);
        let stored: Vec<Given> = setup.stored(&rows, true);
        let positions = (33..73).map(|p| (0, p)).chain((0..17).map(|p| (1, p)));
        for (token, (row, position)) in positions.enumerate() {
            let given = Given { keys: rounded(&stored[row].keys), values: rounded(&stored[row].values) };
            for head in 0..heads * group {
                let at = (token * heads * group + head) * features;
                let query = &queries[at..at + features];
                let limits = expected(query, &given, [heads, head / group], position, &options, pair);
                for (column, [value, limit]) in limits.into_iter().enumerate() {
                    // On matrix cores the weights are rounded to the type too.
                    let limit = limit + 2.0 * unit(pair.0);
                    assert!(
                        (found[at + column] - value).abs() <= limit,
                        "{} for {value}",
                        found[at + column]
                    );
                }
            }
        }
    }
}

fn on_device_values(values: &[f64], dtype: DType) -> Vec<f64> {
    on_device(values.to_vec(), [values.len(), 1, 1], dtype).0
}

/// Keys of freed sequences, before a window and behind a query are NaN; none reaches a result.
#[test]
fn what_a_query_does_not_see_does_not_reach_it() {
    for pair in [PAIRS[0], PAIRS[1], PAIRS[2], PAIRS[7]] {
        only_what_is_seen(pair);
    }
}

fn only_what_is_seen(pair: (DType, CacheType)) {
    let random = Random::new();
    let mut setup = Setup::new([1, 32], [8, 1, 128, 128], pair);
    let nans = |count: usize| on_device(vec![f64::NAN; count * 32], [count, 1, 32], pair.0).1;
    let poison = setup.create();
    setup.cache.bind(&mut setup.batch, &[Some((poison, 128))], 1).unwrap();
    for layer in 0..2 {
        setup.cache.append(layer, &setup.batch, nans(128), nans(128)).unwrap();
    }
    setup.cache.sequences().free(poison).unwrap();
    let id = setup.create();
    // The window of 30 of the query at position 70 begins at 41, within a block.
    setup.cache.bind(&mut setup.batch, &[Some((id, 41))], 1).unwrap();
    for layer in 0..2 {
        setup.cache.append(layer, &setup.batch, nans(41), nans(41)).unwrap();
    }
    setup.cache.advance(&setup.batch).unwrap();
    let mut given = vec![Given::default()];
    setup.append(&random, &[Some((id, 29))], &mut given);
    setup.cache.advance(&setup.batch).unwrap();
    setup.batch = burn_rocm_nn::language::KvBatch::new(&Default::default(), 1, 128, 4).unwrap();
    // The last of four tokens has NaN too.
    setup.cache.bind(&mut setup.batch, &[Some((id, 4))], 1).unwrap();
    let mut new: Vec<f64> = (0..4 * 32).map(|_| random.uniform(-1.0, 1.0)).collect();
    new[3 * 32..].fill(f64::NAN);
    let tensor = on_device(new, [4, 1, 32], pair.0).1;
    for layer in 0..2 {
        setup.cache.append(layer, &setup.batch, tensor.clone(), tensor.clone()).unwrap();
    }
    let (_, queries) = draw(&random, [4, 1, 32], pair.0);
    let windowed = DecodeOptions { window: Some(30), ..plain() };
    let found = read(setup.cache.attend(1, &setup.batch, queries.clone(), &windowed).unwrap());
    assert!(found[..3 * 32].iter().all(|x| x.is_finite()), "{found:?}");
    assert!(found[3 * 32..].iter().all(|x| x.is_nan()), "{found:?}");
    // One key more, and a NaN is in the first query's window.
    let windowed = DecodeOptions { window: Some(31), ..plain() };
    let found = read(setup.cache.attend(1, &setup.batch, queries, &windowed).unwrap());
    assert!(found[..32].iter().all(|x| x.is_nan()), "{found:?}");
    assert!(found[32..3 * 32].iter().all(|x| x.is_finite()), "{found:?}");
}

/// A captured step that is replayed too often counts tokens on the device for which a row has no
/// page. They give zeros, not what the memory had.
#[test]
fn tokens_that_outgrow_their_pages_give_zeros() {
    let random = Random::new();
    let (heads, features) = (2, 32);
    for pair in [PAIRS[0], PAIRS[1], PAIRS[2], PAIRS[7]] {
        for (group, splits) in [(2, 1), (2, 2), (9, 1), (9, 2)] {
            // Eight pages of 16 keys for each row: two splits of 64 keys.
            let mut setup = Setup::new([heads, features], [20, 3, 128, 126], pair);
            let ids = [setup.create(), setup.create(), setup.create()];
            let mut given = vec![Given::default(); 3];
            let rows = |tokens: [usize; 3]| -> Vec<_> { ids.into_iter().zip(tokens).map(Some).collect() };
            setup.append(&random, &rows([125, 126, 3]), &mut given);
            setup.cache.advance(&setup.batch).unwrap();
            setup.batch = burn_rocm_nn::language::KvBatch::new(&Default::default(), 3, 128, 2).unwrap();
            setup.append(&random, &rows([2, 2, 2]), &mut given);
            // On the device the rows have 127, 128 and 5 tokens now.
            setup.batch.advance().unwrap();
            let count = heads * group;
            let (_, queries) = draw(&random, [6, count, features], pair.0);
            // NaN in the memory that the output and the splits' partial results will get.
            let before: Vec<_> = [
                ([6, count, features], pair.0),
                ([6 * splits, count, features], DType::F32),
                ([6 * splits, count, 2], DType::F32),
            ]
            .into_iter()
            .flat_map(|of| [of; 8])
            .map(|(shape, dtype)| on_device(vec![f64::NAN; shape.iter().product()], shape, dtype).1 * 1.0)
            .collect();
            before.iter().for_each(|tensor| drop(read(tensor.clone())));
            drop(before);
            let options = DecodeOptions { splits: Some(splits), ..plain() };
            let found = read(setup.cache.attend(1, &setup.batch, queries, &options).unwrap());
            let tokens: Vec<&[f64]> = found.chunks(count * features).collect();
            // The second token of the first row, and both of the second row, have no page.
            for (token, values) in tokens.into_iter().enumerate() {
                let right = |&x: &f64| if (1..4).contains(&token) { x == 0.0 } else { x.is_finite() };
                assert!(values.iter().all(right), "{pair:?}, {group}, {splits}, token {token}: {values:?}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut setup = Setup::new([2, 16], [4, 1, 32, 4], PAIRS[2]);
    let id = setup.create();
    let mut given = vec![Given::default()];
    setup.append(&Random::new(), &[Some((id, 2))], &mut given);
    let attend = |shape, dtype, options: &DecodeOptions| {
        let queries = draw(&Random::from_seed(1), shape, dtype).1;
        setup.cache.attend(0, &setup.batch, queries, options).unwrap_err()
    };
    let is_invalid = |error: CacheError| matches!(error, CacheError::Device(RocmError::Invalid { .. }));
    assert!(is_invalid(attend([2, 3, 16], DType::BF16, &plain())), "heads that the cache's don't divide");
    assert!(is_invalid(attend([2, 4, 8], DType::BF16, &plain())));
    assert!(is_invalid(attend([2, 2, 16], DType::BF16, &DecodeOptions { window: Some(0), ..plain() })));
    // f32 rounds the second one to 0.
    for softcap in [0.0, 1e-50] {
        let options = DecodeOptions { softcap: Some(softcap), ..plain() };
        assert!(is_invalid(attend([2, 2, 16], DType::BF16, &options)), "{softcap}");
    }
    assert!(is_invalid(attend([2, 2, 16], DType::BF16, &DecodeOptions { splits: Some(0), ..plain() })));
    let error = attend([2, 2, 16], DType::F16, &plain());
    assert!(matches!(error, CacheError::Device(RocmError::Unsupported { .. })), "{error}");
}
