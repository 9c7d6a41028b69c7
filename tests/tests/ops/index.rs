//! Gather, scatter, select and embedding.

use burn_rocm_tests::limits::{Terms, sums};
use burn_rocm_tests::lockstep::in_lockstep;
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

/// Random numbers that `dtype` holds exactly, as data of that type and in f64.
fn drawn(random: &Random, shape: &[usize], dtype: DType) -> (TensorData, Vec<f64>) {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.uniform(-1.0, 1.0)).collect();
    let data = TensorData::new(values, shape.to_vec()).convert_dtype(dtype);
    let exact = data.iter::<f64>().collect();
    (data, exact)
}

/// `PIECE` of `segment.hip`.
const PIECE: usize = 64;

/// The most numbers that are added one after the other in a sum of `terms` and of the target: in a
/// half, pieces are summed first.
fn in_turn(terms: usize, dtype: DType) -> usize {
    let halves = matches!(dtype, DType::F16 | DType::BF16);
    1 + if halves { terms.min(PIECE) + terms / PIECE } else { terms }
}

/// Sums of slices with one index, computed in f64: `value` [outer, len, inner] is added to `target`
/// [outer, size, inner]. Then the sums of the magnitudes, and the most terms of a sum.
fn summed(
    target: &[f64],
    value: &[f64],
    places: &[i64],
    [outer, size, inner]: [usize; 3],
) -> (Vec<f64>, Vec<f64>, usize) {
    let mut out = target.to_vec();
    let mut magnitude: Vec<f64> = target.iter().map(|x| x.abs()).collect();
    let mut terms = vec![0; size];
    for (k, &place) in places.iter().enumerate() {
        terms[place as usize] += 1;
        for o in 0..outer {
            for c in 0..inner {
                let term = value[(o * places.len() + k) * inner + c];
                let at = (o * size + place as usize) * inner + c;
                out[at] += term;
                magnitude[at] += term.abs();
            }
        }
    }
    (out, magnitude, terms.into_iter().max().unwrap_or(0))
}

/// Asserts that `ours` has the sums, within the bound of a sum in the compute type and one rounding.
fn assert_sums(what: &str, ours: &TensorData, (sum, magnitude, terms): (Vec<f64>, Vec<f64>, usize)) {
    let data = |values| TensorData::new(values, ours.shape.clone());
    let (sum, magnitude) = (data(sum), data(magnitude));
    let terms = Terms::of(in_turn(terms, ours.dtype), ours.dtype);
    limits::assert_within(&what, ours, &sum, &sums(&sum, &magnitude, terms));
}

/// Indices below `size`. Every other one is 0, as if by padding, if `padded`.
fn places(random: &Random, count: usize, size: usize, padded: bool) -> Vec<i64> {
    let place = |k: usize| if padded && k.is_multiple_of(2) { 0 } else { random.below(size) as i64 };
    (0..count).map(place).collect()
}

fn indices(places: &[i64], shape: &[usize], dtype: DType) -> burn_backend::tensor::IntTensor<R> {
    R::int_from_data(
        TensorData::new(places.to_vec(), shape.to_vec()).convert_dtype(dtype),
        &Default::default(),
    )
}

/// Many tokens are the same in a batch of text. Their sum is rounded once, as that of few.
#[test]
fn an_embeddings_gradient_is_rounded_once() {
    let random = Random::new();
    let device = Default::default();
    let mut cases = vec![
        (1, 1, 1),
        (1, 3, 500),
        (7, 33, PIECE),
        (7, 33, PIECE + 1),
        (2, 5, 2 * PIECE + 1),
        (5, 9, 0),
        (90, 17, 1000),
        (700, 4, 1500),
    ];
    if !in_lockstep() {
        // Few tokens that are sorted nevertheless, because their rows are long.
        cases.extend([(3, 4200, PIECE), (1, 1100, 700), (5000, 64, 9000)]);
    }
    for (rows, width, count) in cases {
        for dtype in FLOATS {
            for index in [DType::I64, DType::I32] {
                for padded in [false, true] {
                    let places = places(&random, count, rows, padded);
                    let (grad, exact) = drawn(&random, &[1, count, width], dtype);
                    let ours = read_float::<R>(R::embedding_backward(
                        R::float_zeros(Shape::from(vec![rows, width]), &device, dtype.into()),
                        R::float_from_data(grad, &device),
                        indices(&places, &[1, count], index),
                    ));
                    let what = format!(
                        "embedding_backward {dtype:?} [{rows}, {width}] by {index:?} {count} {padded}"
                    );
                    assert_eq!(ours.dtype, dtype, "{what}");
                    let zeros = vec![0.0; rows * width];
                    assert_sums(&what, &ours, summed(&zeros, &exact, &places, [1, rows, width]));
                }
            }
        }
    }
}

/// 4,096 ones make 4,096. Added one by one in f16 they would make 2,048, in bf16 256.
#[test]
fn thousands_of_equal_tokens_do_not_stagnate() {
    let device = Default::default();
    for dtype in FLOATS {
        for (rows, width) in [(1, 3), (40, 1)] {
            let count = 4096;
            let token = rows as i64 - 1;
            let ones = TensorData::ones::<f32, _>([count, 1, width]).convert_dtype(dtype);
            let grad = read_float::<R>(R::embedding_backward(
                R::float_zeros(Shape::from(vec![rows, width]), &device, dtype.into()),
                R::float_from_data(ones, &device),
                indices(&vec![token; count], &[count, 1], DType::I32),
            ));
            let expected = |i: usize| if i / width == rows - 1 { 4096.0 } else { 0.0 };
            let expected: Vec<f64> = (0..rows * width).map(expected).collect();
            assert_eq!(grad.iter::<f64>().collect::<Vec<_>>(), expected, "{dtype:?} [{rows}, {width}]");
        }
    }
}

/// The shapes of a tensor and of values with an index each, and the indexed axis: rows, columns,
/// values that are narrower than the tensor, and few values.
const PUT: [(&[usize], &[usize], usize); 6] = [
    (&[2, 3], &[2, 300], 1),
    (&[3, 2], &[300, 2], 0),
    (&[3, 5], &[300, 4], 0),
    (&[2, 4, 3], &[1, 300, 3], 1),
    (&[40, 3, 70], &[30, 2, 6], 2),
    (&[5, 900], &[4, 40], 0),
];

/// As above, for `float_scatter_add`, where each value has an index.
#[test]
fn thousands_of_additions_to_one_element_do_not_stagnate() {
    let device = Default::default();
    for dtype in FLOATS {
        for (shape, put, axis) in PUT {
            let mut put = put.to_vec();
            put[axis] = 4096;
            let at = vec![shape[axis] as i64 - 1; put.iter().product()];
            let ones = TensorData::ones::<f32, _>(put.clone());
            let expected = scattered(shape, axis, &put, &at, &vec![1.0; at.len()]);
            let found = read_float::<R>(R::float_scatter_add(
                axis,
                R::float_zeros(Shape::from(shape.to_vec()), &device, dtype.into()),
                indices(&at, &put, DType::I32),
                R::float_from_data(ones.convert_dtype(dtype), &device),
            ));
            assert_eq!(found.dtype, dtype);
            assert_eq!(found.iter::<f64>().collect::<Vec<_>>(), expected, "{dtype:?} {shape:?} by {put:?}");
        }
    }
}

/// Sums of values with an index each are rounded once.
#[test]
fn sums_at_an_index_for_each_value_are_rounded_once() {
    let random = Random::new();
    let device = Default::default();
    for dtype in FLOATS {
        for (shape, put, axis) in PUT {
            let count: usize = put.iter().product();
            let at = places(&random, count, shape[axis], true);
            let (target, exact_target) = drawn(&random, shape, dtype);
            let (value, exact) = drawn(&random, put, dtype);
            let found = read_float::<R>(R::float_scatter_add(
                axis,
                R::float_from_data(target, &device),
                indices(&at, put, DType::I64),
                R::float_from_data(value, &device),
            ));
            let total = |target: Vec<f64>, value: Vec<f64>| {
                let sums = scattered(shape, axis, put, &at, &value);
                let all: Vec<f64> = target.iter().zip(sums).map(|(x, sum)| x + sum).collect();
                TensorData::new(all, shape.to_vec())
            };
            let sizes = |values: &[f64]| values.iter().map(|x| x.abs()).collect::<Vec<_>>();
            let magnitude = total(sizes(&exact_target), sizes(&exact));
            let sum = total(exact_target, exact);
            let limits = limits::sums(&sum, &magnitude, Terms::of(put[axis] + 1, dtype));
            let what = format!("float_scatter_add {dtype:?} {shape:?} by {put:?}");
            assert_eq!(found.dtype, dtype, "{what}");
            limits::assert_within(&what, &found, &sum, &limits);
        }
    }
}

/// Few values are added to a large tensor of halves in place, without a copy of it in f32.
#[test]
fn few_additions_to_many_halves_are_in_place() {
    let device = Default::default();
    for dtype in [DType::F16, DType::BF16] {
        let target = R::float_zeros(Shape::from([40, 64]), &device, dtype.into());
        let ones = TensorData::ones::<f32, _>([40, 2]).convert_dtype(dtype);
        let value = R::float_from_data(ones, &device);
        let at = indices(&[63; 80], &[40, 2], DType::I32);
        let (sum, lines) = trace::during(|| R::float_scatter_add(1, target, at, value));
        assert!(lines.iter().any(|line| line.contains("scatter_sorted")), "{lines:?}");
        let expected = (0..40 * 64).map(|n| if n % 64 == 63 { 2.0 } else { 0.0 });
        assert!(read_float::<R>(sum).iter::<f64>().eq(expected), "{dtype:?}");
    }
}

/// Sums at a list of indices along any axis, from and to views.
#[test]
fn sums_at_a_list_of_indices_are_rounded_once() {
    let random = Random::new();
    let device = Default::default();
    for (shape, axis, count) in [
        (vec![6], 0, 200),
        (vec![3, 5, 7], 0, 130),
        (vec![3, 5, 7], 1, 40),
        (vec![3, 5, 7], 1, 300),
        (vec![4, 3, 2], 2, 65),
        (vec![2, 600], 1, 700),
    ] {
        let dims = [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()];
        let mut picked = shape.clone();
        picked[axis] = count;
        for dtype in FLOATS {
            for swapped in [false, true] {
                let places = places(&random, count, shape[axis], true);
                let (target, exact_target) = drawn(&random, &shape, dtype);
                let (value, exact) = drawn(&random, &picked, dtype);
                let value = R::float_from_data(value, &device);
                // The same elements in another order in memory.
                let (first, last) = (0, shape.len() - 1);
                let value = match swapped {
                    true => {
                        let moved = R::float_swap_dims(value, first, last);
                        let moved = R::float_add_scalar(moved, Scalar::Float(0.0));
                        R::float_swap_dims(moved, first, last)
                    }
                    false => value,
                };
                let target = R::float_from_data(target, &device);
                let at = indices(&places, &[count], DType::I64);
                let ours = read_float::<R>(R::float_select_add(target, axis, at, value));
                let what = format!("select_add {dtype:?} {shape:?} axis {axis} by {count} {swapped}");
                assert_sums(&what, &ours, summed(&exact_target, &exact, &places, dims));
            }
        }
    }
}

/// In halves the bits of a row depend on its own tokens alone: one more token elsewhere, for which
/// tokens are sorted, and others between them change nothing. Nor does a second run.
#[test]
fn a_rows_sum_in_halves_has_the_same_bits_among_few_and_many_tokens() {
    let random = Random::new();
    let device = Default::default();
    let (rows, width) = (6, 19);
    for dtype in [DType::F16, DType::BF16] {
        let few = places(&random, PIECE, rows - 1, true);
        let (grad, _) = drawn(&random, &[PIECE, width], dtype);
        let run = |places: &[i64], grad: TensorData| {
            let count = places.len();
            let grad = R::float_from_data(grad, &device);
            read_float::<R>(R::embedding_backward(
                R::float_zeros(Shape::from(vec![rows, width]), &device, dtype.into()),
                R::float_reshape(grad, Shape::from(vec![1, count, width])),
                indices(places, &[1, count], DType::I32),
            ))
        };
        let own = |data: TensorData| {
            let all: Vec<f64> = data.iter::<f64>().collect();
            all[..(rows - 1) * width].iter().map(|x| x.to_bits()).collect::<Vec<u64>>()
        };
        let expected = own(run(&few, grad.clone()));
        for repeat in [1, 3, 70] {
            // After each token of `few`, `repeat` tokens of the last row.
            let (mut many, mut values) = (vec![], vec![]);
            let numbers: Vec<f64> = grad.iter::<f64>().collect();
            for (&place, row) in few.iter().zip(numbers.chunks(width)) {
                many.push(place);
                values.extend_from_slice(row);
                many.extend(std::iter::repeat_n(rows as i64 - 1, repeat));
                values.extend((0..repeat * width).map(|_| random.uniform(-1.0, 1.0)));
            }
            let values = TensorData::new(values, [many.len(), width]).convert_dtype(dtype);
            for _ in 0..2 {
                assert_eq!(own(run(&many, values.clone())), expected, "{dtype:?} {repeat}");
            }
        }
    }
}
