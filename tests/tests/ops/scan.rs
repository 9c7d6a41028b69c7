//! Cumulative sums, products, minima and maxima.

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
                // The oracle rounds a low-precision sum after each term.
                let tolerance =
                    Tolerance::sum(dtype, shape[dim]).times(4.0 * (shape[dim].max(1) as f64).sqrt());
                differential!(format!("float_cumsum {what}"), tolerance, |B, device| {
                    vec![read_float::<B>(B::float_cumsum(a.float::<B>(&device), dim))]
                });
                differential!(format!("float_cumprod {what}"), tolerance, |B, device| {
                    vec![read_float::<B>(B::float_cumprod(a.float::<B>(&device), dim))]
                });
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
