//! Faults that kernels find in the values they read: indices out of range, division by zero. Reads
//! of the result report them with the op's name. Memory is unchanged, and the device goes on
//! working. `fault_owners.rs` tests which reads report a fault.
//!
//! These tests have their own program and run one at a time: a sync reports the faults of the whole
//! device.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_backend::tensor::{BoolTensor, FloatTensor, IndexingUpdateOp, IntTensor};
use burn_rocm::{RocmDevice, read_with_fault};
use burn_rocm_tests::*;
use burn_std::future::block_on;
use serial_test::serial;

fn floats(shape: &[usize]) -> FloatTensor<R> {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (1..=n).map(|i| i as f32).collect();
    R::float_from_data(TensorData::new(values, Shape::from(shape.to_vec())), &Default::default())
}

fn typed(values: &[i64], shape: &[usize], dtype: DType) -> IntTensor<R> {
    let data = TensorData::new(values.to_vec(), Shape::from(shape.to_vec())).convert_dtype(dtype);
    R::int_from_data(data, &Default::default())
}

fn ints(values: &[i64], shape: &[usize]) -> IntTensor<R> {
    typed(values, shape, DType::I32)
}

fn bools(values: &[bool], shape: &[usize]) -> BoolTensor<R> {
    R::bool_from_data(TensorData::new(values.to_vec(), Shape::from(shape.to_vec())), &Default::default())
}

fn counting(n: usize) -> Vec<f64> {
    (1..=n).map(|i| i as f64).collect()
}

/// The error of reading the result, and the result's elements.
fn fault_of(result: FloatTensor<R>, bystander: FloatTensor<R>) -> (String, Vec<f64>) {
    let error = block_on(R::float_into_data(result.clone())).expect_err("the fault is reported").to_string();
    assert_eq!(read_float::<R>(bystander.clone()).to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    let next = R::float_add(bystander.clone(), bystander);
    assert_eq!(read_float::<R>(next).to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0]);
    R::sync(&Default::default()).expect("reported once");
    let (data, fault) = read_with_fault(result).expect("the device works on");
    assert!(error.ends_with(&fault.expect("it stays").to_string()), "{error}");
    (error, data.iter::<f64>().collect())
}

/// Asserts that a body raises a fault which names `op` and contains all of `texts`. Returns the
/// result's elements.
fn expect(op: &str, texts: &[&str], body: impl FnOnce() -> FloatTensor<R>) -> Vec<f64> {
    let bystander = floats(&[4]);
    let before = hip::Device::get(0).unwrap().counters();
    let result = body();
    let after = hip::Device::get(0).unwrap().counters();
    assert_eq!(before.waits, after.waits, "{op} waits");
    let (error, values) = fault_of(result, bystander);
    assert!(error.contains(&format!("{op}: ")), "{error} does not name {op}");
    for text in texts {
        assert!(error.contains(text), "{error} does not say {text}");
    }
    values
}

fn of_int(tensor: IntTensor<R>) -> FloatTensor<R> {
    R::int_into_float(tensor, FloatDType::F32)
}

fn of_bool(tensor: BoolTensor<R>) -> FloatTensor<R> {
    R::bool_into_float(tensor, FloatDType::F32)
}

#[test]
#[serial]
fn indices_out_of_range() {
    for dtype in [DType::I32, DType::I64, DType::U8] {
        let at = |values: &[i64], shape: &[usize]| typed(values, shape, dtype);
        let got = expect("float_gather", &["index 7", "size, 3"], || {
            R::float_gather(1, floats(&[2, 3]), at(&[0, 7, 2, 1], &[2, 2]))
        });
        assert_eq!(got, [1.0, 0.0, 6.0, 5.0]);
        let got = expect("int_gather", &["index 3", "size, 3"], || {
            of_int(R::int_gather(0, ints(&[5, 6, 7], &[3]), at(&[3, 1], &[2])))
        });
        assert_eq!(got, [0.0, 6.0]);
        let got = expect("bool_gather", &["index 2", "size, 2"], || {
            of_bool(R::bool_gather(0, bools(&[true, true], &[2]), at(&[0, 2], &[2])))
        });
        assert_eq!(got, [1.0, 0.0]);
        let got = expect("float_select", &["index 4", "size, 3"], || {
            R::float_select(floats(&[3, 2]), 0, at(&[4, 2], &[2]))
        });
        assert_eq!(got, [0.0, 0.0, 5.0, 6.0]);
        let got =
            expect("float_select", &["index 2"], || R::float_select(floats(&[3, 2]), 1, at(&[2, 1], &[2])));
        assert_eq!(got, [0.0, 2.0, 0.0, 4.0, 0.0, 6.0]);
        // Rows that a block copies.
        let got = expect("float_select", &["index 9", "size, 2"], || {
            R::float_select(floats(&[2, 40]), 0, at(&[1, 9], &[2]))
        });
        assert_eq!(got[..40], counting(80)[40..]);
        assert_eq!(got[40..], [0.0; 40]);
        let got = expect("int_select", &["index 5"], || {
            of_int(R::int_select(ints(&[5, 6, 7], &[3]), 0, at(&[5, 0], &[2])))
        });
        assert_eq!(got, [0.0, 5.0]);
        let got = expect("bool_select", &["index 5"], || {
            of_bool(R::bool_select(bools(&[true, false], &[2]), 0, at(&[5, 0], &[2])))
        });
        assert_eq!(got, [0.0, 1.0]);
        let got = expect("float_scatter_add", &["index 3", "size, 3"], || {
            R::float_scatter_add(1, floats(&[2, 3]), at(&[0, 3, 1, 3], &[2, 2]), floats(&[2, 2]))
        });
        assert_eq!(got, [2.0, 2.0, 3.0, 4.0, 8.0, 6.0]);
        let got = expect("float_select_add", &["index 8", "size, 3"], || {
            R::float_select_add(floats(&[3, 2]), 0, at(&[8, 0], &[2]), floats(&[2, 2]))
        });
        assert_eq!(got, [4.0, 6.0, 3.0, 4.0, 5.0, 6.0]);
        let got = expect("int_scatter_add", &["index 9"], || {
            of_int(R::int_scatter_add(
                0,
                typed(&[1, 2], &[2], DType::I8),
                at(&[9, 1], &[2]),
                typed(&[3, 4], &[2], DType::I8),
            ))
        });
        assert_eq!(got, [1.0, 6.0]);
        let got = expect("int_select_add", &["index 2"], || {
            of_int(R::int_select_add(ints(&[1, 2], &[2]), 0, at(&[2, 1], &[2]), ints(&[3, 4], &[2])))
        });
        assert_eq!(got, [1.0, 6.0]);
        let got = expect("bool_scatter_or", &["index 2"], || {
            of_bool(R::bool_scatter_or(
                0,
                bools(&[false, false], &[2]),
                at(&[2, 1], &[2]),
                bools(&[true, true], &[2]),
            ))
        });
        assert_eq!(got, [0.0, 1.0]);
        let got = expect("bool_select_or", &["index 3"], || {
            of_bool(R::bool_select_or(
                bools(&[false, false], &[2]),
                0,
                at(&[0, 3], &[2]),
                bools(&[true, true], &[2]),
            ))
        });
        assert_eq!(got, [1.0, 0.0]);
        let got = expect("embedding", &["index 5", "size, 4"], || {
            R::embedding(floats(&[4, 2]), at(&[5, 1], &[1, 2]))
        });
        assert_eq!(got, [0.0, 0.0, 3.0, 4.0]);
        let got = expect("embedding_backward", &["index 4", "size, 4"], || {
            R::embedding_backward(floats(&[4, 2]), floats(&[1, 2, 2]), at(&[4, 1], &[1, 2]))
        });
        assert_eq!(got, [0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
        let got = expect("float_gather_nd", &["index 3", "size, 3"], || {
            R::float_gather_nd(floats(&[2, 3]), at(&[1, 3, 1, 2], &[2, 2]))
        });
        assert_eq!(got, [0.0, 6.0]);
        let got = expect("int_gather_nd", &["index 2", "size, 2"], || {
            of_int(R::int_gather_nd(ints(&[1, 2, 3, 4], &[2, 2]), at(&[2, 1], &[2, 1])))
        });
        assert_eq!(got, [0.0, 0.0, 3.0, 4.0]);
        for update in [
            IndexingUpdateOp::Assign,
            IndexingUpdateOp::Add,
            IndexingUpdateOp::Mul,
            IndexingUpdateOp::Min,
            IndexingUpdateOp::Max,
        ] {
            let joined = match update {
                IndexingUpdateOp::Assign => 9.0,
                IndexingUpdateOp::Add => 11.0,
                IndexingUpdateOp::Mul => 18.0,
                IndexingUpdateOp::Min => 2.0,
                IndexingUpdateOp::Max => 9.0,
            };
            let got = expect("float_scatter_nd", &["index 4", "size, 2"], || {
                let value = R::float_mul_scalar(
                    R::float_ones(Shape::from(vec![2]), &Default::default(), FloatDType::F32),
                    Scalar::Int(9),
                );
                R::float_scatter_nd(floats(&[2, 2]), at(&[4, 0, 0, 1], &[2, 2]), value, update)
            });
            assert_eq!(got, [1.0, joined, 3.0, 4.0], "{update:?}");
            let got = expect("int_scatter_nd", &["index 4", "size, 2"], || {
                of_int(R::int_scatter_nd(
                    ints(&[1, 2, 3, 4], &[2, 2]),
                    at(&[4, 0, 0, 1], &[2, 2]),
                    ints(&[9, 9], &[2]),
                    update,
                ))
            });
            assert_eq!(got, [1.0, joined, 3.0, 4.0], "{update:?}");
        }
    }
}

#[test]
#[serial]
fn negative_and_far_indices() {
    for (index, said) in
        [(-1, "index -1"), (i64::MAX, "2147483647 or more"), (i64::MIN, "or less"), (1 << 32, "or more")]
    {
        let got = expect("float_gather", &[said], || {
            R::float_gather(0, floats(&[3]), typed(&[index, 2], &[2], DType::I64))
        });
        assert_eq!(got, [0.0, 3.0]);
        let got = expect("float_scatter_add", &[said], || {
            R::float_scatter_add(0, floats(&[3]), typed(&[index, 2], &[2], DType::I64), floats(&[2]))
        });
        assert_eq!(got, [1.0, 2.0, 5.0]);
        let got = expect("float_gather_nd", &[said], || {
            R::float_gather_nd(floats(&[3]), typed(&[index, 2], &[2, 1], DType::I64))
        });
        assert_eq!(got, [0.0, 3.0]);
    }
}

/// The forward op writes the indices of maxima, but a caller may pass any. MIOpen ignores indices
/// outside the input; this project's kernel reports them.
#[test]
#[serial]
fn places_of_a_pooling() {
    let backward = |place: i64, dilation: usize| {
        let x = R::float_zeros(Shape::from(vec![1, 1, 4, 4]), &Default::default(), FloatDType::F32);
        let side = if dilation == 1 { 2 } else { 1 };
        let places = vec![place; side * side];
        let places = typed(&places, &[1, 1, side, side], DType::I64);
        let grad = floats(&[1, 1, side, side]);
        R::max_pool2d_with_indices_backward(x, [2, 2], [2, 2], [0, 0], [dilation; 2], false, grad, places)
            .x_grad
    };
    let got = expect("max_pool2d_with_indices_backward", &["index 16", "size, 16"], || backward(16, 2));
    assert_eq!(got, [0.0; 16]);
    let dropped = read_float::<R>(backward(99, 1));
    assert!(dropped.iter::<f32>().all(|v| v == 0.0));
}

#[test]
#[serial]
fn division_by_zero() {
    for dtype in INTS {
        for (op, remainder) in [("int_div", false), ("int_remainder", true)] {
            let run = |lhs, rhs| match remainder {
                false => R::int_div(lhs, rhs),
                true => R::int_remainder(lhs, rhs),
            };
            let got = expect(op, &["division by zero"], || {
                of_int(run(typed(&[7, 8, 9], &[3], dtype), typed(&[2, 0, 3], &[3], dtype)))
            });
            assert_eq!(got, if remainder { [1.0, 0.0, 0.0] } else { [3.0, 0.0, 3.0] }, "{op} {dtype:?}");
            // Broadcast, so the strided kernel runs.
            let got = expect(op, &["division by zero"], || {
                of_int(run(typed(&[7, 8, 9], &[3, 1], dtype), typed(&[0, 4], &[1, 2], dtype)))
            });
            assert_eq!(
                got,
                if remainder { [0.0, 3.0, 0.0, 0.0, 0.0, 1.0] } else { [0.0, 1.0, 0.0, 2.0, 0.0, 2.0] }
            );
        }
    }
    // The smallest number divided by -1 wraps and is not a fault.
    let least = R::int_div(typed(&[i32::MIN.into()], &[1], DType::I32), ints(&[-1], &[1]));
    assert_eq!(read_int::<R>(least).to_vec::<i32>().unwrap(), [i32::MIN]);
    // Floats give infinities.
    let float = R::float_div(
        floats(&[1]),
        R::float_zeros(Shape::from(vec![1]), &Default::default(), FloatDType::F32),
    );
    assert_eq!(read_float::<R>(float).to_vec::<f32>().unwrap(), [f32::INFINITY]);
}

#[test]
#[serial]
fn several_faults_keep_their_names() {
    let device = RocmDevice::default();
    let kept = floats(&[3]);
    for _ in 0..3 {
        drop(R::float_gather(0, kept.clone(), ints(&[5], &[1])));
        drop(R::float_select(kept.clone(), 0, ints(&[6], &[1])));
        drop(R::int_div(ints(&[1], &[1]), ints(&[0], &[1])));
    }
    let error = R::sync(&device).expect_err("faults are reported by sync").to_string();
    for text in ["float_gather: ", "index 5", "float_select: ", "index 6", "int_div: ", "division by zero"] {
        assert!(error.contains(text), "{error} does not say {text}");
    }
    R::sync(&device).expect("once");
    assert_eq!(read_float::<R>(kept).to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
}

#[test]
#[serial]
fn every_kind_of_read_reports() {
    let device = RocmDevice::default();
    let bad = |n: usize| R::float_gather(0, floats(&[3]), ints(&vec![5; n], &[n]));
    // Large reads use another stream.
    for n in [1, 1 << 16] {
        let float = bad(n);
        let int = R::float_into_int(bad(n), IntDType::I32);
        let bool = R::float_greater_elem(bad(n), Scalar::Float(1.0), BoolDType::Native);
        for _ in 0..2 {
            assert!(block_on(R::float_into_data(float.clone())).is_err());
            assert!(block_on(R::int_into_data(int.clone())).is_err());
            assert!(block_on(R::bool_into_data(bool.clone())).is_err());
        }
    }
    let quantised = R::quantize_dynamic(bad(32), &Default::default());
    assert!(block_on(R::q_into_data(quantised)).is_err());
    R::sync(&device).expect("reads have reported them");
    drop(bad(1));
    assert!(R::sync(&device).is_err());
    assert!(block_on(R::float_into_data(floats(&[2]))).is_ok());
}

/// Faults are found in every part of a large launch, and none if there is none.
#[test]
#[serial]
fn one_among_many() {
    let n = 100_003;
    let random = Random::new();
    let table = floats(&[n]);
    let mut places: Vec<i64> = (0..n).map(|_| random.below(n) as i64).collect();
    let good = R::float_gather(0, table.clone(), ints(&places, &[n]));
    read_float::<R>(good);
    for at in [0, 1, n / 2, n - 1, random.below(n)] {
        let was = std::mem::replace(&mut places[at], n as i64 + 3);
        let got = expect("float_gather", &[&format!("index {}", n + 3)], || {
            R::float_gather(0, table.clone(), ints(&places, &[n]))
        });
        for (i, (value, &place)) in got.iter().zip(&places).enumerate() {
            assert_eq!(*value, if i == at { 0.0 } else { (place + 1) as f64 });
        }
        places[at] = was;
    }
}

/// Targets, input lengths and target lengths with a mistake in the last sequence, and the expected
/// texts of the error.
type Wrong<'a> = (&'a [i64], &'a [i64], &'a [i64], &'a str, &'a str);

/// A label that is not a class, and lengths beyond their tensors: NaN for that sequence, the
/// correct loss for the others.
#[test]
#[serial]
fn labels_that_are_no_class() {
    let log_probs = || R::float_log(R::float_mul_scalar(floats(&[4, 3, 3]), (1.0f32 / 40.0).into()));
    for dtype in [DType::I64, DType::I32, DType::I8] {
        let at = |values: &[i64], shape: &[usize]| typed(values, shape, dtype);
        let loss = |targets: &[i64], inputs: &[i64], lengths: &[i64]| {
            R::ctc_loss(log_probs(), at(targets, &[3, 2]), at(inputs, &[3]), at(lengths, &[3]), 0)
        };
        let slope = |targets: &[i64], inputs: &[i64], lengths: &[i64]| {
            let (targets, inputs, lengths) = (at(targets, &[3, 2]), at(inputs, &[3]), at(lengths, &[3]));
            R::ctc_loss_backward(log_probs(), targets, inputs, lengths, floats(&[3]), 0)
        };
        // Labels after a target's length are not checked.
        let good = read_float::<R>(loss(&[1, 2, 2, 99, 99, -5], &[4, 3, 2], &[2, 1, 0]));
        let good: Vec<f64> = good.iter::<f64>().collect();
        read_float::<R>(slope(&[1, 2, 2, 99, 99, -5], &[4, 3, 2], &[2, 1, 0]));
        let cases: [Wrong<'_>; 5] = [
            (&[1, 2, 2, 99, 99, 3], &[4, 3, 2], &[2, 1, 2], "index 99", "size, 3"),
            (&[1, 2, 2, 99, 3, 1], &[4, 3, 2], &[2, 1, 1], "index 3", "size, 3"),
            (&[1, 2, 2, 99, -1, 1], &[4, 3, 2], &[2, 1, 1], "index -1", "size, 3"),
            (&[1, 2, 2, 99, 99, 1], &[4, 3, 5], &[2, 1, 0], "index 5", "size, 5"),
            (&[1, 2, 2, 99, 1, 1], &[4, 3, 2], &[2, 1, 3], "index 3", "size, 3"),
        ];
        for (targets, inputs, lengths, index, size) in cases {
            let one = index == "index 99"; // or the other label of the same sequence
            let texts: &[&str] = if one { &[size] } else { &[index, size] };
            let got = expect("ctc_loss", texts, || loss(targets, inputs, lengths));
            assert_eq!(got[..2], good[..2]);
            assert!(got[2].is_nan(), "{got:?}");
            let got = expect("ctc_loss_backward", texts, || slope(targets, inputs, lengths));
            let sequence = |n: usize| got.chunks(9).flat_map(move |step| step[3 * n..3 * n + 3].iter());
            assert!(sequence(0).chain(sequence(1)).all(|g| g.is_finite()), "{got:?}");
            assert!(sequence(2).any(|g| g.is_nan()), "{got:?}");
        }
    }
}
