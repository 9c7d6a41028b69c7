//! Convolutions, transposed convolutions and their gradients in 1, 2 and 3 dimensions.

use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::*;

struct Case {
    batch: usize,
    channels: [usize; 2],
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    groups: usize,
}

const fn case(
    batch: usize,
    channels: [usize; 2],
    size: usize,
    kernel: usize,
    [stride, padding, dilation, groups]: [usize; 4],
) -> Case {
    Case { batch, channels, size, kernel, stride, padding, dilation, groups }
}

const CASES: &[Case] = &[
    case(1, [1, 1], 5, 3, [1, 0, 1, 1]),
    case(2, [3, 4], 8, 3, [1, 1, 1, 1]),
    case(3, [4, 6], 9, 3, [2, 1, 1, 2]),
    case(2, [4, 4], 7, 3, [1, 2, 2, 4]),
    case(2, [3, 5], 6, 1, [1, 0, 1, 1]),
    case(1, [2, 2], 7, 2, [3, 0, 1, 1]),
    case(2, [8, 16], 7, 5, [1, 2, 1, 1]),
];

impl Case {
    /// The most products in one sum: a group's channels (`channels` 0: of the input, 1: of the
    /// output) times the window's elements.
    fn terms(&self, channels: usize, dims: u32) -> usize {
        self.channels[channels] / self.groups * self.kernel.pow(dims)
    }

    fn name(&self, dims: usize, dtype: DType) -> String {
        let Self { batch, channels, size, kernel, stride, padding, dilation, groups } = self;
        format!(
            "conv{dims}d {dtype:?} n{batch} c{channels:?} size {size} k{kernel} s{stride} p{padding} d{dilation} \
             g{groups}"
        )
    }

    fn out(&self) -> usize {
        (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) / self.stride + 1
    }
}

macro_rules! conv {
    ($test:ident, $dims:literal, $conv:ident, $x_backward:ident, $w_backward:ident, $b_backward:ident) => {
        #[test]
        fn $test() {
            let random = Random::new();
            for dtype in FLOATS {
                for c in CASES {
                    let spatial = |n: usize, m: usize, s: usize| [vec![n, m], vec![s; $dims]].concat();
                    let view = [View::Contiguous, View::Permuted, View::Sliced][random.below(3)];
                    let x = float(&random, &spatial(c.batch, c.channels[0], c.size), dtype, view, -1.0, 1.0);
                    let w = float(
                        &random,
                        &spatial(c.channels[1], c.channels[0] / c.groups, c.kernel),
                        dtype,
                        View::Contiguous,
                        -1.0,
                        1.0,
                    );
                    let b = float(&random, &[c.channels[1]], dtype, View::Contiguous, -1.0, 1.0);
                    let g = float(&random, &spatial(c.batch, c.channels[1], c.out()), dtype, view, -1.0, 1.0);
                    let options = ConvOptions::<$dims>::new(
                        [c.stride; $dims],
                        [c.padding; $dims],
                        [c.dilation; $dims],
                        c.groups,
                    );
                    let name = c.name($dims, dtype);
                    let there = Terms::of(c.terms(0, $dims), dtype);
                    sums!(name, there, |B, device, [x = &x, w = &w]| {
                        B::$conv(x, w, None, options.clone())
                    });
                    let there = Terms { bias: true, ..there };
                    sums!(name, there, |B, device, [x = &x, w = &w, b = &b]| {
                        B::$conv(x, w, Some(b), options.clone())
                    });
                    let name = name + " backward";
                    let by_input = Terms::in_parts(c.terms(1, $dims), 1, dtype);
                    sums!(name, by_input, |B, device, [x = &x, w = &w, g = &g]| {
                        B::$x_backward(x, w, g, options.clone())
                    });
                    let places = c.batch * c.out().pow($dims);
                    let by_weight = Terms::in_parts(places, c.batch, dtype);
                    sums!(name, by_weight, |B, device, [x = &x, w = &w, g = &g]| {
                        B::$w_backward(x, w, g, options.clone())
                    });
                    sums!(name, Terms::of(places, dtype), |B, device, [x = &x, b = &b, g = &g]| {
                        B::$b_backward(x, b, g)
                    });
                }
            }
        }
    };
}

conv!(conv1d, 1, conv1d, conv1d_x_backward, conv1d_weight_backward, conv1d_bias_backward);
conv!(conv2d, 2, conv2d, conv2d_x_backward, conv2d_weight_backward, conv2d_bias_backward);
conv!(conv3d, 3, conv3d, conv3d_x_backward, conv3d_weight_backward, conv3d_bias_backward);

macro_rules! conv_transpose {
    ($test:ident, $dims:literal, $conv:ident, $x_backward:ident, $w_backward:ident) => {
        #[test]
        fn $test() {
            let random = Random::new();
            for dtype in FLOATS {
                for c in CASES {
                    let spatial = |n: usize, m: usize, s: usize| [vec![n, m], vec![s; $dims]].concat();
                    let out_padding = c.stride - 1;
                    let out = (c.size - 1) * c.stride + c.dilation * (c.kernel - 1) + out_padding + 1;
                    let Some(out) = out.checked_sub(2 * c.padding) else { continue };
                    let x = float(
                        &random,
                        &spatial(c.batch, c.channels[0], c.size),
                        dtype,
                        View::Contiguous,
                        -1.0,
                        1.0,
                    );
                    let w = float(
                        &random,
                        &spatial(c.channels[0], c.channels[1] / c.groups, c.kernel),
                        dtype,
                        View::Contiguous,
                        -1.0,
                        1.0,
                    );
                    let b = float(&random, &[c.channels[1]], dtype, View::Contiguous, -1.0, 1.0);
                    let g = float(
                        &random,
                        &spatial(c.batch, c.channels[1], out),
                        dtype,
                        View::Contiguous,
                        -1.0,
                        1.0,
                    );
                    let options = ConvTransposeOptions::<$dims>::new(
                        [c.stride; $dims],
                        [c.padding; $dims],
                        [out_padding; $dims],
                        [c.dilation; $dims],
                        c.groups,
                    );
                    let name = format!("transposed {}", c.name($dims, dtype));
                    // A transposed convolution is the gradient of a convolution's input.
                    let there = Terms::in_parts(c.terms(0, $dims), 1, dtype);
                    sums!(name, there, |B, device, [x = &x, w = &w]| {
                        B::$conv(x, w, None, options.clone())
                    });
                    let there = Terms { bias: true, ..there };
                    sums!(name, there, |B, device, [x = &x, w = &w, b = &b]| {
                        B::$conv(x, w, Some(b), options.clone())
                    });
                    sums!(name, Terms::of(c.terms(1, $dims), dtype), |B, device, [w = &w, g = &g]| {
                        B::$x_backward(w, g, options.clone())
                    });
                    let by_weight = Terms::in_parts(c.batch * c.size.pow($dims), c.batch, dtype);
                    sums!(name, by_weight, |B, device, [x = &x, w = &w, g = &g]| {
                        B::$w_backward(x, w, g, options.clone())
                    });
                }
            }
        }
    };
}

conv_transpose!(
    conv_transpose1d,
    1,
    conv_transpose1d,
    conv_transpose1d_x_backward,
    conv_transpose1d_weight_backward
);
conv_transpose!(
    conv_transpose2d,
    2,
    conv_transpose2d,
    conv_transpose2d_x_backward,
    conv_transpose2d_weight_backward
);
conv_transpose!(
    conv_transpose3d,
    3,
    conv_transpose3d,
    conv_transpose3d_x_backward,
    conv_transpose3d_weight_backward
);

/// In narrow types a bias gradient is one sum that is rounded once, and not a sum over images of
/// rounded sums.
#[test]
fn bias_gradients_are_rounded_once() {
    // For each type, the first number to which adding 1 changes nothing.
    for (dtype, large) in [(DType::F16, 2048.0), (DType::BF16, 256.0)] {
        let tensor = |values: Vec<f64>, shape: &[usize]| {
            let data = TensorData::new(values, Shape::from(shape.to_vec())).convert_dtype(dtype);
            R::float_from_data(data, &Default::default())
        };
        let grad = tensor(vec![large, 1.0, -large, 0.0], &[2, 1, 2]);
        let (x, bias) = (tensor(vec![0.0; 4], &[2, 1, 2]), tensor(vec![0.0], &[1]));
        let found = read_float::<R>(R::conv1d_bias_backward(x, bias, grad));
        assert_eq!(found.iter::<f64>().collect::<Vec<_>>(), [1.0], "{dtype:?}");
        // Enough that lines are summed in parts.
        let places = 70_000;
        let mut long = vec![0.0; 3 * places];
        (long[0], long[places - 1], long[places], long[2 * places]) = (large, 1.0, -large, 1.0);
        let (x, bias) = (tensor(vec![0.0; 3 * places], &[3, 1, places]), tensor(vec![0.0], &[1]));
        let found = read_float::<R>(R::conv1d_bias_backward(x, bias, tensor(long, &[3, 1, places])));
        assert_eq!(found.iter::<f64>().collect::<Vec<_>>(), [2.0], "{dtype:?}");
    }
}
