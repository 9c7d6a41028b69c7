//! Rows that begin anywhere between 16-byte boundaries, in length below and above what a block keeps in registers.

use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::*;

#[test]
fn rows_that_begin_anywhere() {
    let random = Random::new();
    for dtype in FLOATS {
        for len in [1usize, 2, 3, 5, 7, 8, 13, 31, 64, 257, 1023, 2047, 4093, 4096, 4099] {
            let first = 1 + random.below(3);
            let rows = first + 2 + random.below(3);
            let x = float(&random, &[rows, len], dtype, View::Contiguous, -4.0, 4.0);
            let gamma = float(&random, &[len], dtype, View::Contiguous, 0.5, 1.5);
            // Whole rows from the first or a later one on: no copy, and an offset of a multiple of the length.
            let from = [Slice::new(first as isize, None, 1), Slice::new(0, None, 1)];
            differential!(
                format!("rows {dtype:?} [{rows}, {len}] from {first}"),
                Tolerance::of(dtype).times(32.0),
                |B, device| {
                    let x = || B::float_slice(x.float::<B>(&device), &from);
                    vec![
                        read_float::<B>(B::softmax(x(), 1)),
                        read_float::<B>(B::log_softmax(x(), 1)),
                        read_float::<B>(B::softmin(x(), 1)),
                        read_float::<B>(B::float_max_dim(x(), 1)),
                        read_float::<B>(B::layer_norm(x(), gamma.float::<B>(&device), None, 1e-2)),
                    ]
                }
            );
            let what = format!("means {dtype:?} [{rows}, {len}] from {first}");
            sums!(what, Terms::of(len, dtype), |B, device, [x = &x]| {
                B::float_mean_dim(B::float_slice(x, &from), 1)
            });
        }
    }
}

#[test]
fn rows_of_integers_that_begin_anywhere() {
    let random = Random::new();
    for dtype in INTS {
        for len in [1usize, 3, 15, 16, 17, 33, 1023, 4099] {
            let x = int(&random, &[5, len], dtype, View::Contiguous, 0, 100);
            let from = [Slice::new(2, None, 1), Slice::new(0, None, 1)];
            differential!(format!("rows {dtype:?} [5, {len}]"), Tolerance::EXACT, |B, device| {
                let x = || B::int_slice(x.int::<B>(&device), &from);
                vec![read_int::<B>(B::int_sum_dim(x(), 1)), read_int::<B>(B::int_max_dim(x(), 1))]
            });
        }
    }
}
