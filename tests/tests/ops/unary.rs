//! Element-wise operations with one operand, among them activations.

use burn_rocm_tests::lockstep::fewer;
use burn_rocm_tests::*;

/// The error of a function in the type in which it is computed: 8e-6 in f32, 134 roundings. Each
/// side's function is off by at most 4 ulp, 8 roundings. The rest allows for rounded numbers on the
/// way, such as an exponential's argument of at most 10 or the difference below a root. f16 and
/// bf16 are computed in f32 and rounded once.
fn functions(dtype: DType) -> Tolerance {
    Tolerance::of(limits::wide(dtype)).times(8.0)
}

macro_rules! float_ops {
    ($($op:ident in $low:literal .. $high:literal;)*) => {$(
        #[test]
        fn $op() {
            let random = Random::new();
            for dtype in FLOATS {
                for &shape in SHAPES {
                    for view in View::ALL {
                        let a = float(&random, shape, dtype, view, $low, $high);
                        let what = format!("{} {dtype:?} {shape:?} {view:?}", stringify!($op));
                        rounded!(what, dtype, functions(dtype), |B, device, [a = &a]| {
                            vec![read_float::<B>(B::$op(a))]
                        });
                    }
                }
            }
        }
    )*};
}

float_ops! {
    float_neg in -10.0 .. 10.0;
    float_recip in 0.5 .. 10.0;
    float_exp in -8.0 .. 4.0;
    float_log in 0.01 .. 100.0;
    float_log1p in -0.5 .. 100.0;
    float_sqrt in 0.0 .. 100.0;
    float_abs in -10.0 .. 10.0;
    float_cos in -10.0 .. 10.0;
    float_sin in -10.0 .. 10.0;
    float_tan in -1.2 .. 1.2;
    float_cosh in -3.0 .. 3.0;
    float_sinh in -3.0 .. 3.0;
    float_tanh in -5.0 .. 5.0;
    float_acos in -0.9 .. 0.9;
    float_acosh in 1.1 .. 9.0;
    float_asin in -0.9 .. 0.9;
    float_asinh in -9.0 .. 9.0;
    float_atan in -9.0 .. 9.0;
    float_atanh in -0.9 .. 0.9;
    float_round in -10.0 .. 10.0;
    float_floor in -10.0 .. 10.0;
    float_ceil in -10.0 .. 10.0;
    float_trunc in -10.0 .. 10.0;
    float_erf in -4.0 .. 4.0;
    float_sign in -10.0 .. 10.0;
    relu in -10.0 .. 10.0;
    gelu in -4.0 .. 4.0;
    sigmoid in -10.0 .. 10.0;
    log_sigmoid in -10.0 .. 10.0;
}

#[test]
fn special_values() {
    let values =
        [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-41, 3e38, -88.0, 89.5, -104.5];
    for dtype in FLOATS {
        let data = TensorData::from(values).convert_dtype(dtype);
        let mut left = values.into_iter();
        let input = Input::new(&[values.len()], dtype, View::Contiguous, || left.next().unwrap());
        let tolerance = Tolerance { absolute: 1e-45, ..functions(dtype) };
        macro_rules! each {
            ($($op:ident)*) => {$(
                let what = format!("{} {dtype:?} of special values", stringify!($op));
                rounded!(what, dtype, tolerance, |B, device, [x = &input]| vec![read_float::<B>(B::$op(x))]);
            )*};
        }
        each!(float_exp float_sqrt float_tanh float_erf float_abs float_neg float_floor float_round float_recip);
        each!(float_log sigmoid);
        // The oracle's relu drops NaN. Burn's own definition masks values that are at most 0 and so
        // keeps NaN, as this backend does.
        let relu = read_float::<R>(R::relu(R::float_from_data(data.clone(), &Default::default())));
        for (x, y) in data.iter::<f64>().zip(relu.iter::<f64>()) {
            assert!(if x.is_nan() { y.is_nan() } else { y == x.max(0.0) }, "relu {dtype:?} of {x}: {y}");
        }
    }
}

macro_rules! backward_ops {
    ($($op:ident in $low:literal .. $high:literal;)*) => {$(
        #[test]
        fn $op() {
            let random = Random::new();
            for dtype in FLOATS {
                for &shape in SHAPES {
                    let (left, right) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
                    let a = float(&random, shape, dtype, left, $low, $high);
                    let b = float(&random, shape, dtype, right, -2.0, 2.0);
                    let what = format!("{} {dtype:?} {shape:?} {left:?}, {right:?}", stringify!($op));
                    // A function and the few products and sums of a slope, each at most 4.
                    let tolerance = functions(dtype).times(2.0);
                    rounded!(what, dtype, tolerance, |B, device, [a = &a, b = &b]| {
                        vec![read_float::<B>(B::$op(a, b))]
                    });
                }
            }
        }
    )*};
}

backward_ops! {
    relu_backward in -1.0 .. 1.0;
    sigmoid_backward in 0.0 .. 1.0;
    gelu_backward in -4.0 .. 4.0;
    log_sigmoid_backward in -8.0 .. 8.0;
}

#[test]
fn parameterised_activations() {
    let random = Random::new();
    for dtype in FLOATS {
        for &shape in SHAPES {
            let view = View::ALL[random.below(5)];
            let a = float(&random, shape, dtype, view, -5.0, 5.0);
            let what = format!("activations {dtype:?} {shape:?} {view:?}");
            rounded!(what, dtype, functions(dtype), |B, device, [x = &a, y = &a]| {
                let (alpha, beta) = (Scalar::Float(0.25), Scalar::Float(0.5));
                vec![
                    read_float::<B>(B::leaky_relu(x, alpha)),
                    read_float::<B>(B::hard_sigmoid(y, alpha, beta)),
                ]
            });
        }
    }
}

#[test]
fn softmax_over_each_dim() {
    let random = Random::new();
    for dtype in FLOATS {
        let shapes = SHAPES.iter().chain(&[&[3usize, 1000] as &[usize], &[2, 5000], &[40, 300, 2]]);
        for &shape in fewer(shapes, 3, &random) {
            for dim in (0..shape.len()).filter(|&dim| shape[dim] > 0) {
                let view = View::ALL[random.below(5)];
                let a = float(&random, shape, dtype, view, -5.0, 5.0);
                let device = Default::default();
                let ours = || a.float::<R>(&device);
                let found = [R::softmax(ours(), dim), R::log_softmax(ours(), dim), R::softmin(ours(), dim)];

                let device = Default::default();
                let exact = || limits::exact::<O>(&a, false, &device);
                let references =
                    [O::softmax(exact(), dim), O::log_softmax(exact(), dim), O::softmin(exact(), dim)];
                // The limits are for lines that lie along the last dim.
                let last = shape.len() - 1;
                let values = read_float::<O>(O::float_swap_dims(exact(), dim, last));
                let negated = read_float::<O>(O::float_swap_dims(O::float_neg(exact()), dim, last));
                let of = [
                    ("softmax", &values, false),
                    ("log_softmax", &values, true),
                    ("softmin", &negated, false),
                ];
                for ((found, reference), (name, x, logarithm)) in found.into_iter().zip(references).zip(of) {
                    let what = format!("{name} {dtype:?} {shape:?} {view:?} dim {dim}");
                    let found = read_float::<R>(R::float_swap_dims(found, dim, last));
                    let reference = read_float::<O>(O::float_swap_dims(reference, dim, last));
                    assert_eq!(found.dtype, dtype, "{what}");
                    let limits = if dim == last { limits::softmax } else { limits::softmax_in_turn };
                    let limits = limits(x, &reference, shape[dim], logarithm, dtype);
                    limits::assert_within(&what, &found, &reference, &limits);
                }
            }
        }
    }
}

macro_rules! int_ops {
    ($($op:ident)*) => {$(
        #[test]
        fn $op() {
            let random = Random::new();
            for dtype in [DType::I64, DType::I32, DType::I16, DType::I8] {
                for &shape in SHAPES {
                    let view = View::ALL[random.below(5)];
                    let a = int(&random, shape, dtype, view, -100, 100);
                    let what = format!("{} {dtype:?} {shape:?} {view:?}", stringify!($op));
                    differential!(what, Tolerance::EXACT, |B, device| {
                        vec![read_int::<B>(B::$op(a.int::<B>(&device)))]
                    });
                }
            }
        }
    )*};
}

int_ops!(int_neg int_abs int_sign bitwise_not);

#[test]
fn bool_not() {
    let random = Random::new();
    for &shape in SHAPES {
        for view in View::ALL {
            let a = mask(&random, shape, view);
            differential!(format!("bool_not {shape:?} {view:?}"), Tolerance::EXACT, |B, device| {
                vec![read_bool::<B>(B::bool_not(a.bool::<B>(&device)))]
            });
        }
    }
}

/// A NaN bound is ignored, as Burn's own definition of clamp does: it masks the values below or
/// above the bound.
#[test]
fn a_clamp_ignores_a_bound_that_is_nan() {
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -3.0, 0.5, 7.0];
    let (nan, low, high) = (Scalar::Float(f64::NAN), Scalar::Float(-1.0), Scalar::Float(1.0));
    let device = Default::default();
    for dtype in FLOATS {
        let x = || R::float_from_data(TensorData::from(values).convert_dtype(dtype), &device);
        // `FloatTensorOps::float_clamp_min` and `float_clamp_max` as burn-backend defines them.
        let least = |x: burn_rocm::RocmTensor, min| {
            let mask = R::float_lower_elem(x.clone(), min, BoolDType::Native);
            R::float_mask_fill(x, mask, min)
        };
        let most = |x: burn_rocm::RocmTensor, max| {
            let mask = R::float_greater_elem(x.clone(), max, BoolDType::Native);
            R::float_mask_fill(x, mask, max)
        };
        for (what, ours, burns) in [
            ("clamp_min(NaN)", R::float_clamp_min(x(), nan), least(x(), nan)),
            ("clamp_max(NaN)", R::float_clamp_max(x(), nan), most(x(), nan)),
            ("clamp(NaN, 1)", R::float_clamp(x(), nan, high), least(most(x(), high), nan)),
            ("clamp(-1, NaN)", R::float_clamp(x(), low, nan), least(most(x(), nan), low)),
            ("clamp(NaN, NaN)", R::float_clamp(x(), nan, nan), x()),
        ] {
            let [ours, burns] = [ours, burns].map(read_float::<R>);
            assert_close(&format!("{what} {dtype:?}"), &[ours], &[burns], Tolerance::EXACT);
        }
    }
}
