//! The cross product, and those arithmetic ops whose signs and special cases Burn defines as Python
//! does.

use burn_rocm_tests::*;

#[test]
fn float_cross() {
    let random = Random::new();
    let shapes: [(&[usize], &[usize], usize); 8] = [
        (&[3], &[3], 0),
        (&[5, 3], &[5, 3], 1),
        (&[3, 40], &[3, 40], 0),
        (&[7, 3], &[1, 3], 1),
        (&[3, 1], &[3, 6], 0),
        (&[2, 3, 5], &[2, 3, 1], 1),
        (&[3, 3, 3, 3], &[3, 3, 3, 3], 2),
        (&[0, 3], &[0, 3], 1),
    ];
    for dtype in FLOATS {
        for (left, right, axis) in shapes {
            for _ in 0..3 {
                let view = |shape: &[usize]| match View::ALL[random.below(5)] {
                    View::Expanded if axis == 0 && shape.len() > 1 => View::Flipped, // else all components are equal
                    view => view,
                };
                let a = float(&random, left, dtype, view(left), -2.0, 2.0);
                let b = float(&random, right, dtype, view(right), -2.0, 2.0);
                let what = format!("float_cross {dtype:?} {left:?} {right:?} axis {axis}");
                differential!(what, Tolerance::of(dtype).times(16.0), |B, device| {
                    vec![read_float::<B>(B::float_cross(a.float::<B>(&device), b.float::<B>(&device), axis))]
                });
            }
        }
    }
}

/// The cross product of a vector with itself is exactly zero, because the products are rounded
/// before they are subtracted.
#[test]
fn float_cross_with_itself() {
    let random = Random::new();
    let device = Default::default();
    for dtype in FLOATS {
        let a = float(&random, &[200, 3], dtype, View::Contiguous, -2.0, 2.0);
        let found = read_float::<R>(R::float_cross(a.float::<R>(&device), a.float::<R>(&device), 1));
        assert!(found.iter::<f64>().all(|v| v == 0.0), "{dtype:?}: {found:?}");
    }
}

/// Every combination of signs, on multiples of 1/4, which every type represents exactly; multiples
/// of the divisor are among them.
#[test]
fn remainders_have_the_divisors_sign() {
    let values: Vec<f64> = (-9..=9).map(|k| f64::from(k) / 4.0).collect();
    let divisors: Vec<f64> = [-2.0, -0.75, -0.25, 0.25, 0.5, 1.5, 3.0].to_vec();
    let expected: Vec<f64> =
        values.iter().flat_map(|a| divisors.iter().map(move |b| a - b * (a / b).floor())).collect();
    let device = Default::default();
    for dtype in FLOATS {
        let tensor = |values: &[f64], shape: [usize; 2]| {
            R::float_from_data(TensorData::new(values.to_vec(), shape).convert_dtype(dtype), &device)
        };
        let shape = [values.len(), divisors.len()];
        let a = tensor(&values, [values.len(), 1]);
        let found = R::float_remainder(a.clone(), tensor(&divisors, [1, divisors.len()]));
        let whole = TensorData::new(expected.clone(), shape).convert_dtype(dtype);
        assert_close(&"float_remainder", &[read_float::<R>(found)], &[whole], Tolerance::EXACT);
        for (k, &b) in divisors.iter().enumerate() {
            let found = read_float::<R>(R::float_remainder_scalar(a.clone(), b.into()));
            let column: Vec<f64> = expected.iter().skip(k).step_by(divisors.len()).copied().collect();
            let column = TensorData::new(column, [values.len(), 1]).convert_dtype(dtype);
            assert_close(&format!("float_remainder_scalar by {b}"), &[found], &[column], Tolerance::EXACT);
        }
    }
}

/// All four quadrants, the axes with either zero, and infinities, as IEEE 754 defines them for the
/// C library.
#[test]
fn atan2_in_every_quadrant() {
    let values = [0.0, -0.0, 1.0, -1.0, 2.5, -0.25, f64::INFINITY, f64::NEG_INFINITY];
    let pairs: Vec<[f64; 2]> = values.iter().flat_map(|&y| values.map(|x| [y, x])).collect();
    let device = Default::default();
    for dtype in FLOATS {
        let part = |k: usize| {
            let values: Vec<f64> = pairs.iter().map(|pair| pair[k]).collect();
            R::float_from_data(TensorData::new(values, [pairs.len()]).convert_dtype(dtype), &device)
        };
        let found = read_float::<R>(R::float_atan2(part(0), part(1)));
        let expected: Vec<f64> = pairs.iter().map(|[y, x]| y.atan2(*x)).collect();
        let signs = |data: &TensorData| data.iter::<f64>().map(f64::is_sign_negative).collect::<Vec<_>>();
        let expected = TensorData::new(expected, [pairs.len()]).convert_dtype(dtype);
        assert_eq!(signs(&found), signs(&expected));
        assert_close(&"float_atan2", &[found], &[expected], Tolerance::of(dtype).times(4.0));
    }
}

/// Integer powers with bases and exponents of either sign, and zero.
#[test]
fn powers_by_integers() {
    let values = [-3.0, -1.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.5];
    let device = Default::default();
    for dtype in FLOATS {
        let data = TensorData::new(values.to_vec(), [values.len()]).convert_dtype(dtype);
        for exponent in -4i64..=5 {
            let expected: Vec<f64> = values.iter().map(|x: &f64| x.powi(exponent as i32)).collect();
            let expected = TensorData::new(expected, [values.len()]).convert_dtype(dtype);
            let x = R::float_from_data(data.clone(), &device);
            let what = format!("float_powi_scalar {dtype:?} by {exponent}");
            let near = Tolerance::of(dtype).times(8.0);
            assert_close(
                &what,
                &[read_float::<R>(R::float_powi_scalar(x.clone(), exponent.into()))],
                std::slice::from_ref(&expected),
                near,
            );
            let powers =
                R::int_full(Shape::from(vec![values.len()]), exponent.into(), &device, IntDType::I32);
            assert_close(&what, &[read_float::<R>(R::float_powi(x, powers))], &[expected], near);
        }
    }
    for dtype in INTS {
        let signed = !format!("{dtype:?}").starts_with('U');
        let values: Vec<i64> = (0..=4).chain((-4..0).filter(|_| signed)).collect();
        for exponent in 0..=3i64 {
            let x = TensorData::new(values.clone(), [values.len()]);
            let x = R::int_cast(R::int_from_data(x, &device), int_dtype(dtype));
            let expected: Vec<i64> = values.iter().map(|x| x.pow(exponent as u32)).collect();
            let found = read_index::<R>(R::int_powi_scalar(x, exponent.into()));
            assert_eq!(found.to_vec::<i64>().unwrap(), expected, "int_powi_scalar {dtype:?} by {exponent}");
        }
    }
}

#[test]
fn an_integers_exponent_may_exceed_its_dtype() {
    for dtype in [DType::I8, DType::U8, DType::I16, DType::U16] {
        for exponent in [127i64, 128, 200, 255, 256, 258, 65_536, 65_537] {
            let what = format!("int_powi_scalar {dtype:?} by {exponent}");
            differential!(what, Tolerance::EXACT, |B, device| {
                let x = TensorData::from([0i64, 1, 2, 3, 4, 7]).convert_dtype(dtype);
                vec![read_int::<B>(B::int_powi_scalar(B::int_from_data(x, &device), exponent.into()))]
            });
        }
    }
}
