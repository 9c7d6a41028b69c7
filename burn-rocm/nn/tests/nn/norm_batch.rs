//! Batch norm within rounding bounds of the formulas: values, gradients and running statistics, in
//! training and in inference.

use burn::module::{AutodiffModule, RunningState};
use burn::tensor::backend::Backend;
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn as ours;
use burn_rocm_tests::FLOATS;
use burn_rocm_tests::limits::unit;
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bounded::{Bounded, assert_bounded, exact};
use crate::norm::{Case, against_formulas, child, run};
use crate::norm_formulas::{Norm, Places, Statistics};
use crate::support::*;

pub(crate) fn state<B: Backend>(data: &TensorData, dtype: DType) -> RunningState<Tensor<B, 1>> {
    RunningState::new(Tensor::from_data(data.clone(), (&Default::default(), dtype)))
}

fn means_and_variances(statistics: &[Statistics]) -> [Vec<Bounded>; 2] {
    [statistics.iter().map(|of| of.mean).collect(), statistics.iter().map(|of| of.variance).collect()]
}

/// Two training steps with the same parameters, each with the running statistics after it, then
/// inference of the first step's input.
pub(crate) fn two_steps(
    steps: &[Case; 2],
    shape: &[usize],
    [mean, variance]: [&TensorData; 2],
    [epsilon, momentum]: [f64; 2],
    of: impl Fn(Norm) -> Norm,
) -> Vec<Vec<Bounded>> {
    let norm = |case: &Case| {
        let first = steps[0].norm(Places::channels(shape), epsilon, [DType::F64; 2]);
        let norm = case.norm(Places::channels(shape), epsilon, [DType::F64; 2]);
        of(Norm { gamma: first.gamma, beta: first.beta, ..norm })
    };
    let [mut mean, mut variance] = [mean, variance].map(|data| exact(data.iter::<f64>()));
    let mut all = Vec::new();
    for case in steps {
        let norm = norm(case);
        let [means, variances] = means_and_variances(&norm.statistics());
        mean = norm.running(&mean, &means, momentum);
        variance = norm.running(&variance, &variances, momentum);
        all.extend(case.expected(&norm));
        all.extend([mean.clone(), variance.clone()]);
    }
    let norm = norm(&steps[0]);
    let statistics: Vec<_> =
        mean.iter().zip(&variance).map(|(&mean, &variance)| norm.given(mean, variance)).collect();
    all.push(norm.forward(&statistics));
    all
}

/// Two training steps, then inference with the resulting statistics.
macro_rules! batch_norm_of {
    ($random:expr, $D:literal, $shape:expr) => {{
        let shape: [usize; $D] = $shape;
        for dtype in fewer(FLOATS, 2, &$random) {
            let steps = [(); 2].map(|()| Case::new(&$random, &shape, shape[1], dtype));
            let [first, second] = &steps;
            let values = |low| -> TensorData {
                let values: Vec<f64> = (0..shape[1]).map(|_| $random.uniform(low, 2.0)).collect();
                TensorData::new(values, [shape[1]]).convert_dtype(dtype)
            };
            let (mean, variance) = (values(-2.0), values(0.5));
            let turned = $random.below(2) > 0;
            let what = format!("batch norm of {shape:?} {dtype:?}, turned {turned}");
            let expected = |of: DType| {
                let typed = |norm| Norm { dtypes: [of; 2], ..norm };
                two_steps(&steps, &shape, [&mean, &variance], [1e-2, 0.3], typed)
            };
            against_formulas!(what, dtype, expected, |B, nn, of| {
                let mut module = nn::BatchNormConfig::new(shape[1])
                    .with_epsilon(1e-2)
                    .with_momentum(0.3)
                    .init::<B>(&Default::default());
                module.gamma = first.param(&first.gamma, of);
                module.beta = first.param(&first.beta, of);
                module.running_mean = state::<B>(&mean, of);
                module.running_var = state::<B>(&variance, of);
                let mut all = vec![];
                for case in [first, second] {
                    let params = [module.gamma.val(), module.beta.val()];
                    let [gamma, beta] = params.map(Some);
                    all.extend(run!(case, B, $D, of, turned, module, [gamma, beta]));
                    for state in [&module.running_mean, &module.running_var] {
                        all.push(state.value_sync().into_data());
                    }
                }
                let [x, _] = first.input::<B, $D>(of, turned);
                all.push(module.valid().forward(x.inner()).into_data());
                all
            });
        }
    }};
}

/// Channels that are adjacent in memory; channels of few elements and of many; one element in a
/// channel; more channels than blocks.
#[test]
fn batch_norm() {
    let random = Random::new();
    batch_norm_of!(random, 2, [4, 3]);
    batch_norm_of!(random, 2, [300, 70]);
    batch_norm_of!(random, 2, [1, 5]);
    batch_norm_of!(random, 3, [4, 3, 5]);
    batch_norm_of!(random, 3, [33, 21, 2]);
    batch_norm_of!(random, 4, [2, 5, 4, 6]);
    batch_norm_of!(random, 4, [3, 40, 9, 9]);
    batch_norm_of!(random, 4, [3, 40, 4, 6]);
    batch_norm_of!(random, 4, [2, 2, 33, 33]);
    batch_norm_of!(random, 4, [2, 1, 64, 65]);
    batch_norm_of!(random, 5, [2, 3, 2, 3, 4]);
}

/// Burn's running statistics over ten steps with a batch of 4: for one element in each channel and
/// sample, where its biased variance is a quarter below the unbiased one, and for 8 elements, which
/// MIOpen computes.
#[test]
fn running_statistics_at_batch_4() {
    let random = Random::new();
    for spatial in [1, 8] {
        let cases: Vec<Case> = (0..10).map(|_| Case::new(&random, &[4, 6, spatial], 6, DType::F32)).collect();
        macro_rules! statistics {
            ($B:ident, $nn:path) => {{
                use $nn as nn;
                let module = nn::BatchNormConfig::new(6).init::<$B>(&Default::default());
                for case in &cases {
                    let [x, _] = case.input::<$B, 3>(DType::F32, false);
                    module.forward(x);
                }
                [&module.running_mean, &module.running_var].map(|state| state.value_sync().into_data())
            }};
        }
        let (mut mean, mut variance) = (vec![Bounded::exact(0.0); 6], vec![Bounded::exact(1.0); 6]);
        for case in &cases {
            let norm = case.norm(Places::channels(&[4, 6, spatial]), 1e-5, [DType::F32; 2]);
            let [means, variances] = means_and_variances(&norm.statistics());
            mean = norm.running(&mean, &means, 0.1);
            variance = norm.running(&variance, &variances, 0.1);
        }
        let expected = [mean, variance];
        let what = format!("running statistics of 4 times {spatial}");
        assert_bounded(&format!("{what}, Burn's"), &statistics!(Oracle, burn::nn), &expected);
        assert_bounded(&what, &statistics!(Ours, burn_rocm_nn), &expected);
        assert_bounded(&what, &statistics!(Balanced, burn_rocm_nn), &expected);
    }
}

/// With a strategy that recomputes memory-bound ops, a forward and backward pass normalises and
/// updates once.
#[test]
fn recomputation_does_not_update_again() {
    let case = Case::new(&Random::new(), &[4, 3, 8], 3, DType::F32);
    let device = Default::default();
    let module = ours::BatchNormConfig::new(3).with_momentum(0.25).init::<Balanced>(&device);
    let ((out, before), lines) = during(|| {
        let [x, leaf] = case.input::<Balanced, 3>(DType::F32, false);
        // Memory-bound ops on both sides. Those that are not kept are recomputed from the norm's
        // output.
        let out = module.forward(x.exp()).exp();
        let before = module.running_mean.value_sync().into_data();
        let grads = case.loss(out.clone().log() * out.clone(), DType::F32).backward();
        assert!(leaf.grad(&grads).is_some());
        (out, before)
    });
    assert_eq!(out.dims(), [4, 3, 8]);
    let of = |op: &str| lines.iter().filter(|line| line.starts_with(op)).count();
    assert!(of("float_exp f32: kernel") > 2, "nothing was computed again: {lines:#?}");
    let own = hip::Device::get(0).unwrap().norm_route() == Ok(hip::Route::Own);
    let step = if own {
        "nn_batch_norm f32: kernel batch_norm_apply"
    } else {
        "nn_batch_norm f32: kernel batch_norm_finish"
    };
    assert_eq!(of(step), 1, "{lines:#?}");
    assert_eq!(of("nn_batch_norm f32: "), 2, "{lines:#?}");
    assert_eq!(of("float_div_scalar f32: kernel"), 0, "what a thread's update is divided by: {lines:#?}");
    assert_eq!(of("nn_batch_norm_backward f32: "), if own { 2 } else { 1 }, "{lines:#?}");
    let mean = |data: TensorData| data.iter::<f64>().collect::<Vec<_>>();
    let after = module.running_mean.value_sync().into_data();
    assert_eq!(mean(before), mean(after.clone()), "an update after the forward pass");
    let norm = case.norm(Places::channels(&[4, 3, 8]), 1e-5, [DType::F32; 2]);
    // An exponential is off by up to 4 ulp, 8 roundings.
    let exp = |x: &Bounded| Bounded { value: x.value.exp(), off: 8.0 * unit(DType::F32) * x.value.exp() };
    let norm = Norm { x: norm.x.iter().map(exp).collect(), ..norm };
    let [means, _] = means_and_variances(&norm.statistics());
    let expected = norm.running(&[Bounded::exact(0.0); 3], &means, 0.25);
    assert_bounded("one update", &[after], &[expected]);
}

#[test]
fn inference_is_one_step_and_changes_nothing() {
    let case = Case::new(&Random::new(), &[4, 3, 5], 3, DType::F32);
    let module = ours::BatchNormConfig::new(3).init::<Ours>(&Default::default()).valid();
    let x = case.input::<Ours, 3>(DType::F32, false)[0].clone().inner();
    let (_, lines) = during(|| module.forward(x));
    let steps: Vec<_> = lines.iter().filter(|line| line.starts_with("nn_batch_norm_infer f32: ")).collect();
    assert_eq!(steps.len(), 1, "{lines:#?}");
    assert_eq!(module.running_mean.value_sync().into_data(), TensorData::new(vec![0f32; 3], [3]));
    assert_eq!(module.running_var.value_sync().into_data(), TensorData::new(vec![1f32; 3], [3]));
}

/// The statistics of an empty batch are NaN, and there are no gradients.
#[test]
fn batch_norm_of_nothing() {
    let module = ours::BatchNormConfig::new(3).init::<Ours>(&Default::default());
    let x = Tensor::<Ours, 3>::ones([2, 3, 0], &Default::default()).require_grad();
    let out = module.forward(x.clone());
    assert_eq!(out.dims(), [2, 3, 0]);
    let grads = out.sum().backward();
    assert_eq!(x.grad(&grads).unwrap().dims(), [2, 3, 0]);
    assert_eq!(module.gamma.val().grad(&grads).unwrap().into_data(), TensorData::new(vec![0f32; 3], [3]));
    let mean = module.running_mean.value_sync().into_data();
    assert!(mean.iter::<f32>().all(f32::is_nan), "{mean:?}");
}

/// MIOpen mixes the channels of such a tensor (`hip/src/workarounds.rs`).
#[test]
fn what_miopen_gets_wrong_goes_to_own_kernels() {
    let case = Case::new(&Random::new(), &[3, 4, 9], 4, DType::F32);
    let module = ours::BatchNormConfig::new(4).init::<Ours>(&Default::default());
    let (_, lines) = during(|| run!(case, Ours, 3, DType::F32, false, module, []));
    for line in [
        "nn_batch_norm f32: kernel batch_norm_moments<f32>",
        "nn_batch_norm f32: kernel batch_norm_apply<f32>",
        "nn_batch_norm_backward f32: kernel channel_sums<f32>",
        "nn_batch_norm_backward f32: kernel batch_norm_backward<f32>",
    ] {
        assert_eq!(lines.iter().filter(|found| found.starts_with(line)).count(), 1, "{line} in {lines:#?}");
    }
}

/// With MIOpen alone: supported cases agree with Burn's module. An unsupported dtype, and a shape
/// that MIOpen computes wrong, are errors.
#[test]
fn by_miopen_alone() {
    child(&["norm_batch::miopen_or_an_error", "--ignored"], "miopen");
}

#[test]
#[ignore = "run by the test above, with the setting in the environment"]
fn miopen_or_an_error() {
    for dtype in [DType::F32, DType::F16] {
        let case = Case::new(&Random::new(), &[3, 5, 8], 5, dtype);
        let expected = |of: DType| case.expected(&case.norm(Places::channels(&[3, 5, 8]), 1e-2, [of; 2]));
        against_formulas!(format!("batch norm by MIOpen, {dtype:?}"), dtype, expected, |B, nn, of| {
            let mut module = nn::BatchNormConfig::new(5).with_epsilon(1e-2).init::<B>(&Default::default());
            module.gamma = case.param(&case.gamma, of);
            module.beta = case.param(&case.beta, of);
            module.running_mean = state::<B>(&case.beta, of);
            module.running_var = state::<B>(&case.gamma, of);
            run!(case, B, 3, of, false, module, [Some(module.gamma.val()), Some(module.beta.val())])
        });
    }
    let refused = |shape: [usize; 3], dtype| {
        let case = Case::new(&Random::new(), &shape, shape[1], dtype);
        let mut module = ours::BatchNormConfig::new(shape[1]).init::<Ours>(&Default::default());
        module.gamma = case.param(&case.gamma, dtype);
        module.beta = case.param(&case.beta, dtype);
        module.running_mean = state::<Ours>(&case.beta, dtype);
        module.running_var = state::<Ours>(&case.gamma, dtype);
        let [x, _] = case.input::<Ours, 3>(dtype, false);
        catch_unwind(AssertUnwindSafe(|| module.forward(x))).expect_err("MIOpen has no such batch norm");
        assert!(matches!(take_last_error(), Some(RocmError::Unsupported { .. })), "{shape:?} {dtype:?}");
    };
    refused([3, 5, 8], DType::F64);
    refused([3, 5, 8], DType::BF16); // MIOpen does not round it to nearest
    refused([3, 5, 9], DType::F32);
    let case = Case::new(&Random::new(), &[3, 5], 5, DType::F64);
    let rms = ours::RmsNorm::<Ours> { gamma: case.param(&case.gamma, DType::F64), epsilon: 1e-5 };
    let [x, _] = case.input::<Ours, 2>(DType::F64, false);
    catch_unwind(AssertUnwindSafe(|| rms.forward(x))).expect_err("MIOpen has no such RMS norm");
    assert!(matches!(take_last_error(), Some(RocmError::Unsupported { .. })));
}
