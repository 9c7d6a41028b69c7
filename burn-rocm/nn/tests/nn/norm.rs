//! Layer, RMS, group and instance norm within rounding bounds of the formulas.

use burn::module::Param;
use burn::nn as theirs;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm::fused::{layer_norm_backward, rms_norm_backward};
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn as ours;
use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FLOATS, FloatTensorOps, R, Shape, again, assert_close};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::bounded::{Bounded, Roundings, assert_bounded, assert_narrow, exact, is_bounded};
use crate::norm_formulas::{Norm, Places, negated};
use crate::support::*;

/// An input, parameters for each channel, and the gradient of the output.
#[derive(Clone)]
pub(crate) struct Case {
    x: TensorData,
    pub(crate) gamma: TensorData,
    pub(crate) beta: TensorData,
    pub(crate) grad: TensorData,
}

impl Case {
    /// Values that `dtype` represents exactly, with `channels` elements in each parameter.
    pub(crate) fn new(random: &Random, shape: &[usize], channels: usize, dtype: DType) -> Self {
        let values = |shape: &[usize]| uniform(random, shape).convert_dtype(dtype);
        Self { x: values(shape), gamma: values(&[channels]), beta: values(&[channels]), grad: values(shape) }
    }

    /// The leaf, and the input that a memory-bound op makes from it, so that recomputation has to
    /// go back through a chain. If `turned`, the input has another order of axes.
    pub(crate) fn input<B: AutodiffBackend, const D: usize>(
        &self,
        dtype: DType,
        turned: bool,
    ) -> [Tensor<B, D>; 2] {
        let x = tensor::<B, D>(&self.x, dtype);
        if turned {
            // In reverse order in memory; `swap_dims` restores it.
            let leaf = tensor::<B, D>(&x.swap_dims(0, D - 1).into_data(), dtype).require_grad();
            [leaf.clone().swap_dims(0, D - 1).neg(), leaf]
        } else {
            let leaf = x.require_grad();
            [leaf.clone().neg(), leaf]
        }
    }

    /// The loss: the output's sum, weighted by the output's gradient.
    pub(crate) fn loss<B: AutodiffBackend, const D: usize>(
        &self,
        out: Tensor<B, D>,
        dtype: DType,
    ) -> Tensor<B, 1> {
        (out.neg() * tensor::<B, D>(&self.grad, dtype)).sum()
    }

    /// The leaf's gradient in the input's order of axes.
    pub(crate) fn in_order<B: Backend, const D: usize>(grad: Tensor<B, D>, turned: bool) -> TensorData {
        if turned { grad.swap_dims(0, D - 1) } else { grad }.into_data()
    }

    /// The norm of [`input`](Self::input) with gamma and beta.
    pub(crate) fn norm(&self, places: Places, epsilon: f64, dtypes: [DType; 2]) -> Norm {
        let params = [&self.gamma, &self.beta].map(|data| Some(exact(data.iter::<f64>())));
        let [gamma, beta] = params;
        Norm { gamma, beta, ..Norm::new(places, epsilon, negated(&self.x), dtypes) }
    }

    /// The expected results of [`run!`]: the output, the gradient with respect to the leaf, and
    /// those with respect to the norm's parameters.
    pub(crate) fn expected(&self, norm: &Norm) -> Vec<Vec<Bounded>> {
        let statistics = norm.statistics();
        let [by_x, by_gamma, by_beta] = norm.backward(&statistics, &negated(&self.grad));
        let by_leaf = by_x.into_iter().map(|x| Bounded { value: -x.value, ..x }).collect();
        let by_gamma = norm.gamma.is_some().then_some(by_gamma);
        let by_beta = norm.beta.is_some().then_some(by_beta);
        [norm.forward(&statistics), by_leaf].into_iter().chain(by_gamma).chain(by_beta).collect()
    }

    pub(crate) fn param<B: AutodiffBackend>(&self, data: &TensorData, dtype: DType) -> Param<Tensor<B, 1>> {
        Param::from_tensor(tensor::<B, 1>(data, dtype))
    }
}

/// Output, the input's gradient, and those of the parameters.
macro_rules! run {
    ($case:expr, $B:ident, $D:literal, $dtype:expr, $turned:expr, $module:ident, $params:tt) => {
        run!($case, $B, $D, $dtype, $turned, |x| $module.forward(x), $params)
    };
    ($case:expr, $B:ident, $D:literal, $dtype:expr, $turned:expr, |$x:ident| $forward:expr, [$($param:expr),*]) => {{
        let [$x, leaf] = $case.input::<$B, $D>($dtype, $turned);
        let out = $forward;
        let grads = $case.loss(out.clone(), $dtype).backward();
        #[allow(unused_mut)] // without parameters
        let mut found = vec![out.into_data(), Case::in_order(leaf.grad(&grads).unwrap(), $turned)];
        $(found.extend($param.map(|param| param.grad(&grads).unwrap().into_data()));)*
        found
    }};
}
pub(crate) use run;

/// Runs a body on the oracle in f64, and here in `dtype` with each checkpointing strategy, and
/// compares both with the formulas. `expected` gives the results for a dtype.
macro_rules! against_formulas {
    ($what:expr, $dtype:expr, $expected:expr, |$B:ident, $nn:ident, $of:ident| $body:expr) => {
        against_formulas!($what, $dtype, $expected, |$B, $of|
            theirs { use burn::nn as $nn; $body },
            ours { use burn_rocm_nn as $nn; $body }
        )
    };
    ($what:expr, $dtype:expr, $expected:expr, |$B:ident, $of:ident| theirs $theirs:expr, ours $ours:expr) => {{
        burn_rocm_tests::trace::to_file();
        let (what, expected) = ($what, $expected);
        {
            type $B = $crate::support::Oracle;
            let $of = DType::F64;
            let found: Vec<TensorData> = $theirs;
            $crate::bounded::assert_bounded(&format!("{what}, by Burn in f64"), &found, &expected(DType::F64));
        }
        let ($of, expected) = ($dtype, expected($dtype));
        let check = |what: &str, found: Vec<TensorData>| {
            assert!(found.iter().all(|data| data.dtype == $of), "{what}");
            $crate::bounded::assert_bounded(what, &found, &expected);
            let narrow = $crate::bounded::assert_narrow(what, &found, &expected);
            assert!(narrow > 0 || found[0].num_elements() < 16, "{what}: no result was checked");
        };
        {
            type $B = $crate::support::Ours;
            check(&what, $ours);
        }
        {
            type $B = $crate::support::Balanced;
            check(&format!("{what}, recomputed"), $ours);
        }
    }};
}
pub(crate) use against_formulas;

macro_rules! layer_norm_of {
    ($random:expr, $D:literal, $shape:expr) => {{
        let shape: [usize; $D] = $shape;
        for dtype in fewer(FLOATS, 2, &$random) {
            let case = Case::new(&$random, &shape, shape[$D - 1], dtype);
            let bias = $random.below(3) > 0;
            let turned = $random.below(2) > 0;
            let what = format!("layer norm of {shape:?} {dtype:?}, bias {bias}, turned {turned}");
            let expected = |of: DType| {
                let mut norm = case.norm(Places::rows(&shape), 1e-3, [of; 2]);
                norm.beta = norm.beta.filter(|_| bias);
                case.expected(&norm)
            };
            against_formulas!(what, dtype, expected, |B, nn, of| {
                let mut module = nn::LayerNormConfig::new(shape[$D - 1])
                    .with_bias(bias)
                    .with_epsilon(1e-3)
                    .init::<B>(&Default::default());
                module.gamma = case.param(&case.gamma, of);
                module.beta = module.beta.map(|_| case.param(&case.beta, of));
                let beta = module.beta.as_ref().map(|beta| beta.val());
                run!(case, B, $D, of, turned, module, [Some(module.gamma.val()), beta])
            });
        }
    }};
}

/// Rows that fit a block's registers, rows that do not begin at 16-byte boundaries, and longer
/// rows; more rows than blocks.
#[test]
fn layer_norm() {
    let random = Random::new();
    layer_norm_of!(random, 2, [1, 4]);
    layer_norm_of!(random, 2, [5, 1]);
    layer_norm_of!(random, 2, [300, 24]);
    layer_norm_of!(random, 2, [37, 261]);
    layer_norm_of!(random, 2, [3, 1000]);
    layer_norm_of!(random, 2, [2, 8200]);
    layer_norm_of!(random, 3, [2, 9, 64]);
    layer_norm_of!(random, 3, [7, 5, 33]);
}

#[test]
fn layer_norm_of_nothing() {
    for shape in [[0usize, 5], [4, 0]] {
        let case = Case::new(&Random::new(), &shape, shape[1], DType::F32);
        let module = ours::LayerNormConfig::new(shape[1]).init::<Ours>(&Default::default());
        let beta = module.beta.as_ref().map(|beta| beta.val());
        let found = run!(case, Ours, 2, DType::F32, false, module, [Some(module.gamma.val()), beta]);
        for (data, shape) in
            found.iter().zip([shape.to_vec(), shape.to_vec(), vec![shape[1]], vec![shape[1]]])
        {
            let zeros = TensorData::new(vec![0f32; shape.iter().product()], shape);
            assert_close(&"nothing", std::slice::from_ref(data), &[zeros], Tolerance::EXACT);
        }
    }
}

macro_rules! rms_norm_of {
    ($random:expr, $D:literal, $shape:expr) => {{
        let shape: [usize; $D] = $shape;
        let epsilon = 1e-3;
        for dtype in fewer(FLOATS, 2, &$random) {
            let case = Case::new(&$random, &shape, shape[$D - 1], dtype);
            let turned = $random.below(2) > 0;
            let what = format!("RMS norm of {shape:?} {dtype:?}, turned {turned}");
            let expected = |of: DType| {
                let norm = case.norm(Places::rows(&shape), epsilon, [of; 2]);
                case.expected(&Norm { centred: false, beta: None, ..norm })
            };
            against_formulas!(what, dtype, expected, |B, of|
                // Computed by the formula, because Burn's module computes the mean of squares in
                // f32 for every input type.
                theirs {
                    let gamma = case.param::<B>(&case.gamma, of).val();
                    run!(case, B, $D, of, turned, |x| {
                        x.clone() / (x.square().mean_dim($D - 1) + epsilon).sqrt() * gamma.clone().unsqueeze()
                    }, [Some(gamma)])
                },
                ours {
                    let config = ours::RmsNormConfig::new(shape[$D - 1]).with_epsilon(epsilon);
                    let mut module = config.init::<B>(&Default::default());
                    module.gamma = case.param(&case.gamma, of);
                    run!(case, B, $D, of, turned, module, [Some(module.gamma.val())])
                }
            );
        }
    }};
}

#[test]
fn rms_norm() {
    let random = Random::new();
    rms_norm_of!(random, 2, [1, 4]);
    rms_norm_of!(random, 2, [5, 1]);
    rms_norm_of!(random, 2, [300, 24]);
    rms_norm_of!(random, 2, [2, 8200]);
    rms_norm_of!(random, 3, [2, 9, 64]);
    rms_norm_of!(random, 3, [7, 5, 33]);
}

#[test]
fn rms_norm_as_burns() {
    let case = Case::new(&Random::new(), &[6, 40], 40, DType::F32);
    let norm = case.norm(Places::rows(&[6, 40]), 1e-5, [DType::F32; 2]);
    let expected = case.expected(&Norm { centred: false, beta: None, ..norm });
    macro_rules! check {
        ($B:ident, $nn:ident) => {{
            let mut module = $nn::RmsNormConfig::new(40).init::<$B>(&Default::default());
            module.gamma = case.param(&case.gamma, DType::F32);
            let found = run!(case, $B, 2, DType::F32, false, module, [Some(module.gamma.val())]);
            let what = concat!("RMS norm of ", stringify!($nn), " on ", stringify!($B));
            assert_bounded(what, &found, &expected);
        }};
    }
    check!(Oracle, theirs);
    check!(Ours, ours);
    check!(Balanced, ours);
}

/// Rows less their mean, divided by their deviation.
fn normalised<B: Backend>(rows: Tensor<B, 2>, epsilon: f64) -> Tensor<B, 2> {
    let rows = rows.clone() - rows.mean_dim(1);
    rows.clone() / (rows.square().mean_dim(1) + epsilon).sqrt()
}

/// Computed by the formula, because in the gradient of Burn's module the reciprocal of a group's
/// size is f32 for every input type.
fn group_norm_by_formula<B: Backend, const D: usize>(
    x: Tensor<B, D>,
    params: [Option<Tensor<B, 1>>; 2],
    groups: usize,
) -> Tensor<B, D> {
    let dims = x.dims();
    let rows = dims[0] * groups;
    let n = normalised(x.reshape([rows, dims.iter().product::<usize>() / rows]), 1e-2).reshape(dims);
    let mut channels = [1; D];
    channels[1] = dims[1];
    match params {
        [Some(gamma), Some(beta)] => n * gamma.reshape(channels) + beta.reshape(channels),
        _ => n,
    }
}

macro_rules! group_norm_of {
    ($random:expr, $D:literal, $shape:expr, $groups:expr) => {{
        let (shape, groups): ([usize; $D], usize) = ($shape, $groups);
        for dtype in FLOATS {
            let case = Case::new(&$random, &shape, shape[1], dtype);
            let (affine, turned) = ($random.below(3) > 0, $random.below(2) > 0);
            let what = format!("norm of {shape:?} {dtype:?} in {groups} groups, affine {affine}, turned {turned}");
            macro_rules! compare {
                ($kind:literal, $config:expr) => {
                    let expected = |of: DType| {
                        let mut norm = case.norm(Places::groups(&shape, groups), 1e-2, [of; 2]);
                        [norm.gamma, norm.beta] = [norm.gamma, norm.beta].map(|param| param.filter(|_| affine));
                        case.expected(&norm)
                    };
                    against_formulas!(format!("{} {what}", $kind), dtype, expected, |B, of|
                        theirs {
                            let [gamma, beta] = [&case.gamma, &case.beta]
                                .map(|data| affine.then(|| case.param::<B>(data, of).val()));
                            let params = [gamma.clone(), beta.clone()];
                            run!(case, B, $D, of, turned, |x| group_norm_by_formula(x, params, groups), [gamma, beta])
                        },
                        ours {
                            let mut module =
                                $config.with_affine(affine).with_epsilon(1e-2).init::<B>(&Default::default());
                            module.gamma = module.gamma.map(|_| case.param(&case.gamma, of));
                            module.beta = module.beta.map(|_| case.param(&case.beta, of));
                            let [gamma, beta] =
                                [&module.gamma, &module.beta].map(|param| param.as_ref().map(|param| param.val()));
                            run!(case, B, $D, of, turned, module, [gamma, beta])
                        }
                    )
                };
            }
            compare!("group", ours::GroupNormConfig::new(groups, shape[1]));
            if groups == shape[1] {
                compare!("instance", ours::InstanceNormConfig::new(groups));
            }
        }
    }};
}

/// Few groups, for which MIOpen has no kernel; many groups, for which it has one; one group for
/// each channel; and one group for all.
#[test]
fn group_norm_and_instance_norm() {
    let random = Random::new();
    group_norm_of!(random, 2, [3, 8], 2);
    group_norm_of!(random, 3, [2, 6, 5], 3);
    group_norm_of!(random, 3, [2, 64, 9], 32);
    group_norm_of!(random, 3, [3, 4, 40], 4);
    group_norm_of!(random, 4, [2, 6, 7, 33], 1);
    group_norm_of!(random, 4, [2, 33, 4, 4], 33);
    group_norm_of!(random, 4, [1, 4, 64, 65], 2);
    group_norm_of!(random, 5, [2, 4, 3, 2, 3], 2);
}

/// Values far from 0, whose variance MIOpen's formula loses to rounding.
#[test]
fn values_far_from_zero() {
    let random = Random::new();
    let far = |shape: &[usize]| {
        let values: Vec<f64> =
            (0..shape.iter().product()).map(|_| 1000.0 + random.uniform(-2.0, 2.0)).collect();
        TensorData::new(values, shape.to_vec()).convert_dtype(DType::F32)
    };
    let data = far(&[2, 64, 40]);
    let x = || tensor::<Ours, 3>(&data, DType::F32);
    let check = |what: &str, found: Tensor<Ours, 3>, places: Places| {
        let norm = Norm::new(places, 1e-5, exact(data.iter::<f64>()), [DType::F32; 2]);
        let statistics = norm.statistics();
        let expected = norm.forward(&statistics);
        let lost: Vec<f64> =
            norm.forward(&norm.with_lost_variances(&statistics)).iter().map(|x| x.value).collect();
        let lost = TensorData::new(lost, [2, 64, 40]);
        assert!(!is_bounded(&lost.convert_dtype(DType::F32), &expected), "{what}: a lost variance passes");
        assert_bounded(what, &[found.into_data()], &[expected]);
    };
    let group = ours::GroupNormConfig::new(32, 64).init::<Ours>(&Default::default());
    check("group norm", group.forward(x()), Places::groups(&[2, 64, 40], 32));
    let batch = ours::BatchNormConfig::new(64).init::<Ours>(&Default::default());
    check("batch norm", batch.forward(x()), Places::channels(&[2, 64, 40]));
}

/// One launch or call for each step, under the op's name.
#[test]
fn the_trace_tells_which_path_ran() {
    let device = Default::default();
    let case = Case::new(&Random::new(), &[4, 6, 16], 16, DType::F32);
    let rms = ours::RmsNormConfig::new(16).init::<Ours>(&device);
    let (_, lines) = during(|| run!(case, Ours, 3, DType::F32, false, rms, []));
    // The CPU device's MIOpen has RMS norm. Another MIOpen may not.
    let forward: Vec<_> = lines.iter().filter(|line| line.starts_with("nn_rms_norm f32: ")).collect();
    let own = std::env::var("BURN_ROCM_NORM").as_deref() == Ok("own");
    let library = |line: &str| line.starts_with("nn_rms_norm f32: miopenT5LayerNormForward");
    let kernel = |line: &str| line.starts_with("nn_rms_norm f32: kernel rms_norm_rows<f32, f32>");
    assert!(forward.len() == 1 && (library(forward[0]) && !own || kernel(forward[0])), "{lines:#?}");
    if hip::provider().unwrap().kind() == hip::ProviderKind::Cpu {
        assert_eq!(library(forward[0]), !own, "{lines:#?}");
    }
    for line in [
        "nn_rms_norm_backward f32: kernel rms_norm_rows_backward<f32, f32>",
        "nn_rms_norm_backward f32: kernel sum_partials<f32>",
    ] {
        assert_eq!(lines.iter().filter(|found| found.starts_with(line)).count(), 1, "{line} in {lines:#?}");
    }
    let of = |lines: &[String], op: &str| lines.iter().filter(|line| line.starts_with(op)).count();
    let layer = ours::LayerNormConfig::new(16).init::<Ours>(&device);
    let (_, lines) = during(|| run!(case, Ours, 3, DType::F32, false, layer, []));
    assert_eq!(of(&lines, "nn_layer_norm_backward f32: "), 2, "{lines:#?}");
    assert!(of(&lines, "nn_layer_norm f32: ") <= 2, "{lines:#?}");
    let group = ours::GroupNormConfig::new(2, 6).init::<Ours>(&device);
    let (_, lines) = during(|| run!(case, Ours, 3, DType::F32, false, group, []));
    assert_eq!(of(&lines, "nn_group_norm f32: kernel group_norm_rows"), 1, "{lines:#?}");
    assert_eq!(of(&lines, "nn_group_norm_backward f32: "), 3, "{lines:#?}");
}

/// The gradient with respect to `x` of `sum((x + norm(x)) * weights)`, and the kernels that ran for
/// it.
macro_rules! around {
    ($api:ident, $B:ident, $config:ident, $data:expr, $weights:expr, $dtype:expr) => {{
        let len = $data.shape[2];
        let norm = $api::$config::new(len).init::<$B>(&Default::default());
        let (x, weights) = (tensor::<$B, 3>($data, $dtype).require_grad(), tensor::<$B, 3>($weights, $dtype));
        let sum = ((x.clone() + norm.forward(x.clone())) * weights).sum();
        let (grads, lines) = during(|| sum.backward());
        (x.grad(&grads).unwrap().into_data(), lines)
    }};
}

/// If a residual block adds a norm's input to the block's result, the input's gradient has two
/// parts. In f32 the norm's kernel computes their sum.
#[test]
fn a_norm_beside_its_input() {
    let random = Random::new();
    // Rows that a block keeps in registers, rows that it reads twice, unaligned rows; one row; rows
    // of one element.
    for shape in [[3, 5, 16], [2, 3, 20], [2, 2, 9000], [3, 7, 33], [1, 1, 8], [4, 2, 1]] {
        for dtype in fewer([DType::F32, DType::F16, DType::BF16], 2, &random) {
            let round = |data: TensorData| data.convert_dtype(dtype).convert_dtype(DType::F32);
            let [data, weights] = [(); 2].map(|()| round(uniform(&random, &shape)));
            let what = format!("{shape:?} {dtype:?}");
            let expected = |norm: Norm, of: DType| {
                let [by_x, ..] = norm.backward(&norm.statistics(), &exact(weights.iter::<f64>()));
                let pairs = by_x.into_iter().zip(exact(weights.iter::<f64>()));
                let roundings = Roundings::of(of);
                vec![pairs.map(|(a, b)| roundings.stored(a.plus(b, roundings.step))).collect::<Vec<_>>()]
            };
            let norm = |of: DType| Norm::new(Places::rows(&shape), 1e-5, exact(data.iter::<f64>()), [of; 2]);
            let compare = |centred,
                           (ours, lines): (TensorData, Vec<String>),
                           (theirs, _): (TensorData, Vec<String>)| {
                // Burn adds the elements of a row one after the other.
                let burns = Norm { centred, in_turn: |n| n, ..norm(DType::F32) };
                let burns = expected(burns, DType::F32);
                assert_bounded(&format!("{what}, by Burn in f32"), &[theirs], &burns);
                let expected = expected(Norm { centred, ..norm(dtype) }, dtype);
                assert_eq!(ours.dtype, dtype, "{what}");
                let ours = std::slice::from_ref(&ours);
                assert_bounded(&what, ours, &expected);
                let narrow = assert_narrow(&what, ours, &expected);
                assert!(narrow > 0 || data.num_elements() < 16, "{what}: the result was not checked");
                let sums = lines.iter().filter(|line| line.starts_with("float_add")).count();
                assert_eq!(sums, 0, "{what} {lines:#?}");
            };
            compare(
                true,
                around!(ours, Ours, LayerNormConfig, &data, &weights, dtype),
                around!(theirs, Oracle, LayerNormConfig, &data, &weights, DType::F32),
            );
            compare(
                false,
                around!(ours, Ours, RmsNormConfig, &data, &weights, dtype),
                around!(theirs, Oracle, RmsNormConfig, &data, &weights, DType::F32),
            );
        }
    }
}

#[test]
fn another_gradient_that_does_not_fit_is_refused() {
    let device = Default::default();
    let ones =
        |shape: &[usize], dtype: DType| R::float_ones(Shape::from(shape.to_vec()), &device, dtype.into());
    let (x, gamma) = (ones(&[3, 4], DType::F32), ones(&[4], DType::F32));
    for onto in [ones(&[4, 3], DType::F32), ones(&[3, 4], DType::F16)] {
        let (x, gamma, grad) = (x.clone(), gamma.clone(), x.clone());
        let layer =
            layer_norm_backward(x.clone(), gamma.clone(), grad.clone(), Some(onto.clone()), 1e-5, true);
        let rms = rms_norm_backward(x, gamma, grad, Some(onto), 1e-5, true);
        assert!(matches!(layer, Err(RocmError::Invalid { op: "layer_norm_backward", .. })), "{layer:?}");
        assert!(matches!(rms, Err(RocmError::Invalid { op: "rms_norm_backward", .. })), "{rms:?}");
    }
}

#[test]
fn bad_shapes_are_errors() {
    let device = Default::default();
    let x = Tensor::<Ours, 3>::ones([2, 3, 5], &device);
    let refused = |op: &str, body: &dyn Fn() -> Tensor<Ours, 3>| {
        catch_unwind(AssertUnwindSafe(body)).expect_err(op);
        match take_last_error() {
            Some(RocmError::Invalid { op: found, .. }) => assert_eq!(found, op),
            other => panic!("{op}: {other:?}"),
        }
    };
    let layer = ours::LayerNormConfig::new(4).init::<Ours>(&device);
    refused("layer_norm", &|| layer.forward(x.clone()));
    let rms = ours::RmsNormConfig::new(4).init::<Ours>(&device);
    refused("rms_norm", &|| rms.forward(x.clone()));
    let batch = ours::BatchNormConfig::new(4).init::<Ours>(&device);
    refused("batch_norm_train", &|| batch.forward(x.clone()));
    let mut group = ours::GroupNormConfig::new(2, 4).init::<Ours>(&device);
    group.num_channels = 3;
    refused("group_norm", &|| group.forward(x.clone()));
    let instance = ours::InstanceNormConfig::new(4).with_affine(false).init::<Ours>(&device);
    refused("group_norm", &|| instance.forward(x.clone()));
    assert_eq!(x.into_data(), TensorData::new(vec![1f32; 30], [2, 3, 5]));
}

/// Runs tests of this program in a child process with `BURN_ROCM_NORM` set, and asserts that some
/// ran.
pub(crate) fn child(more: &[&str], norm: &str) {
    let arguments =
        [&["--skip", "lockstep", "--skip", "::by_", "--skip", "natively", "--nocapture"], more].concat();
    let text = again(&arguments, &[("BURN_ROCM_NORM", norm)]);
    assert!(!text.contains(" 0 passed"), "{text}");
}

/// Runs the channel norms again with a smaller limit on a part's elements. Small tensors are then
/// cut as large ones are: into parts of several samples, of one sample, and of less than a sample.
#[test]
fn channels_of_more_elements_than_are_counted_natively() {
    for reach in ["5", "30", "300", "2000"] {
        let tests = [
            "norm::group_norm",
            "norm_batch::batch_norm",
            "norm_mixed::batch_norm",
            "norm_mixed::other_norms",
        ];
        let own = [("BURN_ROCM_NORM", "own"), ("BURN_ROCM_LAUNCH_REACH", reach)];
        let text = again(&[&tests[..], &["--skip", "lockstep", "--nocapture"]].concat(), &own);
        assert!(text.contains("5 passed"), "{text}");
    }
}

/// Runs the norms' tests again on own kernels only.
#[test]
fn by_the_own_kernels() {
    child(&["norm"], "own");
}
