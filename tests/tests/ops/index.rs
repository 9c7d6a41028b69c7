//! Gather, scatter, select and embedding.

use burn_rocm_tests::*;

#[test]
fn gather_and_scatter() {
    let random = Random::new();
    for &shape in SHAPES.iter().filter(|shape| !shape.contains(&0)) {
        for dim in 0..shape.len() {
            for index in [DType::I64, DType::I32] {
                let mut at = shape.to_vec();
                at[dim] = 1 + random.below(2 * shape[dim]);
                let (view, other) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
                let places = int(&random, &at, index, other, 0, shape[dim] as i64);
                for dtype in FLOATS {
                    let a = float(&random, shape, dtype, view, -1.0, 1.0);
                    let v = float(&random, &at, dtype, View::ALL[random.below(5)], -1.0, 1.0);
                    let what = format!(
                        "gather, scatter_add {dtype:?} {shape:?} {view:?} by {index:?} {at:?} {other:?} dim {dim}"
                    );
                    differential!(what, Tolerance::sum(dtype, at[dim]).times(2.0), |B, device| {
                        vec![
                            read_float::<B>(B::float_gather(
                                dim,
                                a.float::<B>(&device),
                                places.int::<B>(&device),
                            )),
                            read_float::<B>(B::float_scatter_add(
                                dim,
                                a.float::<B>(&device),
                                places.int::<B>(&device),
                                v.float::<B>(&device),
                            )),
                        ]
                    });
                }
                let dtype = INTS[random.below(8)];
                let a = int(&random, shape, dtype, view, 0, 3);
                let v = int(&random, &at, dtype, View::ALL[random.below(5)], 0, 2);
                if at[dim] < 40 {
                    differential!(
                        format!("int gather, scatter_add {dtype:?} {shape:?} by {at:?} dim {dim}"),
                        Tolerance::EXACT,
                        |B, device| {
                            vec![
                                read_int::<B>(B::int_gather(
                                    dim,
                                    a.int::<B>(&device),
                                    places.int::<B>(&device),
                                )),
                                read_int::<B>(B::int_scatter_add(
                                    dim,
                                    a.int::<B>(&device),
                                    places.int::<B>(&device),
                                    v.int::<B>(&device),
                                )),
                            ]
                        }
                    );
                }
                let (m, w) = (mask(&random, shape, view), mask(&random, &at, other));
                differential!(
                    format!("bool gather, scatter_or {shape:?} by {at:?} dim {dim}"),
                    Tolerance::EXACT,
                    |B, device| {
                        vec![
                            read_bool::<B>(B::bool_gather(
                                dim,
                                m.bool::<B>(&device),
                                places.int::<B>(&device),
                            )),
                            read_bool::<B>(B::bool_scatter_or(
                                dim,
                                m.bool::<B>(&device),
                                places.int::<B>(&device),
                                w.bool::<B>(&device),
                            )),
                        ]
                    }
                );
            }
        }
    }
}

#[test]
fn select_and_select_add() {
    let random = Random::new();
    for &shape in SHAPES.iter().filter(|shape| !shape.contains(&0)) {
        for dim in 0..shape.len() {
            for index in [DType::I64, DType::I32] {
                let count = random.below(2 * shape[dim] + 1);
                let mut picked = shape.to_vec();
                picked[dim] = count;
                let view = View::ALL[random.below(5)];
                let places = int(&random, &[count], index, View::Contiguous, 0, shape[dim] as i64);
                for dtype in FLOATS {
                    let a = float(&random, shape, dtype, view, -1.0, 1.0);
                    let v = float(&random, &picked, dtype, View::ALL[random.below(5)], -1.0, 1.0);
                    let what = format!(
                        "select, select_add {dtype:?} {shape:?} {view:?} by {count} {index:?} dim {dim}"
                    );
                    differential!(what, Tolerance::sum(dtype, count).times(2.0), |B, device| {
                        vec![
                            read_float::<B>(B::float_select(
                                a.float::<B>(&device),
                                dim,
                                places.int::<B>(&device),
                            )),
                            read_float::<B>(B::float_select_add(
                                a.float::<B>(&device),
                                dim,
                                places.int::<B>(&device),
                                v.float::<B>(&device),
                            )),
                        ]
                    });
                }
                let dtype = INTS[random.below(8)];
                let a = int(&random, shape, dtype, view, 0, 2);
                let v = int(&random, &picked, dtype, View::Contiguous, 0, 2);
                let (m, w) = (mask(&random, shape, view), mask(&random, &picked, View::Contiguous));
                if count < 40 {
                    differential!(
                        format!("int and bool select {dtype:?} {shape:?} by {count} dim {dim}"),
                        Tolerance::EXACT,
                        |B, device| {
                            vec![
                                read_int::<B>(B::int_select(
                                    a.int::<B>(&device),
                                    dim,
                                    places.int::<B>(&device),
                                )),
                                read_int::<B>(B::int_select_add(
                                    a.int::<B>(&device),
                                    dim,
                                    places.int::<B>(&device),
                                    v.int::<B>(&device),
                                )),
                                read_bool::<B>(B::bool_select(
                                    m.bool::<B>(&device),
                                    dim,
                                    places.int::<B>(&device),
                                )),
                                read_bool::<B>(B::bool_select_or(
                                    m.bool::<B>(&device),
                                    dim,
                                    places.int::<B>(&device),
                                    w.bool::<B>(&device),
                                )),
                            ]
                        }
                    );
                }
            }
        }
    }
}

#[test]
fn embedding_both_ways() {
    let random = Random::new();
    for dtype in FLOATS {
        for (rows, width, batch, length) in [(10, 16, 2, 5), (3, 7, 1, 1), (100, 1, 4, 9), (5, 33, 3, 0)] {
            for index in [DType::I64, DType::I32] {
                let weights = float(&random, &[rows, width], dtype, View::Contiguous, -1.0, 1.0);
                let places = int(&random, &[batch, length], index, View::Contiguous, 0, rows as i64);
                let grad = float(&random, &[batch, length, width], dtype, View::Contiguous, -1.0, 1.0);
                let what = format!("embedding {dtype:?} [{rows}, {width}] by {index:?} [{batch}, {length}]");
                differential!(what, Tolerance::sum(dtype, batch * length).times(2.0), |B, device| {
                    let there = B::embedding(weights.float::<B>(&device), places.int::<B>(&device));
                    let back = B::embedding_backward(
                        weights.float::<B>(&device),
                        grad.float::<B>(&device),
                        places.int::<B>(&device),
                    );
                    vec![read_float::<B>(there), read_float::<B>(back)]
                });
            }
        }
    }
}
