//! Convolutions with random options that differ by axis, and the kernels of this crate that replace
//! MIOpen.

use std::process::Command;

use burn_rocm_tests::limits::{self, Terms, exact};
use burn_rocm_tests::*;

/// The number of cases for each rank and dtype. MIOpen compiles kernels for each case, which takes
/// a virtual GPU seconds; lockstep is slow too.
fn cases() -> usize {
    match (std::env::var("BURN_ROCM_PROVIDER").as_deref(), std::env::var_os("BURN_ROCM_CPU_WAVE")) {
        (Ok("rocm"), _) => 2,
        (_, Some(_)) => 3,
        _ => 12,
    }
}

#[derive(Debug)]
struct Case<const D: usize> {
    batch: usize,
    groups: usize,
    channels: [usize; 2],
    size: [usize; D],
    window: [usize; D],
    stride: [usize; D],
    padding: [usize; D],
    dilation: [usize; D],
    padding_out: [usize; D],
}

impl<const D: usize> Case<D> {
    /// A random case whose window fits both the input and the output of a transposed convolution.
    fn draw(random: &Random) -> Self {
        loop {
            let each = |low: usize, below: usize| [(); D].map(|()| low + random.below(below - low));
            let groups = 1 + random.below(3);
            let largest = if D == 3 { 6 } else { 12 };
            let case = Self {
                batch: 1 + random.below(3),
                groups,
                channels: [groups * (1 + random.below(3)), groups * (1 + random.below(6))],
                size: each(1, largest),
                window: each(1, 5),
                stride: each(1, 5),
                padding: each(0, 4),
                dilation: each(1, 4),
                padding_out: each(0, 4),
            };
            let fits = (0..D).all(|d| {
                let reach = case.dilation[d] * (case.window[d] - 1) + 1;
                // Burn requires that the output's padding is below the stride or the dilation, and
                // that the output is not empty.
                case.size[d] + 2 * case.padding[d] >= reach
                    && (case.padding_out[d] < case.stride[d] || case.padding_out[d] < case.dilation[d])
                    && (case.size[d] - 1) * case.stride[d] + reach + case.padding_out[d] > 2 * case.padding[d]
            });
            if fits && !(D == 1 && groups > 1 && case.leaves_a_rest()) {
                return case;
            }
        }
    }

    /// Whether pixels remain after the last window. burn-flex takes the gradient of grouped weights
    /// from burn-backend's defaults, which in one dimension (but not in two or three) read past the
    /// window in this case: see [`grouped_lines_with_a_rest`].
    fn leaves_a_rest(&self) -> bool {
        (0..D).any(|d| {
            let reach = self.dilation[d] * (self.window[d] - 1) + 1;
            let rest = (self.size[d] + 2 * self.padding[d] - reach) % self.stride[d];
            rest >= self.dilation[d]
        })
    }

    fn out(&self) -> [usize; D] {
        std::array::from_fn(|d| {
            (self.size[d] + 2 * self.padding[d] - self.dilation[d] * (self.window[d] - 1) - 1)
                / self.stride[d]
                + 1
        })
    }

    fn transposed(&self) -> [usize; D] {
        std::array::from_fn(|d| {
            (self.size[d] - 1) * self.stride[d]
                + self.dilation[d] * (self.window[d] - 1)
                + 1
                + self.padding_out[d]
                - 2 * self.padding[d]
        })
    }

    fn options(&self) -> ConvOptions<D> {
        ConvOptions::new(self.stride, self.padding, self.dilation, self.groups)
    }

    fn transposed_options(&self) -> ConvTransposeOptions<D> {
        ConvTransposeOptions::new(self.stride, self.padding, self.padding_out, self.dilation, self.groups)
    }
}

fn shape(batch: usize, channels: usize, spatial: &[usize]) -> Vec<usize> {
    [&[batch, channels], spatial].concat()
}

macro_rules! drawn {
    ($test:ident, $dims:literal, $conv:ident $x:ident $w:ident, $transposed:ident $tx:ident $tw:ident) => {
        #[test]
        fn $test() {
            let random = Random::new();
            for dtype in FLOATS {
                for _ in 0..cases() {
                    let c = Case::<$dims>::draw(&random);
                    let [from, to] = c.channels;
                    let view = |n: usize| View::ALL[n % 4];
                    let draw = |shape: &[usize], v: View| float(&random, shape, dtype, v, -1.0, 1.0);
                    let x = draw(&shape(c.batch, from, &c.size), view(random.below(4)));
                    let w = draw(&shape(to, from / c.groups, &c.window), view(random.below(4)));
                    let b = draw(&[to], View::Contiguous);
                    let g = draw(&shape(c.batch, to, &c.out()), view(random.below(4)));
                    let taps = c.window.iter().product::<usize>();
                    let name = format!(concat!(stringify!($conv), " {:?} {:?}"), dtype, c);
                    let there = Terms { bias: true, ..Terms::of(from / c.groups * taps, dtype) };
                    sums!(name, there, |B, device, [x = &x, w = &w, b = &b]| {
                        B::$conv(x, w, Some(b), c.options())
                    });
                    let by_input = Terms::in_parts(to / c.groups * taps, 1, dtype);
                    sums!(name, by_input, |B, device, [x = &x, w = &w, g = &g]| B::$x(x, w, g, c.options()));
                    let places = c.batch * c.out().iter().product::<usize>();
                    let by_weight = Terms::in_parts(places, c.batch, dtype);
                    sums!(name, by_weight, |B, device, [x = &x, w = &w, g = &g]| B::$w(x, w, g, c.options()));
                    let w = draw(&shape(from, to / c.groups, &c.window), view(random.below(4)));
                    let g = draw(&shape(c.batch, to, &c.transposed()), view(random.below(4)));
                    let name = format!(concat!(stringify!($transposed), " {:?} {:?}"), dtype, c);
                    // A transposed convolution is the gradient of a convolution's input.
                    let there = Terms { bias: true, ..Terms::in_parts(from / c.groups * taps, 1, dtype) };
                    sums!(name, there, |B, device, [x = &x, w = &w, b = &b]| {
                        B::$transposed(x, w, Some(b), c.transposed_options())
                    });
                    let by_input = Terms::of(to / c.groups * taps, dtype);
                    sums!(name, by_input, |B, device, [w = &w, g = &g]| {
                        B::$tx(w, g, c.transposed_options())
                    });
                    let places = c.batch * c.size.iter().product::<usize>();
                    let by_weight = Terms::in_parts(places, c.batch, dtype);
                    sums!(name, by_weight, |B, device, [x = &x, w = &w, g = &g]| {
                        B::$tw(x, w, g, c.transposed_options())
                    });
                }
            }
        }
    };
}

drawn!(
    one_dim, 1,
    conv1d conv1d_x_backward conv1d_weight_backward,
    conv_transpose1d conv_transpose1d_x_backward conv_transpose1d_weight_backward
);
drawn!(
    two_dims, 2,
    conv2d conv2d_x_backward conv2d_weight_backward,
    conv_transpose2d conv_transpose2d_x_backward conv_transpose2d_weight_backward
);
drawn!(
    three_dims, 3,
    conv3d conv3d_x_backward conv3d_weight_backward,
    conv_transpose3d conv_transpose3d_x_backward conv_transpose3d_weight_backward
);

/// Grouped convolutions in one dimension whose last pixels no window reaches. The oracle is
/// burn-flex's two-dimensional convolution of planes of one row.
#[test]
fn grouped_lines_with_a_rest() {
    let random = Random::new();
    for dtype in FLOATS {
        let draw = |shape: &[usize]| float(&random, shape, dtype, View::Contiguous, -1.0, 1.0);
        let (x, w, g) = (draw(&[2, 6, 7]), draw(&[9, 2, 3]), draw(&[2, 9, 1]));
        let ours = {
            let device = Default::default();
            let options = ConvOptions::<1>::new([4], [0], [2], 3);
            R::conv1d_weight_backward(
                x.float::<R>(&device),
                w.float::<R>(&device),
                g.float::<R>(&device),
                options,
            )
        };
        let [reference, magnitude] = [false, true].map(|magnitudes| {
            let device = Default::default();
            let plane = |line: &Input| {
                let [a, b, c] = [0, 1, 2].map(|d| line.shape()[d]);
                O::float_reshape(exact::<O>(line, magnitudes, &device), Shape::new([a, b, 1, c]))
            };
            let options = ConvOptions::<2>::new([1, 4], [0, 0], [1, 2], 3);
            read_float::<O>(O::float_reshape(
                O::conv2d_weight_backward(plane(&x), plane(&w), plane(&g), options),
                Shape::new([9, 2, 3]),
            ))
        });
        // Each weight's gradient sums one place of each of two images.
        let limits = limits::sums(&reference, &magnitude, Terms::in_parts(2, 2, dtype));
        limits::assert_within(&format!("{dtype:?}"), &read_float::<R>(ours), &reference, &limits);
    }
}

/// Long sums and wide lines, which the kernels split into parts.
#[test]
fn lines_longer_than_a_piece() {
    let random = Random::new();
    for dtype in [DType::F64, DType::F16] {
        for (size, stride, padding) in
            [([3, 150], [1, 1], [1, 1]), ([2, 131], [1, 2], [0, 3]), ([1, 200], [1, 3], [0, 2])]
        {
            let x = float(&random, &[2, 3, size[0], size[1]], dtype, View::Contiguous, -1.0, 1.0);
            let w = float(&random, &[5, 3, 1, 5], dtype, View::Contiguous, -1.0, 1.0);
            let out = [0, 1].map(|d| (size[d] + 2 * padding[d] - [1, 5][d]) / stride[d] + 1);
            let g = float(&random, &[2, 5, out[0], out[1]], dtype, View::Contiguous, -1.0, 1.0);
            let options = ConvOptions::<2>::new(stride, padding, [1, 1], 1);
            let what = format!("{dtype:?} {size:?} {stride:?}");
            sums!(what, Terms::of(3 * 5, dtype), |B, device, [x = &x, w = &w]| {
                B::conv2d(x, w, None, options.clone())
            });
            sums!(what, Terms::in_parts(5 * 5, 1, dtype), |B, device, [x = &x, w = &w, g = &g]| {
                B::conv2d_x_backward(x, w, g, options.clone())
            });
            let by_weight = Terms::in_parts(2 * out[0] * out[1], 2, dtype);
            sums!(what, by_weight, |B, device, [x = &x, w = &w, g = &g]| {
                B::conv2d_weight_backward(x, w, g, options.clone())
            });
        }
    }
}

/// A batch with more patches than are written out at once. Lockstep would take minutes.
#[test]
fn a_batch_in_parts_natively() {
    let random = Random::new();
    let draw = |shape: &[usize]| float(&random, shape, DType::F64, View::Contiguous, -1.0, 1.0);
    // The patches of an image take 3.2 MB.
    let (x, w, g) = (draw(&[43, 16, 32, 32]), draw(&[8, 16, 5, 5]), draw(&[43, 8, 32, 32]));
    let options = ConvOptions::<2>::new([1, 1], [2, 2], [1, 1], 1);
    let terms = |count| Terms::of(count, DType::F64);
    sums!("parts", terms(16 * 25), |B, device, [x = &x, w = &w]| B::conv2d(x, w, None, options.clone()));
    sums!("parts", terms(8 * 25), |B, device, [x = &x, w = &w, g = &g]| {
        B::conv2d_x_backward(x, w, g, options.clone())
    });
    sums!("parts", terms(43 * 1024), |B, device, [x = &x, w = &w, g = &g]| {
        B::conv2d_weight_backward(x, w, g, options.clone())
    });
}

/// Padding beyond the range of the kernels' counters is refused before anything is launched.
#[test]
fn axes_beyond_the_kernels_count_are_refused() {
    let zeros =
        |shape: &[usize]| R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F64);
    for padding in [1 << 29, usize::MAX / 2, usize::MAX] {
        let options = ConvOptions::<1>::new([1 << 29], [padding], [1], 1);
        assert!(
            std::panic::catch_unwind(|| R::conv1d(zeros(&[1, 1, 8]), zeros(&[1, 1, 1]), None, options))
                .is_err()
        );
        let error = burn_rocm::take_last_error();
        assert!(matches!(error, Some(burn_rocm::RocmError::Invalid { op: "conv1d", .. })), "{error:?}");
        let options = ConvTransposeOptions::<1>::new([usize::MAX], [padding], [0], [1], 1);
        let transposed = || R::conv_transpose1d(zeros(&[1, 1, 8]), zeros(&[1, 1, 1]), None, options.clone());
        assert!(std::panic::catch_unwind(transposed).is_err());
        let error = burn_rocm::take_last_error();
        assert!(
            matches!(error, Some(burn_rocm::RocmError::Invalid { op: "conv_transpose1d", .. })),
            "{error:?}"
        );
    }
}

#[test]
fn nothing_to_convolve() {
    for dtype in FLOATS {
        let zeros =
            |shape: &[usize]| R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), dtype.into());
        let options = || ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
        let bias = R::float_ones(Shape::new([4]), &Default::default(), dtype.into());
        let out = R::conv2d(zeros(&[0, 3, 5, 5]), zeros(&[4, 3, 3, 3]), Some(bias), options());
        assert_eq!(out.dims(), [0, 4, 5, 5]);
        let grad =
            R::conv2d_x_backward(zeros(&[0, 3, 5, 5]), zeros(&[4, 3, 3, 3]), zeros(&[0, 4, 5, 5]), options());
        assert_eq!(grad.dims(), [0, 3, 5, 5]);
        let grad = R::conv2d_weight_backward(
            zeros(&[0, 3, 5, 5]),
            zeros(&[4, 3, 3, 3]),
            zeros(&[0, 4, 5, 5]),
            options(),
        );
        let data = read_float::<R>(grad);
        assert_eq!(data.shape.as_slice(), [4, 3, 3, 3]);
        assert!(data.iter::<f64>().all(|value| value == 0.0));
        let transposed = ConvTransposeOptions::<2>::new([2, 2], [0, 0], [1, 1], [1, 1], 1);
        let out = R::conv_transpose2d(zeros(&[0, 3, 5, 5]), zeros(&[3, 4, 3, 3]), None, transposed);
        assert_eq!(out.dims(), [0, 4, 12, 12]);
    }
}

/// In every dtype, shapes that do not fit are refused with an error that names them, and the next
/// convolution works.
#[test]
fn what_does_not_fit_is_refused() {
    for dtype in FLOATS {
        let zeros =
            |shape: &[usize]| R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), dtype.into());
        let conv = |x: &[usize], w: &[usize], groups: usize| {
            let options = ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], groups);
            std::panic::catch_unwind(|| R::conv2d(zeros(x), zeros(w), None, options))
        };
        for (x, w, groups) in [
            ([1, 3, 2, 5], [4, 3, 3, 3], 1),
            ([1, 3, 5, 5], [4, 2, 3, 3], 1),
            ([1, 4, 5, 5], [3, 2, 3, 3], 2),
            ([1, 4, 5, 5], [4, 4, 3, 3], 2),
        ] {
            assert!(conv(&x, &w, groups).is_err(), "{x:?} {w:?} {groups}");
            match burn_rocm::take_last_error() {
                Some(burn_rocm::RocmError::Invalid { op: "conv2d", expected, found }) => {
                    let text = format!("{expected} {found}");
                    assert!(text.contains(&format!("{x:?}")) && text.contains(&format!("{w:?}")), "{text}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(conv(&[1, 3, 5, 5], &[4, 3, 3, 3], 1).expect("what fits").dims(), [1, 4, 3, 3]);
    }
}

/// Runs the tests of convolutions again in a process that uses only this crate's kernels.
#[test]
fn own_kernels() {
    let tests = std::env::current_exe().expect("the test program has a path");
    let output = Command::new(tests)
        .args(["conv::", "conv_drawn::", "--skip", "own_kernels", "--skip", "miopen_alone"])
        .env("BURN_ROCM_CONV", "own")
        // The trace of these tests must show how ops are served by default, so the child does not
        // write to it.
        .env_remove("BURN_ROCM_TRACE_FILE")
        .output()
        .expect("the test program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains(" 0 passed"), "{text}");
}

/// With MIOpen alone, f64 is refused with an error that says so, and f32 works.
#[test]
fn miopen_alone() {
    let convolve = |dtype: DType| {
        let zeros =
            |shape: &[usize]| R::float_zeros(Shape::from(shape.to_vec()), &Default::default(), dtype.into());
        let options = ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 1);
        std::panic::catch_unwind(|| {
            read_float::<R>(R::conv2d(zeros(&[1, 1, 3, 3]), zeros(&[1, 1, 2, 2]), None, options))
        })
    };
    if std::env::var("BURN_ROCM_CONV").as_deref() == Ok("miopen") {
        assert!(convolve(DType::F64).is_err());
        assert!(matches!(
            burn_rocm::take_last_error(),
            Some(burn_rocm::RocmError::Unsupported { op: "conv2d", dtype: Some("f64"), .. })
        ));
        assert!(convolve(DType::F32).is_ok());
    } else {
        again(&["conv_drawn::miopen_alone", "--exact"], &[("BURN_ROCM_CONV", "miopen")]);
    }
}
