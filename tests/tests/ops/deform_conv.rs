//! Deformable convolution and its gradients.

use burn_backend::tensor::{Device, FloatTensor};
use burn_rocm_tests::limits::{self, Terms, exact};
use burn_rocm_tests::*;

/// The sizes and options of a case.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    channels: [usize; 2],
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    /// The groups of the weight and of the offsets.
    groups: [usize; 2],
    mask: bool,
    bias: bool,
}

const PLAIN: Case = Case {
    batch: 1,
    channels: [3, 5],
    size: [4, 4],
    kernel: [3, 3],
    stride: [1, 1],
    padding: [0, 0],
    dilation: [1, 1],
    groups: [1, 1],
    mask: true,
    bias: true,
};

const CASES: &[Case] = &[
    PLAIN,
    Case { batch: 3, mask: false, bias: false, ..PLAIN },
    Case { batch: 2, channels: [4, 6], groups: [2, 1], bias: false, ..PLAIN },
    Case { channels: [4, 6], groups: [1, 4], mask: false, ..PLAIN },
    Case { batch: 2, channels: [6, 9], groups: [3, 2], padding: [1, 2], ..PLAIN },
    Case { channels: [2, 3], kernel: [3, 4], size: [7, 5], padding: [2, 3], ..PLAIN },
    Case { batch: 2, channels: [2, 2], size: [9, 7], stride: [2, 3], padding: [1, 0], ..PLAIN },
    Case { channels: [2, 1], size: [8, 9], dilation: [2, 3], padding: [1, 1], ..PLAIN },
    Case { batch: 2, channels: [8, 4], kernel: [1, 1], groups: [4, 8], size: [5, 3], ..PLAIN },
    Case { channels: [1, 1], size: [1, 1], padding: [1, 1], ..PLAIN },
];

/// The inputs of a case, in random views.
struct Inputs {
    x: Input,
    offset: Input,
    weight: Input,
    mask: Option<Input>,
    bias: Option<Input>,
    grad: Input,
}

impl Case {
    fn options(&self) -> DeformConvOptions<2> {
        DeformConvOptions::new(self.stride, self.padding, self.dilation, self.groups[0], self.groups[1])
    }

    fn out(&self) -> [usize; 2] {
        [0, 1].map(|d| {
            (self.size[d] + 2 * self.padding[d] - self.dilation[d] * (self.kernel[d] - 1) - 1)
                / self.stride[d]
                + 1
        })
    }

    /// The terms of an output's sum: six products for each sample, from its four pixels, its mask
    /// and its weight. The sample is rounded to the result's type.
    fn terms(&self, dtype: DType) -> Terms {
        let samples = self.channels[0] / self.groups[0] * self.kernel[0] * self.kernel[1];
        Terms { roundings: 1, bias: true, ..Terms::of(6 * samples, dtype) }
    }

    fn inputs(&self, random: &Random, dtype: DType, views: bool) -> Inputs {
        let view = || if views { View::ALL[random.below(5)] } else { View::Contiguous };
        let any = |shape: &[usize]| float(random, shape, dtype, view(), -1.0, 1.0);
        let ([oh, ow], taps) = (self.out(), self.kernel[0] * self.kernel[1]);
        // Multiples of 1/8 are exact in every type, and these avoid the pixels, where the
        // derivative with respect to the offset jumps.
        let eighths = || random.below(6) as f64 - 3.0 + (1 + random.below(7)) as f64 / 8.0;
        Inputs {
            x: any(&[self.batch, self.channels[0], self.size[0], self.size[1]]),
            offset: Input::new(&[self.batch, self.groups[1] * taps * 2, oh, ow], dtype, view(), eighths),
            weight: any(&[
                self.channels[1],
                self.channels[0] / self.groups[0],
                self.kernel[0],
                self.kernel[1],
            ]),
            mask: self.mask.then(|| any(&[self.batch, self.groups[1] * taps, oh, ow])),
            bias: self.bias.then(|| any(&[self.channels[1]])),
            grad: any(&[self.batch, self.channels[1], oh, ow]),
        }
    }
}

impl Inputs {
    fn forward<B: Backend>(&self, options: DeformConvOptions<2>) -> TensorData {
        let device = Default::default();
        let [mask, bias] = [&self.mask, &self.bias].map(|t| t.as_ref().map(|t| t.float::<B>(&device)));
        let [x, offset, weight] = [&self.x, &self.offset, &self.weight].map(|t| t.float::<B>(&device));
        read_float::<B>(B::deform_conv2d(x, offset, weight, mask, bias, options))
    }

    /// The input, the offsets, the weight, the mask, the bias and the output's gradient. The input
    /// takes the place of an absent mask or bias.
    fn operands<B: Backend>(&self, device: &Device<B>) -> [FloatTensor<B>; 6] {
        let [mask, bias] = [&self.mask, &self.bias].map(|t| t.as_ref().unwrap_or(&self.x));
        [&self.x, &self.offset, &self.weight, mask, bias, &self.grad].map(|t| t.float::<B>(device))
    }

    /// The gradients of [`Self::operands`].
    fn gradients<B: Backend>(
        &self,
        [x, offset, weight, mask, bias, grad]: [FloatTensor<B>; 6],
        options: DeformConvOptions<2>,
    ) -> Vec<FloatTensor<B>> {
        let (mask, bias) = (self.mask.as_ref().map(|_| mask), self.bias.as_ref().map(|_| bias));
        let grads = B::deform_conv2d_backward(x, offset, weight, mask, bias, grad, options);
        let always = [grads.x_grad, grads.offset_grad, grads.weight_grad];
        always.into_iter().chain(grads.mask_grad).chain(grads.bias_grad).collect()
    }

    fn backward<B: Backend>(&self, options: DeformConvOptions<2>) -> Vec<TensorData> {
        let grads = self.gradients::<B>(self.operands::<B>(&Default::default()), options);
        grads.into_iter().map(read_float::<B>).collect()
    }

    /// Checks the output within its rounding bound.
    fn check(&self, what: &str, case: &Case, dtype: DType) {
        let [mask, bias] = [&self.mask, &self.bias].map(|t| t.as_ref().unwrap_or(&self.x));
        let (masked, biased) = (self.mask.is_some(), self.bias.is_some());
        let operands = (&self.x, &self.weight);
        sums!(what, case.terms(dtype), |B, device, [x = operands.0, w = operands.1, m = mask, b = bias]| {
            let offset = B::float_cast(self.offset.float::<B>(&device), x.dtype().into());
            B::deform_conv2d(x, offset, w, masked.then_some(m), biased.then_some(b), case.options())
        });
    }

    /// Checks the gradients within their rounding bounds.
    fn check_backward(&self, what: &str, case: &Case, dtype: DType) {
        trace::to_file();
        let [oh, ow] = case.out();
        let products = case.channels[0] * case.channels[1] * case.kernel[0] * case.kernel[1];
        let found = self.backward::<R>(case.options());
        let device = Default::default();
        let gradients = |operands| self.gradients::<O>(operands, case.options());
        let terms = products.max(case.batch * oh * ow);
        let expected = deform::limited::<O>(self.operands::<O>(&device), terms, dtype, &device, gradients);
        assert_eq!(expected.len(), 2 * found.len(), "{what}: number of gradients");
        for (k, (found, expected)) in found.iter().zip(expected.chunks(2)).enumerate() {
            assert_eq!(found.dtype, dtype, "{what}, gradient {k}");
            limits::assert_within(&format!("{what}, gradient {k}"), found, &expected[0], &expected[1]);
        }
    }
}

#[test]
fn deform_conv2d() {
    let random = Random::new();
    for dtype in FLOATS {
        for case in CASES {
            for views in [false, true] {
                let inputs = case.inputs(&random, dtype, views);
                let what = format!("deform_conv2d {dtype:?} {case:?}");
                inputs.check(&what, case, dtype);
            }
        }
    }
}

#[test]
fn deform_conv2d_backward() {
    let random = Random::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for case in CASES {
            for views in [false, true] {
                let inputs = case.inputs(&random, dtype, views);
                let what = format!("deform_conv2d_backward {dtype:?} {case:?}");
                inputs.check_backward(&what, case, dtype);
            }
        }
    }
}

/// Every gradient, in f64, equals the slope of the output along a random direction.
#[test]
fn deform_conv2d_backward_by_differences() {
    let random = Random::new();
    let device = Default::default();
    let sum = |a: &TensorData, b: &TensorData| -> f64 {
        a.iter::<f64>().zip(b.iter::<f64>()).map(|(a, b)| a * b).sum()
    };
    for case in CASES {
        let inputs = case.inputs(&random, DType::F64, false);
        let mut grads = inputs.backward::<R>(case.options()).into_iter();
        let all = [
            Some(&inputs.x),
            Some(&inputs.offset),
            Some(&inputs.weight),
            inputs.mask.as_ref(),
            inputs.bias.as_ref(),
        ];
        for (at, input) in all.iter().enumerate() {
            let Some(input) = input else { continue };
            let grad = grads.next().expect("one for each input");
            let along = float(&random, input.shape(), DType::F64, View::Contiguous, -1.0, 1.0);
            let along = along.float::<R>(&device);
            let loss = |step: f64| {
                let moved = |k: usize| {
                    let t = all[k]?.float::<R>(&device);
                    Some(if k == at {
                        R::float_add(t, R::float_mul_scalar(along.clone(), step.into()))
                    } else {
                        t
                    })
                };
                let [x, offset, weight] = [0, 1, 2].map(|k| moved(k).expect("always there"));
                let out = R::deform_conv2d(x, offset, weight, moved(3), moved(4), case.options());
                sum(&read_float::<R>(out), &read_float::<R>(inputs.grad.float::<R>(&device)))
            };
            let step = 1e-5;
            let slope = (loss(step) - loss(-step)) / (2.0 * step);
            let expected = sum(&grad, &read_float::<R>(along.clone()));
            let scale = 1.0 + slope.abs();
            assert!(
                (slope - expected).abs() < 1e-6 * scale,
                "{case:?}, input {at}: {expected} instead of {slope}"
            );
        }
    }
}

/// Points on pixels, on the border, just past it and far away. The oracle has the same one-sided
/// derivatives.
#[test]
fn deform_conv2d_at_odd_points() {
    let random = Random::new();
    let points =
        [0.0, 1.0, -1.0, -2.0, 3.0, 4.0, -0.5, 3.5, 100.0, -100.0, 1e30, f64::INFINITY, f64::NEG_INFINITY];
    for dtype in [DType::F32, DType::BF16] {
        let case = Case { channels: [2, 2], padding: [1, 1], ..PLAIN };
        let mut inputs = case.inputs(&random, dtype, false);
        let shape = inputs.offset.shape().to_vec();
        inputs.offset = Input::new(&shape, dtype, View::Contiguous, || points[random.below(points.len())]);
        let what = format!("deform_conv2d {dtype:?}");
        inputs.check(&what, &case, dtype);
        inputs.check_backward(&what, &case, dtype);
    }
}

/// An offset of NaN makes its sample NaN and changes nothing else.
#[test]
fn deform_conv2d_at_nan() {
    let random = Random::new();
    let case = Case { channels: [1, 1], kernel: [1, 1], bias: false, ..PLAIN };
    let mut inputs = case.inputs(&random, DType::F32, false);
    let mut first = true;
    inputs.offset = Input::new(&[1, 2, 4, 4], DType::F32, View::Contiguous, || {
        if std::mem::take(&mut first) { f64::NAN } else { 0.5 }
    });
    let out: Vec<f32> = inputs.forward::<R>(case.options()).iter().collect();
    assert!(out[0].is_nan() && out[1..].iter().all(|v| v.is_finite()), "{out:?}");
    let grads = inputs.backward::<R>(case.options());
    assert!(grads[0].iter::<f32>().all(f32::is_finite), "the input's gradient: {:?}", grads[0]);
}

/// With zero offsets and no mask the result is an ordinary convolution.
#[test]
fn deform_conv2d_without_offsets() {
    let random = Random::new();
    let case = Case { batch: 2, channels: [6, 4], groups: [2, 3], padding: [1, 2], mask: false, ..PLAIN };
    let mut inputs = case.inputs(&random, DType::F32, false);
    let shape = inputs.offset.shape().to_vec();
    inputs.offset = Input::new(&shape, DType::F32, View::Contiguous, || 0.0);
    let [reference, magnitude] = [false, true].map(|magnitudes| {
        let device = Default::default();
        let [x, weight] = [&inputs.x, &inputs.weight].map(|t| exact::<O>(t, magnitudes, &device));
        let bias = inputs.bias.as_ref().map(|t| exact::<O>(t, magnitudes, &device));
        let options = ConvOptions::new(case.stride, case.padding, case.dilation, 2);
        read_float::<O>(O::conv2d(x, weight, bias, options))
    });
    let limits = limits::sums(&reference, &magnitude, case.terms(DType::F32));
    let found = inputs.forward::<R>(case.options());
    limits::assert_within(&"deform_conv2d", &found, &reference, &limits);
}

/// Without images the output is empty and the gradients are zeros; without pixels each output is
/// its bias.
#[test]
fn deform_conv2d_of_nothing() {
    let random = Random::new();
    let none = Case { batch: 0, ..PLAIN };
    let inputs = none.inputs(&random, DType::F32, false);
    assert_eq!(inputs.forward::<R>(none.options()).shape, Shape::from(vec![0, 5, 2, 2]));
    let grads = inputs.backward::<R>(none.options());
    let zero = |data: &TensorData| data.iter::<f32>().all(|v| v == 0.0);
    assert_eq!(grads[2].shape, Shape::from(vec![5, 3, 3, 3]));
    assert!(grads.iter().all(zero), "{grads:?}");
    let flat = Case { size: [0, 4], padding: [2, 0], ..PLAIN };
    let inputs = flat.inputs(&random, DType::F32, false);
    let (found, device) = (inputs.forward::<R>(flat.options()), Default::default());
    let bias = read_float::<R>(inputs.bias.as_ref().expect("it has one").float::<R>(&device));
    let expected: Vec<f32> = bias.iter::<f32>().flat_map(|b| [b; 4]).collect();
    assert_eq!(found.to_vec::<f32>().unwrap(), expected);
    assert!(inputs.backward::<R>(flat.options())[..4].iter().all(zero));
}
