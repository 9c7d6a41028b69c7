//! Rows that begin anywhere between 16-byte boundaries, shorter and longer than the registers of a
//! block hold.

use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::*;

#[test]
fn rows_that_begin_anywhere() {
    let random = Random::new();
    for dtype in FLOATS {
        for len in [1usize, 2, 3, 5, 7, 8, 13, 24, 31, 64, 136, 257, 512, 1023, 1024, 2047, 4093, 4096, 4099]
        {
            let first = 1 + random.below(3);
            // More short rows, because a block takes several of them.
            let rows = first + 2 + random.below(if len < 256 { 70 } else { 3 });
            let x = float(&random, &[rows, len], dtype, View::Contiguous, -4.0, 4.0);
            let gamma = float(&random, &[len], dtype, View::Contiguous, 0.5, 1.5);
            // Whole rows from the first or a later one on. They are not copied, and their offset is
            // a multiple of the length.
            let from = [Slice::new(first as isize, None, 1), Slice::new(0, None, 1)];
            let what = format!("rows {dtype:?} [{rows}, {len}] from {first}");
            differential!(what, Tolerance::EXACT, |B, device| {
                vec![read_float::<B>(B::float_max_dim(B::float_slice(x.float::<B>(&device), &from), 1))]
            });
            let device = Default::default();
            let ours = || R::float_slice(x.float::<R>(&device), &from);
            let found = [R::softmax(ours(), 1), R::log_softmax(ours(), 1), R::softmin(ours(), 1)];
            let normed = R::layer_norm(ours(), gamma.float::<R>(&device), None, 1e-2);
            let (found, normed) = (found.map(read_float::<R>), read_float::<R>(normed));

            let device = Default::default();
            let exact = || O::float_slice(limits::exact::<O>(&x, false, &device), &from);
            let values = read_float::<O>(exact());
            let negated = read_float::<O>(O::float_neg(exact()));
            let references = [O::softmax(exact(), 1), O::log_softmax(exact(), 1), O::softmin(exact(), 1)];
            let of = [(&values, false), (&values, true), (&negated, false)];
            for ((found, reference), (x, logarithm)) in found.iter().zip(references).zip(of) {
                let reference = read_float::<O>(reference);
                assert_eq!(found.dtype, dtype, "{what}");
                let limits = limits::softmax(x, &reference, len, logarithm, dtype);
                limits::assert_within(&format!("softmax of {what}"), found, &reference, &limits);
            }
            let operands = [exact(), limits::exact::<O>(&gamma, false, &device)];
            let name = format!("layer norm of {what}");
            limits::assert_layer_norm::<O>(&name, &normed, dtype, operands, None, 1e-2);
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
