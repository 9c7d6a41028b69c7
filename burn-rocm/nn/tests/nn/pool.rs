//! Compares pooling over three axes with sums in f64, on this backend and on `burn-flex`, where it
//! is composed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::nn::PaddingConfig3d;
use burn::tensor::backend::AutodiffBackend;
use burn_rocm::{RocmError, fused, take_last_error};
use burn_rocm_nn::{AvgPool3d, AvgPool3dConfig, MaxPool3d, MaxPool3dConfig};
use burn_rocm_tests::FLOATS;
use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::trace::during;

use crate::support::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Max,
    /// Whether the padding's zeros count.
    Average(bool),
}

/// A window, and the input's shape.
#[derive(Debug)]
struct Case {
    kind: Kind,
    shape: [usize; 5],
    size: [usize; 3],
    stride: [usize; 3],
    padding: PaddingConfig3d,
    dilation: [usize; 3],
    ceil: bool,
}

impl Case {
    fn new(kind: Kind, shape: [usize; 5], size: [usize; 3]) -> Self {
        Self {
            kind,
            shape,
            size,
            stride: size,
            padding: PaddingConfig3d::Valid,
            dilation: [1; 3],
            ceil: false,
        }
    }

    fn forward<B: AutodiffBackend>(&self, x: Tensor<B, 5>) -> Tensor<B, 5> {
        let padding = self.padding.clone();
        match self.kind {
            Kind::Max => MaxPool3dConfig::new(self.size)
                .with_strides(self.stride)
                .with_padding(padding)
                .with_dilation(self.dilation)
                .with_ceil_mode(self.ceil)
                .init()
                .forward(x),
            Kind::Average(include) => AvgPool3dConfig::new(self.size)
                .with_strides(self.stride)
                .with_padding(padding)
                .with_count_include_pad(include)
                .with_ceil_mode(self.ceil)
                .init()
                .forward(x),
        }
    }

    /// The padding before and after an axis.
    fn padding(&self, axis: usize) -> (usize, usize) {
        match self.padding {
            PaddingConfig3d::Valid => (0, 0),
            PaddingConfig3d::Explicit(d, h, w) => ([d, h, w][axis], [d, h, w][axis]),
            PaddingConfig3d::Same => {
                let size = self.shape[axis + 2];
                let whole = (size.div_ceil(self.stride[axis]) - 1) * self.stride[axis] + self.size[axis];
                let whole = whole.saturating_sub(size);
                (whole / 2, whole.div_ceil(2))
            }
        }
    }

    /// The output's size along an axis. For each output, the positions that its window covers, and
    /// how many more of the padding.
    fn axis(&self, axis: usize) -> Vec<(Vec<usize>, usize)> {
        let (before, after) = self.padding(axis);
        let (size, stride, dilation) = (self.shape[axis + 2], self.stride[axis], self.dilation[axis]);
        let padded = before + size + after;
        let steps = padded - dilation * (self.size[axis] - 1) - 1;
        let outputs = 1 + if self.ceil { steps.div_ceil(stride) } else { steps / stride };
        let window = |o: usize| {
            let all: Vec<usize> =
                (0..self.size[axis]).map(|k| o * stride + k * dilation).filter(|&at| at < padded).collect();
            let inside: Vec<usize> =
                all.iter().filter_map(|at| at.checked_sub(before)).filter(|&at| at < size).collect();
            let outside = all.len() - inside.len();
            (inside, outside)
        };
        (0..outputs).map(window).collect()
    }

    /// The outputs, the gradient with respect to the input of their sum weighted by `weights`, and
    /// the output's shape.
    fn by_sums(&self, x: &[f64], weights: &dyn Fn(usize) -> f64) -> (Vec<f64>, Vec<f64>, Vec<usize>) {
        let [batch, channels, _, height, width] = self.shape;
        let [d, h, w] = [0, 1, 2].map(|axis| self.axis(axis));
        let (mut y, mut dx) = (Vec::new(), vec![0.0; x.len()]);
        for plane in 0..batch * channels {
            let first = plane * (x.len() / (batch * channels));
            for (d, h, w) in triples(&d, &h, &w) {
                let places: Vec<usize> = (d.0.iter())
                    .flat_map(|z| h.0.iter().map(move |y| z * height + y))
                    .flat_map(|row| w.0.iter().map(move |x| first + row * width + x))
                    .collect();
                let weight = weights(y.len());
                match self.kind {
                    Kind::Max => {
                        let mut best = None;
                        for &place in &places {
                            if best.is_none_or(|best: usize| x[place] > x[best]) {
                                best = Some(place);
                            }
                        }
                        best.inspect(|&best| dx[best] += weight);
                        y.push(best.map_or(f64::NEG_INFINITY, |best| x[best]));
                    }
                    Kind::Average(include) => {
                        // Padding that differs before and after an axis becomes a part of the
                        // input.
                        let part = self.padding == PaddingConfig3d::Same
                            && [0, 1, 2].iter().any(|&axis| self.padding(axis).0 != self.padding(axis).1);
                        let count = match include || part {
                            true => [d, h, w].iter().map(|axis| axis.0.len() + axis.1).product(),
                            false => places.len(),
                        };
                        let divisor = count.max(1) as f64;
                        places.iter().for_each(|&place| dx[place] += weight / divisor);
                        y.push(places.iter().map(|&place| x[place]).sum::<f64>() / divisor);
                    }
                }
            }
        }
        (y, dx, [batch, channels, d.len(), h.len(), w.len()].into())
    }

    /// The module's output and gradient on a backend, for the weights. If `turned`, the input has
    /// another order in memory.
    fn run<B: AutodiffBackend>(
        &self,
        x: &TensorData,
        weights: &TensorData,
        dtype: DType,
        turned: bool,
    ) -> Vec<TensorData> {
        let x = tensor::<B, 5>(x, dtype);
        let leaf = if turned { tensor(&x.swap_dims(1, 4).into_data(), dtype) } else { x }.require_grad();
        // After a memory-bound op, so that recomputation has to go back through a chain.
        let x = if turned { leaf.clone().swap_dims(1, 4).neg() } else { leaf.clone().neg() };
        let out = self.forward(x);
        let grads = (out.clone() * tensor::<B, 5>(weights, dtype)).sum().backward();
        let grad = leaf.grad(&grads).unwrap();
        vec![out.into_data(), if turned { grad.swap_dims(1, 4) } else { grad }.into_data()]
    }

    fn check(&self, random: &Random) {
        burn_rocm_tests::trace::to_file();
        for dtype in FLOATS {
            let x = uniform(random, &self.shape).convert_dtype(dtype);
            let wide: Vec<f64> = x.iter::<f64>().map(|x| -x).collect();
            let shape = self.by_sums(&wide, &|_| 0.0).2;
            let weights = uniform(random, &shape).convert_dtype(dtype);
            let each: Vec<f64> = weights.iter::<f64>().collect();
            let (y, dx, _) = self.by_sums(&wide, &|o| each[o]);
            // The positions of the maxima depend on the signs.
            let signless: Vec<f64> = match self.kind {
                Kind::Max => wide.clone(),
                Kind::Average(_) => wide.iter().map(|x| x.abs()).collect(),
            };
            let (y_sum, dx_sum, _) = self.by_sums(&signless, &|o| each[o].abs());
            // The composed path divides twice.
            let count = self.size.iter().product::<usize>() + 2;
            // MIOpen has the gradient of maxima, which it adds in f16, without dilation and incomplete windows.
            let library = self.kind == Kind::Max && self.dilation == [1; 3] && !self.ceil;
            let terms = if library { Terms::of_max_pool(count, dtype) } else { Terms::of(count, dtype) };
            let limited = |values: Vec<f64>, sums: Vec<f64>, shape: &[usize]| {
                let of = |values: Vec<f64>| TensorData::new(values, shape.to_vec());
                let (reference, magnitude) = (of(values), of(sums.iter().map(|sum| sum.abs()).collect()));
                let limits = limits::sums(&reference, &magnitude, terms);
                [reference, limits]
            };
            let dx = dx.iter().map(|dx| -dx).collect();
            let expected = [limited(y, y_sum, &shape), limited(dx, dx_sum, &self.shape)];
            let turned = random.below(2) > 0;
            let what = format!("{self:?} {dtype:?}, turned {turned}");
            let found = self.run::<Ours>(&x, &weights, dtype, turned);
            assert_limits(&what, dtype, &found, &expected);
            let found = self.run::<Balanced>(&x, &weights, dtype, turned);
            assert_limits(&format!("{what}, recomputed"), dtype, &found, &expected);
            // Other backends round between the two poolings. They also divide the gradients of
            // incomplete windows differently.
            let same = self.kind == Kind::Max || !self.ceil;
            if same && matches!(dtype, DType::F32 | DType::F64) {
                let found = self.run::<Oracle>(&x, &weights, dtype, turned);
                assert_limits(&format!("{what}, composed"), dtype, &found, &expected);
            }
        }
    }
}

/// Every combination of entries. The last list varies fastest.
fn triples<'a, T>(d: &'a [T], h: &'a [T], w: &'a [T]) -> impl Iterator<Item = (&'a T, &'a T, &'a T)> {
    d.iter().flat_map(move |d| h.iter().flat_map(move |h| w.iter().map(move |w| (d, h, w))))
}

const KINDS: [Kind; 3] = [Kind::Max, Kind::Average(true), Kind::Average(false)];

#[test]
fn windows_that_miopen_has() {
    let random = Random::new();
    for kind in KINDS {
        Case::new(kind, [2, 3, 4, 6, 8], [2; 3]).check(&random);
        Case::new(kind, [1, 1, 1, 1, 1], [1; 3]).check(&random);
        let overlapping = Case::new(kind, [2, 2, 5, 7, 6], [3; 3]);
        let padding = PaddingConfig3d::Explicit(1, 1, 1);
        Case { stride: [2; 3], padding: padding.clone(), ..overlapping }.check(&random);
        let uneven = Case::new(kind, [1, 3, 6, 5, 70], [1, 3, 4]);
        Case { stride: [2, 1, 3], padding: PaddingConfig3d::Explicit(0, 1, 2), ..uneven }.check(&random);
        let same = Case::new(kind, [2, 1, 5, 4, 6], [3; 3]);
        Case { stride: [1; 3], padding: PaddingConfig3d::Same, ..same }.check(&random);
    }
}

#[test]
fn windows_that_it_has_not() {
    let random = Random::new();
    for kind in KINDS {
        // An incomplete last window.
        let incomplete = Case::new(kind, [2, 2, 5, 7, 6], [2, 3, 4]);
        Case { ceil: true, ..incomplete }.check(&random);
        let incomplete = Case::new(kind, [1, 2, 6, 5, 7], [3, 2, 3]);
        Case { stride: [2; 3], padding: PaddingConfig3d::Explicit(1, 1, 1), ceil: true, ..incomplete }
            .check(&random);
        // More padding after than before an axis.
        let even = Case::new(kind, [1, 2, 5, 4, 6], [2, 4, 3]);
        Case { stride: [1, 2, 1], padding: PaddingConfig3d::Same, ..even }.check(&random);
    }
    let dilated = Case::new(Kind::Max, [2, 2, 7, 6, 9], [2, 3, 2]);
    let padding = PaddingConfig3d::Explicit(1, 0, 1);
    Case { stride: [1, 2, 1], dilation: [2, 1, 3], padding, ..dilated }.check(&random);
}

#[test]
fn shapes_and_windows_drawn() {
    let random = Random::new();
    for _ in 0..12 {
        let kind = KINDS[random.below(3)];
        let size = [(); 3].map(|_| 1 + random.below(4));
        let [d, h, w] = [(); 3].map(|_| 4 + random.below(6));
        let shape = [1 + random.below(2), 1 + random.below(3), d, h, w];
        let pad = size.map(|size| random.below(size.div_ceil(2)));
        let case = Case {
            stride: [(); 3].map(|_| 1 + random.below(3)),
            padding: PaddingConfig3d::Explicit(pad[0], pad[1], pad[2]),
            ceil: random.below(2) > 0,
            ..Case::new(kind, shape, size)
        };
        case.check(&random);
    }
}

/// Of equal elements the first gets the gradient. A window of only -inf gives -inf, and one that
/// begins with NaN gives NaN.
#[test]
fn ties_and_values_that_are_not_finite() {
    let device = Default::default();
    let pool = MaxPool3dConfig::new([2, 1, 2]).init();
    let equal = Tensor::<Ours, 5>::ones([1, 1, 4, 1, 4], &device).require_grad();
    let grads = pool.forward(equal.clone()).sum().backward();
    let first = [1f32, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let expected = TensorData::new([first, first].concat(), [1, 1, 4, 1, 4]);
    equal.grad(&grads).unwrap().into_data().assert_eq(&expected, true);
    let (inf, nan) = (f32::NEG_INFINITY, f32::NAN);
    let values = vec![inf, inf, nan, 1.0, inf, inf, 2.0, 3.0];
    let x = Tensor::<Ours, 5>::from_data(TensorData::new(values, [1, 1, 2, 1, 4]), &device);
    let found = pool.forward(x).into_data().to_vec::<f32>().unwrap();
    assert!(found[0] == inf && found[1].is_nan(), "{found:?}");
}

#[test]
fn the_trace_tells_which_path_ran() {
    let random = Random::new();
    let of = |kind, dtype, dilation| {
        let case = Case { dilation, stride: [1; 3], ..Case::new(kind, [1, 2, 4, 5, 6], [2; 3]) };
        let outputs: Vec<usize> = case.by_sums(&[0.0; 240], &|_| 0.0).2;
        let (x, weights) = (uniform(&random, &case.shape), uniform(&random, &outputs));
        let (_, lines) = during(|| case.run::<Ours>(&x, &weights, dtype, false));
        lines.into_iter().filter(|line| line.starts_with("nn_")).collect::<Vec<_>>()
    };
    let expect = |lines: Vec<String>, expected: [&str; 2]| {
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines.iter().zip(expected).all(|(line, start)| line.starts_with(start)), "{lines:#?}");
    };
    for (dtype, name) in [(DType::F32, "f32"), (DType::F16, "f16")] {
        expect(
            of(Kind::Max, dtype, [1; 3]),
            [
                &format!("nn_max_pool3d {name}: kernel max_pool3d<{name}>"),
                &format!("nn_max_pool3d_backward {name}: miopenPoolingBackward"),
            ],
        );
        expect(
            of(Kind::Average(true), dtype, [1; 3]),
            [
                &format!("nn_avg_pool3d {name}: miopenPoolingForward"),
                &format!("nn_avg_pool3d_backward {name}: miopenPoolingBackward"),
            ],
        );
    }
    expect(
        of(Kind::Max, DType::F32, [1, 2, 1]),
        [
            "nn_max_pool3d f32: kernel max_pool3d<f32>",
            "nn_max_pool3d_backward f32: kernel max_pool3d_backward<f32>",
        ],
    );
    for (dtype, name) in [(DType::F64, "f64"), (DType::BF16, "bf16")] {
        expect(
            of(Kind::Max, dtype, [1; 3]),
            [
                &format!("nn_max_pool3d {name}: kernel max_pool3d<{name}>"),
                &format!("nn_max_pool3d_backward {name}: kernel max_pool3d_backward<{name}>"),
            ],
        );
        expect(
            of(Kind::Average(false), dtype, [1; 3]),
            [
                &format!("nn_avg_pool3d {name}: kernel avg_pool3d<{name}>"),
                &format!("nn_avg_pool3d_backward {name}: kernel avg_pool3d_backward<{name}>"),
            ],
        );
    }
}

/// Without autodiff there are no indices, and the maxima are the same.
#[test]
fn without_a_gradient() {
    let x = uniform(&Random::new(), &[2, 3, 5, 6, 7]);
    let pool = MaxPool3dConfig::new([3, 2, 2]).init();
    let plain = pool.forward(tensor::<Ours, 5>(&x, DType::F32).inner()).into_data();
    plain.assert_eq(&pool.forward(tensor::<Ours, 5>(&x, DType::F32)).into_data(), true);
}

#[test]
fn empty_inputs() {
    for shape in [[0, 2, 4, 4, 4], [2, 0, 4, 4, 4]] {
        for kind in KINDS {
            let leaf = Tensor::<Ours, 5>::zeros(shape, &Default::default()).require_grad();
            let out = Case::new(kind, shape, [2; 3]).forward(leaf.clone());
            assert_eq!(out.dims(), [shape[0], shape[1], 2, 2, 2]);
            let grads = out.sum().backward();
            assert_eq!(leaf.grad(&grads).unwrap().dims(), shape);
        }
    }
}

#[test]
fn bad_windows_are_errors() {
    let x = Tensor::<Ours, 5>::ones([1, 1, 2, 3, 4], &Default::default());
    let refused = |op: &str, body: &dyn Fn()| {
        catch_unwind(AssertUnwindSafe(body)).expect_err(op);
        match take_last_error() {
            Some(RocmError::Invalid { op: found, .. }) => assert_eq!(found, op),
            other => panic!("{op}: {other:?}"),
        }
    };
    let max = |size| MaxPool3dConfig::new(size).init();
    refused("max_pool3d_with_indices", &|| drop(max([3, 3, 3]).forward(x.clone())));
    refused("max_pool3d_with_indices", &|| drop(max([0, 1, 1]).forward(x.clone())));
    refused("max_pool3d", &|| drop(max([3, 3, 3]).forward(x.clone().inner())));
    let stuck = AvgPool3d { stride: [1, 0, 1], ..AvgPool3dConfig::new([1; 3]).init() };
    refused("avg_pool3d", &|| drop(stuck.forward(x.clone())));
    let device = burn_rocm::RocmDevice::default();
    let ones = |dims: [usize; 5]| Tensor::<burn_rocm::Rocm, 5>::ones(dims, &device).into_primitive().tensor();
    let pool = fused::Pool3d {
        kernel_size: [2; 3],
        stride: [2; 3],
        padding: [0; 3],
        dilation: [1; 3],
        ceil_mode: false,
    };
    let invalid = |result: Result<_, RocmError>| assert!(matches!(result, Err(RocmError::Invalid { .. })));
    invalid(fused::avg_pool3d_backward([1, 1, 4, 4, 4], ones([1, 1, 2, 2, 1]), pool, true));
    invalid(fused::avg_pool3d(ones([1, 1, 4, 4, 4]), fused::Pool3d { dilation: [2; 3], ..pool }, true));
    let (y, indices) = fused::max_pool3d_with_indices(ones([1, 1, 4, 4, 4]), pool).unwrap();
    invalid(fused::max_pool3d_backward([1, 1, 4, 4, 6], pool, y, indices));
    assert_eq!(x.into_data(), TensorData::new(vec![1f32; 24], [1, 1, 2, 3, 4]));
}

#[test]
fn they_show_as_burns_do() {
    let max: MaxPool3d = MaxPool3dConfig::new([3, 2, 1]).init();
    assert_eq!(
        max.to_string(),
        "MaxPool3d {kernel_size: [3, 2, 1], stride: [3, 2, 1], padding: Valid, dilation: [1, 1, 1], ceil_mode: false}"
    );
    let average = AvgPool3dConfig::new([2; 3]).with_strides([1; 3]).init();
    assert_eq!(
        average.to_string(),
        "AvgPool3d {kernel_size: [2, 2, 2], stride: [1, 1, 1], padding: Valid, count_include_pad: true, \
         ceil_mode: false}"
    );
}
