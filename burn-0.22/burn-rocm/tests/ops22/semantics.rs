//! What Burn 0.22 defines for NaN, empty reductions, signs and shifts.

use crate::harness::*;
use crate::same;

/// Data has its tensor's dtype: burn-store refuses to save a tensor whose data has another.
#[test]
fn bools_are_read_in_their_store() {
    for store in [BoolStore::Native, BoolStore::U8, BoolStore::U32] {
        let tensor = R::bool_ones(Shape::from([3]), &device(), store);
        assert_eq!(tensor.dtype(), DType::Bool(store));
        let data = wait(R::bool_into_data(tensor)).unwrap();
        assert_eq!((data.dtype(), data.iter::<bool>().collect()), (DType::Bool(store), vec![true; 3]));
    }
}

#[test]
fn extremes_of_nan() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in SHAPES.iter().filter(|shape| !shape.contains(&0)) {
            let x = special(&random, shape, dtype);
            let what = format!("{dtype:?} {shape:?}");
            same!(format!("float_max, float_min, float_max_abs {what}"), |B, device| {
                let x = || x.float::<B>(&device);
                vec![
                    read_float::<B>(B::float_max(x())),
                    read_float::<B>(B::float_min(x())),
                    read_float::<B>(B::float_max_abs(x())),
                ]
            });
            for dim in 0..shape.len() {
                same!(format!("extremes along {dim} {what}"), |B, device| {
                    let x = || x.float::<B>(&device);
                    let (max, max_at) = B::float_max_dim_with_indices(x(), dim, IntDType::I32);
                    let (min, min_at) = B::float_min_dim_with_indices(x(), dim, IntDType::I64);
                    vec![
                        read_float::<B>(B::float_max_dim(x(), dim)),
                        read_float::<B>(B::float_min_dim(x(), dim)),
                        read_float::<B>(B::float_max_abs_dim(x(), dim)),
                        read_int::<B>(B::float_argmax(x(), dim, IntDType::I32)),
                        read_int::<B>(B::float_argmin(x(), dim, IntDType::I32)),
                        read_float::<B>(max),
                        read_int::<B>(max_at),
                        read_float::<B>(min),
                        read_int::<B>(min_at),
                        read_float::<B>(B::float_cummax(x(), dim)),
                        read_float::<B>(B::float_cummin(x(), dim)),
                        read_float::<B>(B::float_sort(x(), dim, false)),
                        read_float::<B>(B::float_topk(x(), dim, shape[dim].div_ceil(2))),
                        read_float::<B>(B::float_gather(
                            dim,
                            x(),
                            B::float_argsort(x(), dim, true, IntDType::I32),
                        )),
                        read_float::<B>(B::float_gather(
                            dim,
                            x(),
                            B::float_argtopk(x(), dim, 1, IntDType::I32),
                        )),
                    ]
                });
            }
        }
    }
}

#[test]
fn signs_and_bounds_of_nan() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in SHAPES {
            let x = special(&random, shape, dtype);
            same!(format!("float_sign, relu {dtype:?} {shape:?}"), |B, device| {
                let x = || x.float::<B>(&device);
                vec![read_float::<B>(B::float_sign(x())), read_float::<B>(B::relu(x()))]
            });
            if !shape.contains(&0) {
                same!(format!("relu_backward {dtype:?} {shape:?}"), |B, device| {
                    let ones = B::float_ones(Shape::from(shape.to_vec()), &device, dtype.into());
                    vec![read_float::<B>(B::relu_backward(x.float::<B>(&device), ones))]
                });
            }
            for bounds in [[-1.0, 1.0], [f64::NAN, 1.0], [-1.0, f64::NAN], [f64::NEG_INFINITY, f64::INFINITY]]
            {
                let [low, high] = bounds.map(Scalar::Float);
                same!(format!("float_clamp {bounds:?} {dtype:?} {shape:?}"), |B, device| {
                    let x = || x.float::<B>(&device);
                    vec![
                        read_float::<B>(B::float_clamp(x(), low, high)),
                        read_float::<B>(B::float_clamp_min(x(), low)),
                        read_float::<B>(B::float_clamp_max(x(), high)),
                    ]
                });
            }
        }
    }
}

/// A sum or product of no elements is the op's identity, and a mean of floats is NaN. An extreme
/// and a mean of integers are refused.
#[test]
fn reductions_of_nothing() {
    let device = device();
    for dtype in FLOATS {
        for shape in [&[0usize] as &[usize], &[3, 0], &[0, 3], &[2, 0, 4], &[0, 0]] {
            let x = Input::new(shape, dtype, View::Contiguous, || 1.0);
            same!(format!("{dtype:?} {shape:?}"), |B, device| {
                let x = || x.float::<B>(&device);
                let mut all = vec![
                    read_float::<B>(B::float_sum(x())),
                    read_float::<B>(B::float_prod(x())),
                    read_float::<B>(B::float_mean(x())),
                ];
                for dim in 0..shape.len() {
                    all.push(read_float::<B>(B::float_sum_dim(x(), dim)));
                    all.push(read_float::<B>(B::float_prod_dim(x(), dim)));
                    all.push(read_float::<B>(B::float_mean_dim(x(), dim)));
                }
                all
            });
            let x = || x.float::<R>(&device);
            let what = format!("an extreme of {dtype:?} {shape:?}");
            for whole in [R::float_max, R::float_min, R::float_max_abs] {
                assert!(matches!(refused(&what, || whole(x())), RocmError::Invalid { .. }));
            }
            let empty = shape.iter().position(|size| *size == 0).unwrap();
            for along in [R::float_max_dim, R::float_min_dim, R::float_max_abs_dim] {
                assert!(matches!(refused(&what, || along(x(), empty)), RocmError::Invalid { .. }));
            }
            for along in [R::float_argmax, R::float_argmin] {
                let error = refused(&what, || along(x(), empty, IntDType::I32));
                assert!(matches!(error, RocmError::Invalid { .. }));
            }
        }
    }
    for dtype in INTS {
        let x = int(&Random::from_seed(0), &[3, 0], dtype, View::Contiguous, 0, 9);
        same!(format!("{dtype:?}"), |B, device| {
            let x = || x.int::<B>(&device);
            vec![
                read_int::<B>(B::int_sum(x())),
                read_int::<B>(B::int_prod(x())),
                read_int::<B>(B::int_sum_dim(x(), 1)),
                read_int::<B>(B::int_prod_dim(x(), 1)),
            ]
        });
        let x = || x.int::<R>(&device);
        for whole in [R::int_max, R::int_min, R::int_mean] {
            assert!(matches!(refused("of no integers", || whole(x())), RocmError::Invalid { .. }));
        }
        for along in [R::int_max_dim, R::int_min_dim, R::int_mean_dim, R::int_argmax, R::int_argmin] {
            assert!(matches!(refused("of no integers", || along(x(), 1)), RocmError::Invalid { .. }));
        }
    }
}

/// Shift amounts count modulo the width. A right shift of a signed number keeps the sign.
#[test]
fn shifts() {
    let random = Random::new();
    for dtype in INTS {
        let bits = 8 * dtype.size() as i64;
        let low = if dtype.is_uint() { 0 } else { -100 };
        let amounts = int(&random, &[5, 7], dtype, view(&random), 0, 2 * bits.min(60));
        let x = int(&random, &[5, 7], dtype, view(&random), low, 100);
        same!(format!("shifts of {dtype:?}"), |B, device| {
            let (x, amounts) = (|| x.int::<B>(&device), || amounts.int::<B>(&device));
            let mut all = vec![
                read_int::<B>(B::bitwise_left_shift(x(), amounts())),
                read_int::<B>(B::bitwise_right_shift(x(), amounts())),
            ];
            for amount in [0, 1, bits - 1, bits, bits + 3, 3 * bits + 1] {
                all.push(read_int::<B>(B::bitwise_left_shift_scalar(x(), amount.into())));
                all.push(read_int::<B>(B::bitwise_right_shift_scalar(x(), amount.into())));
            }
            all
        });
    }
}

/// Floor modulo: the result has the divisor's sign and a smaller magnitude.
#[test]
fn remainders() {
    let random = Random::new();
    for dtype in INTS {
        let signed = !dtype.is_uint();
        let [x, y] = [100, 9].map(|most| {
            let sign = |random: &Random| if signed && random.below(2) == 0 { -1.0 } else { 1.0 };
            Input::new(&[40, 7], dtype, view(&random), || sign(&random) * (1 + random.below(most)) as f64)
        });
        same!(format!("int_remainder {dtype:?}"), |B, device| {
            let x = || x.int::<B>(&device);
            let mut all = vec![read_int::<B>(B::int_remainder(x(), y.int::<B>(&device)))];
            for divisor in if signed { [7, -7, 1] } else { [7, 100, 1] } {
                all.push(read_int::<B>(B::int_remainder_scalar(x(), divisor.into())));
            }
            all
        });
    }
    // Quarters are exact. The sign of a zero is not compared.
    for dtype in FLOATS {
        let quarter = |random: &Random| (random.below(64) as f64 - 31.5) / 4.0;
        let x = Input::new(&[40, 7], dtype, view(&random), || quarter(&random));
        let y = Input::new(&[40, 7], dtype, view(&random), || quarter(&random));
        same!(format!("float_remainder {dtype:?}"), |B, device| {
            let x = || x.float::<B>(&device);
            let mut all = vec![read_float::<B>(B::float_remainder(x(), y.float::<B>(&device)))];
            for divisor in [1.75, -1.75, 0.25] {
                all.push(read_float::<B>(B::float_remainder_scalar(x(), Scalar::Float(divisor))));
            }
            all
        });
    }
}

/// Whole powers, by tensors and by numbers, of bases whose powers are exact.
#[test]
fn powers() {
    let random = Random::new();
    for dtype in FLOATS {
        let x =
            Input::new(&[6, 7], dtype, view(&random), || [1.0, -1.0, 2.0, -2.0, 0.5, 4.0][random.below(6)]);
        let powers = int(&random, &[6, 7], DType::I32, view(&random), -3, 4);
        for power in -3i64..4 {
            let within = 4.0 * unit(dtype);
            let found = read_float::<R>(R::float_powi_scalar(x.float::<R>(&device()), power.into()));
            let expected: Vec<f64> = exact(&x).iter().map(|x| x.powi(power as i32)).collect();
            let limits: Vec<f64> = expected.iter().map(|y| within * y.abs()).collect();
            assert_within(&format!("float_powi_scalar {power} {dtype:?}"), &found, &expected, &limits);
        }
        let found = read_float::<R>(R::float_powi(x.float::<R>(&device()), powers.int::<R>(&device())));
        let by = read_int::<O>(powers.int::<O>(&Default::default()));
        let expected: Vec<f64> =
            exact(&x).iter().zip(by.iter::<i32>()).map(|(x, power)| x.powi(power)).collect();
        // A power function of f32 is within 16 units in the last place (OpenCL's bound, which HIP
        // keeps).
        let limits: Vec<f64> =
            expected.iter().map(|y| (32.0 * unit(wide(dtype)) + rounding(dtype)) * y.abs()).collect();
        assert_within(&format!("float_powi {dtype:?}"), &found, &expected, &limits);
        // f16 has no odd integers above 2048, and bf16 none above 256.
        let powers = TensorData::from([257i32, 258, -2049, 65_537]);
        let ones = TensorData::from([-1f32; 4]).convert_dtype(dtype);
        let found = R::float_powi(R::float_from_data(ones, &device()), R::int_from_data(powers, &device()));
        assert_eq!(values(&read_float::<R>(found)), [-1.0, 1.0, -1.0, -1.0], "float_powi {dtype:?}");
    }
    for dtype in INTS {
        let x = int(&random, &[6, 7], dtype, view(&random), 0, 6);
        same!(format!("int_square {dtype:?}"), |B, device| {
            vec![read_int::<B>(B::int_square(x.int::<B>(&device)))]
        });
    }
}

/// 3.25 units: the ratio, its square, the sum (half of these, halved again by the root), the root,
/// the product. Types narrower than f32 are rounded once more.
#[test]
fn hypot() {
    let random = Random::new();
    for dtype in FLOATS {
        let scale = match dtype {
            DType::F64 => 1e154,
            DType::F16 => 100.0,
            _ => 1e18,
        };
        // The reference has no type wider than f64, so its own error counts for f64.
        let least = if dtype == DType::F64 { 1e-323 } else { 4.0 * least(dtype) };
        for shape in SHAPES {
            let magnitude = [1.0, scale, scale * scale / 4.0, 1.0 / scale, 0.1 / (scale * scale)];
            let [x, y] = [(); 2].map(|()| {
                Input::new(shape, dtype, view(&random), || {
                    let scale = magnitude[random.below(if dtype == DType::F16 { 2 } else { 5 })];
                    random.uniform(-1.0, 1.0) * scale
                })
            });
            let found = R::float_hypot(x.float::<R>(&device()), y.float::<R>(&device()));
            let expected: Vec<f64> = exact(&x).iter().zip(exact(&y)).map(|(x, y)| x.hypot(y)).collect();
            let share = 3.3 * unit(wide(dtype)) + rounding(dtype);
            let limits: Vec<f64> = expected.iter().map(|size| 1.001 * share * size + least).collect();
            assert_within(
                &format!("float_hypot {dtype:?} {shape:?}"),
                &read_float::<R>(found),
                &expected,
                &limits,
            );
        }
        let pairs = [
            (0.0, 0.0, 0.0),
            (-0.0, 0.0, 0.0),
            (3.0, -4.0, 5.0),
            (f64::INFINITY, 1.0, f64::INFINITY),
            (-1.0, f64::NEG_INFINITY, f64::INFINITY),
            (f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY),
            (f64::NAN, 1.0, f64::NAN),
            (2.0, f64::NAN, f64::NAN),
            (f64::INFINITY, f64::NAN, f64::INFINITY),
            (f64::NAN, f64::NEG_INFINITY, f64::INFINITY),
        ];
        let of = |pick: fn(&(f64, f64, f64)) -> f64| {
            let mut all = pairs.iter().map(pick);
            Input::new(&[pairs.len()], dtype, View::Contiguous, || all.next().unwrap()).float::<R>(&device())
        };
        let found = read_float::<R>(R::float_hypot(of(|pair| pair.0), of(|pair| pair.1)));
        assert_within(&format!("{dtype:?}"), &found, &pairs.map(|pair| pair.2), &[0.0; 10]);
    }
    let broadcast = [
        float(&random, &[3, 1], DType::F32, View::Contiguous, 1.0, 2.0),
        float(&random, &[4], DType::F32, View::Contiguous, 1.0, 2.0),
    ];
    let [x, y] = broadcast.each_ref().map(|input| input.float::<R>(&device()));
    assert_eq!(R::float_hypot(x, y).shape().as_slice(), [3, 4]);
}
