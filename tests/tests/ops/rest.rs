//! Methods that Burn's traits compose by default, and methods that no other file covers.

use burn_rocm_tests::limits::{self, Terms};
use burn_rocm_tests::*;

#[test]
fn float_powers_by_integers() {
    let random = Random::new();
    for dtype in FLOATS {
        for &shape in SHAPES {
            let view = View::ALL[random.below(5)];
            let a = float(&random, shape, dtype, view, 0.5, 1.5);
            let n = int(&random, shape, DType::I32, View::Contiguous, -3, 4);
            let what = format!("powers {dtype:?} {shape:?} {view:?}");
            differential!(what, Tolerance::of(dtype).times(8.0), |B, device| {
                let a = || a.float::<B>(&device);
                let mut out = vec![read_float::<B>(B::float_powi(a(), n.int::<B>(&device)))];
                for by in [-3i64, -2, -1, 0, 1, 2, 3, 5] {
                    out.push(read_float::<B>(B::float_powi_scalar(a(), Scalar::Int(by))));
                    out.push(read_float::<B>(B::float_powi_scalar_impl(a(), Scalar::Int(by))));
                    out.push(read_float::<B>(B::float_powf_scalar_impl(a(), Scalar::Float(by as f64 + 0.5))));
                }
                out
            });
        }
    }
}

/// Whether an exponent is odd decides the sign of a negative number's power. f16 has no odd integers
/// above 2048, and bf16 none above 256.
#[test]
fn float_powers_keep_the_exponents_parity() {
    let device = Default::default();
    let exponents = [0i64, 255, 256, 257, -257, 2047, 2048, 2049, -2049, 65_535, 65_537];
    let expected: Vec<f64> = exponents.iter().map(|n| if n % 2 == 0 { 1.0 } else { -1.0 }).collect();
    for dtype in FLOATS {
        for index in [DType::I32, DType::I64] {
            let shape = Shape::from(vec![exponents.len()]);
            let ones = R::float_full(shape, Scalar::Float(-1.0), &device, float_dtype(dtype));
            let powers = R::int_from_data(TensorData::from(exponents).convert_dtype(index), &device);
            let found = read_float::<R>(R::float_powi(ones, powers));
            assert_eq!(found.dtype, dtype);
            assert_eq!(found.iter::<f64>().collect::<Vec<_>>(), expected, "{dtype:?} {index:?}");
        }
    }
}

#[test]
fn int_powers() {
    let random = Random::new();
    for &shape in SHAPES {
        let view = View::ALL[random.below(5)];
        let a = int(&random, shape, DType::I32, view, -9, 10);
        let n = int(&random, shape, DType::I32, View::Contiguous, 0, 5);
        differential!(format!("int powers {shape:?} {view:?}"), Tolerance::EXACT, |B, device| {
            let a = || a.int::<B>(&device);
            let mut out = vec![read_int::<B>(B::int_powi(a(), n.int::<B>(&device)))];
            for by in 0..5i64 {
                out.push(read_int::<B>(B::int_powi_scalar(a(), Scalar::Int(by))));
                out.push(read_int::<B>(B::int_powi_scalar_impl(a(), Scalar::Int(by))));
            }
            out
        });
    }
}

#[test]
fn whole_products_and_means() {
    let random = Random::new();
    for &shape in SHAPES.iter().filter(|shape| !shape.contains(&0)) {
        let view = View::ALL[random.below(5)];
        for dtype in FLOATS {
            let a = float(&random, shape, dtype, view, 0.99, 1.01);
            let count = shape.iter().product();
            let what = format!("float_prod {dtype:?} {shape:?} {view:?}");
            let (ours, [reference, _]) = sides!(|B, device, [a = &a]| B::float_prod(a));
            let limits = limits::products(&reference, count, dtype);
            limits::assert_within(&what, &ours, &reference, &limits);
        }
        let small = int(&random, shape, DType::I32, view, -1, 2);
        let large = int(&random, shape, DType::I32, view, -1000, 1000);
        differential!(format!("int_prod, int_mean {shape:?} {view:?}"), Tolerance::EXACT, |B, device| {
            vec![
                read_int::<B>(B::int_prod(small.int::<B>(&device))),
                read_int::<B>(B::int_mean(large.int::<B>(&device))),
                read_int::<B>(B::int_max_abs(large.int::<B>(&device))),
            ]
        });
        for dim in 0..shape.len() {
            differential!(
                format!("int reductions {shape:?} {view:?} dim {dim}"),
                Tolerance::EXACT,
                |B, device| {
                    let (max, at) = B::int_max_dim_with_indices(large.int::<B>(&device), dim);
                    let (min, low) = B::int_min_dim_with_indices(large.int::<B>(&device), dim);
                    vec![
                        read_int::<B>(B::int_prod_dim(small.int::<B>(&device), dim)),
                        read_int::<B>(B::int_max_abs_dim(large.int::<B>(&device), dim)),
                        read_int::<B>(max),
                        read_index::<B>(at),
                        read_int::<B>(min),
                        read_index::<B>(low),
                        read_bool::<B>(B::int_any_dim(small.int::<B>(&device), dim, BoolDType::Native)),
                    ]
                }
            );
            let a = float(&random, shape, DType::F32, view, -1.0, 1.0);
            let ones = int(&random, shape, DType::F32, view, 0, 2);
            differential!(
                format!("float_min_dim, float_all_dim {shape:?} {view:?} dim {dim}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![
                        read_float::<B>(B::float_min_dim(a.float::<B>(&device), dim)),
                        read_bool::<B>(B::float_all_dim(ones.float::<B>(&device), dim, BoolDType::Native)),
                    ]
                }
            );
        }
    }
}

#[test]
fn int_clamp() {
    let random = Random::new();
    for dtype in INTS {
        for &shape in SHAPES {
            let view = View::ALL[random.below(5)];
            let a = int(&random, shape, dtype, view, 0, 100);
            differential!(
                format!("int_clamp {dtype:?} {shape:?} {view:?}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![read_int::<B>(B::int_clamp(a.int::<B>(&device), Scalar::Int(20), Scalar::Int(70)))]
                }
            );
        }
    }
}

#[test]
fn bools_against_a_scalar() {
    let random = Random::new();
    for &shape in SHAPES {
        for view in View::ALL {
            let m = mask(&random, shape, view);
            differential!(format!("bools {shape:?} {view:?}"), Tolerance::EXACT, |B, device| {
                let m = || m.bool::<B>(&device);
                [true, false]
                    .into_iter()
                    .flat_map(|by| {
                        [
                            read_bool::<B>(B::bool_equal_elem(m(), Scalar::Bool(by))),
                            read_bool::<B>(B::bool_not_equal_elem(m(), Scalar::Bool(by))),
                        ]
                    })
                    .collect::<Vec<_>>()
            });
        }
    }
}

/// Views of int and bool tensors. `layout` covers views of floats.
#[test]
fn views_of_ints_and_bools() {
    let random = Random::new();
    for shape in [vec![3, 1, 5], vec![1, 7], vec![2, 3, 4, 1]] {
        let view = View::ALL[random.below(5)];
        let (i, m) = (int(&random, &shape, DType::I64, view, -99, 99), mask(&random, &shape, view));
        let last = shape.len() - 1;
        let expanded = Shape::from(shape.iter().map(|&n| if n == 1 { 6 } else { n }).collect::<Vec<_>>());
        differential!(format!("views {shape:?} {view:?}"), Tolerance::EXACT, |B, device| {
            vec![
                read_int::<B>(B::int_transpose(i.int::<B>(&device))),
                read_int::<B>(B::int_swap_dims(i.int::<B>(&device), 0, last)),
                read_int::<B>(B::int_expand(i.int::<B>(&device), expanded.clone())),
                read_bool::<B>(B::bool_transpose(m.bool::<B>(&device))),
                read_bool::<B>(B::bool_swap_dims(m.bool::<B>(&device), 0, last)),
                read_bool::<B>(B::bool_expand(m.bool::<B>(&device), expanded.clone())),
            ]
        });
    }
}

/// A backend without autodiff records no graph, so its gradient methods change nothing.
#[test]
fn gradients_are_not_this_backends() {
    let device = Default::default();
    let random = Random::new();
    let a = float(&random, &[3, 4], DType::F32, View::Contiguous, -1.0, 1.0).float::<R>(&device);
    let before = read_float::<R>(a.clone());
    assert!(!R::ad_enabled(&device));
    let a = R::float_set_require_grad(R::float_detach(a), true);
    assert!(!R::float_is_require_grad(&a));
    assert_eq!(read_float::<R>(a), before);
}

#[test]
fn uninitialised_tensors_have_the_shape_and_dtype_asked_for() {
    let device = Default::default();
    for &shape in SHAPES {
        let wanted = Shape::from(shape.to_vec());
        for dtype in INTS {
            let tensor = R::int_empty(wanted.clone(), &device, int_dtype(dtype));
            assert_eq!((tensor.shape(), tensor.dtype()), (wanted.clone(), dtype));
            assert_eq!(R::int_device(&tensor), device);
            let moved = R::int_to_device(tensor, &device);
            assert_eq!(wait(R::int_into_data(moved)).shape, wanted);
        }
        for store in [BoolStore::Native, BoolStore::U8, BoolStore::U32] {
            let dtype = DType::Bool(store);
            let tensor = R::bool_empty(wanted.clone(), &device, dtype.into());
            assert_eq!((tensor.shape(), tensor.dtype()), (wanted.clone(), dtype));
            assert_eq!(R::bool_device(&tensor), device);
            let moved = R::bool_to_device(tensor, &device);
            assert_eq!(wait(R::bool_into_data(moved)).shape, wanted);
        }
    }
}

/// The gradient of a transposed convolution's bias is the sum over batch and space.
#[test]
fn bias_gradients_of_transposed_convolutions() {
    let random = Random::new();
    for dtype in FLOATS {
        let view = View::ALL[random.below(4)];
        let x1 = float(&random, &[2, 3, 5], dtype, View::Contiguous, -1.0, 1.0);
        let x2 = float(&random, &[2, 3, 5, 4], dtype, View::Contiguous, -1.0, 1.0);
        let x3 = float(&random, &[2, 3, 5, 4, 3], dtype, View::Contiguous, -1.0, 1.0);
        let bias = float(&random, &[4], dtype, View::Contiguous, -1.0, 1.0);
        let g1 = float(&random, &[2, 4, 7], dtype, view, -1.0, 1.0);
        let g2 = float(&random, &[2, 4, 7, 6], dtype, view, -1.0, 1.0);
        let g3 = float(&random, &[2, 4, 7, 6, 5], dtype, view, -1.0, 1.0);
        let what = format!("bias gradients {dtype:?} {view:?}");
        let terms = Terms::of(2 * 7 * 6 * 5, dtype);
        sums!(what, terms, |B, device, [x = &x1, b = &bias, g = &g1]| B::conv_transpose1d_bias_backward(x, b, g));
        sums!(what, terms, |B, device, [x = &x2, b = &bias, g = &g2]| B::conv_transpose2d_bias_backward(x, b, g));
        sums!(what, terms, |B, device, [x = &x3, b = &bias, g = &g3]| B::conv_transpose3d_bias_backward(x, b, g));
    }
}
