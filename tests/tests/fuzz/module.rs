//! Ops of neural network modules.

use crate::draw::{Draw, Range, Side, TAME};
use crate::fourier;
use crate::run::{Bound::*, table};
use crate::sums::{added, exactly, rounded, summed, summed_as};
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_rocm_tests::attention::Operands;
use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::*;

const UNIT: Range = Range { low: -1.0, high: 1.0, wildest: 1, nan: true };

fn f<B: Backend>(tensor: FloatTensor<B>) -> Vec<TensorData> {
    vec![read_float::<B>(tensor)]
}

fn float<B: Backend>(c: &Side<'_, B>, k: usize, shape: &[usize]) -> FloatTensor<B> {
    c.float(k, shape, UNIT)
}

/// A sum of `count` products, with a bias that may be added after the sum was rounded. A library
/// may also round one part of a gradient's sum in this way.
fn biased(d: &Draw, count: usize) -> Terms {
    biased_parts(d, count, 0)
}

/// [`biased`] for a convolution whose parts a library may round, each up to `roundings` times.
fn biased_parts(d: &Draw, count: usize, roundings: usize) -> Terms {
    Terms { bias: true, ..Terms::in_parts(count, roundings, d.float_type()) }
}

/// A random window along one axis, and an axis length that it fits.
#[derive(Clone, Copy)]
struct Window {
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Window {
    /// Axis `n` of the case's window.
    fn of(d: &Draw, n: usize) -> Self {
        let knob = d.knobs[4 + n];
        let kernel = 1 + knob % 4;
        let dilation = 1 + knob / 4 % 2;
        let padding = (knob / 8 % 3).min(kernel / 2);
        let least = dilation * (kernel - 1) + 1;
        Self {
            size: least.saturating_sub(2 * padding).max(1) + d.knob(1 + n, 9),
            kernel,
            stride: 1 + knob / 24 % 3,
            padding,
            dilation,
        }
    }

    fn undilated(self) -> Self {
        Self { dilation: 1, ..self }
    }

    /// The number of the window's positions.
    fn out(self) -> usize {
        self.reach() / self.stride + 1
    }

    /// The number of input elements after the last step.
    fn rest(self) -> usize {
        self.reach() % self.stride
    }

    fn reach(self) -> usize {
        self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
    }

    /// The output size of a transposed convolution.
    fn transposed(self, extra: usize) -> usize {
        ((self.size - 1) * self.stride + self.dilation * (self.kernel - 1) + extra + 1)
            .saturating_sub(2 * self.padding)
    }
}

fn windows<const N: usize>(d: &Draw) -> [Window; N] {
    std::array::from_fn(|n| Window::of(d, n))
}

/// The batch, the groups, and the input and output channels of each group.
fn channels(d: &Draw) -> (usize, usize, usize, usize) {
    (1 + d.knob(0, 3), 1 + d.knob(9, 3), 1 + d.knob(10, 3), 1 + d.knob(11, 4))
}

macro_rules! conv {
    ($c:ident, $B:ident, $n:literal, $conv:ident, $x:ident, $w:ident, $b:ident) => {{
        let windows = windows::<$n>($c.d);
        let (batch, groups, from, to) = channels($c.d);
        let options = burn_backend::ops::ConvOptions::new(
            windows.map(|w| w.stride),
            windows.map(|w| w.padding),
            windows.map(|w| w.dilation),
            groups,
        );
        let shape = |first: usize, second: usize, sizes: [usize; $n]| {
            let mut shape = vec![first, second];
            shape.extend(sizes);
            shape
        };
        let x = float($c, 0, &shape(batch, groups * from, windows.map(|w| w.size)));
        let weight = float($c, 1, &shape(groups * to, from, windows.map(|w| w.kernel)));
        let bias = float($c, 2, &[groups * to]);
        let grad = float($c, 3, &shape(batch, groups * to, windows.map(|w| w.out())));
        let with_bias = $c.d.seed % 2 == 0;
        let taps: usize = windows.iter().map(|w| w.kernel).product();
        let places: usize = windows.iter().map(|w| w.out()).product::<usize>() * batch;
        let mut results =
            summed_as($c, biased($c.d, from * taps), [&x, &weight, &bias], |[x, weight, bias]| {
                $B::$conv(x, weight, with_bias.then_some(bias), options.clone())
            });
        results.extend(summed_as(
            $c,
            biased_parts($c.d, to * taps, 1),
            [&x, &weight, &grad],
            |[x, weight, grad]| $B::$x(x, weight, grad, options.clone()),
        ));
        results.extend(summed_as($c, biased($c.d, places), [&x, &bias, &grad], |[x, bias, grad]| {
            $B::$b(x, bias, grad)
        }));
        // With groups, and input elements that no step reaches, the oracle's gradient of the
        // weights is wrong (found by this test, and decided by the defining sum).
        if groups == 1 || windows.iter().all(|w| w.rest() == 0) {
            results.extend(summed_as(
                $c,
                biased_parts($c.d, places, batch),
                [&x, &weight, &grad],
                |[x, weight, grad]| $B::$w(x, weight, grad, options.clone()),
            ));
        }
        results
    }};
}

macro_rules! conv_transpose {
    ($c:ident, $B:ident, $n:literal, $conv:ident, $x:ident, $w:ident, $b:ident) => {{
        let windows = windows::<$n>($c.d);
        let (batch, groups, from, to) = channels($c.d);
        let extra = windows.map(|w| $c.d.seed as usize % w.stride.max(w.dilation));
        let options = burn_backend::ops::ConvTransposeOptions::new(
            windows.map(|w| w.stride),
            windows.map(|w| w.padding),
            extra,
            windows.map(|w| w.dilation),
            groups,
        );
        let shape = |first: usize, second: usize, sizes: [usize; $n]| {
            let mut shape = vec![first, second];
            shape.extend(sizes);
            shape
        };
        let x = float($c, 0, &shape(batch, groups * from, windows.map(|w| w.size)));
        let weight = float($c, 1, &shape(groups * from, to, windows.map(|w| w.kernel)));
        let bias = float($c, 2, &[groups * to]);
        let out = std::array::from_fn(|n| windows[n].transposed(extra[n]));
        if out.contains(&0) {
            return Vec::new();
        }
        let grad = float($c, 3, &shape(batch, groups * to, out));
        let with_bias = $c.d.seed % 2 == 0;
        let taps: usize = windows.iter().map(|w| w.kernel).product();
        let places: usize = windows.iter().map(|w| w.size).product::<usize>() * batch;
        let outputs: usize = out.iter().product::<usize>() * batch;
        let mut results =
            summed_as($c, biased_parts($c.d, from * taps, 1), [&x, &weight, &bias], |[x, weight, bias]| {
                $B::$conv(x, weight, with_bias.then_some(bias), options.clone())
            });
        results.extend(summed_as($c, biased($c.d, to * taps), [&weight, &grad], |[weight, grad]| {
            $B::$x(weight, grad, options.clone())
        }));
        results.extend(summed_as(
            $c,
            biased_parts($c.d, places, batch),
            [&x, &weight, &grad],
            |[x, weight, grad]| $B::$w(x, weight, grad, options.clone()),
        ));
        results.extend(summed_as($c, biased($c.d, outputs), [&x, &bias, &grad], |[x, bias, grad]| {
            $B::$b(x, bias, grad)
        }));
        results
    }};
}

/// The shape of random planes.
fn planes(d: &Draw, sizes: [usize; 2]) -> [usize; 4] {
    [1 + d.knob(0, 3), 1 + d.knob(9, 3), sizes[0], sizes[1]]
}

fn mode(d: &Draw) -> InterpolateMode {
    [InterpolateMode::Nearest, InterpolateMode::Bilinear, InterpolateMode::Bicubic, InterpolateMode::Lanczos3]
        [d.knob(8, 4)]
    .clone()
}

fn resizing(d: &Draw) -> ([usize; 4], [usize; 2], InterpolateOptions) {
    let shape = planes(d, [1 + d.knob(1, 12), 1 + d.knob(2, 12)]);
    let options = InterpolateOptions::new(mode(d)).with_align_corners(d.knob(5, 2) == 1);
    (shape, [1 + d.knob(3, 14), 1 + d.knob(4, 14)], options)
}

/// The most inputs that one output of an adaptive pooling averages.
fn held(inputs: usize, outputs: usize) -> usize {
    inputs / outputs + 2
}

/// The maxima from both ops, their indices, and the gradient.
fn maxima<B: Backend>(
    c: &Side<'_, B>,
    plain: FloatTensor<B>,
    output: FloatTensor<B>,
    indices: IntTensor<B>,
    back: Vec<TensorData>,
) -> Vec<TensorData> {
    let exact = [read_float::<B>(plain), read_float::<B>(output), read_index::<B>(indices)];
    exact.into_iter().flat_map(|data| exactly(c, data)).chain(back).collect()
}

/// If the last window reaches beyond the padding, the oracle's gradient divides by the whole window
/// and its forward pass by the part inside.
fn divides_otherwise(d: &Draw) -> bool {
    d.knob(8, 2) == 1 && d.knob(10, 2) == 1
}

table! { |c, B|
    conv1d, Within => conv!(c, B, 1, conv1d, conv1d_x_backward, conv1d_weight_backward, conv1d_bias_backward);
    conv2d, Within => conv!(c, B, 2, conv2d, conv2d_x_backward, conv2d_weight_backward, conv2d_bias_backward);
    conv3d, Within => conv!(c, B, 3, conv3d, conv3d_x_backward, conv3d_weight_backward, conv3d_bias_backward);
    conv_transpose1d, Within => conv_transpose!(c, B, 1, conv_transpose1d, conv_transpose1d_x_backward,
        conv_transpose1d_weight_backward, conv_transpose1d_bias_backward);
    conv_transpose2d, Within => conv_transpose!(c, B, 2, conv_transpose2d, conv_transpose2d_x_backward,
        conv_transpose2d_weight_backward, conv_transpose2d_bias_backward);
    conv_transpose3d, Within => conv_transpose!(c, B, 3, conv_transpose3d, conv_transpose3d_x_backward,
        conv_transpose3d_weight_backward, conv_transpose3d_bias_backward);
    max_pool1d, Within => {
        let [w] = windows::<1>(c.d);
        let ceil = c.d.knob(8, 2) == 1;
        let shape = [1 + c.d.knob(0, 3), 1 + c.d.knob(9, 3), w.size];
        let x = float(c, 0, &shape);
        let plain = B::max_pool1d(x.clone(), w.kernel, w.stride, w.padding, w.dilation, ceil);
        let found = B::max_pool1d_with_indices(x.clone(), w.kernel, w.stride, w.padding, w.dilation, ceil);
        let grad = float(c, 1, &plain.shape().to_vec());
        let back = summed_as(c, Terms::of_max_pool(w.kernel, c.d.float_type()), [&x, &grad], |[x, grad]| {
            let at = found.indices.clone();
            B::max_pool1d_with_indices_backward(x, w.kernel, w.stride, w.padding, w.dilation, ceil, grad, at).x_grad
        });
        maxima(c, plain, found.output, found.indices.clone(), back)
    };
    max_pool2d, Within => {
        let [h, w] = windows::<2>(c.d);
        let ceil = c.d.knob(8, 2) == 1;
        let shape = planes(c.d, [h.size, w.size]);
        let [kernel, stride, padding, dilation] =
            [[h.kernel, w.kernel], [h.stride, w.stride], [h.padding, w.padding], [h.dilation, w.dilation]];
        let x = float(c, 0, &shape);
        let plain = B::max_pool2d(x.clone(), kernel, stride, padding, dilation, ceil);
        let found = B::max_pool2d_with_indices(x.clone(), kernel, stride, padding, dilation, ceil);
        let grad = float(c, 1, &plain.shape().to_vec());
        let terms = Terms::of_max_pool(h.kernel * w.kernel, c.d.float_type());
        let back = summed_as(c, terms, [&x, &grad], |[x, grad]| {
            let at = found.indices.clone();
            B::max_pool2d_with_indices_backward(x, kernel, stride, padding, dilation, ceil, grad, at).x_grad
        });
        maxima(c, plain, found.output, found.indices.clone(), back)
    };
    avg_pool1d, Within, unless divides_otherwise => {
        let [w] = windows::<1>(c.d).map(Window::undilated);
        let (ceil, include) = (c.d.knob(8, 2) == 1, c.d.knob(10, 2) == 1);
        let shape = [1 + c.d.knob(0, 3), 1 + c.d.knob(9, 3), w.size];
        let x = float(c, 0, &shape);
        let there = |x| B::avg_pool1d(x, w.kernel, w.stride, w.padding, include, ceil);
        let grad = float(c, 1, &there(x.clone()).shape().to_vec());
        let mut results = summed(c, w.kernel, [&x], |[x]| there(x));
        results.extend(summed(c, w.kernel, [&x, &grad], |[x, grad]| {
            B::avg_pool1d_backward(x, grad, w.kernel, w.stride, w.padding, include, ceil)
        }));
        results
    };
    avg_pool2d, Within, unless divides_otherwise => {
        let [h, w] = windows::<2>(c.d).map(Window::undilated);
        let (ceil, include) = (c.d.knob(8, 2) == 1, c.d.knob(10, 2) == 1);
        let shape = planes(c.d, [h.size, w.size]);
        let [kernel, stride, padding] = [[h.kernel, w.kernel], [h.stride, w.stride], [h.padding, w.padding]];
        let x = float(c, 0, &shape);
        let there = |x| B::avg_pool2d(x, kernel, stride, padding, include, ceil);
        let grad = float(c, 1, &there(x.clone()).shape().to_vec());
        let mut results = summed(c, h.kernel * w.kernel, [&x], |[x]| there(x));
        results.extend(summed(c, h.kernel * w.kernel, [&x, &grad], |[x, grad]| {
            B::avg_pool2d_backward(x, grad, kernel, stride, padding, include, ceil)
        }));
        results
    };
    adaptive_avg_pool1d, Within => {
        let shape = [1 + c.d.knob(0, 3), 1 + c.d.knob(9, 3), 1 + c.d.knob(1, 20)];
        let size = 1 + c.d.knob(3, 12);
        let x = float(c, 0, &shape);
        let grad = float(c, 1, &[shape[0], shape[1], size]);
        let mut results = summed(c, held(shape[2], size), [&x], |[x]| B::adaptive_avg_pool1d(x, size));
        results.extend(summed(c, held(size, shape[2]), [&x, &grad], |[x, grad]| {
            B::adaptive_avg_pool1d_backward(x, grad)
        }));
        results
    };
    adaptive_avg_pool2d, Within => {
        let (shape, size, _) = resizing(c.d);
        let x = float(c, 0, &shape);
        let grad = float(c, 1, &[shape[0], shape[1], size[0], size[1]]);
        let [there, back] = [
            held(shape[2], size[0]) * held(shape[3], size[1]),
            held(size[0], shape[2]) * held(size[1], shape[3]),
        ];
        let mut results = summed(c, there, [&x], |[x]| B::adaptive_avg_pool2d(x, size));
        results.extend(summed(c, back, [&x, &grad], |[x, grad]| B::adaptive_avg_pool2d_backward(x, grad)));
        results
    };
    interpolate, Near(16.0) => {
        let (shape, size, options) = resizing(c.d);
        f::<B>(B::interpolate(c.float(0, &shape, UNIT), size, options))
    };
    // The oracle has no gradient of this mode.
    interpolate_backward, Within, unless |d| matches!(mode(d), InterpolateMode::Lanczos3) => {
        let (shape, size, options) = resizing(c.d);
        let x = c.float(0, &shape, UNIT);
        let grad = c.float(1, &[shape[0], shape[1], size[0], size[1]], UNIT);
        let near = limits::resized([shape[2], shape[3]], size, c.d.float_type());
        rounded(c, near, [&x, &grad], |[x, grad]| B::interpolate_backward(x, grad, size, options.clone()))
    };
    grid_sample_2d, Near(64.0) => {
        let (shape, size, _) = resizing(c.d);
        let padding = [GridSamplePaddingMode::Zeros, GridSamplePaddingMode::Border, GridSamplePaddingMode::Reflection];
        let mode = [InterpolateMode::Nearest, InterpolateMode::Bilinear][c.d.knob(8, 2)].clone();
        let options = GridSampleOptions::new(mode)
            .with_padding_mode(padding[c.d.knob(7, 3)])
            .with_align_corners(c.d.knob(5, 2) == 1);
        let grid = c.float(1, &[shape[0], size[0], size[1], 2], Range { low: -1.5, high: 1.5, wildest: 1, nan: true });
        f::<B>(B::float_grid_sample_2d(c.float(0, &shape, UNIT), grid, options))
    };
    embedding, Exact => {
        let (rows, width) = (1 + c.d.knob(1, 20), c.d.knob(2, 20));
        let indices = c.indices(1, &[c.d.knob(3, 5), c.d.knob(4, 9)], rows);
        f::<B>(B::embedding(c.float(0, &[rows, width], UNIT), indices))
    };
    embedding_backward, Within => {
        let (rows, width) = (1 + c.d.knob(1, 20), 1 + c.d.knob(2, 20));
        let looked_up = [c.d.knob(3, 5), c.d.knob(4, 9)];
        let indices = c.indices(1, &looked_up, rows);
        let grad = c.float(2, &[looked_up[0], looked_up[1], width], UNIT);
        let weights = c.float(0, &[rows, width], UNIT);
        added(c, [&weights, &grad], |[weights, grad]| B::embedding_backward(weights, grad, indices.clone()))
    };
    // For empty tensors the oracle reads invalid memory.
    linear, Within, unless |d| d.dims.contains(&0) => {
        let mut shape = c.d.of_rank(1 + c.d.knob(1, 4), 200);
        let (from, to) = (1 + c.d.knob(2, 24), 1 + c.d.knob(3, 24));
        shape.push(from);
        let x = c.settled(c.float(0, &shape, TAME));
        let weight = c.settled(c.float(1, &[from, to], TAME));
        let (bias, with_bias) = (c.float(2, &[to], UNIT), c.d.knob(4, 2) == 1);
        let rows = shape.iter().product::<usize>() / from;
        *shape.last_mut().expect("a width") = to;
        let grad = c.settled(c.float(2, &shape, TAME));
        let mut results = summed_as(c, biased(c.d, from), [&x, &weight, &bias], |[x, weight, bias]| {
            B::linear(x, weight, with_bias.then_some(bias))
        });
        results.extend(summed(c, to, [&weight, &grad], |[weight, grad]| B::linear_x_backward(weight, grad)));
        results.extend(summed(c, rows, [&x, &grad], |[x, grad]| B::linear_weight_backward(x, grad)));
        results.extend(summed(c, rows, [&grad], |[grad]| B::linear_bias_backward(grad)));
        results
    };
    layer_norm, Within => {
        let mut shape = c.d.shape(2000);
        *shape.last_mut().expect("a width") += 4;
        let width = [shape[shape.len() - 1]];
        let beta = (c.d.knob(1, 2) == 1).then(|| c.float(2, &width, TAME));
        let (x, gamma) = (c.float(0, &shape, TAME), c.float(1, &width, TAME));
        if !c.oracle() {
            return f::<B>(B::layer_norm(x, gamma, beta, 1e-3));
        }
        let exact = |t: FloatTensor<B>| B::float_cast(t, FloatDType::F64);
        let (x, gamma) = (exact(x), exact(gamma));
        let reference = read_float::<B>(B::layer_norm(x.clone(), gamma.clone(), beta.map(exact), 1e-3));
        let [x, gamma] = [x, gamma].map(read_float::<B>);
        let limits = limits::layer_norm(&x, &gamma, &reference, 1e-3, c.d.float_type());
        vec![reference, limits]
    };
    unfold4d, Exact => {
        let [h, w] = windows::<2>(c.d);
        let options = UnfoldOptions::new([h.stride, w.stride], [h.padding, w.padding], [h.dilation, w.dilation]);
        f::<B>(B::unfold4d(float(c, 0, &planes(c.d, [h.size, w.size])), [h.kernel, w.kernel], options))
    };
    attention, Within => {
        let (batch, heads) = (1 + c.d.knob(0, 2), 1 + c.d.knob(1, 3));
        let (queries, width) = (1 + c.d.knob(2, 12), 1 + c.d.knob(3, 20));
        // The tiled kernel takes 32 or more queries.
        let queries = if c.d.knob(9, 5) == 1 { queries + 30 } else { queries };
        let keys = queries + c.d.knob(4, 6);
        let shape = |rows, columns| [batch, heads, rows, columns];
        let options = AttentionModuleOptions {
            scale: (c.d.knob(5, 2) == 1).then_some(0.3),
            softcap: (c.d.knob(6, 3) == 1).then_some(4.0),
            is_causal: c.d.knob(7, 2) == 1,
        };
        let bias = (c.d.knob(8, 2) == 1).then(|| c.float(3, &shape(queries, keys), UNIT));
        let [q, k, v] = [(0, queries), (1, keys), (2, keys)].map(|(n, rows)| c.float(n, &shape(rows, width), UNIT));
        if !c.oracle() {
            return f::<B>(B::attention(q, k, v, None, bias, options));
        }
        let [q, k, v] = [q, k, v].map(|t| B::float_cast(t, FloatDType::F64));
        let bias = bias.map(|t| B::float_cast(t, FloatDType::F64));
        let [query, key, value] = [&q, &k, &v].map(|t| read_float::<B>(t.clone()));
        let added = bias.clone().map(read_float::<B>);
        let operands =
            Operands { query: &query, key: &key, value: &value, mask: None, bias: added.as_ref(), options };
        let limits = operands.limits(c.d.float_type());
        vec![read_float::<B>(B::attention(q, k, v, None, bias, options)), limits]
    };
    rfft, Within => {
        let mut shape = c.d.shape(300);
        let dim = c.d.axis(&shape);
        shape[dim] = 1 << c.d.knob(1, 7);
        let x = c.float(0, &shape, TAME);
        if c.oracle() {
            return fourier::rfft(&read_float::<B>(x), dim, c.d.float_type());
        }
        let (re, im) = B::rfft(x, dim, None);
        vec![read_float::<B>(re), read_float::<B>(im)]
    };
    irfft, Within => {
        let mut shape = c.d.shape(300);
        let dim = c.d.axis(&shape);
        shape[dim] = (1 << c.d.knob(1, 6)) + 1;
        let (re, im) = (c.float(0, &shape, TAME), c.float(1, &shape, TAME));
        if c.oracle() {
            return fourier::irfft(&[re, im].map(read_float::<B>), dim, c.d.float_type());
        }
        f::<B>(B::irfft(re, im, dim, None))
    };
}
