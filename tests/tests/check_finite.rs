//! `Config::check_finite`: a read names the first op whose result is not finite.
//! `Config::sync_each_op`: each op waits for the device.
//!
//! A program of its own, because the settings are the process's. Tests with other settings run in
//! processes of their own. One at a time, because a sync reports what others have found.
#![allow(missing_docs, clippy::unwrap_used)]

use burn::backend::Autodiff;
use burn::tensor::{Distribution, Tensor, TensorData, s};
use burn_backend::Backend as _;
use burn_rocm::graph::{self, Graph};
use burn_rocm::{CheckFinite, Config, Rocm, RocmDevice, RocmError, estimate_memory, take_last_error};
use burn_rocm_tests::{Random, again};
use serial_test::serial;

type B = Rocm;

/// The settings of this process: those of the child that a test made, or NaN alone.
fn settings() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let config = Config::from_env().unwrap();
        let here = std::env::var_os("BURN_ROCM_CHECK_FINITE").is_none()
            && std::env::var_os("BURN_ROCM_SYNC_EACH_OP").is_none();
        if here { config.check_finite(CheckFinite::Nan) } else { config }.install().unwrap();
    });
}

fn of(values: &[f32]) -> Tensor<B, 1> {
    Tensor::from_data(TensorData::from(values), &Default::default())
}

/// The op that the read names, and what it found there; `None` if the read succeeds.
fn named<const D: usize>(tensor: Tensor<B, D>) -> Option<(&'static str, String)> {
    let error = tensor.try_into_data().err()?;
    match take_last_error() {
        Some(RocmError::Invalid { op, expected, found }) => {
            assert_eq!(expected, "finite results", "{error}");
            Some((op, found))
        }
        other => panic!("expected an op's name, found {other:?}: {error}"),
    }
}

#[test]
#[serial]
fn the_first_op_is_named() {
    settings();
    let x = of(&[1.0, -1.0, 4.0]);
    let (log, root) = (x.clone().log(), x.clone().sqrt());
    // Each of these results has NaN, too.
    let later = (log.clone() * 2.0 + root).exp();
    let sum = later.clone().sum();
    let at = "NaN at element 1 in memory";
    for read in [named(later), named(sum), named(log)] {
        assert_eq!(read, Some(("float_log", at.into())));
    }
    // Other tensors are read as ever.
    assert_eq!(x.into_data(), TensorData::from([1f32, -1.0, 4.0]));
    B::sync(&Default::default()).expect("the reads have reported it");
}

/// Also of the sizes at which several threads and blocks look.
#[test]
#[serial]
fn one_element_of_many() {
    settings();
    let random = Random::new();
    for count in [1usize, 31, 257, 4096, 100_003, 3_000_001] {
        let at = random.below(count);
        let mut values = vec![1f32; count];
        values[at] = -1.0;
        let found = Some(("float_log", format!("NaN at element {at} in memory")));
        assert_eq!(named(of(&values).log()), found, "of {count}");
        values[at] = 1.0;
        assert_eq!(named(of(&values).log()), None, "of {count}");
    }
}

#[test]
#[serial]
fn every_float_type() {
    use burn::tensor::FloatDType::*;
    settings();
    for dtype in [F64, F32, F16, BF16] {
        let x = of(&[1.0, 1.0, -1.0]).cast(dtype);
        assert_eq!(named(x.log()), Some(("float_log", "NaN at element 2 in memory".into())), "{dtype:?}");
    }
}

/// Results in place, of a view, and of an op that is put off.
#[test]
#[serial]
fn however_the_result_is_kept() {
    settings();
    let device = Default::default();
    // `log` overwrites its operand.
    assert_eq!(named(of(&[-1.0, 1.0]).log()).unwrap().0, "float_log");
    let held = of(&[1.0, -1.0, 1.0, 1.0]);
    assert_eq!(named(held.clone().slice(s![1..3]).log()).unwrap().1, "NaN at element 0 in memory");
    let nan = Tensor::<B, 2>::from_data([[1e38f32, -1e38], [1e38, 1e38]], &device) * 1e38;
    // inf - inf.
    let product = nan.clone().matmul(nan);
    assert_eq!(named(product).unwrap().0, "float_matmul");
    let x = of(&[0.0; 4]).reshape([2, 2]);
    assert_eq!(named(x.clone() / x).unwrap().0, "float_div");
    let data = TensorData::from([f32::NAN]);
    assert_eq!(named(Tensor::<B, 1>::from_data(data, &device)).unwrap().0, "float_from_data");
}

/// Nobody defines the elements of an empty tensor, which may be those of a tensor before it. A cache
/// that is filled by and by begins so.
#[test]
#[serial]
fn undefined_elements_are_no_results() {
    settings();
    let count = 1 << 12;
    drop(of(&vec![-1.0; count]).log());
    B::sync(&Default::default()).unwrap_err();
    for _ in 0..4 {
        let empty = Tensor::<B, 1>::empty([count], &Default::default());
        let held = empty.clone().slice_assign(s![0..1], of(&[1.0]));
        assert_eq!(named(held.slice(s![0..1])), None);
        assert_eq!(named(empty.slice_assign(s![0..1], of(&[1.0])).slice(s![0..1])), None);
    }
}

#[test]
#[serial]
fn of_the_backward_pass_too() {
    settings();
    let x = Tensor::<Autodiff<B>, 1>::from_data([0f32, 1.0], &Default::default()).require_grad();
    // 0 times the gradient of a root at 0, which is infinite.
    let y = (x.clone().sqrt() * 0.0).sum();
    assert_eq!(named(y.clone().inner()), None);
    let grads = y.backward();
    let found = named(x.grad(&grads).unwrap());
    assert_eq!(found, Some(("float_mul", "NaN at element 0 in memory".into())));
}

/// A step's second result keeps its place in the list when another op asks for the buffer.
#[test]
#[serial]
fn a_result_that_another_one_shares() {
    settings();
    let x = of(&[-1.0, 1.0]).log();
    let kept = x.clone();
    assert_eq!(named(x.exp()).unwrap().0, "float_log");
    assert_eq!(named(kept).unwrap().0, "float_log");
}

#[test]
#[serial]
fn a_sync_names_the_first_op_of_results_that_were_dropped() {
    settings();
    let device = Default::default();
    let _ = B::sync(&device);
    drop(of(&[-1.0]).log().exp().sum());
    let error = B::sync(&device).unwrap_err().to_string();
    assert!(error.contains("float_log: expected finite results, found NaN at element 0"), "{error}");
    assert!(!error.contains("float_exp"), "{error}");
    B::sync(&device).expect("it is reported once");
}

#[test]
#[serial]
fn a_replayed_step_names_its_op() {
    settings();
    let device = Default::default();
    let x = of(&[1.0, 2.0]);
    let place = |tensor: &Tensor<B, 1>| tensor.clone().into_primitive().tensor();
    let (step, result) = Graph::capture(&device, || x.clone().log() + 1.0).unwrap();
    for (values, found) in [([3.0, 4.0], None), ([3.0, -4.0], Some("NaN at element 1 in memory"))] {
        graph::write(&place(&x), place(&of(&values))).unwrap();
        step.replay().unwrap();
        assert_eq!(named(result.clone()), found.map(|found| ("float_log", found.into())));
    }
}

#[test]
#[serial]
fn infinities_count_only_if_asked_for() {
    settings();
    let [low, high] = [-1.0, 0.0].map(|x| of(&[1.0, x]).log());
    assert!(named(low).is_some());
    let all = std::env::var("BURN_ROCM_CHECK_FINITE").is_ok_and(|setting| setting == "all");
    let found = all.then(|| ("float_log", "an infinity at element 1 in memory".into()));
    assert_eq!(named(high), found);
    if !all {
        let test = ["--exact", "infinities_count_only_if_asked_for"];
        let text = again(&test, &[("BURN_ROCM_CHECK_FINITE", "all")]);
        assert!(text.contains("1 passed"), "{text}");
    }
}

#[test]
#[serial]
fn each_op_waits_if_asked_for() {
    settings();
    let device = Default::default();
    let waits = || burn_rocm::RocmDevice::default().counters().unwrap().waits;
    let before = waits();
    let x = Tensor::<B, 2>::random([8, 8], Distribution::Default, &device);
    let y = x.clone().matmul(x).exp().sum();
    let waited = waits() - before;
    drop(y);
    if std::env::var_os("BURN_ROCM_SYNC_EACH_OP").is_some() {
        assert!(waited >= 4, "{waited}");
    } else {
        assert_eq!(waited, 0);
        let test = ["--exact", "each_op_waits_if_asked_for"];
        let text = again(&test, &[("BURN_ROCM_SYNC_EACH_OP", "1"), ("BURN_ROCM_CHAIN", "0")]);
        assert!(text.contains("1 passed"), "{text}");
    }
}

/// A dry device has no values to check. The estimate is that of a step with checks.
#[test]
#[serial]
fn an_estimate_runs_no_check() {
    settings();
    let device = RocmDevice::default();
    let step = |value: f32, device: &RocmDevice| {
        let x = Tensor::<B, 2>::full([256, 256], value, device);
        ((x.clone().log() + 1.0).matmul(x) * 2.0).exp().sum()
    };
    let _ = B::sync(&device);
    let before = (device.counters().unwrap(), device.memory_stats().unwrap());
    let estimate = estimate_memory(|device| step(-1.0, device)).unwrap();
    assert_eq!((device.counters().unwrap(), device.memory_stats().unwrap()), before);
    B::memory_cleanup(&device);
    device.reset_peak_memory().unwrap();
    let in_use = device.memory_stats().unwrap().allocated;
    assert_eq!(named(step(1.0, &device)), None);
    let summary = burn_rocm::memory_summary(&device).unwrap();
    assert_eq!(summary.allocated.peak - in_use, estimate.peak_allocated);
}
