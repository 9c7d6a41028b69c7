//! `optimization_summary`: what computed each op, which ops shared a launch, and what fell back.
//!
//! The tests run one at a time, because a summary has the work of all threads.
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Command;

use burn_backend::ops::ConvOptions;
use burn_rocm::summary::OpSummary;
use burn_rocm::{OptimizationSummary, RocmTensor, optimization_summary, trace};
use burn_rocm_tests::*;
use serial_test::serial;

const CHILD: &str = "BURN_ROCM_TEST_SUMMARY_CHILD";

/// Runs `body` in processes of its own with each of these environments.
#[track_caller]
fn with_settings(test: &str, environments: &[&[(&str, &str)]], body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    for environment in environments {
        let mut all: Vec<_> = hip::SETTINGS.iter().map(|setting| (setting.variable, "")).collect();
        all.extend([(CHILD, "1"), ("BURN_ROCM_CPU_WAVE", ""), ("BURN_ROCM_PROVIDER", "cpu")]);
        all.extend_from_slice(environment);
        again(&["--exact", test, "--nocapture"], &all);
    }
}

fn tensor(random: &Random, shape: &[usize], dtype: DType) -> RocmTensor {
    float(random, shape, dtype, View::Contiguous, -1.0, 1.0).float::<R>(&Default::default())
}

fn conv(random: &Random, dtype: DType) -> RocmTensor {
    let (x, w) = (tensor(random, &[2, 3, 9, 9], dtype), tensor(random, &[4, 3, 3, 3], dtype));
    R::conv2d(x, w, None, ConvOptions::new([1, 1], [1, 1], [1, 1], 1))
}

fn only<'a>(summary: &'a OptimizationSummary, op: &str) -> &'a OpSummary {
    let rows: Vec<_> = summary.of_op(op).collect();
    assert_eq!(rows.len(), 1, "{summary}");
    rows[0]
}

/// The reasons for which an op fell back, each with its number. Without those of the products by
/// which this project's kernels convolve.
fn reasons<'a>(summary: &'a OptimizationSummary, op: &str) -> Vec<(&'a str, u64)> {
    let is_product = |reason: &str| reason.contains("rocBLAS") || reason.contains("MATMUL");
    let of_op = summary.fallbacks.iter().filter(|fallback| fallback.op == op);
    of_op
        .filter(|fallback| op != "conv2d" || !is_product(&fallback.reason))
        .map(|fallback| (&*fallback.reason, fallback.count))
        .collect()
}

/// The sums are those of the counters, natively and where ops share launches.
#[test]
#[serial]
fn all_work_is_in_it() {
    let wave = ("BURN_ROCM_CPU_WAVE", "32");
    with_settings("all_work_is_in_it", &[&[], &[wave], &[wave, ("BURN_ROCM_CHAIN", "4")]], || {
        let random = Random::new();
        let of = |shape: &[usize]| tensor(&random, shape, DType::F32);
        let (a, b, c, rows) = (of(&[48, 40]), of(&[40, 48]), of(&[48, 48]), of(&[6, 50, 70]));
        let ((_, counts), summary) = optimization_summary(|| {
            trace::counting(|| {
                let product = R::float_matmul(a, b);
                let mut sum = product;
                for _ in 0..9 {
                    sum = R::float_add(R::float_mul(sum, c.clone()), c.clone());
                }
                let turned = R::float_permute(rows, &[0, 2, 1]);
                (sum, R::float_reshape(turned, [420, 50].into()), conv(&random, DType::F32))
            })
        });
        let sum = |of: fn(&OpSummary) -> u64| summary.ops.iter().map(of).sum::<u64>();
        assert_eq!(
            sum(|op| op.kernels + op.layout_copies) + summary.joined_launches,
            counts.kernels,
            "{summary}"
        );
        assert_eq!(sum(|op| op.rocblas + op.miopen), counts.library_calls, "{summary}");
        assert_eq!(sum(|op| op.copies), counts.copies, "{summary}");
        assert_eq!(sum(|op| op.transfers), counts.transfers, "{summary}");
        assert_eq!(sum(|op| op.joined), summary.joined_ops);
        assert_eq!(only(&summary, "float_matmul").rocblas, 1);
        assert_eq!(only(&summary, "conv2d").miopen, 1);
        let reshape = only(&summary, "float_reshape");
        assert_eq!((reshape.layout_copies, reshape.kernels), (1, 0), "{summary}");
        assert!(summary.fallbacks.is_empty(), "{summary}");
        // 18 steps in launches of as many steps as the setting allows.
        let most = hip::Device::get(0).unwrap().chain_limit() as u64;
        let of_both = |of: fn(&OpSummary) -> u64| ["float_add", "float_mul"].map(|op| of(only(&summary, op)));
        match most {
            0 => assert_eq!((of_both(|op| op.kernels), summary.joined_launches), ([9, 9], 0), "{summary}"),
            _ => {
                let launches = 18u64.div_ceil(most);
                assert_eq!(
                    (of_both(|op| op.joined), summary.joined_launches),
                    ([9, 9], launches),
                    "{summary}"
                );
            }
        }
        // Outside of a summary nothing is kept.
        let kept = conv(&random, DType::F64);
        let ((), nothing) = optimization_summary(|| drop(kept));
        assert_eq!(nothing, OptimizationSummary::default());
    });
}

#[test]
#[serial]
fn fallbacks_have_their_reasons() {
    let run = || {
        let random = Random::new();
        let of = |shape: &[usize], dtype| tensor(&random, shape, dtype);
        let (a, b) = (of(&[8, 8], DType::F32), of(&[8, 8], DType::F32));
        let (x, row) = (of(&[4, 8], DType::F64), of(&[8], DType::F64));
        let image = of(&[2, 3, 8, 8], DType::BF16);
        optimization_summary(|| {
            R::float_matmul(a, b);
            conv(&random, DType::F64);
            conv(&random, DType::F32);
            R::avg_pool2d(image, [2, 2], [2, 2], [0, 0], true, false);
            burn_rocm::fused::layer_norm(x, row, None, 1e-5).unwrap();
        })
        .1
    };
    let own = [("BURN_ROCM_CONV", "own"), ("BURN_ROCM_MATMUL", "own"), ("BURN_ROCM_NORM", "own")];
    let broken = [("BURN_ROCM_CPU_FAIL", "miopenCreateWithStream,rocblas_create_handle")];
    with_settings("fallbacks_have_their_reasons", &[&[], &own, &broken], || {
        let summary = run();
        let text = summary.to_string();
        assert!(summary.fallbacks.iter().all(|fallback| text.contains(&fallback.op)), "{text}");
        let set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
        let pool = "MIOpen's pooling has neither f64 nor bf16";
        assert_eq!(reasons(&summary, "avg_pool2d"), [(pool, 1)], "{text}");
        if set("BURN_ROCM_CPU_FAIL") {
            let [(product, 1)] = reasons(&summary, "float_matmul")[..] else { panic!("{text}") };
            assert!(product.starts_with("rocBLAS failed: "), "{product}");
            let mut of_conv = reasons(&summary, "conv2d");
            of_conv.sort_unstable();
            let [(failed, 1), ("MIOpen's convolution has no f64", 1)] = of_conv[..] else { panic!("{text}") };
            assert!(failed.starts_with("MIOpen failed: "), "{failed}");
        } else if set("BURN_ROCM_CONV") {
            assert_eq!(reasons(&summary, "float_matmul"), [("setting BURN_ROCM_MATMUL=own", 1)], "{text}");
            assert_eq!(
                reasons(&summary, "conv2d"),
                [("setting BURN_ROCM_CONV=own", 1), ("setting BURN_ROCM_CONV=own", 1)]
            );
            assert_eq!(reasons(&summary, ""), [("setting BURN_ROCM_NORM=own", 1)], "{text}");
        } else {
            assert_eq!(reasons(&summary, "float_matmul"), [], "{text}");
            assert_eq!(reasons(&summary, "conv2d"), [("MIOpen's convolution has no f64", 1)], "{text}");
            assert_eq!(reasons(&summary, ""), [("not MIOpen: layer norm does not support f64", 1)], "{text}");
        }
    });
}

/// A summary has the work of other threads, and one inside another takes nothing from it.
#[test]
#[serial]
fn threads_and_summaries_overlap() {
    let random = Random::new();
    let tensors = || [(); 2].map(|()| tensor(&random, &[8, 8], DType::F32));
    let (first, second, third) = (tensors(), tensors(), tensors());
    let product = |[a, b]: [RocmTensor; 2]| drop(R::float_matmul(a, b));
    let (inner, outer) = optimization_summary(|| {
        product(first);
        let ((), inner) = optimization_summary(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| product(second));
            });
        });
        product(third);
        inner
    });
    assert_eq!(only(&inner, "float_matmul").rocblas, 1);
    assert_eq!(only(&outer, "float_matmul").rocblas, 3);
}

#[test]
#[serial]
fn the_processs_summary_goes_to_stderr() {
    if std::env::var_os(CHILD).is_some() {
        conv(&Random::new(), DType::F64);
        return;
    }
    for (value, shown) in [("1", true), ("0", false)] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_processs_summary_goes_to_stderr"])
            .envs([(CHILD, "1"), ("BURN_ROCM_SUMMARY", value), ("BURN_ROCM_CONV", "auto")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.contains("how ops were computed"), shown, "{text}");
        let row =
            text.lines().any(|line| line.starts_with("conv2d") && line.contains("convolution has no f64"));
        assert_eq!(row, shown, "{text}");
    }
}
