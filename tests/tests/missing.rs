//! What AMD's libraries lack, and failures in them: a typed error if only the library may serve,
//! else kernels of this crate and one warning.
//!
//! `BURN_ROCM_CPU_FAIL` names the failing functions. A process reads it once, so each case has its
//! own process.
#![allow(missing_docs, clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_rocm_tests::limits::{self, Terms, exact};
use burn_rocm_tests::*;

/// [`burn_rocm_tests::said_by`] on the CPU device: the test's warnings.
fn said_by(test: &str, variables: &[(&str, &str)]) -> Vec<String> {
    burn_rocm_tests::said_by(test, &[&[("BURN_ROCM_PROVIDER", "cpu")], variables].concat())
}

/// Prints warnings, for [`said_by`].
struct Printer;

impl log::Log for Printer {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            println!("{SAID}{}", record.args());
        }
    }

    fn flush(&self) {}
}

fn print_warnings() {
    log::set_logger(&Printer).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
}

/// Products of every kind.
fn products(random: &Random) {
    for dtype in FLOATS {
        for (left, right) in [
            (&[5, 70][..], &[70, 9][..]),
            (&[3, 4, 5], &[1, 5, 6]),
            (&[2, 1, 4, 5], &[1, 3, 5, 4]),
            (&[65, 1], &[1, 66]),
        ] {
            let (a_view, b_view) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
            let a = float(random, left, dtype, a_view, -1.0, 1.0);
            let b = float(random, right, dtype, b_view, -1.0, 1.0);
            let (what, terms) =
                (format!("{dtype:?} {left:?} {a_view:?} {b_view:?}"), Terms::of(left[left.len() - 1], dtype));
            sums!(what, terms, |B, device, [a = &a, b = &b]| B::float_matmul(a, b));
        }
    }
}

/// Convolutions, poolings and a norm, forward and backward.
fn layers(random: &Random) {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let input = |shape: &[usize]| float(random, shape, dtype, View::Contiguous, -1.0, 1.0);
        let (x, w, g) = (input(&[2, 3, 9, 9]), input(&[4, 3, 3, 3]), input(&[2, 4, 9, 9]));
        let (p, gamma) = (input(&[2, 3, 3, 3]), input(&[9]));
        let what = format!("layers {dtype:?}");
        let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
        sums!(what, Terms::of(3 * 9, dtype), |B, device, [x = &x, w = &w]| {
            B::conv2d(x, w, None, options())
        });
        sums!(what, Terms::in_parts(4 * 9, 1, dtype), |B, device, [x = &x, w = &w, g = &g]| {
            B::conv2d_x_backward(x, w, g, options())
        });
        sums!(what, Terms::in_parts(2 * 81, 2, dtype), |B, device, [x = &x, w = &w, g = &g]| {
            B::conv2d_weight_backward(x, w, g, options())
        });
        sums!(what, Terms::of(9, dtype), |B, device, [x = &x]| {
            B::avg_pool2d(x, [3, 3], [3, 3], [0, 0], true, false)
        });
        sums!(what, Terms::of(9, dtype), |B, device, [x = &x, p = &p]| {
            B::avg_pool2d_backward(x, p, [3, 3], [3, 3], [0, 0], true, false)
        });
        differential!(what, Tolerance::EXACT, |B, device| {
            let x = x.float::<B>(&device);
            vec![read_float::<B>(B::max_pool2d(x, [3, 3], [3, 3], [0, 0], [1, 1], false))]
        });
        let (ours, [reference, _]) = sides!(|B, device, [x = &x, gamma = &gamma]| {
            B::layer_norm(x, gamma, None, 1e-5)
        });
        let there = [&x, &gamma].map(|t| read_float::<O>(exact::<O>(t, false, &Default::default())));
        let limits = limits::layer_norm(&there[0], &there[1], &reference, 1e-5, dtype);
        limits::assert_within(&what, &ours, &reference, &limits);
    }
}

#[test]
#[ignore = "run by the tests below, with what is to fail in the environment"]
fn everything_twice() {
    print_warnings();
    let random = Random::new();
    for _ in 0..2 {
        products(&random);
        layers(&random);
    }
}

#[test]
#[ignore = "run by a test below"]
fn only_the_libraries_may_serve() {
    print_warnings();
    let device = hip::Device::get(0).unwrap();
    match device.blas().err() {
        Some(hip::Error::Rocblas { call, name, .. }) => {
            assert_eq!((call, name), ("rocblas_create_handle", "rocblas_status_memory_error"));
        }
        other => panic!("{other:?}"),
    }
    match device.dnn().err() {
        Some(hip::Error::Miopen { call, name, .. }) => {
            assert_eq!((call, name), ("miopenCreateWithStream", "miopenStatusNotInitialized"));
        }
        other => panic!("{other:?}"),
    }
    let ones =
        |shape: &[usize]| R::float_ones(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F32);
    let failed = catch_unwind(AssertUnwindSafe(|| R::float_matmul(ones(&[2, 3]), ones(&[3, 2]))));
    assert!(failed.is_err());
    let error = burn_rocm::take_last_error().unwrap();
    assert!(matches!(error, hip::Error::Rocblas { call: "rocblas_create_handle", .. }), "{error}");
    let convolve = || {
        R::conv2d(ones(&[1, 1, 4, 4]), ones(&[1, 1, 3, 3]), None, ConvOptions::new([1, 1], [0, 0], [1, 1], 1))
    };
    assert!(catch_unwind(AssertUnwindSafe(convolve)).is_err());
    let error = burn_rocm::take_last_error().unwrap();
    assert!(matches!(error, hip::Error::Miopen { call: "miopenCreateWithStream", .. }), "{error}");
    // The next op works.
    let sum = read_float::<R>(R::float_add(ones(&[2]), ones(&[2])));
    assert_eq!(sum.to_vec::<f32>().unwrap(), [2.0, 2.0]);
}

#[test]
#[ignore = "run by a test below, with the call that is to fail in the environment"]
fn one_shape_many_times() {
    print_warnings();
    let ones =
        |shape: &[usize]| R::float_ones(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F32);
    let convolve = || {
        let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
        R::conv2d(ones(&[1, 1, 4, 4]), ones(&[1, 1, 3, 3]), None, options)
    };
    let mut served_after_an_error = false;
    let mut failed = false;
    for _ in 0..6 {
        let (outcome, counts) =
            burn_rocm::trace::counting(|| catch_unwind(AssertUnwindSafe(|| read_float::<R>(convolve()))));
        match outcome {
            Ok(values) => {
                assert_eq!(values.to_vec::<f32>().unwrap(), [9.0; 4]);
                served_after_an_error |= failed && counts.library_calls > 0;
            }
            Err(_) => {
                let error = burn_rocm::take_last_error().unwrap();
                assert!(matches!(error, hip::Error::Miopen { refused: false, .. }), "{error}");
                assert!(!failed, "one call fails");
                failed = true;
            }
        }
    }
    assert_eq!(served_after_an_error, failed, "a run that fails says nothing of the next");
    if failed {
        log::warn!("a run failed");
    }
}

#[test]
fn a_shape_is_refused_by_its_first_run_alone() {
    const REFUSED: &str = "kernels of this crate replace MIOpen where it fails: ";
    let mut seen = [false; 2];
    // Some calls ask for solutions before the first run.
    for call in 1..=8 {
        let fail = format!("miopen_kernels:{call}");
        let variables = [("BURN_ROCM_CPU_FAIL", fail.as_str()), ("BURN_ROCM_CONV_FIND", "immediate")];
        let said = said_by("one_shape_many_times", &variables);
        match said.as_slice() {
            [line] if line.starts_with(REFUSED) => seen[0] = true,
            [line] if line == "a run failed" => seen[1] = true,
            other => panic!("with call {call} failing: {other:#?}"),
        }
    }
    assert_eq!(seen, [true; 2], "the first run, and a later one");
}

#[test]
fn handles_that_cannot_be_made_are_typed_errors() {
    let said = said_by(
        "only_the_libraries_may_serve",
        &[
            ("BURN_ROCM_CPU_FAIL", "rocblas_create_handle,miopenCreateWithStream"),
            ("BURN_ROCM_MATMUL", "rocblas"),
            ("BURN_ROCM_CONV", "miopen"),
        ],
    );
    assert!(said.is_empty(), "{said:#?}");
}

#[test]
fn own_kernels_take_the_place_of_what_fails_and_say_so_once() {
    const ROCBLAS: &str = "a kernel of this crate computes matrix products where rocBLAS fails: ";
    const MIOPEN: &str = "kernels of this crate replace MIOpen where it fails: ";
    for (fail, wave, find, expected) in [
        ("rocblas_create_handle", "", "", &[(ROCBLAS, "rocblas_status_memory_error")][..]),
        ("rocblas_products", "", "", &[(ROCBLAS, "rocblas_status_arch_mismatch")]),
        ("rocblas_products", "32", "", &[(ROCBLAS, "rocblas_status_arch_mismatch")]),
        ("miopenCreateWithStream", "", "", &[(MIOPEN, "miopenStatusNotInitialized")]),
        ("miopen_kernels", "", "", &[(MIOPEN, "miopenStatusUnknownError")]),
        ("miopen_kernels", "64", "find", &[(MIOPEN, "miopenStatusUnknownError")]),
        ("rocblas_products,miopen_kernels", "", "find", &[(ROCBLAS, ""), (MIOPEN, "")]),
        ("", "", "", &[]),
    ] {
        let mut said = said_by(
            "everything_twice",
            &[("BURN_ROCM_CPU_FAIL", fail), ("BURN_ROCM_CPU_WAVE", wave), ("BURN_ROCM_CONV_FIND", find)],
        );
        said.sort();
        let mut expected = expected.to_vec();
        expected.sort();
        let agree = said.len() == expected.len()
            && said
                .iter()
                .zip(&expected)
                .all(|(said, (line, why))| said.starts_with(line) && said.contains(why));
        assert!(agree, "with {fail} failing (wave {wave}, {find}): {said:#?}");
    }
}

/// A batched product is enqueued after its call has returned, so the call can't report its error.
#[test]
#[ignore = "run by the test below, with what is to fail in the environment"]
fn batched_products_that_fail() {
    let (random, device) = (Random::new(), Default::default());
    let of =
        |shape: &[usize]| float(&random, shape, DType::F32, View::Contiguous, -1.0, 1.0).float::<R>(&device);
    let (a, b) = (of(&[4, 9, 7]), of(&[4, 9, 5]));
    let product = || R::float_matmul(R::float_transpose(a.clone()), b.clone());
    let is_typed = || matches!(burn_rocm::take_last_error(), Some(burn_rocm::RocmError::Rocblas { .. }));
    // A wait reports it, and so does each later use.
    let waited = product();
    assert!(R::sync(&device).is_err() && is_typed());
    assert!(catch_unwind(AssertUnwindSafe(|| R::float_sum_dim(waited.clone(), 0))).is_err() && is_typed());
    assert!(catch_unwind(AssertUnwindSafe(|| R::float_neg(waited))).is_err() && is_typed());
    // Another op of the thread goes on.
    let passed = product();
    assert_eq!(read_float::<R>(R::float_sub(a.clone(), a.clone())).iter::<f32>().sum::<f32>(), 0.0);
    assert!(burn_backend::read_sync(R::float_into_data(passed)).is_err() && is_typed());
    // So does a product of the failed one.
    let failed = product();
    let of_failed = R::float_matmul(R::float_transpose(failed), of(&[4, 7, 3]));
    assert!(burn_backend::read_sync(R::float_into_data(of_failed)).is_err() && is_typed());
}

#[test]
fn a_batched_product_that_fails_is_reported_by_what_needs_it() {
    let variables = [("BURN_ROCM_MATMUL", "rocblas"), ("BURN_ROCM_CPU_FAIL", "rocblas_products")];
    said_by("batched_products_that_fail", &variables);
}
