//! Resizing, its gradient, and sampling at grid points.

use burn_rocm_tests::*;

const MODES: [InterpolateMode; 4] = [
    InterpolateMode::Nearest,
    InterpolateMode::Bilinear,
    InterpolateMode::Bicubic,
    InterpolateMode::Lanczos3,
];
const PADDINGS: [GridSamplePaddingMode; 3] =
    [GridSamplePaddingMode::Zeros, GridSamplePaddingMode::Border, GridSamplePaddingMode::Reflection];
/// Input shapes and the sizes that they are resized to: larger, smaller, larger in one axis and
/// smaller in the other, equal, from and to a single pixel, and empty.
const CASES: &[([usize; 4], [usize; 2])] = &[
    ([1, 2, 4, 5], [9, 8]),
    ([2, 3, 9, 11], [4, 3]),
    ([2, 1, 3, 10], [7, 4]),
    ([1, 2, 6, 6], [6, 6]),
    ([1, 1, 1, 1], [3, 5]),
    ([1, 2, 7, 8], [1, 1]),
    ([1, 1, 2, 2], [13, 2]),
    ([0, 2, 3, 3], [2, 2]),
    ([2, 2, 3, 3], [0, 4]),
];

fn options(mode: &InterpolateMode, align: bool) -> InterpolateOptions {
    InterpolateOptions::new(mode.clone()).with_align_corners(align)
}

/// The shape after resizing.
fn resized(shape: [usize; 4], size: [usize; 2]) -> [usize; 4] {
    [shape[0], shape[1], size[0], size[1]]
}

/// Calls `body` for every case of resizing.
fn each_case(modes: &[InterpolateMode], mut body: impl FnMut([usize; 4], [usize; 2], InterpolateOptions)) {
    for mode in modes {
        for align in [false, true] {
            for &(shape, size) in CASES {
                body(shape, size, options(mode, align));
            }
        }
    }
}

/// The error of resizing these cases in the type in which it is computed, before one rounding to
/// f16 or bf16: 134 roundings in f32, 7200 in f64. An output is a sum over 6 inputs of sums over 6.
/// With the weights' roundings, no product has more than 16 roundings. The weights' magnitudes add
/// up to less than 3, so in f32 these are less than 48 roundings of 1, the inputs' largest
/// magnitude. Positions of at most 13 and their weights have few roundings in f64 on each side. With the
/// slopes of the weights along both axes, of less than 4, these are less than 1000.
fn near(dtype: DType) -> Tolerance {
    Tolerance::of(limits::wide(dtype)).times(8.0)
}

fn a_view(random: &Random) -> View {
    View::ALL[random.below(View::ALL.len())]
}

#[test]
fn interpolate_as_the_oracle() {
    let random = Random::new();
    for dtype in FLOATS {
        each_case(&MODES, |shape, size, options| {
            if shape.contains(&0) || size.contains(&0) {
                return; // the oracle divides by the plane's size
            }
            let view = a_view(&random);
            let x = float(&random, &shape, dtype, view, -1.0, 1.0);
            let what = format!("interpolate {options:?} {dtype:?} {shape:?} to {size:?} {view:?}");
            let (ours, [reference, _]) =
                sides!(|B, device, [x = &x]| B::interpolate(x, size, options.clone()));
            assert_eq!(ours.dtype, dtype, "{what}");
            let limits = limits::rounded(&reference, limits::wide(dtype), dtype, near(dtype));
            limits::assert_within(&what, &ours, &reference, &limits);
        });
    }
}

#[test]
fn interpolate_backward_as_the_oracle() {
    let random = Random::new();
    // The oracle has no gradient for Lanczos.
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        each_case(&MODES[..3], |shape, size, options| {
            if shape.contains(&0) || size.contains(&0) {
                return;
            }
            let view = a_view(&random);
            let x = float(&random, &shape, dtype, View::Contiguous, -1.0, 1.0);
            let g = float(&random, &resized(shape, size), dtype, view, -1.0, 1.0);
            let what = format!("interpolate_backward {options:?} {dtype:?} {shape:?} to {size:?} {view:?}");
            let (ours, [reference, _]) = sides!(|B, device, [x = &x, g = &g]| {
                B::interpolate_backward(x, g, size, options.clone())
            });
            assert_eq!(ours.dtype, dtype, "{what}");
            let near = limits::resized([shape[2], shape[3]], size, dtype);
            let limits = limits::rounded(&reference, limits::wide(dtype), dtype, near);
            limits::assert_within(&what, &ours, &reference, &limits);
        });
    }
}

fn product(a: &TensorData, b: &TensorData) -> f64 {
    a.iter::<f64>().zip(b.iter::<f64>()).map(|(a, b)| a * b).sum()
}

/// Resizing is linear, so its gradient is the adjoint: `<A x, g> = <x, A^T g>` for any `x` and `g`.
#[test]
fn interpolate_backward_is_the_adjoint() {
    let random = Random::new();
    let device = Default::default();
    each_case(&MODES, |shape, size, options| {
        let x = float(&random, &shape, DType::F64, View::Contiguous, -1.0, 1.0);
        let g = float(&random, &resized(shape, size), DType::F64, a_view(&random), -1.0, 1.0);
        let there = R::interpolate(x.float::<R>(&device), size, options.clone());
        let back =
            R::interpolate_backward(x.float::<R>(&device), g.float::<R>(&device), size, options.clone());
        let (x, g) = (read_float::<R>(x.float::<R>(&device)), read_float::<R>(g.float::<R>(&device)));
        let (there, back) = (read_float::<R>(there), read_float::<R>(back));
        assert_eq!(there.shape, g.shape);
        assert_eq!(back.shape, x.shape);
        let (ax_g, x_atg) = (product(&there, &g), product(&x, &back));
        assert!((ax_g - x_atg).abs() < 1e-11, "{options:?} {shape:?} to {size:?}: {ax_g} and {x_atg}");
    });
}

/// The gradient in every dtype equals f64's, rounded, and has the same bits in every run.
#[test]
fn interpolate_backward_in_every_type() {
    let random = Random::new();
    let device = Default::default();
    for dtype in FLOATS {
        each_case(&MODES, |shape, size, options| {
            let x = float(&random, &shape, dtype, View::Contiguous, -1.0, 1.0);
            let g = float(&random, &resized(shape, size), dtype, View::Contiguous, -1.0, 1.0);
            let run = |dtype: DType| {
                let [x, g] = [&x, &g].map(|t| R::float_cast(t.float::<R>(&device), float_dtype(dtype)));
                let back = R::interpolate_backward(x, g, size, options.clone());
                read_float::<R>(R::float_cast(back, FloatDType::F64))
            };
            let what = format!("interpolate_backward {options:?} {dtype:?} {shape:?} to {size:?}");
            let found = run(dtype);
            assert_eq!(found, run(dtype), "{what}");
            let reference = run(DType::F64);
            let resized = match options.mode {
                InterpolateMode::Lanczos3 => limits::resized_by_lanczos,
                _ => limits::resized,
            };
            let near = resized([shape[2], shape[3]], size, dtype);
            let limits = limits::rounded(&reference, limits::wide(dtype), dtype, near);
            limits::assert_within(&what, &found, &reference, &limits);
        });
    }
}

#[test]
fn grid_sample_as_the_oracle() {
    let random = Random::new();
    for dtype in FLOATS {
        for mode in &MODES[..2] {
            for padding in PADDINGS {
                for align in [false, true] {
                    for (shape, out) in
                        [([2, 3, 5, 7], [4, 6]), ([1, 1, 1, 1], [3, 3]), ([2, 2, 1, 8], [1, 9])]
                    {
                        let view = a_view(&random);
                        let x = float(&random, &shape, dtype, view, -1.0, 1.0);
                        // Most points lie past the border, some far past it.
                        let reach = [1.0, 2.5, 40.0][random.below(3)];
                        let grid = [shape[0], out[0], out[1], 2];
                        let grid = float(&random, &grid, dtype, a_view(&random), -reach, reach);
                        let options = GridSampleOptions::new(mode.clone())
                            .with_padding_mode(padding)
                            .with_align_corners(align);
                        let what = format!("grid_sample_2d {options:?} {dtype:?} {shape:?} {view:?}");
                        differential!(what, Tolerance::of(dtype).times(8.0), |B, device| {
                            let (x, grid) = (x.float::<B>(&device), grid.float::<B>(&device));
                            vec![read_float::<B>(B::float_grid_sample_2d(x, grid, options.clone()))]
                        });
                    }
                }
            }
        }
    }
}

/// Points that are not finite, points midway between two pixels, and the border itself.
#[test]
fn grid_sample_at_odd_points() {
    let points = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1.0, 0.0, 0.5, -0.25, 1e30];
    let pairs: Vec<f64> = points.iter().flat_map(|&x| points.map(|y| [x, y])).flatten().collect();
    for mode in &MODES[..2] {
        for padding in PADDINGS {
            for align in [false, true] {
                let options =
                    GridSampleOptions::new(mode.clone()).with_padding_mode(padding).with_align_corners(align);
                // From an infinite point between pixels, the oracle's index overflows.
                let finite = |pair: &[f64]| {
                    matches!(mode, InterpolateMode::Nearest) || pair.iter().all(|p| p.abs() < 1e9)
                };
                let kept: Vec<f64> = pairs.chunks(2).filter(|pair| finite(pair)).flatten().copied().collect();
                let grid = TensorData::new(kept.clone(), [1, kept.len() / 2, 1, 2]);
                let x = TensorData::new((1..=12).map(f64::from).collect::<Vec<_>>(), [1, 1, 3, 4]);
                differential!(format!("{options:?}"), Tolerance::of(DType::F64), |B, device| {
                    let x = B::float_from_data(x.clone(), &device);
                    let grid = B::float_from_data(grid.clone(), &device);
                    vec![read_float::<B>(B::float_grid_sample_2d(x, grid, options.clone()))]
                });
            }
        }
    }
}

/// The modes that the oracle lacks, on the grid of a resizing: wherever no tap passes the border,
/// the result equals the resizing's.
#[test]
fn grid_sample_of_the_wide_modes() {
    let random = Random::new();
    let device = Default::default();
    let (shape, size) = ([2, 3, 12, 15], [23, 31]);
    let axis = |o: usize, size: usize, align: bool| match align {
        true => 2.0 * o as f64 / (size - 1) as f64 - 1.0,
        false => (2 * o + 1) as f64 / size as f64 - 1.0,
    };
    for mode in &MODES[2..] {
        for align in [false, true] {
            let rows =
                (0..shape[0]).flat_map(|_| (0..size[0]).flat_map(|y| (0..size[1]).map(move |x| (y, x))));
            let grid: Vec<f64> =
                rows.flat_map(|(y, x)| [axis(x, size[1], align), axis(y, size[0], align)]).collect();
            let grid = TensorData::new(grid, [shape[0], size[0], size[1], 2]);
            let x = float(&random, &shape, DType::F64, View::Contiguous, -1.0, 1.0);
            let whole = R::interpolate(x.float::<R>(&device), size, options(mode, align));
            // Three input pixels at either end are six output pixels.
            let cut = [0..shape[0], 0..shape[1], 7..size[0] - 7, 7..size[1] - 7]
                .map(|r| Slice::new(r.start as isize, Some(r.end as isize), 1));
            for padding in PADDINGS {
                let options =
                    GridSampleOptions::new(mode.clone()).with_padding_mode(padding).with_align_corners(align);
                let grid = R::float_from_data(grid.clone(), &device);
                let found = R::float_grid_sample_2d(x.float::<R>(&device), grid, options.clone());
                // Bicubic resizing repeats the border too, so with that padding the results are
                // equal everywhere.
                let all =
                    padding == GridSamplePaddingMode::Border && matches!(mode, InterpolateMode::Bicubic);
                let inner = |t| if all { t } else { R::float_slice(t, &cut) };
                let (found, expected) = (inner(found), inner(whole.clone()));
                let what = format!("grid_sample_2d {options:?}");
                let near = Tolerance::of(DType::F64).times(100.0);
                assert_close(&what, &[read_float::<R>(found)], &[read_float::<R>(expected)], near);
            }
        }
    }
}

/// On a plane of ones, a sample of a wide mode is one wherever padding repeats pixels. With zero
/// padding it is zero far outside.
#[test]
fn grid_sample_of_the_wide_modes_past_the_ends() {
    let random = Random::new();
    let device = Default::default();
    for dtype in FLOATS {
        for mode in &MODES[2..] {
            for padding in PADDINGS {
                for align in [false, true] {
                    let ones = R::float_ones(Shape::from(vec![1, 2, 5, 6]), &device, float_dtype(dtype));
                    let grid = float(&random, &[1, 8, 8, 2], dtype, View::Contiguous, 4.0, 9.0);
                    let options = GridSampleOptions::new(mode.clone())
                        .with_padding_mode(padding)
                        .with_align_corners(align);
                    let found = R::float_grid_sample_2d(ones, grid.float::<R>(&device), options.clone());
                    let value = f64::from(padding != GridSamplePaddingMode::Zeros);
                    let expected = TensorData::new(vec![value; 128], [1, 2, 8, 8]).convert_dtype(dtype);
                    let near = Tolerance::of(dtype).times(4.0);
                    assert_close(&format!("{options:?}"), &[read_float::<R>(found)], &[expected], near);
                }
            }
        }
    }
}
