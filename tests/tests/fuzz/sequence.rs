//! Deformable convolution and connectionist temporal classification.

use crate::draw::{Draw, Range, Side};
use crate::run::{Bound::*, table};
use crate::sums::{near, summed_as};
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_rocm_tests::limits::{Terms, unit, wide};
use burn_rocm_tests::*;

const UNIT: Range = Range { low: -1.0, high: 1.0, wildest: 1, nan: true };

/// Sizes and options of a deformable convolution.
struct Deform {
    batch: usize,
    /// The groups of the weight and of the offsets.
    groups: [usize; 2],
    channels: [usize; 2],
    size: [usize; 2],
    kernel: [usize; 2],
    out: [usize; 2],
    options: DeformConvOptions<2>,
    mask: bool,
    bias: bool,
}

impl Deform {
    fn of(d: &Draw) -> Self {
        let groups = [1 + d.knob(0, 3), 1 + d.knob(1, 3)];
        // A multiple of both numbers of groups.
        let from = groups[0] * groups[1] * (1 + d.knob(2, 2));
        let channels = [from, groups[0] * (1 + d.knob(3, 4))];
        let along = |n: usize| {
            let knob = d.knobs[4 + n];
            let (kernel, dilation, padding) = (1 + knob % 3, 1 + knob / 3 % 2, knob / 6 % 3);
            let least = (dilation * (kernel - 1) + 1usize).saturating_sub(2 * padding).max(1);
            [least + d.knob(6 + n, 6), kernel, 1 + knob / 18 % 3, padding, dilation]
        };
        let [h, w] = [along(0), along(1)];
        let [size, kernel, stride, padding, dilation] = [0, 1, 2, 3, 4].map(|k| [h[k], w[k]]);
        let out =
            [0, 1].map(|n| (size[n] + 2 * padding[n] - dilation[n] * (kernel[n] - 1) - 1) / stride[n] + 1);
        let options = DeformConvOptions::new(stride, padding, dilation, groups[0], groups[1]);
        let (mask, bias) = (d.knob(8, 2) == 1, d.knob(9, 2) == 1);
        Self { batch: 1 + d.knob(10, 3), groups, channels, size, kernel, out, options, mask, bias }
    }

    /// Input, offsets, weight, mask, bias and the output's gradient.
    fn operands<B: Backend>(&self, c: &Side<'_, B>) -> [FloatTensor<B>; 6] {
        let taps = self.kernel[0] * self.kernel[1];
        let ([oh, ow], points) = (self.out, self.groups[1] * taps);
        let dtype = c.d.float_type();
        // Eighths are exact in every type and avoid the pixels, where the gradient jumps. Wilder
        // cases have points on pixels, on the edges and far away.
        let wild = c.d.wild;
        let place = |random: &Random| match (wild, random.below(6)) {
            (2 | 3, 0) => random.below(9) as f64 - 4.0,
            (3, 1) => [100.0, -100.0, f64::INFINITY, f64::NEG_INFINITY, 6e4][random.below(5)],
            _ => random.below(6) as f64 - 3.0 + (1 + random.below(7)) as f64 / 8.0,
        };
        let offset = c.lay_float(1, &[self.batch, 2 * points, oh, ow], |random, count| {
            let values = (0..count).map(|_| place(random)).collect();
            TensorData::new::<f64, _>(values, [count]).convert_dtype(dtype)
        });
        [
            c.float(0, &[self.batch, self.channels[0], self.size[0], self.size[1]], UNIT),
            offset,
            c.float(
                2,
                &[self.channels[1], self.channels[0] / self.groups[0], self.kernel[0], self.kernel[1]],
                UNIT,
            ),
            c.float(3, &[self.batch, points, oh, ow], UNIT),
            c.float(4, &[self.channels[1]], UNIT),
            c.float(5, &[self.batch, self.channels[1], oh, ow], UNIT),
        ]
    }
}

/// A few short sequences of log-probabilities `[steps, batch, classes]`, and their targets.
struct Sequences {
    dims: [usize; 3],
    labels: usize,
    targets: Vec<i64>,
    inputs: Vec<i64>,
    lengths: Vec<i64>,
    blank: usize,
}

impl Sequences {
    fn of(d: &Draw, most: usize) -> Self {
        let random = Random::from_seed(d.seed ^ 0x5eed);
        let dims = [
            1 + d.knob(0, most),
            1 + d.knob(1, if most > 9 { 24 } else { 4 }),
            2 + d.knob(2, if most > 9 { 20 } else { 3 }),
        ];
        let (blank, labels) = (d.knob(3, dims[2]), 1 + d.knob(4, most / 2 + 1));
        // Some labels are blanks. The padding is a class, because the oracle gathers it.
        let label = || match random.below(dims[2] - 1) {
            below if below < blank => below as i64,
            above => above as i64 + 1,
        };
        let mut targets: Vec<i64> = (0..dims[1] * labels).map(|_| label()).collect();
        if d.knob(5, 8) == 1 {
            targets[0] = blank as i64;
        }
        let inputs = (0..dims[1]).map(|_| 1 + random.below(dims[0]) as i64).collect();
        let lengths = (0..dims[1]).map(|_| random.below(labels + 1) as i64).collect();
        Self { dims, labels, targets, inputs, lengths, blank }
    }

    /// Targets and lengths, in the case's integer type.
    fn integers<B: Backend>(&self, c: &Side<'_, B>) -> [IntTensor<B>; 3] {
        let batch = self.dims[1];
        let dtype = if c.oracle() { DType::I64 } else { c.d.int_type() };
        let make = |values: &[i64], shape: &[usize]| {
            let data = TensorData::new(values.to_vec(), Shape::from(shape.to_vec()));
            B::int_from_data(data.convert_dtype(dtype), &c.device)
        };
        [
            make(&self.targets, &[batch, self.labels]),
            make(&self.inputs, &[batch]),
            make(&self.lengths, &[batch]),
        ]
    }

    /// The gradients of the log-probabilities for losses weighted by `grad`, from an enumeration of
    /// every alignment.
    fn by_enumeration(&self, log_probs: &[f64], grad: &[f64]) -> Vec<f64> {
        let Self { dims, labels, blank, .. } = *self;
        let (targets, input_lengths, target_lengths) = (&self.targets, &self.inputs, &self.lengths);
        let sequences = alignments::Sequences { dims, labels, targets, input_lengths, target_lengths, blank };
        sequences.by_enumeration(log_probs, grad).1
    }
}

const LOGS: Range = Range { low: -3.0, high: 0.0, wildest: 1, nan: true };

/// The tolerance for sums of logarithms, with their rounding.
fn logarithms(dtype: DType) -> Tolerance {
    let near = Tolerance::of(wide(dtype)).times(if dtype == DType::F64 { 100.0 } else { 8.0 });
    let rounding = if wide(dtype) == dtype { 0.0 } else { 1.01 * unit(dtype) };
    Tolerance { relative: near.relative + rounding, ..near }
}

table! { |c, B|
    deform_conv2d, Within => {
        let case = Deform::of(c.d);
        let [x, offset, weight, mask, bias, _] = case.operands(c);
        let terms = case.channels[0] / case.groups[0] * case.kernel[0] * case.kernel[1];
        let dtype = c.d.float_type();
        // Four products and a mask for each sample, which is stored in the result's type.
        let terms = Terms { roundings: 1, bias: true, ..Terms::of(6 * terms, dtype) };
        summed_as(c, terms, [&x, &weight, &mask, &bias], |[x, weight, mask, bias]| {
            let offset = if c.oracle() { B::float_cast(offset.clone(), FloatDType::F64) } else { offset.clone() };
            let (mask, bias) = (case.mask.then_some(mask), case.bias.then_some(bias));
            B::deform_conv2d(x, offset, weight, mask, bias, case.options.clone())
        })
    };
    deform_conv2d_backward, Within => {
        let case = Deform::of(c.d);
        let dtype = c.d.float_type();
        let operands = case.operands(c);
        let gradients = |[x, offset, weight, mask, bias, grad]: [FloatTensor<B>; 6]| {
            let grads = B::deform_conv2d_backward(
                x, offset, weight, case.mask.then_some(mask), case.bias.then_some(bias), grad, case.options.clone());
            let always = [grads.x_grad, grads.offset_grad, grads.weight_grad];
            always.into_iter().chain(grads.mask_grad).chain(grads.bias_grad).collect::<Vec<_>>()
        };
        if !c.oracle() {
            let all = gradients(operands);
            assert!(all.iter().all(|out| out.dtype() == dtype));
            return all.into_iter().map(read_float::<B>).collect();
        }
        let places = case.batch * case.out[0] * case.out[1];
        let terms = (case.channels[0] * case.channels[1] * case.kernel[0] * case.kernel[1]).max(places);
        deform::limited::<B>(operands, terms, dtype, &c.device, gradients)
    };
    // The oracle is Burn's composition in f64.
    ctc_loss, Within => {
        let case = Sequences::of(c.d, 24);
        let dtype = c.d.float_type();
        let log_probs = c.float(0, &case.dims, LOGS);
        let log_probs = if c.oracle() { B::float_cast(log_probs, FloatDType::F64) } else { log_probs };
        let [targets, inputs, lengths] = case.integers(c);
        near(c, B::ctc_loss(log_probs, targets, inputs, lengths, case.blank), dtype, logarithms(dtype))
    };
    ctc_loss_backward, Within => {
        let mut case = Sequences::of(c.d, 6);
        // No alignment gives a blank among the labels, because blanks are removed.
        let other = (case.blank + 1) % case.dims[2];
        case.targets.iter_mut().filter(|label| **label == case.blank as i64).for_each(|label| *label = other as i64);
        let dtype = c.d.float_type();
        let log_probs = c.float(0, &case.dims, LOGS);
        let grad = c.float(1, &[case.dims[1]], UNIT);
        if c.oracle() {
            let [values, weights] = [log_probs, grad].map(|t| read_float::<B>(t).iter::<f64>().collect::<Vec<_>>());
            let gradient = case.by_enumeration(&values, &weights);
            let gradient = B::float_from_data(TensorData::new(gradient, case.dims), &c.device);
            return near(c, gradient, dtype, logarithms(dtype).times(2.0));
        }
        let [targets, inputs, lengths] = case.integers(c);
        vec![read_float::<B>(B::ctc_loss_backward(log_probs, targets, inputs, lengths, grad, case.blank))]
    };
}
