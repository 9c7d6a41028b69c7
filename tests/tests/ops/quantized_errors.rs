//! Bad input to quantised ops gives a typed error that names the op and the mistake.

use super::quantized::read_q;
use burn_backend::TensorPrimitive;
use burn_backend::quantization::{
    QuantLevel, QuantScheme, QuantStore, QuantValue, QuantizationParametersPrimitive,
};
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_tests::*;
use burn_std::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn error_of<T>(body: impl FnOnce() -> T) -> RocmError {
    assert!(catch_unwind(AssertUnwindSafe(body)).is_err(), "bad input panics");
    let error = take_last_error().expect("the error is kept");
    let next = R::quantize_dynamic(floats(&[4]), &QuantScheme::default());
    assert_eq!(read_q::<R>(next).shape.as_slice(), [4], "the next op works");
    error
}

fn floats(shape: &[usize]) -> burn_backend::tensor::FloatTensor<R> {
    R::float_ones(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F32)
}

#[track_caller]
fn invalid(error: RocmError, op: &str, found: &str) {
    assert!(matches!(&error, RocmError::Invalid { op: of, .. } if *of == op), "{error:?}");
    assert!(error.to_string().contains(found), "{error} does not name {found}");
}

#[track_caller]
fn unsupported(error: RocmError, found: &str) {
    assert!(matches!(&error, RocmError::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains(found), "{error} does not name {found}");
}

#[test]
fn blocks_that_do_not_divide() {
    for block in [vec![3], vec![32], vec![2, 4], vec![0]] {
        let scheme = QuantScheme::default().with_level(QuantLevel::block(&block));
        invalid(error_of(|| R::quantize_dynamic(floats(&[4, 5]), &scheme)), "quantize_dynamic", "[4, 5]");
    }
    // A view may hold parts of blocks. Only a tensor that is stored anew must consist of whole
    // blocks.
    let scheme = QuantScheme::default().with_level(QuantLevel::block([4]));
    let q = || {
        R::q_slice(
            R::quantize_dynamic(floats(&[4, 4]), &scheme),
            &[Slice::new(0, Some(3), 1), Slice::new(0, Some(3), 1)],
        )
    };
    assert_eq!(read_float::<R>(R::dequantize(q(), FloatDType::F32)).shape.as_slice(), [3, 3]);
    invalid(error_of(|| R::q_reshape(q(), Shape::from(vec![9]))), "q_reshape", "[3, 3]");
    let read = burn_std::future::block_on(R::q_into_data(q()));
    assert!(read.unwrap_err().to_string().contains("[3, 3]"));
}

#[test]
fn scales_that_are_not_as_many() {
    let tensor_level = QuantScheme::default();
    let blocks = QuantScheme::default().with_level(QuantLevel::block([4]));
    for (scheme, count) in [(tensor_level, 2), (tensor_level, 0), (blocks, 3), (blocks, 5)] {
        let scales = floats(&[count]);
        let error =
            error_of(|| R::quantize(floats(&[4, 4]), &scheme, QuantizationParametersPrimitive { scales }));
        invalid(error, "quantize", &count.to_string());
    }
}

#[test]
fn data_of_the_wrong_size() {
    let blocks = QuantScheme::default().with_level(QuantLevel::block([4]));
    let small = |scheme: QuantScheme| scheme.with_value(QuantValue::Q4S).with_store(QuantStore::PackedU32(0));
    let native = QuantScheme::default().with_store(QuantStore::Native);
    for (scheme, bytes) in [
        (QuantScheme::default(), 16),
        (QuantScheme::default(), 19),
        (QuantScheme::default(), 24),
        (native, 17),
        (blocks, 20),
        (blocks, 36),
        (small(QuantScheme::default()), 20),
        (small(blocks), 16 + 16),
    ] {
        let bytes = Bytes::from_bytes_vec(vec![0; bytes]);
        let data = TensorData::from_bytes(bytes, Shape::from(vec![4, 4]), DType::QFloat(scheme));
        let size = data.bytes.len().to_string();
        invalid(error_of(|| R::q_from_data(data, &Default::default())), "q_from_data", &size);
    }
    let data = TensorData::new(vec![1.0f32; 4], [4]);
    invalid(error_of(|| R::q_from_data(data, &Default::default())), "q_from_data", "f32");
}

#[test]
fn values_and_stores_that_are_not_computed() {
    for value in [QuantValue::E4M3, QuantValue::E5M2, QuantValue::E2M1] {
        let scheme = QuantScheme::default().with_value(value);
        unsupported(error_of(|| R::quantize_dynamic(floats(&[4]), &scheme)), &format!("{value:?}"));
    }
    for store in [QuantStore::PackedU32(1), QuantStore::PackedNative(0)] {
        let scheme = QuantScheme::default().with_store(store);
        unsupported(error_of(|| R::quantize_dynamic(floats(&[4, 4]), &scheme)), &format!("{store:?}"));
    }
}

#[test]
fn shapes_and_axes_that_do_not_fit() {
    let q = |shape: &[usize]| R::quantize_dynamic(floats(shape), &QuantScheme::default());
    invalid(error_of(|| R::q_reshape(q(&[2, 3]), Shape::from(vec![7]))), "q_reshape", "[7]");
    invalid(error_of(|| R::q_swap_dims(q(&[2, 3]), 0, 2)), "q_swap_dims", "2");
    invalid(error_of(|| R::q_permute(q(&[2, 3]), &[0, 0])), "q_permute", "[0, 0]");
    invalid(error_of(|| R::q_flip(q(&[2, 3]), &[2])), "q_flip", "2");
    invalid(error_of(|| R::q_transpose(q(&[3]))), "q_transpose", "1");
    invalid(error_of(|| R::q_expand(q(&[2, 3]), Shape::from(vec![4, 3]))), "q_expand", "[4, 3]");
    invalid(error_of(|| R::q_repeat_dim(q(&[2, 3]), 2, 2)), "q_repeat_dim", "2");
    let product =
        |a: &[usize], b: &[usize]| R::q_matmul(TensorPrimitive::QFloat(q(a)), TensorPrimitive::QFloat(q(b)));
    invalid(error_of(|| product(&[2, 3], &[4, 5])), "q_matmul", "[4, 5]");
    invalid(error_of(|| product(&[3], &[3, 5])), "q_matmul", "[3]");
    invalid(error_of(|| product(&[2, 2, 3], &[3, 3, 5])), "q_matmul", "[3]");
    let index = || R::int_zeros(Shape::from(vec![2, 2]), &Default::default(), IntDType::I32);
    invalid(error_of(|| R::q_select(q(&[2, 3]), 0, index())), "q_select", "2");
    invalid(error_of(|| R::q_gather(2, q(&[2, 3]), index())), "q_gather", "2");
}
