//! Creation, reading back, and moves between devices.

use burn_rocm_tests::*;
use burn_std::{bf16, f16};

#[test]
fn data_comes_back_as_it_went() {
    let random = Random::new();
    let device = Default::default();
    for &shape in SHAPES {
        let count = shape.iter().product::<usize>();
        let values: Vec<f64> = (0..count).map(|_| random.uniform(0.0, 100.0)).collect();
        let data = TensorData::new(values, Shape::from(shape.to_vec()));
        for dtype in FLOATS {
            let data = data.clone().convert_dtype(dtype);
            assert_eq!(
                read_float::<R>(R::float_from_data(data.clone(), &device)),
                data,
                "{dtype:?} {shape:?}"
            );
        }
        for dtype in INTS {
            let data = data.clone().convert_dtype(dtype);
            assert_eq!(read_int::<R>(R::int_from_data(data.clone(), &device)), data, "{dtype:?} {shape:?}");
        }
        for store in [BoolStore::Native, BoolStore::U8, BoolStore::U32] {
            let bools = mask(&random, shape, View::Contiguous);
            let data = read_bool::<O>(bools.bool::<O>(&Default::default())).convert_dtype(DType::Bool(store));
            let tensor = R::bool_from_data(data.clone(), &device);
            assert_eq!(tensor.dtype(), data.dtype);
            // Reading gives the host Rust's bools for both one-byte stores.
            let read = if store == BoolStore::U8 { BoolStore::Native } else { store };
            assert_eq!(read_bool::<R>(tensor), data.convert_dtype(DType::Bool(read)), "{store:?} {shape:?}");
        }
    }
}

#[test]
fn views_read_back_in_their_order() {
    let random = Random::new();
    for dtype in FLOATS {
        for &shape in SHAPES {
            for view in View::ALL {
                let a = float(&random, shape, dtype, view, -1.0, 1.0);
                differential!(
                    format!("reading {dtype:?} {shape:?} {view:?}"),
                    Tolerance::EXACT,
                    |B, device| { vec![read_float::<B>(a.float::<B>(&device))] }
                );
            }
        }
    }
}

#[test]
fn constants_and_ranges() {
    for &shape in SHAPES {
        let shape = Shape::from(shape.to_vec());
        for dtype in FLOATS {
            let d = float_dtype(dtype);
            differential!(format!("float constants {dtype:?} {shape:?}"), Tolerance::EXACT, |B, device| {
                vec![
                    read_float::<B>(B::float_zeros(shape.clone(), &device, d)),
                    read_float::<B>(B::float_ones(shape.clone(), &device, d)),
                    read_float::<B>(B::float_full(shape.clone(), Scalar::Float(-2.5), &device, d)),
                ]
            });
        }
        for dtype in INTS {
            let d = int_dtype(dtype);
            differential!(format!("int constants {dtype:?} {shape:?}"), Tolerance::EXACT, |B, device| {
                vec![
                    read_int::<B>(B::int_zeros(shape.clone(), &device, d)),
                    read_int::<B>(B::int_ones(shape.clone(), &device, d)),
                    read_int::<B>(B::int_full(shape.clone(), Scalar::Int(77), &device, d)),
                ]
            });
        }
        for store in [BoolDType::Native, BoolDType::U8] {
            differential!(format!("bool constants {store:?} {shape:?}"), Tolerance::EXACT, |B, device| {
                vec![
                    read_bool::<B>(B::bool_zeros(shape.clone(), &device, store)),
                    read_bool::<B>(B::bool_ones(shape.clone(), &device, store)),
                ]
            });
        }
    }
    // Ends whose distance exceeds i64.
    let far = i64::MIN..i64::MAX;
    for (range, step) in [(far.clone(), 1 << 62), (far.clone(), usize::MAX / 5), (far.end..far.start, 1)] {
        differential!(format!("int_arange_step {range:?} {step}"), Tolerance::EXACT, |B, device| {
            vec![read_int::<B>(B::int_arange_step(range.clone(), step, &device, int_dtype(DType::I64)))]
        });
    }
    for dtype in INTS {
        for (range, step) in [(0..100, 1), (3..50, 7), (0..0, 1), (5..6, 3)] {
            differential!(
                format!("int_arange_step {dtype:?} {range:?} {step}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![read_int::<B>(B::int_arange_step(range.clone(), step, &device, int_dtype(dtype)))]
                }
            );
        }
    }
}

/// A scalar is rounded to a half once, from f64. Beside the middle of two numbers, rounding to f32
/// first would give the wrong one.
#[test]
fn scalars_of_halves_are_rounded_once() {
    let random = Random::new();
    let device = Default::default();
    let full = |value: f64, dtype: DType| {
        R::float_full(Shape::from(vec![3]), Scalar::Float(value), &device, float_dtype(dtype))
    };
    let number = |bits: u16, dtype: DType| match dtype {
        DType::F16 => f16::from_bits(bits).to_f64(),
        _ => bf16::from_bits(bits).to_f64(),
    };
    // The bits of the least and of the greatest normal number.
    for (dtype, least, greatest) in [(DType::F16, 0x0400, 0x7bff), (DType::BF16, 0x0080, 0x7f7f)] {
        for _ in 0..24 {
            // A normal number, the next one away from 0, and their middle.
            let bits = (least + random.below(greatest - least) + 0x8000 * random.below(2)) as u16;
            let middle = (number(bits, dtype) + number(bits + 1, dtype)) / 2.0;
            let near = 2f64.powi(-40);
            for value in [
                middle,
                middle.next_up(),
                middle.next_down(),
                middle * (1.0 + near),
                middle * (1.0 - near),
                f64::from(f32::from_bits(0x3f80_8001)),
            ] {
                let expected = limits::nearest(value, dtype);
                let tensor = full(value, dtype);
                let data = read_float::<R>(tensor.clone());
                assert_eq!(data.iter::<f64>().collect::<Vec<_>>(), [expected; 3], "{dtype:?} {value:e}");
                let equal = R::float_equal_elem(tensor, Scalar::Float(value), BoolDType::Native);
                assert!(read_bool::<R>(equal).iter::<bool>().all(|equal| equal), "{dtype:?} {value:e}");
                let converted = R::float_cast(full(value, DType::F64), float_dtype(dtype));
                assert_eq!(read_float::<R>(converted), data, "{dtype:?} {value:e}");
            }
        }
    }
}

/// Bytes and words other than 0 and 1 count as true, and are read as 1: the host may take them for
/// its own bools.
#[test]
fn bools_are_made_of_any_number() {
    let device = Default::default();
    for store in [BoolStore::U8, BoolStore::U32] {
        let data = match store {
            BoolStore::U32 => TensorData::from([2u32, 0, 65_536, 1]),
            _ => TensorData::from([2u8, 0, 255, 1]),
        };
        let data = TensorData { dtype: DType::Bool(store), ..data };
        let mut read = read_bool::<R>(R::bool_from_data(data, &device));
        // As numbers, so that this test makes no bool of another byte.
        read.dtype = if store == BoolStore::U32 { DType::U32 } else { DType::U8 };
        assert_eq!(read.iter::<u32>().collect::<Vec<_>>(), [1, 0, 1, 1], "{store:?}");
    }
}
