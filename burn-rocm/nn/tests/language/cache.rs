//! What the cache stores: rows of different lengths, forks, and integers within their bound.

use burn::tensor::DType;
use burn_rocm::RocmError;
use burn_rocm_nn::language::{CacheError, CacheType};

use crate::support::*;

/// The limit of a stored value: `most` is the greatest magnitude of its vector. An integer is off by
/// half a scale and by the roundings of the scale, the quotient and the product: below `2^-20` of
/// `most`.
fn limit(value: f64, most: f64, stored: CacheType) -> f64 {
    match stored {
        CacheType::I8 => most * (1.0 / 254.0 + 2f64.powi(-20)),
        // 2^-25 is half of f16's least number.
        CacheType::F16 => value.abs() * unit(DType::F16) + 2f64.powi(-25),
        CacheType::BF16 => value.abs() * unit(DType::BF16),
        _ => 0.0,
    }
}

fn assert_stored(found: &Given, given: &Given, features: usize, stored: CacheType) {
    for (found, given) in [(&found.keys, &given.keys), (&found.values, &given.values)] {
        assert_eq!(found.len(), given.len());
        for (found, given) in found.chunks(features).zip(given.chunks(features)) {
            let most = given.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            for (found, given) in found.iter().zip(given) {
                let limit = limit(*given, most, stored);
                assert!((found - given).abs() <= limit, "{found} for {given} of {most}, {stored:?}");
            }
        }
    }
}

#[test]
fn rows_of_different_lengths_are_stored() {
    let random = Random::new();
    for (dtype, stored) in PAIRS {
        for [heads, features] in [[1, 5], [3, 40], [2, 128]] {
            let mut setup = Setup::new([heads, features], [40, 4, 128, 64], (dtype, stored));
            let ids = [setup.create(), setup.create(), setup.create()];
            let mut given = vec![Given::default(); 4];
            // The second row is empty; tokens of one and of several blocks, and none.
            for steps in [[17, 1, 0], [1, 0, 5], [33, 16, 1]] {
                let row = |at: usize| Some((ids[at], steps[at]));
                let rows = [row(0), None, row(1), row(2)];
                setup.append(&random, &rows, &mut given);
                let found = setup.stored(&rows, true);
                for (found, given) in found.iter().zip(&given) {
                    assert_stored(found, given, features, stored);
                }
                setup.cache.advance(&setup.batch).unwrap();
            }
            let lengths = burn_rocm::read_with_fault(setup.batch.lengths()).unwrap().0;
            assert_eq!(lengths.iter::<i64>().collect::<Vec<_>>(), [51, 0, 17, 6]);
        }
    }
}

#[test]
fn a_fork_shares_tokens_and_then_goes_its_own_way() {
    let random = Random::new();
    let mut setup = Setup::new([2, 16], [9, 2, 64, 32], (DType::F32, CacheType::I8));
    let first = setup.create();
    let mut given = vec![Given::default(), Given::default()];
    setup.append(&random, &[Some((first, 23)), None], &mut given);
    setup.cache.advance(&setup.batch).unwrap();
    let second = setup.cache.sequences().fork(first, 20).unwrap();
    assert_eq!(setup.cache.sequences().blocks_free(), 7, "a fork takes no blocks");
    given[1] = Given { keys: given[0].keys[..20 * 32].to_vec(), values: given[0].values[..20 * 32].to_vec() };
    let rows = [Some((first, 3)), Some((second, 15))];
    setup.append(&random, &rows, &mut given);
    assert_eq!(setup.cache.sequences().blocks_free(), 5, "one copied, one new");
    for (found, given) in setup.stored(&rows, true).iter().zip(&given) {
        assert_stored(found, given, 16, CacheType::I8);
    }
    setup.cache.advance(&setup.batch).unwrap();
    // The cache is full before the row is.
    let error = setup.cache.bind(&mut setup.batch, &[Some((first, 32)), Some((second, 96))], 1).unwrap_err();
    assert!(matches!(error, CacheError::OutOfBlocks { .. }), "{error}");
}

/// A batch that is bound goes on after another bind has failed.
#[test]
fn a_bind_that_fails_changes_nothing() {
    let random = Random::new();
    let mut setup = Setup::new([1, 16], [3, 2, 64, 8], (DType::F32, CacheType::F32));
    let first = setup.create();
    let mut given = vec![Given::default(); 2];
    setup.append(&random, &[Some((first, 5)), None], &mut given);
    setup.cache.advance(&setup.batch).unwrap();
    let fork = setup.cache.sequences().fork(first, 5).unwrap();
    let other = setup.create();
    let before = setup.cache.sequences().clone();
    // The first row copies the shared block; then the second finds one block less than it needs.
    let rows = [Some((first, 1)), Some((other, 4))];
    let error = setup.cache.bind(&mut setup.batch, &rows, 8).unwrap_err();
    assert!(matches!(error, CacheError::OutOfBlocks { needed: 2, free: 1 }), "{error}");
    // A row with too many tokens is found after all blocks were reserved.
    let error = setup.cache.bind(&mut setup.batch, &[Some((first, 1)), Some((other, 9))], 1).unwrap_err();
    assert!(matches!(error, CacheError::Device(RocmError::Invalid { .. })), "{error}");
    let after = setup.cache.sequences();
    for id in [first, fork, other] {
        assert_eq!(after.blocks_of(id).unwrap(), before.blocks_of(id).unwrap());
    }
    assert_eq!(after.blocks_free(), before.blocks_free());
    assert_eq!(setup.batch.rows(), [Some((first, 5)), None]);
    // The next token of the batch goes where the cache looks for it.
    let shape = [5, 1, 16];
    let [(keys, on_device_keys), (values, on_device_values)] =
        [(); 2].map(|()| draw(&random, shape, DType::F32));
    setup.cache.append(1, &setup.batch, on_device_keys, on_device_values).unwrap();
    setup.cache.advance(&setup.batch).unwrap();
    given[0].keys.extend(keys);
    given[0].values.extend(values);
    let found = setup.stored(&[Some((first, 0)), None], false);
    assert_stored(&found[0], &given[0], 16, CacheType::F32);
}

#[test]
fn a_vector_that_is_not_finite_becomes_nan_as_integers() {
    let mut setup = Setup::new([1, 8], [1, 1, 16, 16], (DType::F32, CacheType::I8));
    let id = setup.create();
    setup.cache.bind(&mut setup.batch, &[Some((id, 5))], 1).unwrap();
    let mut values = vec![0.0; 40];
    values[3] = f64::INFINITY;
    values[12] = f64::NAN;
    values[16] = 1e-38; // too small for a scale
    values[24] = f32::MAX.into();
    values[25] = -f64::from(f32::MAX);
    let (_, tensor) = on_device(values, [5, 1, 8], DType::F32);
    for layer in 0..2 {
        setup.cache.append(layer, &setup.batch, tensor.clone(), tensor.clone()).unwrap();
    }
    let found = &setup.stored(&[Some((id, 5))], true)[0].keys;
    assert!(found[..16].iter().all(|x| x.is_nan()), "{found:?}");
    assert!(found[16..24].iter().all(|&x| x == 0.0), "{found:?}");
    assert!((found[24] / f64::from(f32::MAX) - 1.0).abs() < 1e-6 && found[25] == -found[24]);
    assert!(found[26..].iter().all(|&x| x == 0.0), "{found:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut setup = Setup::new([2, 16], [4, 2, 32, 4], (DType::BF16, CacheType::BF16));
    let id = setup.create();
    let is_invalid = |error: CacheError| matches!(error, CacheError::Device(RocmError::Invalid { .. }));
    let bind = |setup: &mut Setup, rows: &[_]| setup.cache.bind(&mut setup.batch, rows, 1).unwrap_err();
    assert!(is_invalid(bind(&mut setup, &[Some((id, 1))])), "a row is missing");
    assert!(is_invalid(bind(&mut setup, &[Some((id, 5)), None])), "more tokens than a step may have");
    assert!(is_invalid(bind(&mut setup, &[Some((id, 1)), Some((id, 1))])), "a sequence in two rows");
    setup.cache.bind(&mut setup.batch, &[Some((id, 2)), None], 1).unwrap();
    let tensor = |shape, dtype| draw(&Random::from_seed(1), shape, dtype).1;
    let append =
        |layer, [keys, values]: [_; 2]| setup.cache.append(layer, &setup.batch, keys, values).unwrap_err();
    let good = || tensor([2, 2, 16], DType::BF16);
    assert!(is_invalid(append(2, [good(), good()])), "no such layer");
    assert!(is_invalid(append(0, [good(), tensor([3, 2, 16], DType::BF16)])));
    assert!(is_invalid(append(0, [tensor([2, 1, 16], DType::BF16), good()])));
    let f16s = || tensor([2, 2, 16], DType::F16);
    let error = append(0, [f16s(), f16s()]);
    assert!(matches!(error, CacheError::Device(RocmError::Unsupported { .. })), "{error}");
    assert!(setup.cache.append(0, &setup.batch, good(), good()).is_ok());
}
