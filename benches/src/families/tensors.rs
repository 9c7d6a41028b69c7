//! Float, int and bool tensor ops.

use super::*;

pub(super) fn binary(family: &mut Family<'_>) {
    for n in SIZES {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            case!(
                family,
                times(n),
                format!("add, mul, div {} {n}", dtype.name()),
                |B, device| [(); 2].map(|()| floats::<B>(device, dtype, &[n])),
                |s| {
                    let _ = B::float_add(s[0].clone(), s[1].clone());
                    let _ = B::float_mul(s[0].clone(), s[1].clone());
                    B::float_div(s[0].clone(), s[1].clone())
                }
            );
        }
        case!(
            family,
            times(n),
            format!("powf f32 {n}"),
            |B, device| [(); 2].map(|()| floats::<B>(device, DType::F32, &[n])),
            |s| { B::float_powf(s[0].clone(), s[1].clone()) }
        );
        for dtype in [DType::I64, DType::I32, DType::U8] {
            case!(
                family,
                times(n),
                format!("add, remainder {} {n}", dtype.name()),
                |B, device| [(); 2].map(|()| ints::<B>(device, dtype, &[n], 100)),
                |s| {
                    let _ = B::int_add(s[0].clone(), s[1].clone());
                    B::int_remainder(s[0].clone(), s[1].clone())
                }
            );
        }
        let [rows, columns] = [n / 64, 64];
        case!(
            family,
            times(n),
            format!("add of a row f32 {rows}x{columns}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &[rows, columns]),
                    floats::<B>(device, DType::F32, &[1, columns]),
                ]
            },
            |s| B::float_add(s[0].clone(), s[1].clone())
        );
        case!(
            family,
            times(n),
            format!("add of a transposed f32 {rows}x{columns}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &[rows, columns]),
                    B::float_transpose(floats::<B>(device, DType::F32, &[columns, rows])),
                ]
            },
            |s| B::float_add(s[0].clone(), s[1].clone())
        );
    }
}

pub(super) fn unary(family: &mut Family<'_>) {
    macro_rules! each {
        ($n:expr, $dtype:expr, $($op:ident)*) => {$(
            case!(
                family,
                times($n),
                format!("{} {} {}", stringify!($op), $dtype.name(), $n),
                |B, device| floats::<B>(device, $dtype, &[$n]),
                |s| B::$op(s.clone())
            );
        )*};
    }
    for n in SIZES {
        each!(
            n, DType::F32,
            float_exp float_log float_tanh float_sqrt float_sin float_erf float_abs float_neg relu sigmoid gelu
        );
        each!(n, DType::F64, float_exp float_abs);
        each!(n, DType::BF16, float_exp relu);
        case!(
            family,
            times(n),
            format!("clamp f32 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[n]),
            |s| { B::float_clamp(s.clone(), Scalar::Float(0.2), Scalar::Float(0.8)) }
        );
    }
}

pub(super) fn comparisons(family: &mut Family<'_>) {
    for n in SIZES {
        case!(
            family,
            times(n),
            format!("equal, lower f32 {n}"),
            |B, device| [(); 2].map(|()| floats::<B>(device, DType::F32, &[n])),
            |s| {
                let _ = B::float_equal(s[0].clone(), s[1].clone(), BOOL);
                B::float_lower(s[0].clone(), s[1].clone(), BOOL)
            }
        );
        case!(
            family,
            times(n),
            format!("greater_elem i64 {n}"),
            |B, device| ints::<B>(device, DType::I64, &[n], 100),
            |s| { B::int_greater_elem(s.clone(), Scalar::Int(50), BOOL) }
        );
        case!(
            family,
            times(n),
            format!("and, not {n}"),
            |B, device| [(); 2].map(|()| bools::<B>(device, &[n])),
            |s| {
                let _ = B::bool_and(s[0].clone(), s[1].clone());
                B::bool_not(s[0].clone())
            }
        );
    }
}

pub(super) fn casts(family: &mut Family<'_>) {
    for n in SIZES {
        case!(
            family,
            times(n),
            format!("f32 to f16 and f64 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[n]),
            |s| {
                let _ = B::float_cast(s.clone(), FloatDType::F16);
                B::float_cast(s.clone(), FloatDType::F64)
            }
        );
        case!(
            family,
            times(n),
            format!("i64 to f32, f32 to i32 {n}"),
            |B, device| (ints::<B>(device, DType::I64, &[n], 100), floats::<B>(device, DType::F32, &[n])),
            |s| {
                let _ = B::int_into_float(s.0.clone(), FloatDType::F32);
                B::float_into_int(s.1.clone(), IntDType::I32)
            }
        );
        case!(family, times(n), format!("bool to f32 {n}"), |B, device| bools::<B>(device, &[n]), |s| {
            B::bool_into_float(s.clone(), FloatDType::F32)
        });
    }
}

pub(super) fn layout(family: &mut Family<'_>) {
    for n in SIZES {
        let [rows, columns] = [n / 64, 64];
        case!(
            family,
            times(n),
            format!("cat f32 {n}"),
            |B, device| [(); 4].map(|()| floats::<B>(device, DType::F32, &[rows, columns / 4])),
            |s| {
                let _ = B::float_cat(s.to_vec(), 0);
                B::float_cat(s.to_vec(), 1)
            }
        );
        case!(
            family,
            times(n),
            format!("repeat_dim f32 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[rows, columns / 4]),
            |s| { B::float_repeat_dim(s.clone(), 1, 4) }
        );
        case!(
            family,
            times(n),
            format!("slice_assign f32 {n}"),
            |B, device| {
                [
                    floats::<B>(device, DType::F32, &[rows, columns]),
                    floats::<B>(device, DType::F32, &[rows, columns / 2]),
                ]
            },
            |s| B::float_slice_assign(
                s[0].clone(),
                &[Slice::from(0..rows as isize), Slice::from(3..3 + columns as isize / 2)],
                s[1].clone()
            )
        );
        case!(
            family,
            times(n),
            format!("flipped, then abs f32 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[rows, columns]),
            |s| { B::float_abs(B::float_flip(s.clone(), &[0, 1])) }
        );
        case!(
            family,
            times(n),
            format!("permuted, then abs f32 {n}"),
            |B, device| floats::<B>(device, DType::F32, &[rows / 8, 8, columns]),
            |s| { B::float_abs(B::float_permute(s.clone(), &[2, 0, 1])) }
        );
        case!(family, times(n), format!("zeros, full, arange {n}"), |B, device| device.clone(), |device| {
            let _ = B::float_zeros(Shape::from([n]), device, FloatDType::F32);
            let _ = B::float_full(Shape::from([n]), Scalar::Float(2.5), device, FloatDType::F32);
            B::int_arange(0..n as i64, device, IntDType::I64)
        });
    }
}

pub(super) fn masks(family: &mut Family<'_>) {
    for n in SIZES {
        case!(
            family,
            times(n),
            format!("mask_where, mask_fill f32 {n}"),
            |B, device| (bools::<B>(device, &[n]), [(); 2].map(|()| floats::<B>(device, DType::F32, &[n]))),
            |s| {
                let _ = B::float_mask_where(s.1[0].clone(), s.0.clone(), s.1[1].clone());
                B::float_mask_fill(s.1[0].clone(), s.0.clone(), Scalar::Float(1.0))
            }
        );
        case!(
            family,
            times(n),
            format!("mask_fill of a row's mask f32 {n}"),
            |B, device| {
                (
                    B::bool_expand(bools::<B>(device, &[1, 64]), Shape::from([n / 64, 64])),
                    floats::<B>(device, DType::F32, &[n / 64, 64]),
                )
            },
            |s| B::float_mask_fill(s.1.clone(), s.0.clone(), Scalar::Float(1.0))
        );
    }
}

pub(super) fn reductions(family: &mut Family<'_>) {
    for n in SIZES {
        let shape = [n / 64, 64];
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            case!(
                family,
                times(n),
                format!("sum, max {} {n}", dtype.name()),
                |B, device| floats::<B>(device, dtype, &shape),
                |s| {
                    let _ = B::float_sum(s.clone());
                    B::float_max(s.clone())
                }
            );
            for dim in [0, 1] {
                case!(
                    family,
                    times(n),
                    format!("sum_dim, mean_dim {dim} {} {n}", dtype.name()),
                    |B, device| floats::<B>(device, dtype, &shape),
                    |s| {
                        let _ = B::float_sum_dim(s.clone(), dim);
                        B::float_mean_dim(s.clone(), dim)
                    }
                );
                case!(
                    family,
                    times(n),
                    format!("argmax, max_dim_with_indices {dim} {} {n}", dtype.name()),
                    |B, device| floats::<B>(device, dtype, &shape),
                    |s| {
                        let _ = B::float_argmax(s.clone(), dim, IntDType::I64);
                        B::float_max_dim_with_indices(s.clone(), dim, IntDType::I64)
                    }
                );
            }
        }
        case!(
            family,
            times(n),
            format!("sum, sum_dim i64 {n}"),
            |B, device| ints::<B>(device, DType::I64, &shape, 100),
            |s| {
                let _ = B::int_sum(s.clone());
                B::int_sum_dim(s.clone(), 1)
            }
        );
        case!(family, times(n), format!("any, all {n}"), |B, device| bools::<B>(device, &shape), |s| {
            let _ = B::bool_any(s.clone());
            B::bool_all_dim(s.clone(), 1)
        });
    }
}

pub(super) fn scans(family: &mut Family<'_>) {
    for n in SIZES {
        for dim in [0, 1] {
            case!(
                family,
                times(n),
                format!("cumsum, cumprod, cummax {dim} f32 {n}"),
                |B, device| floats::<B>(device, DType::F32, &[n / 64, 64]),
                |s| {
                    let _ = B::float_cumsum(s.clone(), dim);
                    let _ = B::float_cumprod(s.clone(), dim);
                    B::float_cummax(s.clone(), dim)
                }
            );
        }
        case!(
            family,
            times(n),
            format!("cumsum i64 {n}"),
            |B, device| ints::<B>(device, DType::I64, &[n], 3),
            |s| B::int_cumsum(s.clone(), 0)
        );
    }
}

pub(super) fn indices(family: &mut Family<'_>) {
    for n in SIZES {
        let [rows, columns] = [n / 64, 64];
        for dim in [0, 1] {
            case!(
                family,
                times(n),
                format!("gather {dim} f32 {n}"),
                |B, device| {
                    (
                        floats::<B>(device, DType::F32, &[rows, columns]),
                        ints::<B>(device, DType::I64, &[rows, columns], [rows, columns][dim]),
                    )
                },
                |s| B::float_gather(dim, s.0.clone(), s.1.clone())
            );
            case!(
                family,
                times(n),
                format!("scatter_add {dim} f32 {n}"),
                |B, device| {
                    (
                        [(); 2].map(|()| floats::<B>(device, DType::F32, &[rows, columns])),
                        ints::<B>(device, DType::I64, &[rows, columns], [rows, columns][dim]),
                    )
                },
                |s| B::float_scatter_add(dim, s.0[0].clone(), s.1.clone(), s.0[1].clone())
            );
            case!(
                family,
                times(n),
                format!("select {dim} f32 {n}"),
                |B, device| {
                    (
                        floats::<B>(device, DType::F32, &[rows, columns]),
                        ints::<B>(device, DType::I64, &[[rows, columns][dim]], [rows, columns][dim]),
                    )
                },
                |s| B::float_select(s.0.clone(), dim, s.1.clone())
            );
            case!(
                family,
                times(n),
                format!("select_add {dim} f32 {n}"),
                |B, device| {
                    (
                        [(); 2].map(|()| floats::<B>(device, DType::F32, &[rows, columns])),
                        ints::<B>(device, DType::I64, &[[rows, columns][dim]], [rows, columns][dim]),
                    )
                },
                |s| B::float_select_add(s.0[0].clone(), dim, s.1.clone(), s.0[1].clone())
            );
        }
        case!(
            family,
            times(n),
            format!("embedding and its gradient f32 {n}"),
            |B, device| {
                (
                    floats::<B>(device, DType::F32, &[1000, 64]),
                    ints::<B>(device, DType::I64, &[8, n / 512], 1000),
                    floats::<B>(device, DType::F32, &[8, n / 512, 64]),
                )
            },
            |s| {
                let _ = B::embedding(s.0.clone(), s.1.clone());
                B::embedding_backward(s.0.clone(), s.2.clone(), s.1.clone())
            }
        );
    }
}

pub(super) fn sorts(family: &mut Family<'_>) {
    for n in SIZES {
        for shape in [[n / 64, 64], [1, n]] {
            case!(
                family,
                times(n),
                format!("sort f32 {shape:?}"),
                |B, device| floats::<B>(device, DType::F32, &shape),
                |s| B::float_sort(s.clone(), 1, false)
            );
            case!(
                family,
                times(n),
                format!("argsort f32 {shape:?}"),
                |B, device| floats::<B>(device, DType::F32, &shape),
                |s| B::float_argsort(s.clone(), 1, true, IntDType::I64)
            );
            case!(
                family,
                times(n),
                format!("topk 5 f32 {shape:?}"),
                |B, device| floats::<B>(device, DType::F32, &shape),
                |s| B::float_topk(s.clone(), 1, 5)
            );
        }
        case!(
            family,
            times(n),
            format!("sort i64 {n}"),
            |B, device| ints::<B>(device, DType::I64, &[n], 1 << 30),
            |s| B::int_sort(s.clone(), 0, false)
        );
    }
}

pub(super) fn random(family: &mut Family<'_>) {
    for n in SIZES {
        for (name, distribution) in [
            ("uniform", Distribution::Uniform(-1.0, 1.0)),
            ("normal", Distribution::Normal(0.0, 1.0)),
            ("bernoulli", Distribution::Bernoulli(0.3)),
        ] {
            case!(family, times(n), format!("{name} f32 {n}"), |B, device| device.clone(), |device| {
                B::float_random(Shape::from([n]), distribution, device, FloatDType::F32)
            });
        }
    }
}
