//! Pooling with channels last.

use burn_rocm::RocmTensor;
use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::*;

use crate::{Image, LAST, copies, is_last, on, stored_last};

#[test]
fn pooling_in_both_orders() {
    on();
    let random = Random::new();
    for dtype in FLOATS {
        for _ in 0..12 {
            let each = |low: usize, below: usize| [(); 2].map(|()| low + random.below(below - low));
            let (window, stride) = (each(1, 4), each(1, 4));
            let padding = window.map(|size| random.below(size));
            let shape = [1 + random.below(3), 2 + random.below(7), 5 + random.below(6), 4 + random.below(6)];
            let [n, c, h, w] = shape;
            let out = [0, 1].map(|d| (shape[2 + d] + 2 * padding[d] - window[d]) / stride[d] + 1);
            let x = float(&random, &[n, h, w, c], dtype, View::Contiguous, -1.0, 1.0);
            let g = Image::draw(&random, [n, c, out[0], out[1]], dtype);
            let what = format!("{dtype:?} {shape:?}, {window:?} by {stride:?}, {padding:?}, g {}", g.last);
            differential!(what, Tolerance::EXACT, |B, device| {
                let x = || B::float_permute(x.float::<B>(&device), &[0, 3, 1, 2]);
                let plain = B::max_pool2d(x(), window, stride, padding, [1, 1], false);
                let found = B::max_pool2d_with_indices(x(), window, stride, padding, [1, 1], false);
                let indices = wait(B::int_into_data(found.indices)).convert::<i64>();
                vec![read_float::<B>(plain), read_float::<B>(found.output), indices]
            });
            let terms = Terms::of_max_pool(window[0] * window[1], dtype);
            sums!(what, terms, |B, device, [gs = &g.stored]| {
                let x = B::float_permute(x.float::<B>(&device), &[0, 3, 1, 2]);
                let found = B::max_pool2d_with_indices(x.clone(), window, stride, padding, [1, 1], false);
                let (x, g) = (B::float_cast(x, gs.dtype().into()), g.seen::<B>(gs));
                let indices = found.indices;
                B::max_pool2d_with_indices_backward(x, window, stride, padding, [1, 1], false, g, indices).x_grad
            });
            for include in [true, false] {
                let terms = Terms { roundings: 1, ..Terms::of(window[0] * window[1], dtype) };
                sums!(what, terms, |B, device, [xs = &x]| {
                    let x = B::float_permute(xs, &[0, 3, 1, 2]);
                    B::avg_pool2d(x, window, stride, padding, include, false)
                });
                let terms = Terms::in_parts(window[0] * window[1], 2, dtype);
                sums!(what, terms, |B, device, [xs = &x, gs = &g.stored]| {
                    let x = B::float_permute(xs, &[0, 3, 1, 2]);
                    B::avg_pool2d_backward(x, g.seen::<B>(gs), window, stride, padding, include, false)
                });
            }
            // Windows that divide the image, and windows that do not.
            for to in [[1, 1], [h, 1], [2, 3]] {
                let terms = Terms { roundings: 1, ..Terms::of(h * w, dtype) };
                sums!(what, terms, |B, device, [xs = &x]| {
                    B::adaptive_avg_pool2d(B::float_permute(xs, &[0, 3, 1, 2]), to)
                });
                let g = Image::draw(&random, [n, c, to[0], to[1]], dtype);
                let terms = Terms::in_parts(to[0] * to[1], 2, dtype);
                sums!(what, terms, |B, device, [xs = &x, gs = &g.stored]| {
                    B::adaptive_avg_pool2d_backward(B::float_permute(xs, &[0, 3, 1, 2]), g.seen::<B>(gs))
                });
            }
        }
    }
}

/// Maxima, their indices and their gradient, by sizes that fill 16 bytes and sizes that do not. The
/// values have ties, NaN and -inf: the first of equal elements counts, NaN stays if it comes first,
/// and a window without elements gives -inf and no gradient. All of it is counted in f64 here. A
/// gradient is a sum in f32 that is rounded once.
#[test]
fn maxima_by_definition() {
    on();
    let random = Random::new();
    for case in 0..60 {
        let dtype = LAST[case % 2];
        let channels = [8, 16, 24, 64, 1, 3, 12][random.below(7)];
        let each = |low: usize, below: usize| [(); 2].map(|()| low + random.below(below - low));
        let (n, size) = (1 + random.below(3), each(2, 12));
        let (window, stride, dilation) = (each(1, 4), each(1, 4), each(1, 3));
        let (padding, ceil, shifted) = (each(0, 4), random.below(2) == 0, random.below(4) == 0);
        let fits = |d: usize| size[d] + 2 * padding[d] > dilation[d] * (window[d] - 1);
        if !(fits(0) && fits(1)) {
            continue;
        }
        let out = [0, 1].map(|d| {
            let steps = size[d] + 2 * padding[d] - dilation[d] * (window[d] - 1) - 1;
            1 + if ceil { steps.div_ceil(stride[d]) } else { steps / stride[d] }
        });
        let what = format!(
            "{dtype:?} {n} x {channels} x {size:?}, {window:?} by {stride:?}, {padding:?}, {dilation:?}, \
             ceil {ceil}, shifted {shifted}"
        );
        let [h, w] = size;
        let value = || match random.below(12) {
            0 => f64::NAN,
            1 => f64::NEG_INFINITY,
            k => k as f64 - 6.0,
        };
        // By row, column and channel.
        let x: Vec<f64> = (0..n * h * w * channels).map(|_| value()).collect();
        let g: Vec<f64> =
            (0..n * out[0] * out[1] * channels).map(|_| random.below(65) as f64 / 32.0 - 1.0).collect();
        let (mut maxima, mut places) = (Vec::new(), Vec::new());
        let (mut sums, mut sizes) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        for (i, grad) in g.iter().enumerate() {
            let (c, ox) = (i % channels, i / channels % out[1]);
            let (oy, sample) = (i / channels / out[1] % out[0], i / channels / out[1] / out[0]);
            let (mut best, mut place) = (f64::NEG_INFINITY, None);
            for (ky, kx) in (0..window[0]).flat_map(|ky| (0..window[1]).map(move |kx| (ky, kx))) {
                let row = (oy * stride[0] + ky * dilation[0]).checked_sub(padding[0]).filter(|&row| row < h);
                let column = (ox * stride[1] + kx * dilation[1]).checked_sub(padding[1]).filter(|&x| x < w);
                let (Some(row), Some(column)) = (row, column) else { continue };
                let here = x[((sample * h + row) * w + column) * channels + c];
                if place.is_none() || here > best {
                    (best, place) = (here, Some(row * w + column));
                }
            }
            maxima.push(best);
            places.push(place.map_or(-1, |place| place as i64));
            if let Some(place) = place {
                let at = (sample * h * w + place) * channels + c;
                sums[at] += grad;
                sizes[at] += grad.abs();
            }
        }
        let image = stored_last(&x, [n, channels, h, w], dtype, shifted);
        let grad = stored_last(&g, [n, channels, out[0], out[1]], dtype, shifted);
        let rows = |tensor: RocmTensor| read_float::<R>(R::float_permute(tensor, &[0, 2, 3, 1]));
        let plain = R::max_pool2d(image.clone(), window, stride, padding, dilation, ceil);
        let found = R::max_pool2d_with_indices(image.clone(), window, stride, padding, dilation, ceil);
        for y in [plain, found.output] {
            assert_eq!(y.dims(), [n, channels, out[0], out[1]], "{what}");
            let same = |(found, exact): (f64, &f64)| found == *exact || (found.is_nan() && exact.is_nan());
            assert!(rows(y).iter::<f64>().zip(&maxima).all(same), "{what}");
        }
        let indices = R::int_permute(found.indices.clone(), &[0, 2, 3, 1]);
        let indices: Vec<i64> = wait(R::int_into_data(indices)).iter::<i64>().collect();
        assert!(indices == places, "{what}");
        let dx = R::max_pool2d_with_indices_backward(
            image,
            window,
            stride,
            padding,
            dilation,
            ceil,
            grad,
            found.indices,
        );
        let growth = limits::growth(window[0] * window[1], limits::wide(dtype));
        for (i, found) in rows(dx.x_grad).iter::<f64>().enumerate() {
            let bound = growth * sizes[i] + limits::unit(dtype) * sums[i].abs() + limits::least(dtype);
            assert!((found - sums[i]).abs() <= bound, "{what}: {found} instead of {} at {i}", sums[i]);
        }
    }
}

/// Windows with padding, of more elements than 31 bits count.
#[test]
fn averages_of_windows_beyond_31_bits() {
    on();
    let (window, stride, padding, elements) = ([50_000; 2], [60_000; 2], [30_000; 2], 2.5e9);
    for dtype in LAST {
        let x = stored_last(&[10_240.0; 32], [1, 8, 2, 2], dtype, false);
        let grad = stored_last(&[40_960.0; 8], [1, 8, 1, 1], dtype, false);
        assert!(is_last(&x));
        let there = R::avg_pool2d(x.clone(), window, stride, padding, true, false);
        let back = R::avg_pool2d_backward(x, grad, window, stride, padding, true, false);
        for (what, found) in [("avg_pool2d", there), ("avg_pool2d_backward", back)] {
            // The sum of four pixels, or the gradient.
            let found = read_float::<R>(found);
            let expected = vec![40_960.0 / elements; found.num_elements()];
            let reference = TensorData::new(expected, found.shape.clone());
            let limits = limits::sums(&reference, &reference, Terms::of(4, dtype));
            limits::assert_within(&format!("{what} {dtype:?}"), &found, &reference, &limits);
        }
    }
}

/// Pooling of no samples gives none.
#[test]
fn pooling_of_an_empty_batch() {
    on();
    let x = || stored_last(&[], [0, 8, 6, 6], DType::BF16, false);
    let found = R::max_pool2d_with_indices(x(), [2, 2], [2, 2], [0, 0], [1, 1], false);
    assert_eq!([found.output.dims(), found.indices.dims()], [[0, 8, 3, 3]; 2]);
    let (g, of) = (found.output, found.indices);
    let dx = R::max_pool2d_with_indices_backward(x(), [2, 2], [2, 2], [0, 0], [1, 1], false, g.clone(), of);
    assert_eq!(dx.x_grad.dims(), [0, 8, 6, 6]);
    assert_eq!(R::avg_pool2d(x(), [2, 2], [2, 2], [0, 0], true, false).dims(), [0, 8, 3, 3]);
    let dx = R::avg_pool2d_backward(x(), g, [2, 2], [2, 2], [0, 0], true, false);
    assert_eq!(dx.dims(), [0, 8, 6, 6]);
}

/// Pooling keeps the order in f16 and bf16, and copies nothing. Indices have the order too.
#[test]
fn pooling_keeps_the_order() {
    on();
    for (dtype, expected) in [(FloatDType::F16, true), (FloatDType::BF16, true), (FloatDType::F32, false)] {
        let of = |shape: [usize; 4]| {
            let ones = R::float_ones(Shape::from(shape), &Default::default(), dtype);
            R::float_permute(ones, &[0, 3, 1, 2])
        };
        let (x, g) = (of([2, 6, 6, 8]), of([2, 3, 3, 8]));
        let (results, lines) = during(|| {
            let max = R::max_pool2d_with_indices(x.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false);
            let (x2, g2, of) = (x.clone(), g.clone(), max.indices);
            let by_max =
                R::max_pool2d_with_indices_backward(x2, [2, 2], [2, 2], [0, 0], [1, 1], false, g2, of);
            [
                max.output,
                by_max.x_grad,
                R::max_pool2d(x.clone(), [3, 3], [2, 2], [1, 1], [1, 1], true),
                R::avg_pool2d(x.clone(), [2, 2], [2, 2], [0, 0], true, true),
                R::avg_pool2d(x.clone(), [2, 2], [2, 2], [0, 0], true, false),
                R::avg_pool2d_backward(x.clone(), g.clone(), [2, 2], [2, 2], [0, 0], true, false),
                R::adaptive_avg_pool2d(x.clone(), [3, 3]),
                R::adaptive_avg_pool2d_backward(x, g),
            ]
        });
        assert!(results.iter().map(is_last).all(|last| last == expected), "{dtype:?}");
        assert!(!expected || copies(&lines).is_empty(), "{lines:?}");
    }
}

/// An index that names no pixel is a fault in this order too.
#[test]
fn an_index_past_the_plane_is_a_fault() {
    on();
    let device = Default::default();
    let last = |shape: [usize; 4]| {
        let ones = R::float_ones(Shape::from(shape), &device, FloatDType::BF16);
        R::float_permute(ones, &[0, 3, 1, 2])
    };
    for index in [16i32, 17, i32::MAX, i32::MIN, -2] {
        let mut indices = vec![0; 2 * 2 * 3];
        indices[5] = index;
        let indices = R::int_from_data(TensorData::new(indices, [1, 3, 2, 2]), &device);
        let (x, g) = (last([1, 4, 4, 3]), last([1, 2, 2, 3]));
        let grad =
            R::max_pool2d_with_indices_backward(x, [2, 2], [2, 2], [0, 0], [1, 1], false, g, indices).x_grad;
        let read = burn_std::future::block_on(R::float_into_data(grad));
        assert!(read.is_err(), "{index}");
        let _ = burn_rocm::take_last_error();
    }
}
