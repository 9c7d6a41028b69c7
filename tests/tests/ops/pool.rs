//! Pooling, forward and backward.

use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::*;

/// The shape `[batch, channels, height, width]`, the window, the stride and the padding.
type Case = ([usize; 4], [usize; 2], [usize; 2], [usize; 2]);
const CASES: &[Case] = &[
    ([1, 1, 4, 4], [2, 2], [2, 2], [0, 0]),
    ([2, 3, 7, 9], [3, 3], [2, 2], [1, 1]),
    ([2, 2, 8, 5], [2, 3], [1, 2], [1, 0]),
    ([3, 4, 6, 6], [3, 3], [3, 3], [0, 0]),
    ([1, 2, 28, 28], [2, 2], [2, 2], [0, 0]),
];

fn pooled(&(shape, window, stride, padding): &Case) -> [usize; 4] {
    let out = |d: usize| (shape[2 + d] + 2 * padding[d] - window[d]) / stride[d] + 1;
    [shape[0], shape[1], out(0), out(1)]
}

#[test]
fn max_pool2d_both_ways() {
    let random = Random::new();
    for dtype in FLOATS {
        for case in CASES {
            let &(shape, window, stride, padding) = case;
            let view = [View::Contiguous, View::Permuted, View::Sliced][random.below(3)];
            let x = float(&random, &shape, dtype, view, -1.0, 1.0);
            let g = float(&random, &pooled(case), dtype, view, -1.0, 1.0);
            let what = format!("max_pool2d {dtype:?} {case:?} {view:?}");
            differential!(what, Tolerance::EXACT, |B, device| {
                let x = || x.float::<B>(&device);
                let plain = B::max_pool2d(x(), window, stride, padding, [1, 1], false);
                let found = B::max_pool2d_with_indices(x(), window, stride, padding, [1, 1], false);
                // The index types differ by backend, but the values must not.
                vec![read_float::<B>(plain), read_float::<B>(found.output), read_index::<B>(found.indices)]
            });
            // The gradient of the maxima. Each side uses its own indices, which are equal.
            let terms = Terms::of_max_pool(window[0] * window[1], dtype);
            sums!(what, terms, |B, device, [g = &g]| {
                let x = x.float::<B>(&device);
                let found = B::max_pool2d_with_indices(x.clone(), window, stride, padding, [1, 1], false);
                let x = B::float_cast(x, g.dtype().into());
                B::max_pool2d_with_indices_backward(x, window, stride, padding, [1, 1], false, g, found.indices).x_grad
            });
        }
    }
}

#[test]
fn avg_pool2d_both_ways() {
    let random = Random::new();
    for dtype in FLOATS {
        for case in CASES {
            for include in [true, false] {
                let &(shape, window, stride, padding) = case;
                let view = [View::Contiguous, View::Permuted, View::Sliced][random.below(3)];
                let x = float(&random, &shape, dtype, view, -1.0, 1.0);
                let g = float(&random, &pooled(case), dtype, view, -1.0, 1.0);
                let what = format!("avg_pool2d {dtype:?} {case:?} {view:?} include {include}");
                let terms = Terms::of(window[0] * window[1], dtype);
                sums!(what, terms, |B, device, [x = &x]| {
                    B::avg_pool2d(x, window, stride, padding, include, false)
                });
                sums!(what, terms, |B, device, [x = &x, g = &g]| {
                    B::avg_pool2d_backward(x, g, window, stride, padding, include, false)
                });
            }
        }
    }
}

#[test]
fn pool1d_both_ways() {
    let random = Random::new();
    for dtype in FLOATS {
        for (shape, window, stride, padding) in [([2, 3, 10], 2, 2, 0), ([1, 2, 7], 3, 2, 1)] {
            let x = float(&random, &shape, dtype, View::Contiguous, -1.0, 1.0);
            let out = (shape[2] + 2 * padding - window) / stride + 1;
            let g = float(&random, &[shape[0], shape[1], out], dtype, View::Contiguous, -1.0, 1.0);
            let what = format!("pool1d {dtype:?} {shape:?}");
            differential!(what, Tolerance::EXACT, |B, device| {
                let x = x.float::<B>(&device);
                vec![read_float::<B>(B::max_pool1d(x, window, stride, padding, 1, false))]
            });
            let terms = Terms::of(window, dtype);
            sums!(what, terms, |B, device, [x = &x]| B::avg_pool1d(x, window, stride, padding, true, false));
            sums!(what, terms, |B, device, [x = &x, g = &g]| {
                B::avg_pool1d_backward(x, g, window, stride, padding, true, false)
            });
        }
    }
}

#[test]
fn adaptive_avg_pool_both_ways() {
    let random = Random::new();
    for dtype in FLOATS {
        for (shape, out) in
            [([2, 3, 8, 8], [1, 1]), ([1, 2, 7, 9], [3, 4]), ([2, 1, 5, 5], [5, 5]), ([1, 1, 3, 3], [7, 5])]
        {
            let x = float(&random, &shape, dtype, View::ALL[random.below(5)], -1.0, 1.0);
            let g = float(&random, &[shape[0], shape[1], out[0], out[1]], dtype, View::Contiguous, -1.0, 1.0);
            let what = format!("adaptive_avg_pool2d {dtype:?} {shape:?} to {out:?}");
            let held = |from: [usize; 2], to: [usize; 2]| (from[0] / to[0] + 2) * (from[1] / to[1] + 2);
            let plane = [shape[2], shape[3]];
            let [there, back] = [held(plane, out), held(out, plane)].map(|terms| Terms::of(terms, dtype));
            sums!(what, there, |B, device, [x = &x]| B::adaptive_avg_pool2d(x, out));
            sums!(what, back, |B, device, [x = &x, g = &g]| B::adaptive_avg_pool2d_backward(x, g));
        }
    }
}
