//! Cumulative sums, products, minima and maxima.

use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::*;

const LONG: &[&[usize]] = &[&[3, 5000], &[5000, 3], &[7, 300, 5]];

fn shapes() -> impl Iterator<Item = &'static [usize]> {
    SHAPES.iter().chain(LONG).copied()
}

#[test]
fn float_scans() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in shapes() {
            let view = View::ALL[random.below(5)];
            // Near one, so that products neither vanish nor overflow.
            let a = float(&random, shape, dtype, view, -1.02, 1.02);
            for dim in 0..shape.len() {
                let what = format!("{dtype:?} {shape:?} {view:?} dim {dim}");
                let terms = Terms::of(shape[dim], dtype);
                sums!(format!("float_cumsum {what}"), terms, |B, device, [a = &a]| B::float_cumsum(a, dim));
                let (ours, [reference, _]) = sides!(|B, device, [a = &a]| B::float_cumprod(a, dim));
                let limits = limits::products(&reference, shape[dim], dtype);
                limits::assert_within(&format!("float_cumprod {what}"), &ours, &reference, &limits);
                differential!(format!("float_cummin, float_cummax {what}"), Tolerance::EXACT, |B, device| {
                    vec![
                        read_float::<B>(B::float_cummin(a.float::<B>(&device), dim)),
                        read_float::<B>(B::float_cummax(a.float::<B>(&device), dim)),
                    ]
                });
            }
        }
    }
}

#[test]
fn int_scans() {
    let random = Random::new();
    for dtype in INTS {
        for shape in shapes() {
            let view = View::ALL[random.below(5)];
            let (sums, products) =
                (int(&random, shape, dtype, view, 0, 2), int(&random, shape, dtype, view, 1, 2));
            let values = int(&random, shape, dtype, view, 0, 100);
            // What a sum that leaves the type becomes is not defined by Burn.
            let narrow = matches!(dtype, DType::I8 | DType::U8);
            for dim in (0..shape.len()).filter(|&dim| !narrow || shape[dim] < 127) {
                differential!(
                    format!("int scans {dtype:?} {shape:?} {view:?} dim {dim}"),
                    Tolerance::EXACT,
                    |B, device| {
                        vec![
                            read_int::<B>(B::int_cumsum(sums.int::<B>(&device), dim)),
                            read_int::<B>(B::int_cumprod(products.int::<B>(&device), dim)),
                            read_int::<B>(B::int_cummin(values.int::<B>(&device), dim)),
                            read_int::<B>(B::int_cummax(values.int::<B>(&device), dim)),
                        ]
                    }
                );
            }
        }
    }
}
