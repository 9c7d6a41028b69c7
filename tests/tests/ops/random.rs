//! Random numbers: their statistics, their repeatability, and Philox itself against its published
//! test vectors.

use burn_backend::Distribution;
use burn_rocm::RandomMark;
use burn_rocm_tests::*;
use serial_test::serial;

fn draw(shape: &[usize], distribution: Distribution, dtype: DType) -> Vec<f64> {
    let shape = Shape::from(shape.to_vec());
    let tensor = R::float_random(shape, distribution, &Default::default(), float_dtype(dtype));
    read_float::<R>(tensor).iter::<f64>().collect()
}

fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n)
}

#[test]
#[serial(seed)]
fn distributions_have_their_moments() {
    R::seed(&Default::default(), Random::new().bits());
    let n = 200_000;
    for dtype in FLOATS {
        // Six standard errors, plus the rounding of the type.
        let slack = if matches!(dtype, DType::F16 | DType::BF16) { 4e-3 } else { 0.0 };
        let bound = |deviation: f64| 6.0 * deviation / (n as f64).sqrt() + slack;
        let values = draw(&[n], Distribution::Uniform(-1.0, 3.0), dtype);
        assert!(values.iter().all(|&v| (-1.0..3.0).contains(&v)), "{dtype:?}: uniform stays in [low, high)");
        let (mean, variance) = moments(&values);
        assert!(
            (mean - 1.0).abs() < bound(1.16) && (variance - 16.0 / 12.0).abs() < 2.0 * bound(1.4),
            "{dtype:?}: {mean} {variance}"
        );
        let (mean, variance) = moments(&draw(&[n], Distribution::Normal(2.0, 0.5), dtype));
        assert!(
            (mean - 2.0).abs() < bound(0.5) && (variance - 0.25).abs() < bound(0.36),
            "{dtype:?}: {mean} {variance}"
        );
        let values = draw(&[n], Distribution::Bernoulli(0.3), dtype);
        assert!(values.iter().all(|&v| v == 0.0 || v == 1.0));
        let (mean, _) = moments(&values);
        assert!((mean - 0.3).abs() < bound(0.46), "{dtype:?}: {mean}");
    }
}

/// Ranges whose width overflows the type of the computation, and ranges that exceed f16's, whose
/// samples end at its least and greatest number.
#[test]
#[serial(seed)]
fn uniform_over_ranges_too_wide_for_the_type() {
    R::seed(&Default::default(), Random::new().bits());
    let n = 50_000;
    for (dtype, most, bound) in [
        (DType::F32, f64::from(f32::MAX), 2e38),
        (DType::BF16, f64::from(burn_std::bf16::MAX), 2e38),
        (DType::F16, 65504.0, 2e38),
        (DType::F32, f64::from(f32::MAX), f64::MAX),
        (DType::F64, f64::MAX, 1.5e308),
    ] {
        let end = most.min(bound);
        let values = draw(&[n], Distribution::Uniform(-bound, bound), dtype);
        assert!(values.iter().all(|v| v.abs() <= end), "{dtype:?}: uniform leaves {end:e}");
        // As shares of the range: six standard errors of the mean of (-1, 1) and of the mean of its
        // squares, plus the type's rounding.
        let (mean, variance) = moments(&values.iter().map(|v| v / end).collect::<Vec<_>>());
        let error = |deviation: f64| 6.0 * deviation / (n as f64).sqrt() + 2f64.powi(-9);
        assert!(
            mean.abs() < error((1f64 / 3.0).sqrt())
                && (variance - 1.0 / 3.0).abs() < error((4f64 / 45.0).sqrt()),
            "{dtype:?} within {bound:e}: mean {mean}, variance {variance} of the range's half"
        );
    }
}

/// No uniform distribution exists with bounds that are infinite or NaN.
#[test]
fn uniform_refuses_bounds_that_are_not_finite() {
    for (low, high) in [(f64::NAN, 1.0), (0.0, f64::NAN), (f64::NEG_INFINITY, 0.0), (0.0, f64::INFINITY)] {
        let caught = std::panic::catch_unwind(|| draw(&[4], Distribution::Uniform(low, high), DType::F32));
        assert!(caught.is_err(), "{low}..{high} gives {caught:?}");
        let error = burn_rocm::take_last_error();
        assert!(matches!(error, Some(burn_rocm::RocmError::Invalid { .. })), "{low}..{high}: {error:?}");
    }
}

#[test]
#[serial(seed)]
fn a_seed_repeats_and_calls_differ() {
    let device = Default::default();
    let run = || {
        R::seed(&device, 42);
        let first = draw(&[1001], Distribution::Default, DType::F32);
        let second = draw(&[1001], Distribution::Normal(0.0, 1.0), DType::F32);
        let third = draw(&[1001], Distribution::Default, DType::F32);
        (first, second, third)
    };
    let (a, b) = (run(), run());
    assert_eq!(a, b);
    assert_ne!(a.0, a.2);
}

/// A mark draws again what came after it, as often as it is asked, after a panic too. The device
/// goes on as if it had not.
#[test]
#[serial(seed)]
fn numbers_behind_a_mark_are_drawn_again() {
    let device = Default::default();
    let draw = || draw(&[101], Distribution::Default, DType::F32);
    R::seed(&device, 3);
    let expected: Vec<_> = (0..5).map(|_| draw()).collect();
    R::seed(&device, 3);
    assert_eq!(draw(), expected[0]);
    let mark = RandomMark::of(&device);
    assert_eq!([draw(), draw()], expected[1..3]);
    for _ in 0..2 {
        let again = mark.again(|| {
            let first = draw();
            let inner = RandomMark::of(&device);
            let second = draw();
            assert_eq!(inner.again(draw), second);
            // A seed changes the numbers within only.
            R::seed(&device, 99);
            assert_ne!(draw(), expected[3]);
            [first, second]
        });
        assert_eq!(again, expected[1..3]);
    }
    let panicked = std::panic::catch_unwind(|| mark.again::<()>(|| panic!("on purpose")));
    assert!(panicked.is_err());
    assert_eq!(draw(), expected[3]);
    std::thread::scope(|scope| {
        let other = || scope.spawn(draw).join().unwrap();
        // Another thread draws the device's own.
        assert_eq!(mark.again(other), expected[4]);
    });
}

/// An element's value depends only on its index, not on the tensor's size.
#[test]
#[serial(seed)]
fn counters_are_element_indices() {
    let device = Default::default();
    let draw = |n: usize| {
        R::seed(&device, 7);
        draw(&[n], Distribution::Default, DType::F32)
    };
    assert_eq!(draw(100_000)[..17], draw(17)[..]);
}

#[test]
#[serial(seed)]
fn integers_cover_their_range() {
    R::seed(&Default::default(), Random::new().bits());
    for dtype in INTS {
        let shape = Shape::from(vec![10_000]);
        let tensor =
            R::int_random(shape, Distribution::Uniform(3.0, 9.0), &Default::default(), int_dtype(dtype));
        let values: Vec<i64> = read_int::<R>(tensor).iter::<i64>().collect();
        for expected in 3..9 {
            assert!(values.contains(&expected), "{dtype:?} never gave {expected}");
        }
        assert!(values.iter().all(|v| (3..9).contains(v)), "{dtype:?} left 3..9");
    }
}

/// A range is cut to the dtype before a number is drawn, not the number after.
#[test]
#[serial(seed)]
fn integers_stay_uniform_in_a_range_wider_than_their_type() {
    R::seed(&Default::default(), Random::new().bits());
    for (dtype, distribution, numbers) in [
        (DType::I8, Distribution::Default, 128.0),
        (DType::I8, Distribution::Uniform(-1000.0, 1000.0), 256.0),
        (DType::U8, Distribution::Uniform(-50.0, 1000.0), 256.0),
    ] {
        let n = 100_000;
        let x = R::int_random(Shape::from(vec![n]), distribution, &Default::default(), int_dtype(dtype));
        let mut counts = std::collections::HashMap::new();
        read_int::<R>(x).iter::<i64>().for_each(|value| *counts.entry(value).or_insert(0usize) += 1);
        assert_eq!(counts.len() as f64, numbers, "{dtype:?} {distribution:?}");
        // 390 or 781 expected, with a deviation of at most 28.
        let most = *counts.values().max().unwrap() as f64;
        assert!(most < 1.6 * n as f64 / numbers, "{dtype:?} {distribution:?}: {most} of {n} are equal");
    }
}

/// Integers far from 0 have all their digits, which f32 would cut to multiples of 64.
#[test]
#[serial(seed)]
fn normal_integers_far_from_0_keep_their_digits() {
    R::seed(&Default::default(), Random::new().bits());
    let (n, center) = (1000, 1e9);
    for dtype in [DType::I64, DType::I32, DType::U64, DType::U32] {
        let draw = |deviation: f64| -> Vec<f64> {
            let (shape, distribution) = (Shape::from(vec![n]), Distribution::Normal(center, deviation));
            let drawn = R::int_random(shape, distribution, &Default::default(), int_dtype(dtype));
            read_int::<R>(drawn).iter::<i64>().map(|value| value as f64 - center).collect()
        };
        let values = draw(100.0);
        assert!(values.iter().any(|value| value % 64.0 != 0.0), "{dtype:?}: only multiples of 64");
        // Six standard errors of the mean and of the deviation, and 1 for the cut to integers.
        let (mean, variance) = moments(&values);
        let error = 6.0 * 100.0 / (n as f64).sqrt();
        assert!(mean.abs() < error + 1.0, "{dtype:?}: the mean is off by {mean}");
        let deviation = variance.sqrt();
        assert!(
            (deviation - 100.0).abs() < error / 2f64.sqrt() + 1.0,
            "{dtype:?}: a deviation of {deviation}"
        );
        // Of 1000 normal numbers some differ from the mean by more than their deviation.
        assert!(draw(1.0).iter().any(|&value| value != 0.0), "{dtype:?}: one value");
    }
}
