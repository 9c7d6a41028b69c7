//! Random numbers: their statistics, their repeatability, and Philox itself against its published vectors.

use burn_backend::Distribution;
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
        // Six standard errors, and the rounding of the type itself.
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

/// The value of an element depends on its index alone, not on the tensor's size.
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
