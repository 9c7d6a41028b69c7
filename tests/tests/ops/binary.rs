//! Element-wise operations with two operands.

use burn_rocm_tests::*;

/// The right-hand shapes that broadcast against `shape`.
fn broadcasts(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut shapes = vec![shape.to_vec()];
    for d in 0..shape.len() {
        if shape[d] > 1 {
            let mut other = shape.to_vec();
            other[d] = 1;
            shapes.push(other);
        }
    }
    shapes.push(vec![1; shape.len()]);
    shapes
}

// `within` times the tolerance of one operation in the type in which it is computed: 16 roundings
// each in f32. A sum, product or quotient has one on each side; a function of two operands has 8
// and the rounding of its argument. f16 and bf16 are computed in f32 and rounded once.
macro_rules! float_ops {
    ($($op:ident in $low:literal .. $high:literal within $factor:literal;)*) => {$(
        #[test]
        fn $op() {
            let random = Random::new();
            for dtype in FLOATS {
                for &shape in SHAPES {
                    for other in broadcasts(shape) {
                        for (left, right) in [
                            (View::Contiguous, View::Contiguous),
                            (View::ALL[random.below(5)], View::ALL[random.below(5)]),
                        ] {
                            let a = float(&random, shape, dtype, left, $low, $high);
                            let b = float(&random, &other, dtype, right, $low, $high);
                            let what = format!("{} {dtype:?} {shape:?} {left:?}, {other:?} {right:?}", stringify!($op));
                            let tolerance = Tolerance::of(limits::wide(dtype)).times($factor);
                            rounded!(what, dtype, tolerance, |B, device, [w = &a, x = &b, y = &b, z = &a]| {
                                // Both orders, because either operand may be the one that is
                                // broadcast.
                                vec![read_float::<B>(B::$op(w, x)), read_float::<B>(B::$op(y, z))]
                            });
                        }
                    }
                }
            }
        }
    )*};
}

float_ops! {
    float_add in -10.0 .. 10.0 within 4.0;
    float_sub in -10.0 .. 10.0 within 4.0;
    float_mul in -10.0 .. 10.0 within 4.0;
    float_div in 0.5 .. 10.0 within 4.0;
    float_remainder in 0.5 .. 9.0 within 10.0;
    float_powf in 0.5 .. 2.0 within 4.0;
    float_atan2 in -3.0 .. 3.0 within 4.0;
}

macro_rules! float_scalar_ops {
    ($($op:ident in $low:literal .. $high:literal by $scalar:expr;)*) => {$(
        #[test]
        fn $op() {
            let random = Random::new();
            for dtype in FLOATS {
                for &shape in SHAPES {
                    for view in View::ALL {
                        let a = float(&random, shape, dtype, view, $low, $high);
                        for scalar in $scalar {
                            let scalar: Scalar = scalar.into();
                            let what = format!("{} {dtype:?} {shape:?} {view:?} by {scalar:?}", stringify!($op));
                            // As above. All types have these scalars.
                            let tolerance = Tolerance::of(limits::wide(dtype)).times(8.0);
                            rounded!(what, dtype, tolerance, |B, device, [a = &a]| {
                                vec![read_float::<B>(B::$op(a, scalar))]
                            });
                        }
                    }
                }
            }
        }
    )*};
}

float_scalar_ops! {
    float_add_scalar in -10.0 .. 10.0 by [1.5f64, -3.0];
    float_sub_scalar in -10.0 .. 10.0 by [1.5f64, -3.0];
    float_mul_scalar in -10.0 .. 10.0 by [1.5f64, -3.0];
    float_div_scalar in -10.0 .. 10.0 by [1.5f64, -3.0, 1.0];
    float_powf_scalar in 0.5 .. 2.0 by [0.0f64, 0.5, 1.0, 2.0, -1.5];
    float_powi_scalar in 0.5 .. 2.0 by [0i64, 1, 2, 3, -2];
    float_clamp_min in -10.0 .. 10.0 by [1.5f64, -3.0];
    float_clamp_max in -10.0 .. 10.0 by [1.5f64, -3.0];
}

/// On multiples of 1/16, which every type represents exactly. Otherwise, near a multiple of the
/// divisor, the last place would decide whether the remainder is almost 0 or almost the divisor.
#[test]
fn float_remainder_scalar() {
    let random = Random::new();
    for dtype in FLOATS {
        for &shape in SHAPES {
            for view in View::ALL {
                let a = Input::new(shape, dtype, view, || (random.below(321) as f64 - 160.0) / 16.0);
                for by in [4.0, -4.0, 1.5, -0.75] {
                    let what = format!("float_remainder_scalar {dtype:?} {shape:?} {view:?} by {by}");
                    differential!(what, Tolerance::EXACT, |B, device| {
                        vec![read_float::<B>(B::float_remainder_scalar(
                            a.float::<B>(&device),
                            Scalar::Float(by),
                        ))]
                    });
                }
            }
        }
    }
}

/// A remainder rounds its divisor to the dtype first, as the oracle does. Near a multiple of the
/// divisor the last place decides the result, and a number's remainder by itself must be 0.
#[test]
fn a_remainders_scalar_is_rounded_first() {
    let random = Random::new();
    let device = Default::default();
    for dtype in FLOATS {
        let mut divisors = vec![0.1, -0.3, 1.0 / 3.0, 2049.0];
        divisors.extend((0..20).map(|_| random.uniform(0.01, 100.0)));
        for by in divisors {
            let times = [0.0, 1.0, 2.0, -1.0, 8.0, 1.5];
            // Rounded as the scalar is: `convert_dtype` would round to f32 first.
            let rounded = times.map(|times| limits::nearest(times * by, dtype));
            let data = TensorData::from(rounded).convert_dtype(dtype);
            let x = || R::float_from_data(data.clone(), &device);
            let full = R::float_full(Shape::from(vec![6]), by.into(), &device, float_dtype(dtype));
            let (ours, tensors) = (R::float_remainder_scalar(x(), by.into()), R::float_remainder(x(), full));
            let [ours, tensors] = [ours, tensors].map(read_float::<R>);
            assert_close(
                &format!("float_remainder_scalar {dtype:?} by {by}"),
                std::slice::from_ref(&ours),
                &[tensors],
                Tolerance::EXACT,
            );
            assert_eq!(ours.iter::<f64>().nth(1), Some(0.0), "{dtype:?}: {by} by itself leaves something");
        }
    }
}

#[test]
fn float_clamp() {
    let random = Random::new();
    for dtype in FLOATS {
        for &shape in SHAPES {
            let a = float(&random, shape, dtype, View::ALL[random.below(5)], -10.0, 10.0);
            differential!(format!("float_clamp {dtype:?} {shape:?}"), Tolerance::EXACT, |B, device| {
                let out = B::float_clamp(a.float::<B>(&device), Scalar::Float(-2.0), Scalar::Float(3.0));
                vec![read_float::<B>(out)]
            });
        }
    }
}

macro_rules! int_ops {
    ($($op:ident in $low:literal .. $high:literal;)*) => {$(
        #[test]
        fn $op() {
            let random = Random::new();
            for dtype in INTS {
                let low = if format!("{dtype:?}").starts_with('U') { $low.max(0) } else { $low };
                for &shape in SHAPES {
                    for other in broadcasts(shape) {
                        let (left, right) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
                        let a = int(&random, shape, dtype, left, low, $high);
                        let b = int(&random, &other, dtype, right, low, $high);
                        let what = format!("{} {dtype:?} {shape:?} {left:?}, {other:?} {right:?}", stringify!($op));
                        differential!(what, Tolerance::EXACT, |B, device| {
                            let out = B::$op(a.int::<B>(&device), b.int::<B>(&device));
                            vec![read_int::<B>(out)]
                        });
                    }
                }
            }
        }
    )*};
}

int_ops! {
    int_add in -60i64 .. 60;
    int_sub in -60i64 .. 60;
    int_mul in -11i64 .. 11;
    int_div in 1i64 .. 100;
    int_remainder in 1i64 .. 100;
    bitwise_and in -100i64 .. 100;
    bitwise_or in -100i64 .. 100;
    bitwise_xor in -100i64 .. 100;
    bitwise_left_shift in 0i64 .. 4;
    bitwise_right_shift in 0i64 .. 7;
}

macro_rules! int_scalar_ops {
    ($($op:ident in $low:literal .. $high:literal by $scalar:expr;)*) => {$(
        #[test]
        fn $op() {
            let random = Random::new();
            for dtype in INTS {
                let low = if format!("{dtype:?}").starts_with('U') { $low.max(0) } else { $low };
                for &shape in SHAPES {
                    let view = View::ALL[random.below(5)];
                    let a = int(&random, shape, dtype, view, low, $high);
                    for scalar in $scalar {
                        let what = format!("{} {dtype:?} {shape:?} {view:?} by {scalar}", stringify!($op));
                        differential!(what, Tolerance::EXACT, |B, device| {
                            vec![read_int::<B>(B::$op(a.int::<B>(&device), Scalar::Int(scalar)))]
                        });
                    }
                }
            }
        }
    )*};
}

int_scalar_ops! {
    int_add_scalar in -60i64 .. 60 by [3, 17];
    int_sub_scalar in 20i64 .. 60 by [3, 17];
    int_mul_scalar in -11i64 .. 11 by [0, 3, 7];
    int_div_scalar in -100i64 .. 100 by [1, 3, 7];
    int_remainder_scalar in -100i64 .. 100 by [1, 3, 7];
    bitwise_and_scalar in -100i64 .. 100 by [0, 85];
    bitwise_or_scalar in -100i64 .. 100 by [0, 85];
    bitwise_xor_scalar in -100i64 .. 100 by [0, 85];
    bitwise_left_shift_scalar in 0i64 .. 8 by [0, 3];
    bitwise_right_shift_scalar in -100i64 .. 100 by [0, 3];
    int_clamp_min in -60i64 .. 60 by [3, 17];
    int_clamp_max in -60i64 .. 60 by [3, 17];
}

/// An amount that is negative, or not below the number of bits, shifts all bits out, also if the
/// dtype does not hold the amount. burn-flex wraps amounts to the dtype, so the oracle is arithmetic
/// of 128 bits.
#[test]
fn shifts_by_any_amount() {
    let random = Random::new();
    let device = Default::default();
    let wide = |data: TensorData| -> Vec<i128> {
        match data.dtype {
            DType::U64 => data.iter::<u64>().map(i128::from).collect(),
            _ => data.iter::<i64>().map(i128::from).collect(),
        }
    };
    for dtype in INTS {
        let bits = 8 * dtype.size() as i64;
        let range = 1i128 << bits;
        let (low, least) = if dtype.is_uint() { (0, 0) } else { (-100, -range / 2) };
        let a = int(&random, &[4, 9], dtype, View::ALL[random.below(5)], low, 100);
        let values = wide(read_int::<R>(a.int::<R>(&device)));
        let wrapped = |x: i128| (x - least).rem_euclid(range) + least;
        for by in [0, 1, bits - 1, bits, bits + 1, 200, 256, 257, 1 << 16, 1 << 32, (1 << 32) + 1]
            .into_iter()
            .chain([i64::MAX, -1, -8, -255, -256, -(1 << 32), i64::MIN])
        {
            let kept = (0..bits).contains(&by);
            let left: Vec<i128> = values.iter().map(|x| if kept { wrapped(x << by) } else { 0 }).collect();
            let right: Vec<i128> =
                values.iter().map(|&x| if kept { x >> by } else { -i128::from(x < 0) }).collect();
            let what = format!("{dtype:?} by {by}");
            let scalars = [R::bitwise_left_shift_scalar, R::bitwise_right_shift_scalar]
                .map(|shift| wide(read_int::<R>(shift(a.int::<R>(&device), by.into()))));
            assert_eq!(scalars, [left.clone(), right.clone()], "{what}");
            if wrapped(by.into()) == i128::from(by) {
                // A tensor may have this amount.
                let shape = Shape::from(vec![4, 9]);
                let amounts = R::int_full(shape, by.into(), &device, int_dtype(dtype));
                let tensors = [R::bitwise_left_shift, R::bitwise_right_shift]
                    .map(|shift| wide(read_int::<R>(shift(a.int::<R>(&device), amounts.clone()))));
                assert_eq!(tensors, [left, right], "{what}, a tensor");
            }
        }
    }
}

macro_rules! bool_ops {
    ($($op:ident)*) => {$(
        #[test]
        fn $op() {
            let random = Random::new();
            for &shape in SHAPES {
                for other in broadcasts(shape) {
                    let (left, right) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
                    let (a, b) = (mask(&random, shape, left), mask(&random, &other, right));
                    let what = format!("{} {shape:?} {left:?}, {other:?} {right:?}", stringify!($op));
                    differential!(what, Tolerance::EXACT, |B, device| {
                        vec![read_bool::<B>(B::$op(a.bool::<B>(&device), b.bool::<B>(&device)))]
                    });
                }
            }
        }
    )*};
}

bool_ops!(bool_and bool_or bool_xor bool_equal bool_not_equal);

/// An op on a tensor that shares its buffer with a clone must leave the clone unchanged. An op on a
/// buffer's only owner may write in place.
#[test]
fn in_place_leaves_clones_alone() {
    let device = Default::default();
    let data = TensorData::from([1.0f32, 2.0, 3.0, 4.0]);
    let original = R::float_from_data(data.clone(), &device);
    let clone = original.clone();
    let sum = R::float_add_scalar(original, Scalar::Float(1.0));
    let doubled = R::float_mul(sum.clone(), sum);
    let view = R::float_slice(clone.clone(), &[Slice::new(1, Some(3), 1)]);
    let negated = R::float_neg(view);
    assert_eq!(read_float::<R>(doubled).to_vec::<f32>().unwrap(), [4.0, 9.0, 16.0, 25.0]);
    assert_eq!(read_float::<R>(negated).to_vec::<f32>().unwrap(), [-2.0, -3.0]);
    assert_eq!(read_float::<R>(clone).to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
}
