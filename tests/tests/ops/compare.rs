//! Comparisons and casts.

use std::any::TypeId;

use burn_rocm_tests::*;
use burn_std::{bf16, f16};

const STORES: [BoolDType; 2] = [BoolDType::Native, BoolDType::U8];

macro_rules! comparisons {
    ($($float:ident $float_elem:ident $int:ident $int_elem:ident;)*) => {$(
        #[test]
        fn $float() {
            let random = Random::new();
            for dtype in FLOATS {
                for &shape in SHAPES {
                    let (left, right) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
                    // Whole numbers, so that some are equal.
                    let a = int(&random, shape, dtype, left, -3, 3);
                    let b = int(&random, shape, dtype, right, -3, 3);
                    let out = STORES[random.below(2)];
                    let what = format!("{} {dtype:?} {shape:?} {left:?} {right:?}", stringify!($float));
                    differential!(what, Tolerance::EXACT, |B, device| {
                        vec![
                            read_bool::<B>(B::$float(a.float::<B>(&device), b.float::<B>(&device), out)),
                            read_bool::<B>(B::$float_elem(a.float::<B>(&device), Scalar::Float(1.0), out)),
                        ]
                    });
                }
            }
        }
        #[test]
        fn $int() {
            let random = Random::new();
            for dtype in INTS {
                for &shape in SHAPES {
                    let (left, right) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
                    let a = int(&random, shape, dtype, left, 0, 5);
                    let b = int(&random, shape, dtype, right, 0, 5);
                    let out = STORES[random.below(2)];
                    let what = format!("{} {dtype:?} {shape:?} {left:?} {right:?}", stringify!($int));
                    differential!(what, Tolerance::EXACT, |B, device| {
                        vec![
                            read_bool::<B>(B::$int(a.int::<B>(&device), b.int::<B>(&device), out)),
                            read_bool::<B>(B::$int_elem(a.int::<B>(&device), Scalar::Int(2), out)),
                        ]
                    });
                }
            }
        }
    )*};
}

comparisons! {
    float_equal float_equal_elem int_equal int_equal_elem;
    float_not_equal float_not_equal_elem int_not_equal int_not_equal_elem;
    float_greater float_greater_elem int_greater int_greater_elem;
    float_greater_equal float_greater_equal_elem int_greater_equal int_greater_equal_elem;
    float_lower float_lower_elem int_lower int_lower_elem;
    float_lower_equal float_lower_equal_elem int_lower_equal int_lower_equal_elem;
}

#[test]
fn comparisons_with_nan_and_infinities() {
    for dtype in FLOATS {
        let a = TensorData::from([f64::NAN, f64::NAN, 1.0, f64::INFINITY, f64::NEG_INFINITY, 0.0])
            .convert_dtype(dtype);
        let b = TensorData::from([f64::NAN, 1.0, f64::NAN, f64::INFINITY, f64::INFINITY, -0.0])
            .convert_dtype(dtype);
        let out = BoolDType::Native;
        differential!(format!("comparisons of special values {dtype:?}"), Tolerance::EXACT, |B, device| {
            let (a, b) = (B::float_from_data(a.clone(), &device), B::float_from_data(b.clone(), &device));
            vec![
                read_bool::<B>(B::float_equal(a.clone(), b.clone(), out)),
                read_bool::<B>(B::float_not_equal(a.clone(), b.clone(), out)),
                read_bool::<B>(B::float_lower(a.clone(), b.clone(), out)),
                read_bool::<B>(B::float_greater_equal(a.clone(), b.clone(), out)),
                read_bool::<B>(B::float_is_nan(a.clone(), out)),
                read_bool::<B>(B::float_is_inf(a, out)),
            ]
        });
    }
}

/// A scalar is rounded to the tensor's dtype before it is compared, as `full` and the oracle round
/// it.
#[test]
fn a_scalar_is_rounded_before_it_is_compared() {
    let random = Random::new();
    let device = Default::default();
    let out = BoolDType::Native;
    for dtype in FLOATS {
        let mut scalars = vec![0.1, -0.3, 1.0 / 3.0, 2049.0, 1e-8, 1e-41, 1e39, -65520.0, 3.4e38, 1e-320];
        scalars.extend((0..20).map(|_| random.uniform(-1.0, 1.0) * 10f64.powf(random.uniform(-9.0, 9.0))));
        for value in scalars {
            // The scalar itself, values near it, 0, and the scalar's negative.
            let near = [1.0, 1.0 - 1e-2, 1.0 + 1e-2, 1.0 - 1e-3, 1.0 + 1e-3, 0.0, -1.0];
            let data = TensorData::from(near.map(|times| times * value)).convert_dtype(dtype);
            // The oracle rounds to f32 first, and may then round to the other neighbour.
            let overflows = match dtype {
                DType::F16 => f16::from_f64(value).is_infinite(),
                _ => bf16::from_f64(value).is_infinite(),
            };
            let rounded = if overflows { value } else { limits::nearest(value, dtype) };
            let (scalar, rounded) = (Scalar::Float(value), Scalar::Float(rounded));
            macro_rules! each {
                ($($tensor:ident $elem:ident)*) => {$(
                    let what = format!("{} {dtype:?} {value:e}", stringify!($elem));
                    differential!(what, Tolerance::EXACT, |B, device| {
                        let scalar = if TypeId::of::<B>() == TypeId::of::<O>() { rounded } else { scalar };
                        vec![read_bool::<B>(B::$elem(B::float_from_data(data.clone(), &device), scalar, out))]
                    });
                    let x = || R::float_from_data(data.clone(), &device);
                    let full = R::float_full(Shape::from(vec![near.len()]), scalar, &device, float_dtype(dtype));
                    let (ours, tensors) = (R::$elem(x(), scalar, out), R::$tensor(x(), full, out));
                    assert_eq!(read_bool::<R>(ours), read_bool::<R>(tensors), "{what}: a tensor of the scalar");
                )*};
            }
            each! {
                float_equal float_equal_elem
                float_not_equal float_not_equal_elem
                float_greater float_greater_elem
                float_greater_equal float_greater_equal_elem
                float_lower float_lower_elem
                float_lower_equal float_lower_equal_elem
            }
        }
    }
}

/// An integer scalar that does not fit the dtype wraps, as it does when a tensor is made from it.
#[test]
fn an_integer_scalar_wraps_before_it_is_compared() {
    let device = Default::default();
    let out = BoolDType::Native;
    for dtype in INTS {
        let data = TensorData::from([0i64, 1, 44, 100, 127]).convert_dtype(dtype);
        // The oracle does not accept a negative scalar with u64.
        let least = if dtype == DType::U64 { 0 } else { i64::MIN };
        for value in [300, 256, -1, -212, 65_636, 1 << 32, (1 << 32) + 44, -(1 << 40) + 1, i64::MAX, i64::MIN]
        {
            let scalar = Scalar::Int(value.max(least));
            macro_rules! each {
                ($($tensor:ident $elem:ident)*) => {$(
                    let what = format!("{} {dtype:?} {scalar:?}", stringify!($elem));
                    differential!(what, Tolerance::EXACT, |B, device| {
                        vec![read_bool::<B>(B::$elem(B::int_from_data(data.clone(), &device), scalar, out))]
                    });
                    let x = || R::int_from_data(data.clone(), &device);
                    let full = R::int_full(Shape::from(vec![5]), scalar, &device, int_dtype(dtype));
                    let (ours, tensors) = (R::$elem(x(), scalar, out), R::$tensor(x(), full, out));
                    assert_eq!(read_bool::<R>(ours), read_bool::<R>(tensors), "{what}: a tensor of the scalar");
                )*};
            }
            each! {
                int_equal int_equal_elem
                int_not_equal int_not_equal_elem
                int_greater int_greater_elem
                int_greater_equal int_greater_equal_elem
                int_lower int_lower_elem
                int_lower_equal int_lower_equal_elem
            }
        }
    }
}

#[test]
fn casts_between_all_types() {
    let random = Random::new();
    for from in FLOATS {
        for &shape in SHAPES {
            let view = View::ALL[random.below(5)];
            let a = float(&random, shape, from, view, 0.0, 100.0);
            for to in FLOATS {
                differential!(
                    format!("float_cast {from:?} to {to:?} {shape:?} {view:?}"),
                    Tolerance::of(to),
                    |B, device| {
                        vec![read_float::<B>(B::float_cast(a.float::<B>(&device), float_dtype(to)))]
                    }
                );
            }
            for to in INTS {
                differential!(
                    format!("float_into_int {from:?} to {to:?} {shape:?} {view:?}"),
                    Tolerance::EXACT,
                    |B, device| {
                        vec![read_int::<B>(B::float_into_int(a.float::<B>(&device), int_dtype(to)))]
                    }
                );
            }
        }
    }
    for from in INTS {
        for &shape in SHAPES {
            let view = View::ALL[random.below(5)];
            let a = int(&random, shape, from, view, 0, 100);
            for to in INTS {
                differential!(
                    format!("int_cast {from:?} to {to:?} {shape:?} {view:?}"),
                    Tolerance::EXACT,
                    |B, device| { vec![read_int::<B>(B::int_cast(a.int::<B>(&device), int_dtype(to)))] }
                );
            }
            for to in FLOATS {
                differential!(
                    format!("int_into_float {from:?} to {to:?} {shape:?} {view:?}"),
                    Tolerance::EXACT,
                    |B, device| {
                        vec![read_float::<B>(B::int_into_float(a.int::<B>(&device), float_dtype(to)))]
                    }
                );
            }
        }
    }
    for &shape in SHAPES {
        let view = View::ALL[random.below(5)];
        let a = mask(&random, shape, view);
        for to in INTS {
            differential!(
                format!("bool_into_int {to:?} {shape:?} {view:?}"),
                Tolerance::EXACT,
                |B, device| { vec![read_int::<B>(B::bool_into_int(a.bool::<B>(&device), int_dtype(to)))] }
            );
        }
        for to in FLOATS {
            differential!(
                format!("bool_into_float {to:?} {shape:?} {view:?}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![read_float::<B>(B::bool_into_float(a.bool::<B>(&device), float_dtype(to)))]
                }
            );
        }
    }
}

/// Casts behave as Rust's `as`: they truncate and saturate, and NaN becomes 0.
#[test]
fn float_to_int_saturates() {
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3e38, -3e38, 2.9, -2.9, 127.5, 255.5, 65535.5];
    let data = TensorData::from(values.map(|v| v as f32));
    let out = |to| {
        read_int::<R>(R::float_into_int(R::float_from_data(data.clone(), &Default::default()), int_dtype(to)))
    };
    let expect = |got: TensorData, want: Vec<i64>| {
        assert_eq!(got.iter::<i64>().collect::<Vec<_>>(), want, "{:?}", got.dtype)
    };
    expect(out(DType::I32), values.iter().map(|&v| i64::from(v as f32 as i32)).collect());
    expect(out(DType::I64), values.iter().map(|&v| v as f32 as i64).collect());
    expect(out(DType::I8), values.iter().map(|&v| i64::from(v as f32 as i8)).collect());
    expect(out(DType::U8), values.iter().map(|&v| i64::from(v as f32 as u8)).collect());
    expect(out(DType::U16), values.iter().map(|&v| i64::from(v as f32 as u16)).collect());
}

/// Words from elsewhere may be others than 0 and 1.
#[test]
fn four_byte_bools_convert_to_one() {
    let device = Default::default();
    let words = || R::bool_from_data(TensorData::from([256u32, 0, 2, 1]), &device);
    for dtype in INTS {
        let read = read_int::<R>(R::bool_into_int(words(), int_dtype(dtype)));
        assert_eq!(read.iter::<i64>().collect::<Vec<_>>(), [1, 0, 1, 1], "{dtype:?}");
    }
    for dtype in FLOATS {
        let read = read_float::<R>(R::bool_into_float(words(), float_dtype(dtype)));
        assert_eq!(read.iter::<f64>().collect::<Vec<_>>(), [1.0, 0.0, 1.0, 1.0], "{dtype:?}");
    }
}
