//! Reductions.

use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::lockstep::{fewer, in_lockstep};
use burn_rocm_tests::*;

const LARGE: &[&[usize]] = &[&[3, 5000], &[5000, 3], &[7, 300, 5], &[100_003]];

/// For lockstep, whose device is so small that these fill it too: more rows than warps that are
/// resident, and columns and a row in several parts.
const LARGE_IN_LOCKSTEP: &[&[usize]] = &[&[3, 2500], &[600, 3], &[7, 60, 5], &[20_003]];

fn shapes() -> impl Iterator<Item = &'static [usize]> {
    let large = if in_lockstep() { LARGE_IN_LOCKSTEP } else { LARGE };
    SHAPES.iter().chain(large).copied().filter(|shape| !shape.contains(&0))
}

#[test]
fn float_reductions() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in fewer(shapes(), 3, &random) {
            let view = View::ALL[random.below(5)];
            let a = float(&random, shape, dtype, view, -1.0, 1.0);
            let n = shape.iter().product();
            let what = format!("{dtype:?} {shape:?} {view:?}");
            sums!(format!("sum {what}"), Terms::of(n, dtype), |B, device, [a = &a]| B::float_sum(a));
            sums!(format!("mean {what}"), Terms::of(n, dtype), |B, device, [a = &a]| B::float_mean(a));
            differential!(format!("max, min {dtype:?} {shape:?} {view:?}"), Tolerance::EXACT, |B, device| {
                vec![
                    read_float::<B>(B::float_max(a.float::<B>(&device))),
                    read_float::<B>(B::float_min(a.float::<B>(&device))),
                    read_float::<B>(B::float_max_abs(a.float::<B>(&device))),
                ]
            });
            for dim in 0..shape.len() {
                let (what, terms) = (format!("{what} dim {dim}"), Terms::of(shape[dim], dtype));
                sums!(format!("sum_dim {what}"), terms, |B, device, [a = &a]| B::float_sum_dim(a, dim));
                sums!(format!("mean_dim {what}"), terms, |B, device, [a = &a]| B::float_mean_dim(a, dim));
                for out in [IntDType::I64, IntDType::I32] {
                    differential!(
                        format!("max_dim {dtype:?} {shape:?} {view:?} dim {dim}"),
                        Tolerance::EXACT,
                        |B, device| {
                            let (max, at) = B::float_max_dim_with_indices(a.float::<B>(&device), dim, out);
                            let (min, low) = B::float_min_dim_with_indices(a.float::<B>(&device), dim, out);
                            vec![
                                read_float::<B>(max),
                                read_int::<B>(at),
                                read_float::<B>(min),
                                read_int::<B>(low),
                                read_float::<B>(B::float_max_dim(a.float::<B>(&device), dim)),
                                read_float::<B>(B::float_max_abs_dim(a.float::<B>(&device), dim)),
                                read_int::<B>(B::float_argmax(a.float::<B>(&device), dim, out)),
                                read_int::<B>(B::float_argmin(a.float::<B>(&device), dim, out)),
                            ]
                        }
                    );
                }
            }
        }
    }
}

/// A long sum in f32 against f64: with partial sums the error is about one unit in the last place.
#[test]
fn long_sums_are_precise() {
    let random = Random::new();
    let values: Vec<f32> = (0..1 << 20).map(|_| random.uniform(0.0, 1.0) as f32).collect();
    let exact: f64 = values.iter().map(|&v| f64::from(v)).sum();
    let count = values.len();
    let tensor = R::float_from_data(TensorData::new(values, [count]), &Default::default());
    let sum = read_float::<R>(R::float_sum(tensor)).to_vec::<f32>().unwrap()[0];
    assert!((f64::from(sum) - exact).abs() < 1e-6 * exact, "{sum} instead of {exact}");
}

#[test]
fn float_products() {
    let random = Random::new();
    for dtype in FLOATS {
        for &shape in SHAPES {
            let view = View::ALL[random.below(5)];
            let a = float(&random, shape, dtype, view, 0.9, 1.1);
            for dim in (0..shape.len()).filter(|&d| shape[d] <= 64) {
                let what = format!("prod_dim {dtype:?} {shape:?} {view:?} dim {dim}");
                let (ours, [reference, _]) = sides!(|B, device, [a = &a]| B::float_prod_dim(a, dim));
                let limits = limits::products(&reference, shape[dim], dtype);
                limits::assert_within(&what, &ours, &reference, &limits);
            }
        }
    }
}

#[test]
fn int_reductions() {
    let random = Random::new();
    for dtype in INTS {
        for shape in fewer(shapes(), 3, &random) {
            let view = View::ALL[random.below(5)];
            // Small enough that no sum overflows the type: Burn does not define the result of an
            // overflow.
            let high = if matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16) { 2 } else { 50 };
            let count: usize = shape.iter().product();
            if high == 2 && count > 100 {
                continue;
            }
            let a = int(&random, shape, dtype, view, 0, high);
            differential!(
                format!("int reductions {dtype:?} {shape:?} {view:?}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![
                        read_int::<B>(B::int_sum(a.int::<B>(&device))),
                        read_int::<B>(B::int_max(a.int::<B>(&device))),
                        read_int::<B>(B::int_min(a.int::<B>(&device))),
                    ]
                }
            );
            for dim in 0..shape.len() {
                differential!(
                    format!("int reductions {dtype:?} {shape:?} {view:?} dim {dim}"),
                    Tolerance::EXACT,
                    |B, device| {
                        vec![
                            read_int::<B>(B::int_sum_dim(a.int::<B>(&device), dim)),
                            read_int::<B>(B::int_mean_dim(a.int::<B>(&device), dim)),
                            read_int::<B>(B::int_max_dim(a.int::<B>(&device), dim)),
                            read_int::<B>(B::int_min_dim(a.int::<B>(&device), dim)),
                        ]
                    }
                );
                // The oracle has no arg reductions for some types, so it takes the same small
                // values as I64.
                let ours = a.int::<R>(&Default::default());
                let theirs = O::int_cast(a.int::<O>(&Default::default()), IntDType::I64);
                let places =
                    [R::int_argmax(ours.clone(), dim), R::int_argmin(ours, dim)].map(read_index::<R>);
                let expected =
                    [O::int_argmax(theirs.clone(), dim), O::int_argmin(theirs, dim)].map(read_index::<O>);
                assert_close(
                    &format!("int arg reductions {dtype:?} {shape:?} {view:?} dim {dim}"),
                    &places,
                    &expected,
                    Tolerance::EXACT,
                );
            }
        }
    }
}

#[test]
fn any_and_all() {
    let random = Random::new();
    for &shape in SHAPES {
        for view in View::ALL {
            let m = mask(&random, shape, view);
            let f = int(&random, shape, DType::F32, view, 0, 2);
            let i = int(&random, shape, DType::I32, view, 0, 2);
            let out = BoolDType::Native;
            differential!(format!("any, all {shape:?} {view:?}"), Tolerance::EXACT, |B, device| {
                vec![
                    read_bool::<B>(B::bool_any(m.bool::<B>(&device))),
                    read_bool::<B>(B::bool_all(m.bool::<B>(&device))),
                    read_bool::<B>(B::float_any(f.float::<B>(&device), out)),
                    read_bool::<B>(B::float_all(f.float::<B>(&device), out)),
                    read_bool::<B>(B::int_any(i.int::<B>(&device), out)),
                    read_bool::<B>(B::int_all(i.int::<B>(&device), out)),
                ]
            });
            // Along an empty dim the oracle fails, and so it does if another dim is empty.
            for dim in (0..shape.len()).filter(|_| !shape.contains(&0)) {
                differential!(
                    format!("any, all {shape:?} {view:?} dim {dim}"),
                    Tolerance::EXACT,
                    |B, device| {
                        vec![
                            read_bool::<B>(B::bool_any_dim(m.bool::<B>(&device), dim)),
                            read_bool::<B>(B::bool_all_dim(m.bool::<B>(&device), dim)),
                            read_bool::<B>(B::float_any_dim(f.float::<B>(&device), dim, out)),
                            read_bool::<B>(B::int_all_dim(i.int::<B>(&device), dim, out)),
                        ]
                    }
                );
            }
        }
    }
}

#[test]
fn sums_of_nothing() {
    for dtype in FLOATS {
        for (shape, dim) in [(vec![0], 0), (vec![0, 4], 0), (vec![3, 0], 1), (vec![2, 0, 3], 1)] {
            let data = TensorData::new(Vec::<f64>::new(), Shape::from(shape.clone())).convert_dtype(dtype);
            differential!(format!("sum of nothing {dtype:?} {shape:?}"), Tolerance::EXACT, |B, device| {
                let a = B::float_from_data(data.clone(), &device);
                vec![read_float::<B>(B::float_sum(a.clone())), read_float::<B>(B::float_sum_dim(a, dim))]
            });
        }
    }
}

/// An empty axis has no mean, as on Burn's CPU backends. So Burn's `var` of an empty axis fails
/// too, and does not give 0.
#[test]
fn means_and_variances_along_an_empty_axis_are_refused() {
    use burn::tensor::Tensor;
    let device = Default::default();
    let empty = || Tensor::<R, 2>::zeros([3, 0], &device);
    let refused = |what: &str, op: &dyn Fn() -> TensorData| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(op));
        let error = burn_rocm::take_last_error();
        assert!(
            caught.is_err(),
            "{what} gives {:?}",
            caught.map(|data| data.iter::<f64>().collect::<Vec<_>>())
        );
        assert!(matches!(error, Some(burn_rocm::RocmError::Invalid { .. })), "{what}: {error:?}");
    };
    refused("mean_dim", &|| empty().mean_dim(1).into_data());
    refused("mean_dim of ints", &|| empty().int().mean_dim(1).into_data());
    refused("var_bias", &|| empty().var_bias(1).into_data());
    refused("var", &|| empty().var(1).into_data());
    // Along the other axis the result is just empty. The mean of all elements is NaN.
    assert_eq!(empty().mean_dim(0).dims(), [1, 0]);
    assert_eq!(empty().var_bias(0).dims(), [1, 0]);
    assert!(empty().mean().into_scalar().is_nan());
}

/// The reductions that a GPU does in special ways: columns that fill 16 bytes side by side, in one
/// part and in several, and many rows, for each of which it uses a warp.
#[test]
fn columns_side_by_side_and_many_rows() {
    let random = Random::new();
    for (shape, dim) in [
        (&[3usize, 70, 16] as &[usize], 1),
        (&[1, 700, 32], 1),
        (&[2, 9, 8], 1),
        (&[1030, 160], 0),
        (&[300, 37], 1),
        (&[2100, 130], 1),
    ] {
        for dtype in FLOATS {
            let a = float(&random, shape, dtype, View::Contiguous, -1.0, 1.0);
            let (what, terms) = (format!("{dtype:?} {shape:?} dim {dim}"), Terms::of(shape[dim], dtype));
            sums!(format!("sum_dim {what}"), terms, |B, device, [a = &a]| B::float_sum_dim(a, dim));
            sums!(format!("mean_dim {what}"), terms, |B, device, [a = &a]| B::float_mean_dim(a, dim));
            differential!(format!("max_dim {what}"), Tolerance::EXACT, |B, device| {
                vec![read_float::<B>(B::float_max_dim(a.float::<B>(&device), dim))]
            });
        }
        for dtype in fewer(INTS, 3, &random) {
            let a = int(&random, shape, dtype, View::Contiguous, 0, 3);
            differential!(format!("{dtype:?} {shape:?} dim {dim}"), Tolerance::EXACT, |B, device| {
                let a = || a.int::<B>(&device);
                vec![read_int::<B>(B::int_sum_dim(a(), dim)), read_int::<B>(B::int_max_dim(a(), dim))]
            });
        }
        let m = mask(&random, shape, View::Contiguous);
        differential!(format!("bools {shape:?} dim {dim}"), Tolerance::EXACT, |B, device| {
            let m = || m.bool::<B>(&device);
            vec![read_bool::<B>(B::bool_any_dim(m(), dim)), read_bool::<B>(B::bool_all_dim(m(), dim))]
        });
    }
}
