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
                    differential!(what, Tolerance::EXACT, |B, device| {
                        let (x, at) = (a.float::<B>(&device), places.int::<B>(&device));
                        vec![read_float::<B>(B::float_gather(dim, x, at))]
                    });
                    additions!(what, dtype, |B, device, [a = &a, v = &v]| {
                        B::float_scatter_add(dim, a, places.int::<B>(&device), v)
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

/// The result of a scatter, computed element by element. `indices` and `values` have shape `put`,
/// which fits into `shape` in every axis but `dim`.
fn scattered(shape: &[usize], dim: usize, put: &[usize], indices: &[i64], values: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; shape.iter().product()];
    for (n, (&index, &value)) in indices.iter().zip(values).enumerate() {
        let mut rest = n;
        let mut at = vec![0; shape.len()];
        for axis in (0..put.len()).rev() {
            at[axis] = rest % put[axis];
            rest /= put[axis];
        }
        at[dim] = index as usize;
        out[at.iter().zip(shape).fold(0, |to, (&at, &n)| to * n + at)] += value;
    }
    out
}

/// Indices and values may be narrower than the tensor in every axis. The oracle does not accept
/// that, so a loop computes the expected result.
#[test]
fn scatter_and_gather_by_indices_narrower_than_the_tensor() {
    let random = Random::new();
    let device = Default::default();
    let cases: &[(&[usize], usize, &[usize])] = &[
        (&[3, 5], 0, &[2, 4]),
        (&[3, 5], 1, &[2, 4]),
        (&[3, 5], 1, &[1, 9]),
        (&[4, 3, 6], 0, &[7, 2, 5]),
        (&[4, 3, 6], 1, &[2, 8, 6]),
        (&[4, 3, 6], 1, &[4, 8, 1]),
        (&[4, 3, 6], 2, &[3, 3, 2]),
        (&[2, 300], 0, &[5, 299]),
    ];
    for &(shape, dim, put) in cases {
        let n: usize = put.iter().product();
        for index in [DType::I64, DType::I32] {
            let at = int(&random, put, index, View::Contiguous, 0, shape[dim] as i64);
            let places: Vec<i64> = read_index::<R>(at.int::<R>(&device)).iter().collect();
            // Integers whose sums every type represents exactly.
            let values: Vec<f64> = (0..n).map(|_| random.below(4) as f64).collect();
            let data =
                |dtype| TensorData::new(values.clone(), Shape::from(put.to_vec())).convert_dtype(dtype);
            let zeros = || TensorData::new(vec![0.0; shape.iter().product()], Shape::from(shape.to_vec()));
            let what = |op: &str, dtype| format!("{op} {dtype:?} {shape:?} dim {dim} by {index:?} {put:?}");
            let expected =
                TensorData::new(scattered(shape, dim, put, &places, &values), Shape::from(shape.to_vec()));
            for dtype in FLOATS {
                let target = R::float_from_data(zeros().convert_dtype(dtype), &device);
                let value = R::float_from_data(data(dtype), &device);
                let out = R::float_scatter_add(dim, target, at.int::<R>(&device), value);
                let expected = expected.clone().convert_dtype(dtype);
                assert_close(
                    &what("float_scatter_add", dtype),
                    &[read_float::<R>(out.clone())],
                    &[expected],
                    Tolerance::EXACT,
                );
                // A gather has the shape of its indices.
                let back = read_float::<R>(R::float_gather(dim, out, at.int::<R>(&device)));
                assert_eq!(back.shape.as_slice(), put, "{}", what("float_gather", dtype));
            }
            for dtype in INTS {
                let target = R::int_from_data(zeros().convert_dtype(dtype), &device);
                let value = R::int_from_data(data(dtype), &device);
                let out = read_int::<R>(R::int_scatter_add(dim, target, at.int::<R>(&device), value));
                let expected = expected.clone().convert_dtype(dtype);
                assert_close(&what("int_scatter_add", dtype), &[out], &[expected], Tolerance::EXACT);
            }
            let bools = |data: &TensorData| {
                let values: Vec<bool> = data.iter::<f64>().map(|v| v != 0.0).collect();
                TensorData::new(values, data.shape.clone())
            };
            let target = R::bool_from_data(bools(&zeros()), &device);
            let value = R::bool_from_data(bools(&data(DType::F64)), &device);
            let out = read_bool::<R>(R::bool_scatter_or(dim, target, at.int::<R>(&device), value));
            assert_eq!(out, bools(&expected), "{}", what("bool_scatter_or", DType::U8));
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
                    differential!(what, Tolerance::EXACT, |B, device| {
                        let (x, at) = (a.float::<B>(&device), places.int::<B>(&device));
                        vec![read_float::<B>(B::float_select(x, dim, at))]
                    });
                    additions!(what, dtype, |B, device, [a = &a, v = &v]| {
                        B::float_select_add(a, dim, places.int::<B>(&device), v)
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
                differential!(what, Tolerance::EXACT, |B, device| {
                    let there = B::embedding(weights.float::<B>(&device), places.int::<B>(&device));
                    vec![read_float::<B>(there)]
                });
                additions!(what, dtype, |B, device, [w = &weights, g = &grad]| {
                    B::embedding_backward(w, g, places.int::<B>(&device))
                });
            }
        }
    }
}
