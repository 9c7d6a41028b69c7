//! `ConvAct` with ReLU: MIOpen's fusion plan and the convolution followed by a kernel give the same
//! result.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{AutodiffModule, Param};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::activation::relu;
use burn::tensor::backend::AutodiffBackend;
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn::{Act, ConvAct};
use burn_rocm_tests::limits::{self, Terms, growth, unit};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FLOATS, assert_close};
use hip::ProviderKind;

use crate::support::*;

/// A convolution's shapes and options.
#[derive(Debug)]
struct Case {
    x: [usize; 4],
    w: [usize; 4],
    stride: [usize; 2],
    padding: PaddingConfig2d,
    dilation: [usize; 2],
    groups: usize,
    biased: bool,
}

impl Case {
    fn new(x: [usize; 4], w: [usize; 4]) -> Self {
        let padding = PaddingConfig2d::Valid;
        Self { x, w, stride: [1; 2], padding, dilation: [1; 2], groups: 1, biased: true }
    }

    fn conv<B: AutodiffBackend>(&self, [weight, bias]: &[TensorData; 2], dtype: DType) -> Conv2d<B> {
        Conv2d {
            weight: Param::from_tensor(tensor(weight, dtype)),
            bias: self.biased.then(|| Param::from_tensor(tensor(bias, dtype))),
            stride: self.stride,
            kernel_size: [self.w[2], self.w[3]],
            dilation: self.dilation,
            groups: self.groups,
            padding: self.padding.clone(),
        }
    }

    fn values(&self, random: &Random, dtype: DType) -> (TensorData, [TensorData; 2]) {
        let of = |shape: &[usize]| uniform(random, shape).convert_dtype(dtype);
        (of(&self.x), [of(&self.w), of(&self.w[..1])])
    }

    /// Compares output and gradients with Burn's in f64.
    fn check(&self, random: &Random) {
        self.check_against(random, DType::F64, &FLOATS);
    }

    /// Compares output and gradients with Burn's in `wide`.
    fn check_against(&self, random: &Random, wide: DType, dtypes: &[DType]) {
        burn_rocm_tests::trace::to_file();
        for &dtype in dtypes {
            let (x, params) = self.values(random, dtype);
            // The layer's input is the negative of this.
            let signless = magnitudes(&x).iter::<f64>().map(|x| -x).collect::<Vec<_>>();
            let signless = TensorData::new(signless, self.x);
            /// The layer's output, and the gradients of the sum of its squares.
            macro_rules! run {
                ($B:ty, $dtype:expr, $input:expr, $params:expr, |$conv:ident, $x:ident| $forward:expr) => {{
                    let leaf = tensor::<$B, 4>($input, $dtype).require_grad();
                    let $conv = self.conv::<$B>($params, $dtype);
                    let (weight, bias) = ($conv.weight.clone(), $conv.bias.clone());
                    let $x = leaf.clone().neg();
                    let out = $forward;
                    let grads = (out.clone() * out.clone()).sum().backward();
                    let mut all = vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()];
                    all.push(weight.val().grad(&grads).unwrap().into_data());
                    all.extend(bias.map(|bias| bias.val().grad(&grads).unwrap().into_data()));
                    all
                }};
            }
            let reference = run!(Oracle, wide, &x, &params, |conv, x| relu(conv.forward(x)));
            let positive = params.each_ref().map(magnitudes);
            let magnitude = run!(Oracle, wide, &signless, &positive, |conv, x| conv.forward(x));
            let out = reference[0].shape.to_vec();
            // Sums over the window and a group's channels of the input, or at most all channels of
            // the output, and over all places.
            let (window, places) = (self.w[2] * self.w[3], out[0] * out[2] * out[3]);
            let terms = (self.w[1].max(self.w[0]) * window).max(places);
            // A library may round the parts of a gradient's sum, whose terms are at most 1.13 times
            // the magnitudes.
            let roundings = Terms::in_parts(terms, self.x[0], dtype).roundings as f64;
            let share = layer_share(terms, dtype) + 1.13 * roundings * unit(dtype);
            // A reference in f32 has the same error as the result.
            let sides = if wide == DType::F64 { 1.0 } else { 2.0 };
            let expected = limited(reference, &magnitude, sides * share, dtype);
            let what = format!("{self:?} {dtype:?}");
            within_limits!(what, dtype, expected, |B| {
                run!(B, dtype, &x, &params, |conv, x| ConvAct::from_burn(conv, Act::Relu).forward(x))
            });
        }
    }
}

/// The magnitudes of a batch norm of a convolution's output, for error limits. `sum` has the
/// magnitudes of the convolution's output, `norm` the scale, shift, mean and variance:
/// `(sum + |mean|) / sqrt(variance + epsilon) * |scale| + |shift|`.
pub(crate) fn normed_magnitudes(sum: Tensor<Oracle, 4>, norm: &[TensorData; 4], epsilon: f64) -> TensorData {
    let [gamma, beta, mean, variance] = norm.each_ref().map(|data| {
        let channels = data.num_elements();
        tensor::<Oracle, 1>(&magnitudes(data), DType::F64).reshape([1, channels, 1, 1])
    });
    ((sum + mean) / (variance + epsilon).sqrt() * gamma + beta).into_data()
}

#[test]
fn against_burn_in_f64() {
    let random = Random::new();
    for biased in [true, false] {
        Case { biased, padding: PaddingConfig2d::Same, ..Case::new([2, 5, 9, 7], [6, 5, 3, 3]) }
            .check(&random);
        Case { biased, ..Case::new([3, 16, 8, 8], [17, 16, 1, 1]) }.check(&random);
        let explicit = PaddingConfig2d::Explicit(2, 1, 2, 1);
        let wide = Case::new([2, 4, 11, 15], [6, 4, 5, 3]);
        Case { biased, stride: [2, 3], dilation: [2, 1], padding: explicit, ..wide }.check(&random);
        let groups = Case::new([2, 8, 10, 11], [12, 4, 3, 3]);
        Case { biased, stride: [2, 1], groups: 2, ..groups }.check(&random);
        Case { biased, groups: 8, ..Case::new([1, 8, 6, 6], [8, 1, 3, 3]) }.check(&random);
    }
    // More padding after than before an axis. Burn pads these in its default dtype only.
    for padding in [PaddingConfig2d::Explicit(0, 1, 2, 1), PaddingConfig2d::Same] {
        let uneven = Case { padding, ..Case::new([1, 2, 6, 5], [3, 2, 2, 4]) };
        uneven.check_against(&random, DType::F32, &[DType::F32]);
    }
}

/// One call if there is a plan, else the convolution and one kernel. The CPU device has plans for
/// f32.
#[test]
fn the_trace_tells_which_path_ran() {
    let random = Random::new();
    let case = Case { padding: PaddingConfig2d::Same, ..Case::new([2, 8, 12, 12], [16, 8, 3, 3]) };
    let cpu = hip::provider().unwrap().kind() == ProviderKind::Cpu;
    for dtype in [DType::F32, DType::F16] {
        let (x, params) = case.values(&random, dtype);
        let layer = ConvAct::from_burn(case.conv::<Ours>(&params, dtype), Act::Relu);
        let x = tensor::<Ours, 4>(&x, dtype);
        // Twice: a shape without a plan is not tried again, and takes the same path.
        for _ in 0..2 {
            let (_, lines) = during(|| layer.forward(x.clone()));
            let lines: Vec<_> = lines.iter().filter(|line| line.starts_with("nn_conv_act ")).collect();
            let by_plan = lines.iter().filter(|line| line.contains(": miopenExecuteFusionPlan")).count();
            let apart = lines.iter().filter(|line| line.contains(": miopenConvolutionForward")).count();
            let after = lines.iter().filter(|line| line.contains(": kernel bias_act<Relu")).count();
            assert!(
                [by_plan, apart, after] == [1, 0, 0] || [by_plan, apart, after] == [0, 1, 1],
                "{lines:#?}"
            );
            if cpu {
                assert_eq!(by_plan, usize::from(dtype == DType::F32), "{lines:#?}");
            }
            println!("{dtype:?}: {lines:?}");
        }
    }
}

/// Inference gives the same bits with and without a graph, and NaN stays NaN.
#[test]
fn inference_and_values_that_are_not_finite() {
    let random = Random::new();
    let case = Case::new([2, 4, 7, 7], [6, 4, 3, 3]);
    let (x, params) = case.values(&random, DType::F32);
    let layer = ConvAct::from_burn(case.conv::<Ours>(&params, DType::F32), Act::Relu);
    let x = tensor::<Ours, 4>(&x, DType::F32);
    let trained = layer.forward(x.clone()).into_data();
    let inferred = layer.clone().valid().forward(x.clone().inner()).into_data();
    // The two may use different convolution algorithms. Each sums 36 products of at most 4 and a
    // bias of at most 2, within the rounding bound of such a sum.
    let bound = 2.0 * (37.0 + 2.0) * (36.0 * 4.0 + 2.0) * 2f64.powi(-24);
    let tolerance = Tolerance { absolute: bound, relative: 0.0 };
    assert_close(&"inferred", &[inferred], &[trained], tolerance);
    let spoilt = x.slice_fill([0..1, 0..1, 0..1, 0..1], f32::NAN);
    let values = layer.forward(spoilt).into_data().to_vec::<f32>().unwrap();
    assert!(values[0].is_nan(), "{values:?}");
    // A Fourier transform, which a GPU's library may choose, spreads NaN.
    if hip::provider().unwrap().kind() == ProviderKind::Cpu {
        assert!(!values[24].is_nan(), "{values:?}");
    }
}

#[test]
fn bad_shapes_are_errors() {
    let random = Random::new();
    let case = Case::new([2, 4, 7, 7], [6, 4, 3, 3]);
    let (x, mut params) = case.values(&random, DType::F32);
    let refused = |params: &[TensorData; 2], x: Tensor<Ours, 4>| {
        let layer = ConvAct::from_burn(case.conv::<Ours>(params, DType::F32), Act::Relu);
        catch_unwind(AssertUnwindSafe(|| drop(layer.forward(x)))).expect_err("a panic");
        match take_last_error() {
            Some(RocmError::Invalid { op, .. }) => assert_eq!(op, "conv_act"),
            other => panic!("{other:?}"),
        }
    };
    let x = tensor::<Ours, 4>(&x, DType::F32);
    refused(&params, x.clone().slice([0..2, 0..3, 0..7, 0..7]));
    refused(&params, x.clone().slice([0..2, 0..4, 0..2, 0..7]));
    params[1] = uniform(&random, &[5]);
    refused(&params, x);
}

#[test]
fn folding_what_does_not_fit_is_an_error() {
    let random = Random::new();
    let of = |channels: usize| tensor::<Ours, 1>(&uniform(&random, &[channels]), DType::F32).abs() + 0.5;
    let case = Case::new([2, 4, 7, 7], [6, 4, 3, 3]);
    let refused = |bias: usize, channels: [usize; 4], what: &str| {
        let (_, mut params) = case.values(&random, DType::F32);
        params[1] = uniform(&random, &[bias]);
        let conv = case.conv::<Ours>(&params, DType::F32);
        let norm = channels.map(of);
        catch_unwind(AssertUnwindSafe(|| drop(ConvAct::folded(conv, norm, 1e-5, Act::Relu))))
            .expect_err(what);
        match take_last_error() {
            Some(RocmError::Invalid { op: "ConvAct::folded", expected, found }) => {
                assert!(expected.contains(what) && expected.contains("[6]"), "{expected}");
                assert!(found.contains("[1]") || found.contains("[5]"), "{found}");
            }
            other => panic!("{what}: {other:?}"),
        }
    };
    // A tensor of one channel would broadcast.
    for wrong in [1, 5] {
        refused(6, [wrong, 6, 6, 6], "scale");
        refused(6, [6, wrong, 6, 6], "shift");
        refused(6, [6, 6, wrong, 6], "running mean");
        refused(6, [6, 6, 6, wrong], "running variance");
        refused(wrong, [6; 4], "bias");
    }
}

/// A convolution in f16 or bf16 and the norm in f32, as `amp` converts them.
#[test]
fn a_half_folds_in_f32() {
    let random = Random::new();
    let case = Case::new([2, 4, 7, 7], [6, 4, 3, 3]);
    let values = [(); 4].map(|()| {
        let values: Vec<f64> = (0..6).map(|_| random.uniform(0.5, 2.0)).collect();
        TensorData::new(values, [6]).convert_dtype(DType::F32)
    });
    for dtype in [DType::F16, DType::BF16] {
        let (x, params) = case.values(&random, dtype);
        let norm = values.each_ref().map(|data| tensor::<Ours, 1>(data, DType::F32));
        let layer = ConvAct::folded(case.conv::<Ours>(&params, dtype), norm, 1e-3, Act::Relu);
        assert_eq!([layer.weight.val().dtype(), layer.bias.as_ref().unwrap().val().dtype()], [dtype; 2]);
        let found = layer.forward(tensor(&x, dtype)).into_data();
        let [gamma, beta, mean, variance] =
            values.each_ref().map(|data| tensor::<Oracle, 1>(data, DType::F64).reshape([1, 6, 1, 1]));
        let y = case.conv::<Oracle>(&params, DType::F64).forward(tensor(&x, DType::F64));
        let expected = relu((y - mean) / (variance + 1e-3).sqrt() * gamma + beta).into_data();
        let sum = case.conv::<Oracle>(&params.each_ref().map(magnitudes), DType::F64);
        let sum = sum.forward(tensor(&magnitudes(&x), DType::F64));
        // Three roundings to `dtype`: of the folded weights and bias, of the convolution and of the
        // result.
        let share = 3.03 * unit(dtype) + growth(36 + 10, DType::F32);
        let limits = limits::shares(&normed_magnitudes(sum, &values, 1e-3), share, dtype);
        assert_eq!(found.dtype, dtype);
        limits::assert_within(&format!("{dtype:?}"), &found, &expected, &limits);
    }
}
