//! Norms of f16 and bf16 with parameters in f32, as `amp` converts them, within rounding bounds of
//! the formulas: values, gradients and running statistics. f32 results have the bounds of f32.

use burn::module::{AutodiffModule, Module};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::FloatDType;
use burn::tensor::backend::Backend;
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn as ours;
use burn_rocm_nn::amp::Precision;
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bounded::{Bounded, assert_bounded, assert_narrow};
use crate::norm::{Case, child, run};
use crate::norm_batch::{state, two_steps};
use crate::norm_formulas::{Norm, Places};
use crate::support::*;

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// An input that `dtype` represents exactly, and parameters that only f32 does.
fn case(random: &Random, shape: &[usize], channels: usize, dtype: DType) -> Case {
    let mut case = Case::new(random, shape, channels, dtype);
    [case.gamma, case.beta] = [(); 2].map(|()| uniform(random, &[channels]).convert_dtype(DType::F32));
    case
}

/// Runs a body with an input of `dtype` and parameters in f32, here with each checkpointing
/// strategy and composed, and compares it with the formulas. `expected` gives the results of a
/// norm; a function gives that norm its dtypes.
macro_rules! against_formulas {
    ($what:expr, $dtype:expr, $expected:expr, |$B:ident, $x:ident, $params:ident| $body:expr) => {{
        burn_rocm_tests::trace::to_file();
        let dtypes = [$dtype, DType::F32];
        macro_rules! on {
            ($of:ty, $change:expr) => {{
                type $B = $of;
                let [$x, $params] = dtypes;
                let found: Vec<TensorData> = $body;
                let what = format!("{} on {}", $what, stringify!($of));
                assert_eq!([found[0].dtype, found[1].dtype, found[2].dtype], [$x, $x, $params], "{what}");
                let change: fn(Norm) -> Norm = $change;
                let expected: Vec<Vec<Bounded>> = $expected(&|norm| change(Norm { dtypes, ..norm }));
                assert_bounded(&what, &found, &expected);
                assert!(assert_narrow(&what, &found, &expected) > 0, "{what}: no result was checked");
            }};
        }
        on!(Ours, |norm| norm);
        on!(Balanced, |norm| norm);
        // Burn adds the elements one after the other.
        on!(Oracle, |norm| Norm { in_turn: |n| n, ..norm });
    }};
}

/// On MIOpen, on own kernels where MIOpen is wrong, and with channels that are adjacent in memory.
#[test]
fn batch_norm() {
    let random = Random::new();
    for dtype in HALVES {
        for shape in [[4, 3, 8], [3, 4, 9], [300, 70, 1]] {
            let channels = shape[1];
            let steps = [(); 2].map(|()| case(&random, &shape, channels, dtype));
            let values = |low| {
                let values: Vec<f64> = (0..channels).map(|_| random.uniform(low, 2.0)).collect();
                TensorData::new(values, [channels]).convert_dtype(DType::F32)
            };
            let (mean, variance) = (values(-2.0), values(0.5));
            let expected =
                |of: &dyn Fn(Norm) -> Norm| two_steps(&steps, &shape, [&mean, &variance], [1e-2, 0.1], of);
            against_formulas!(
                format!("batch norm of {shape:?} {dtype:?}"),
                dtype,
                expected,
                |B, x, params| {
                    let mut module = ours::BatchNormConfig::new(channels)
                        .with_epsilon(1e-2)
                        .init::<B>(&Default::default());
                    module.gamma = steps[0].param(&steps[0].gamma, params);
                    module.beta = steps[0].param(&steps[0].beta, params);
                    module.running_mean = state::<B>(&mean, params);
                    module.running_var = state::<B>(&variance, params);
                    let mut all = vec![];
                    for case in &steps {
                        let affine = [module.gamma.val(), module.beta.val()];
                        let [gamma, beta] = affine.map(Some);
                        all.extend(run!(case, B, 3, x, false, module, [gamma, beta]));
                        let states = [&module.running_mean, &module.running_var];
                        all.extend(states.map(|state| state.value_sync().into_data()));
                    }
                    let [input, _] = steps[0].input::<B, 3>(x, false);
                    all.push(module.valid().forward(input.inner()).into_data());
                    all
                }
            );
        }
    }
}

/// Layer norm with and without a shift, RMS norm, group norm with few groups and with as many as
/// MIOpen requires, and instance norm.
#[test]
fn other_norms() {
    let random = Random::new();
    for dtype in HALVES {
        macro_rules! check {
            (
                $config:expr, $shape:expr, $axis:literal, $norm:expr,
                |$module:ident, $case:ident, $of:ident| $set:expr
            ) => {{
                let shape: [usize; 3] = $shape;
                let $case = case(&random, &shape, shape[$axis], dtype);
                let what = format!("{} of {shape:?} {dtype:?}", stringify!($config));
                let norm: &dyn Fn(&Case) -> Norm = &$norm;
                let expected = |of: &dyn Fn(Norm) -> Norm| $case.expected(&of(norm(&$case)));
                against_formulas!(what, dtype, expected, |B, x, params| {
                    let mut $module = $config.init::<B>(&Default::default());
                    let $of = params;
                    let [gamma, beta] = $set;
                    run!($case, B, 3, x, true, $module, [gamma, beta])
                });
            }};
        }
        // `against_formulas` replaces these.
        const TYPES: [DType; 2] = [DType::F64; 2];
        for shape in fewer([[7, 5, 33], [2, 9, 64], [2, 1, 8200]], 2, &random) {
            let rows = |case: &Case| case.norm(Places::rows(&shape), 1e-3, TYPES);
            for bias in [true, false] {
                let config = ours::LayerNormConfig::new(shape[2]).with_bias(bias).with_epsilon(1e-3);
                let norm = |case: &Case| {
                    let norm = rows(case);
                    Norm { beta: norm.beta.filter(|_| bias), ..norm }
                };
                check!(config, shape, 2, norm, |module, case, of| {
                    module.gamma = case.param(&case.gamma, of);
                    module.beta = module.beta.map(|_| case.param(&case.beta, of));
                    [Some(module.gamma.val()), module.beta.as_ref().map(|beta| beta.val())]
                });
            }
            let config = ours::RmsNormConfig::new(shape[2]).with_epsilon(1e-3);
            let norm = |case: &Case| Norm { centred: false, beta: None, ..rows(case) };
            check!(config, shape, 2, norm, |module, case, of| {
                module.gamma = case.param(&case.gamma, of);
                [Some(module.gamma.val()), None]
            });
        }
        macro_rules! channels {
            ($config:expr, $shape:expr, $groups:expr) => {
                let norm = |case: &Case| case.norm(Places::groups(&$shape, $groups), 1e-2, TYPES);
                check!($config.with_epsilon(1e-2), $shape, 1, norm, |module, case, of| {
                    module.gamma = Some(case.param(&case.gamma, of));
                    module.beta = Some(case.param(&case.beta, of));
                    [&module.gamma, &module.beta].map(|param| param.as_ref().map(|param| param.val()))
                })
            };
        }
        channels!(ours::GroupNormConfig::new(3, 6), [2, 6, 5], 3);
        channels!(ours::GroupNormConfig::new(32, 64), [2, 64, 9], 32);
        channels!(ours::InstanceNormConfig::new(4), [3, 4, 40], 4);
    }
}

/// Checks f16 and bf16 results to half a unit in the last place, since all is computed in f32 and
/// rounded once, plus what f32's rounding makes of a sum of `len` terms of about unit size.
fn rounded_once(what: &str, len: usize, found: &[TensorData], exact: &[TensorData]) {
    let sums = 8.0 * len as f64 * 2f64.powi(-24);
    for (k, (found, exact)) in found.iter().zip(exact).enumerate() {
        // The bits of the significand after the first, and the smallest exponent.
        let (digits, least) = match found.dtype {
            DType::F16 => (10, -14),
            DType::BF16 => (7, -126),
            _ => (23, -126),
        };
        for (i, (x, y)) in found.iter::<f64>().zip(exact.iter::<f64>()).enumerate() {
            let exponent = (y.abs().log2().floor() as i32).max(least);
            let bound = sums + 0.5 * 2f64.powi(exponent - digits);
            let off = (x - y).abs();
            assert!(
                off <= bound,
                "{what}, part {k} in {:?}, element {i}: {x} instead of {y}, off by {off:e}, bound {bound:e}",
                found.dtype
            );
        }
    }
}

/// Parameters a little above 1, by more than a unit in the last place of f32 and less than half a
/// unit of `dtype`: rounding them to `dtype` would show.
fn near_one(channels: usize, dtype: DType) -> TensorData {
    let past = if dtype == DType::BF16 { 2f32.powi(-10) } else { 2f32.powi(-13) };
    TensorData::full::<f32, _>([channels], 1.0 + past)
}

/// bf16 rounds a gamma of 1 + 2^-10 to 1, f16 one of 1 + 2^-13. Every path must use the f32 value:
/// rows of 33 elements, read one by one; rows of 64, read 16 bytes at a time; and channels.
#[test]
fn parameters_are_used_as_f32_has_them() {
    let random = Random::new();
    for dtype in HALVES {
        macro_rules! check {
            (
                $config:expr, $shape:expr, $axis:literal, $len:expr,
                |$module:ident, $case:ident, $of:ident| $set:expr
            ) => {{
                let shape: [usize; 3] = $shape;
                let mut $case = Case::new(&random, &shape, shape[$axis], dtype);
                $case.gamma = near_one(shape[$axis], dtype);
                $case.beta = near_one(shape[$axis], dtype);
                macro_rules! on {
                    ($B:ty, $x:expr, $params:expr) => {{
                        let mut $module = $config.init::<$B>(&Default::default());
                        let $of = $params;
                        let [gamma, beta] = $set;
                        type B = $B;
                        run!($case, B, 3, $x, false, $module, [gamma, beta])
                    }};
                }
                let exact: Vec<TensorData> = on!(Oracle, DType::F64, DType::F64);
                for (path, found) in [
                    ("fused", on!(Ours, dtype, DType::F32)),
                    ("recomputed", on!(Balanced, dtype, DType::F32)),
                    ("composed", on!(Oracle, dtype, DType::F32)),
                ] {
                    let what = format!("{} of {shape:?} {dtype:?}, {path}", stringify!($config));
                    let dtypes: Vec<DType> = found.iter().map(|data| data.dtype).collect();
                    assert_eq!(dtypes[..3], [dtype, dtype, DType::F32], "{what}");
                    // The parameters' gradients don't depend on the parameters. `batch_norm` and
                    // `other_norms` have their bounds.
                    rounded_once(&what, $len, &found[..2], &exact[..2]);
                }
            }};
        }
        for shape in [[7, 5, 33], [2, 9, 64], [30, 40, 64]] {
            for bias in [true, false] {
                let config = ours::LayerNormConfig::new(shape[2]).with_bias(bias).with_epsilon(1e-3);
                check!(config, shape, 2, shape[2], |module, case, of| {
                    module.gamma = case.param(&case.gamma, of);
                    module.beta = module.beta.map(|_| case.param(&case.beta, of));
                    [Some(module.gamma.val()), module.beta.as_ref().map(|beta| beta.val())]
                });
            }
            let config = ours::RmsNormConfig::new(shape[2]).with_epsilon(1e-3);
            check!(config, shape, 2, shape[2], |module, case, of| {
                module.gamma = case.param(&case.gamma, of);
                [Some(module.gamma.val()), None]
            });
        }
        macro_rules! channels {
            ($config:expr, $shape:expr, $len:expr) => {
                check!($config.with_epsilon(1e-2), $shape, 1, $len, |module, case, of| {
                    module.gamma = Some(case.param(&case.gamma, of));
                    module.beta = Some(case.param(&case.beta, of));
                    [&module.gamma, &module.beta].map(|param| param.as_ref().map(|param| param.val()))
                })
            };
        }
        channels!(ours::GroupNormConfig::new(3, 6), [5, 6, 16], 32);
        channels!(ours::GroupNormConfig::new(32, 64), [2, 64, 9], 18);
        channels!(ours::InstanceNormConfig::new(4), [3, 4, 40], 40);
    }
}

/// A norm whose parameters `Precision::keep` leaves in f32 uses all their digits, without a cast.
#[test]
fn a_kept_layer_norm_keeps_its_digits() {
    let mut norm = ours::LayerNormConfig::new(64).with_epsilon(1e-3).init::<Ours>(&Default::default());
    let mut case = Case::new(&Random::new(), &[20, 64], 64, DType::BF16);
    case.gamma = near_one(64, DType::BF16);
    norm.gamma = case.param(&case.gamma, DType::F32);
    let run = |norm: &ours::LayerNorm<Ours>, dtype| {
        let beta = norm.beta.as_ref().map(|beta| beta.val());
        run!(case, Ours, 2, dtype, false, norm, [Some(norm.gamma.val()), beta])
    };
    let exact = run(&Precision::new(FloatDType::F64).convert(&norm), DType::F64);
    let kept = Precision::new(FloatDType::BF16).keep("LayerNorm").convert(&norm);
    assert_eq!(kept.gamma.val().dtype(), DType::F32);
    let (found, lines) = during(|| run(&kept, DType::BF16));
    rounded_once("kept", 64, &found[..2], &exact[..2]);
    assert_eq!([found[2].dtype, found[3].dtype], [DType::F32; 2]);
    let norms: Vec<_> = lines.iter().filter(|line| line.starts_with("nn_layer_norm")).collect();
    assert!(norms.iter().all(|line| !line.contains("cast")), "{norms:#?}");
    let rounded = Precision::new(FloatDType::BF16).convert(&norm);
    assert_eq!(rounded.gamma.val().into_data().iter::<f32>().collect::<Vec<_>>(), [1.0; 64]);
    assert!(run(&rounded, DType::BF16)[0] != found[0], "gamma's last digits show");
}

/// If only MIOpen may normalise, an error names parameters whose type differs from the rows'.
#[test]
fn mixed_dtypes_by_miopen_alone() {
    child(&["norm_mixed::miopen_or_an_error", "--ignored"], "miopen");
}

#[test]
#[ignore = "run by the test above, with the setting in the environment"]
fn miopen_or_an_error() {
    let device = Default::default();
    let refused = |body: &dyn Fn() -> Tensor<Ours, 2>| {
        catch_unwind(AssertUnwindSafe(body)).expect_err("MIOpen has one type");
        match take_last_error() {
            Some(RocmError::Unsupported { dtype: Some("bf16"), what: Some(what), .. }) => {
                assert_eq!(what, "parameters of f32 by MIOpen");
            }
            other => panic!("{other:?}"),
        }
    };
    let x = Tensor::<Ours, 2>::ones([3, 64], (&device, DType::BF16));
    let layer = ours::LayerNormConfig::new(64).init::<Ours>(&device);
    refused(&|| layer.forward(x.clone()));
    let rms = ours::RmsNormConfig::new(64).init::<Ours>(&device);
    refused(&|| rms.forward(x.clone()));
    let group = ours::GroupNormConfig::new(32, 64).init::<Ours>(&device);
    refused(&|| group.forward(x.clone()));
}

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    norm: ours::BatchNorm<B>,
    last: Linear<B>,
}

/// A converted model with a batch norm in it runs without a cast, by the same launches as in f32,
/// and its original has the statistics.
#[test]
fn a_converted_model_needs_no_casts() {
    let device = Default::default();
    let net = Net {
        first: LinearConfig::new(6, 8).init::<Ours>(&device),
        norm: ours::BatchNormConfig::new(8).init(&device),
        last: LinearConfig::new(8, 2).init(&device),
    };
    let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[16, 6]), DType::F32);
    let run = |net: &Net<Ours>, x| net.last.forward(net.norm.forward(net.first.forward(x)));
    let ((), full) = during(|| drop(run(&net, x.clone()).sum().backward()));
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let half = Precision::new(dtype).convert(&net);
        let before = net.norm.running_mean.value_sync().into_data();
        let input = x.clone().cast(dtype);
        let (grads, lines) = during(|| run(&half, input).sum().backward());
        let of = |lines: &[String]| lines.iter().filter(|line| line.starts_with("nn_batch_norm")).count();
        assert_eq!(of(&lines), of(&full), "{lines:#?} instead of {full:#?}");
        assert_eq!(half.first.weight.val().grad(&grads).unwrap().dtype(), DType::from(dtype));
        assert_eq!(half.norm.gamma.val().grad(&grads).unwrap().dtype(), DType::F32);
        let after = net.norm.running_mean.value_sync().into_data();
        assert_eq!(after.dtype, DType::F32);
        assert!(after != before, "{after:?}");
    }
}

#[test]
fn other_dtypes_beside_each_other_are_errors() {
    let refused = |op: &str, body: &dyn Fn() -> Tensor<Ours, 3>| {
        catch_unwind(AssertUnwindSafe(body)).expect_err(op);
        match take_last_error() {
            Some(RocmError::Invalid { op: found, .. }) => assert_eq!(found, op),
            other => panic!("{op}: {other:?}"),
        }
    };
    for (x, params) in [
        (DType::F32, DType::BF16),
        (DType::F32, DType::F64),
        (DType::F64, DType::F32),
        (DType::F16, DType::BF16),
        (DType::F16, DType::F64),
    ] {
        let case = Case::new(&Random::new(), &[2, 4, 4], 4, DType::F16);
        let [x, _] = case.input::<Ours, 3>(x, false);
        let mut batch = ours::BatchNormConfig::new(4).init::<Ours>(&Default::default());
        batch.gamma = case.param(&case.gamma, params);
        batch.beta = case.param(&case.beta, params);
        // All parameters must fit, not only one.
        refused("batch_norm_train", &|| batch.forward(x.clone()));
        let mut layer = ours::LayerNormConfig::new(4).init::<Ours>(&Default::default());
        layer.gamma = case.param(&case.gamma, params);
        refused("layer_norm", &|| layer.forward(x.clone()));
        let rms = ours::RmsNorm { gamma: case.param(&case.gamma, params), epsilon: 1e-5 };
        refused("rms_norm", &|| rms.forward(x.clone()));
        let mut group = ours::GroupNormConfig::new(2, 4).init::<Ours>(&Default::default());
        group.beta = Some(case.param(&case.beta, params));
        refused("group_norm", &|| group.forward(x.clone()));
    }
}
