//! Batch norm with a ReLU in its kernels: within rounding bounds of the formulas, and with the bits of
//! a norm and a ReLU after it.

use burn::module::AutodiffModule;
use burn::tensor::activation::relu;
use burn_rocm_nn as ours;
use burn_rocm_tests::FLOATS;
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;

use crate::bounded::{Bounded, exact, is_varied};
use crate::norm::{Case, against_formulas, child, run};
use crate::norm_formulas::{Norm, Places, negated};
use crate::support::*;

/// The expected results of [`run!`] with a ReLU after the norm. `None` if an element is so near 0 that
/// rounding decides whether its gradient passes.
fn expected(case: &Case, norm: &Norm) -> Option<Vec<Vec<Bounded>>> {
    let statistics = norm.statistics();
    let y = norm.forward(&statistics);
    if y.iter().any(|y| y.value.abs() <= y.off) {
        return None;
    }
    let grad = negated(&case.grad).into_iter().zip(&y);
    let grad: Vec<Bounded> =
        grad.map(|(grad, y)| if y.value > 0.0 { grad } else { Bounded::exact(0.0) }).collect();
    let [by_x, by_gamma, by_beta] = norm.backward(&statistics, &grad);
    let by_leaf = by_x.into_iter().map(|x| Bounded { value: -x.value, ..x }).collect();
    let zeros = exact(y.iter().map(|_| 0.0));
    let y = y.into_iter().zip(zeros).map(|(y, zero)| if y.value > 0.0 { y } else { zero }).collect();
    Some(vec![y, by_leaf, by_gamma, by_beta])
}

macro_rules! near_the_formulas {
    ($random:expr, $D:literal, $shape:expr) => {{
        let shape: [usize; $D] = $shape;
        for dtype in [DType::F32, DType::F64] {
            let draw = || {
                let case = Case::new(&$random, &shape, shape[1], dtype);
                let of = |of: DType| expected(&case, &case.norm(Places::channels(&shape), 1e-2, [of; 2]));
                // With two channels, the ReLU may leave almost nothing.
                let can_be_told = |found: Vec<Vec<Bounded>>| found.iter().any(|all| is_varied(all));
                let [first, second] = [of(dtype), of(DType::F64)].map(|found| found.is_some_and(can_be_told));
                (first && second).then_some(case)
            };
            let case = (0..50).find_map(|_| draw()).expect("a draw without elements near 0, of which some pass");
            let of = |of: DType| {
                expected(&case, &case.norm(Places::channels(&shape), 1e-2, [of; 2])).expect("as it was drawn")
            };
            let turned = $random.below(2) > 0;
            let what = format!("batch norm and ReLU of {shape:?} {dtype:?}, turned {turned}");
            macro_rules! module {
                ($B:ident, $nn:ident, $of:ident) => {{
                    let mut module =
                        $nn::BatchNormConfig::new(shape[1]).with_epsilon(1e-2).init::<$B>(&Default::default());
                    module.gamma = case.param(&case.gamma, $of);
                    module.beta = case.param(&case.beta, $of);
                    for state in [&mut module.running_mean, &mut module.running_var] {
                        *state = crate::norm_batch::state::<$B>(&case.beta, $of);
                    }
                    module
                }};
            }
            against_formulas!(what, dtype, of, |B, of|
                theirs {
                    use burn::nn;
                    let module = module!(B, nn, of);
                    let params = [Some(module.gamma.val()), Some(module.beta.val())];
                    let [gamma, beta] = params;
                    run!(case, B, $D, of, turned, |x| relu(module.forward(x)), [gamma, beta])
                },
                ours {
                    use burn_rocm_nn as nn;
                    let module = module!(B, nn, of);
                    let params = [Some(module.gamma.val()), Some(module.beta.val())];
                    let [gamma, beta] = params;
                    run!(case, B, $D, of, turned, |x| module.forward_relu(x), [gamma, beta])
                }
            );
        }
    }};
}

#[test]
fn a_norm_with_a_relu() {
    let random = Random::new();
    near_the_formulas!(random, 2, [30, 7]);
    near_the_formulas!(random, 3, [4, 6, 5]);
    near_the_formulas!(random, 4, [3, 5, 8, 9]);
    near_the_formulas!(random, 4, [2, 2, 13, 8]);
}

/// Output, gradients and running statistics of two steps, then an inference: with the ReLU in the
/// norm's kernels, and with a ReLU of its own.
macro_rules! both_ways {
    ($random:expr, $D:literal, $shape:expr, $dtype:expr, $order:expr) => {{
        let (shape, dtype): ([usize; $D], DType) = ($shape, $dtype);
        let case = Case::new(&$random, &shape, shape[1], dtype);
        // The axes in the order in which they lie in memory, and back.
        let order: [usize; $D] = $order;
        let mut back = [0; $D];
        order.iter().enumerate().for_each(|(at, &axis)| back[axis] = at);
        // As mixed precision leaves them.
        let params = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        let run = |in_kernels: bool| {
            let mut module = ours::BatchNormConfig::new(shape[1]).init::<Ours>(&Default::default());
            module.gamma = case.param(&case.gamma, params);
            module.beta = case.param(&case.beta, params);
            module.running_mean = crate::norm_batch::state::<Ours>(&case.gamma, params);
            let ones = TensorData::ones::<f32, _>([shape[1]]);
            module.running_var = crate::norm_batch::state::<Ours>(&ones, params);
            let [x, _] = case.input::<Ours, $D>(dtype, false);
            let lies = x.permute(order.map(|axis| axis as isize)).into_data();
            let leaf = tensor::<Ours, $D>(&lies, dtype).require_grad();
            let input = || leaf.clone().permute(back.map(|axis| axis as isize));
            let mut all = vec![];
            for _ in 0..2 {
                let out = match in_kernels {
                    true => module.forward_relu(input()),
                    false => relu(module.forward(input())),
                };
                let grads = case.loss(out.clone(), dtype).backward();
                all.extend([out.into_data(), leaf.grad(&grads).unwrap().into_data()]);
                all.extend([&module.gamma, &module.beta].map(|p| p.val().grad(&grads).unwrap().into_data()));
                all.extend([&module.running_mean, &module.running_var].map(|s| s.value_sync().into_data()));
            }
            let (module, x) = (module.valid(), input().inner());
            let out = if in_kernels { module.forward_relu(x) } else { relu(module.forward(x)) };
            all.push(out.into_data());
            all
        };
        let (fused, separate) = (run(true), run(false));
        for (k, (fused, separate)) in fused.iter().zip(&separate).enumerate() {
            assert_eq!(fused.dtype, separate.dtype);
            let [a, b] = [fused, separate].map(|data| data.iter::<f64>().collect::<Vec<_>>());
            assert!(a.iter().chain(&b).all(|x| x.is_finite()));
            assert_eq!(a, b, "result {k} of {shape:?} {dtype:?} in the order {order:?}");
        }
        let zeros = fused[0].iter::<f64>().filter(|&x| x == 0.0).count();
        let all = fused[0].num_elements();
        // The betas of a few channels may all be far below 0, or above.
        assert!(shape[1] < 16 || zeros > 0 && zeros < all, "{zeros} of {all} are 0");
    }};
}

#[test]
fn by_own_kernels() {
    child(&["norm_relu::the_bits_of_two_ops", "--ignored"], "own");
}

#[test]
#[ignore = "run by the test above, with the setting in the environment"]
fn the_bits_of_two_ops() {
    let random = Random::new();
    for dtype in fewer(FLOATS, 2, &random) {
        both_ways!(random, 2, [300, 70], dtype, [0, 1]);
        both_ways!(random, 2, [130, 24], dtype, [0, 1]);
        both_ways!(random, 3, [33, 21, 2], dtype, [0, 1, 2]);
        both_ways!(random, 4, [3, 40, 9, 9], dtype, [0, 1, 2, 3]);
        both_ways!(random, 4, [2, 3, 33, 64], dtype, [0, 1, 2, 3]);
        // Channels last: 8 at a time if their number allows, else one.
        both_ways!(random, 4, [4, 16, 7, 9], dtype, [0, 2, 3, 1]);
        both_ways!(random, 4, [5, 72, 6, 4], dtype, [0, 2, 3, 1]);
        both_ways!(random, 4, [4, 5, 7, 9], dtype, [0, 2, 3, 1]);
    }
}

/// MIOpen computes the norm, and a kernel the ReLU.
#[test]
fn by_miopen() {
    child(&["norm_relu::a_relu_after_miopen", "--ignored"], "miopen");
}

#[test]
#[ignore = "run by the test above, with the setting in the environment"]
fn a_relu_after_miopen() {
    let random = Random::new();
    for dtype in [DType::F32, DType::F16] {
        both_ways!(random, 3, [3, 5, 8], dtype, [0, 1, 2]);
        both_ways!(random, 4, [3, 16, 5, 8], dtype, [0, 1, 2, 3]);
    }
}

/// A ReLU costs no launch.
#[test]
fn as_many_launches_as_without() {
    let case = Case::new(&Random::new(), &[3, 4, 9], 4, DType::F32);
    let module = ours::BatchNormConfig::new(4).init::<Ours>(&Default::default());
    let (_, lines) = during(|| run!(case, Ours, 3, DType::F32, false, |x| module.forward_relu(x), []));
    for line in [
        "nn_batch_norm_relu f32: kernel batch_norm_moments<f32>",
        "nn_batch_norm_relu f32: kernel batch_norm_relu<f32>",
        "nn_batch_norm_relu_backward f32: kernel batch_norm_relu_sums<f32>",
        "nn_batch_norm_relu_backward f32: kernel batch_norm_relu_backward<f32>",
    ] {
        assert_eq!(lines.iter().filter(|found| found.starts_with(line)).count(), 1, "{line} in {lines:#?}");
    }
    let steps = lines.iter().filter(|line| line.starts_with("nn_batch_norm")).count();
    assert_eq!(steps, 4, "{lines:#?}");
}
