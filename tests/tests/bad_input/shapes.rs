//! Shapes, dtypes and dims that do not fit, for every family of ops. The error names the op and the
//! mistake.

use burn_backend::ops::{InterpolateMode, InterpolateOptions};
use burn_backend::tensor::{BoolTensor, FloatTensor, IndexingUpdateOp, IntTensor};
use burn_rocm::{RocmError, fused};
use burn_rocm_tests::*;

use super::error_of;

fn floats(shape: &[usize]) -> FloatTensor<R> {
    R::float_ones(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F32)
}

fn halves(shape: &[usize]) -> FloatTensor<R> {
    R::float_ones(Shape::from(shape.to_vec()), &Default::default(), FloatDType::F16)
}

fn ints(shape: &[usize]) -> IntTensor<R> {
    R::int_zeros(Shape::from(shape.to_vec()), &Default::default(), IntDType::I32)
}

fn longs(shape: &[usize]) -> IntTensor<R> {
    R::int_ones(Shape::from(shape.to_vec()), &Default::default(), IntDType::I64)
}

fn bools(shape: &[usize]) -> BoolTensor<R> {
    R::bool_zeros(Shape::from(shape.to_vec()), &Default::default(), BoolDType::Native)
}

/// Each body must raise `Invalid` with the op's name and the given text.
macro_rules! refused {
    ($($op:literal, $text:literal: $body:expr;)*) => {$(
        let error = error_of(|| drop($body));
        match &error {
            RocmError::Invalid { op, .. } => {
                assert!(op.contains($op), "{error}: not {}", $op);
                assert!(error.to_string().contains($text), "{error} does not say {}", $text);
            }
            other => panic!("{}: expected Invalid, found {other:?}", $op),
        }
    )*};
}

#[test]
fn two_shapes() {
    let native = BoolDType::Native;
    let (a, b) = (&[2, 3][..], &[4, 3][..]);
    refused! {
        "float_add", "[4, 3]": R::float_add(floats(a), floats(b));
        "float_add", "f32": R::float_add(floats(a), floats(b));
        "float_sub", "[2, 3]": R::float_sub(floats(a), floats(b));
        "float_mul", "[4, 3]": R::float_mul(floats(a), floats(b));
        "float_div", "[4, 3]": R::float_div(floats(a), floats(b));
        "float_remainder", "[4, 3]": R::float_remainder(floats(a), floats(b));
        "float_powf", "[4, 3]": R::float_powf(floats(a), floats(b));
        "float_atan2", "[4, 3]": R::float_atan2(floats(a), floats(b));
        "float_cross", "[4, 3]": R::float_cross(floats(a), floats(b), 1);
        "float_cross", "[2, 2]": R::float_cross(floats(&[2, 2]), floats(&[2, 2]), 1);
        "float_equal", "[4, 3]": R::float_equal(floats(a), floats(b), native);
        "float_greater", "[4, 3]": R::float_greater(floats(a), floats(b), native);
        "float_lower_equal", "f32": R::float_lower_equal(floats(a), floats(b), native);
        "int_add", "i32": R::int_add(ints(a), ints(b));
        "int_div", "[4, 3]": R::int_div(ints(a), ints(b));
        "int_powi", "[4, 3]": R::int_powi(ints(a), ints(b));
        "bitwise_and", "[4, 3]": R::bitwise_and(ints(a), ints(b));
        "bitwise_left_shift", "[4, 3]": R::bitwise_left_shift(ints(a), ints(b));
        "int_equal", "[4, 3]": R::int_equal(ints(a), ints(b), native);
        "bool_and", "[4, 3]": R::bool_and(bools(a), bools(b));
        "bool_equal", "[4, 3]": R::bool_equal(bools(a), bools(b));
        "float_mask_where", "[4, 3]": R::float_mask_where(floats(a), bools(b), floats(a));
        "float_mask_where", "[4, 3]": R::float_mask_where(floats(a), bools(a), floats(b));
        "float_mask_fill", "[4, 3]": R::float_mask_fill(floats(a), bools(b), Scalar::Int(1));
        "int_mask_where", "[4, 3]": R::int_mask_where(ints(a), bools(a), ints(b));
        "bool_mask_fill", "[4, 3]": R::bool_mask_fill(bools(a), bools(b), Scalar::Bool(true));
        "float_matmul", "[4, 3]": R::float_matmul(floats(a), floats(b));
        "float_matmul", "f32": R::float_matmul(floats(a), floats(b));
        "float_matmul", "[5, 3, 2]": R::float_matmul(floats(&[2, 2, 3]), floats(&[5, 3, 2]));
        "int_matmul", "[4, 3]": R::int_matmul(ints(a), ints(b));
        "cat", "[2, 4]": R::float_cat(vec![floats(a), floats(&[2, 4])], 0);
        "cat", "none": R::float_cat(vec![], 0);
        "slice_assign", "[2, 2]": R::float_slice_assign(floats(a), &[Slice::new(0, Some(1), 1)], floats(&[2, 2]));
        "expand", "[2, 3]": R::float_expand(floats(a), Shape::from(vec![4, 3]));
        "expand", "[2, 3]": R::int_expand(ints(a), Shape::from(vec![3]));
        "reshape", "[7]": R::bool_reshape(bools(a), Shape::from(vec![7]));
    }
}

#[test]
fn indices_of_another_shape() {
    let add = IndexingUpdateOp::Add;
    refused! {
        "float_gather", "[3, 3]": R::float_gather(1, floats(&[2, 3]), ints(&[3, 3]));
        "float_gather", "[2]": R::float_gather(1, floats(&[2, 3]), ints(&[2]));
        "float_gather", "f32": R::float_gather(1, floats(&[2, 3]), floats(&[2, 3]));
        "float_scatter_add", "[3, 3]": R::float_scatter_add(1, floats(&[2, 3]), ints(&[3, 3]), floats(&[3, 3]));
        "float_scatter_add", "[2, 2]": R::float_scatter_add(1, floats(&[2, 3]), ints(&[2, 3]), floats(&[2, 2]));
        "float_select", "rank 2": R::float_select(floats(&[2, 3]), 0, ints(&[2, 2]));
        "float_select_add", "[1, 3]": R::float_select_add(floats(&[2, 3]), 0, ints(&[2]), floats(&[1, 3]));
        "int_select_add", "[1, 3]": R::int_select_add(ints(&[2, 3]), 0, ints(&[2]), ints(&[1, 3]));
        "bool_select_or", "[1, 3]": R::bool_select_or(bools(&[2, 3]), 0, ints(&[2]), bools(&[1, 3]));
        "bool_scatter_or", "[1, 3]": R::bool_scatter_or(0, bools(&[2, 3]), ints(&[2, 3]), bools(&[1, 3]));
        "float_gather_nd", "[4, 3]": R::float_gather_nd(floats(&[2, 3]), ints(&[4, 3]));
        "float_scatter_nd", "[4]": R::float_scatter_nd(floats(&[2, 3]), ints(&[4, 1]), floats(&[4]), add);
        "int_scatter_nd", "[4, 2]": R::int_scatter_nd(ints(&[2, 3]), ints(&[4, 1]), ints(&[4, 2]), add);
        "embedding", "[2]": R::embedding(floats(&[2]), ints(&[1, 2]));
        "embedding_backward", "[1, 2, 4]": R::embedding_backward(floats(&[2, 3]), floats(&[1, 2, 4]), ints(&[1, 2]));
    }
}

#[test]
fn types_that_differ() {
    let a = &[2, 3][..];
    refused! {
        "float_add", "f16": R::float_add(floats(a), halves(a));
        "int_add", "i64": R::int_add(ints(a), longs(a));
        "float_matmul", "f16": R::float_matmul(floats(a), halves(&[3, 2]));
        "float_equal", "f16": R::float_equal(floats(a), halves(a), BoolDType::Native);
        "float_mask_where", "f16": R::float_mask_where(floats(a), bools(a), halves(a));
        "float_mask_where", "i32": R::float_mask_where(floats(a), ints(a), floats(a));
        "cat", "f16": R::float_cat(vec![floats(a), halves(a)], 0);
        "slice_assign", "f16": R::float_slice_assign(floats(a), &[], halves(a));
        "float_scatter_add", "f16": R::float_scatter_add(0, floats(a), ints(a), halves(a));
        "int_scatter_nd", "i64": R::int_scatter_nd(ints(a), ints(&[1, 1]), longs(&[1, 3]), IndexingUpdateOp::Add);
    }
}

#[test]
fn integers_in_place_of_floats() {
    let (x, row) = (|| ints(&[2, 3]), || ints(&[3]));
    let options = fused::Conv2dOptions { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 };
    let (image, weight) = (ints(&[1, 1, 3, 3]), ints(&[1, 1, 2, 2]));
    for (name, result) in [
        ("silu", fused::silu(x())),
        ("silu_backward", fused::silu_backward(x(), x())),
        ("relu_backward", fused::relu_backward(x(), x())),
        ("softmax", fused::softmax(x(), 1)),
        ("softmax_backward", fused::softmax_backward(x(), x(), 1)),
        ("log_softmax", fused::log_softmax(x(), 0)),
        ("log_softmax_backward", fused::log_softmax_backward(x(), x(), 0)),
        ("layer_norm", fused::layer_norm(x(), row(), None, 1e-5)),
        ("rms_norm", fused::rms_norm(x(), row(), 1e-5)),
        ("group_norm", fused::group_norm(x(), None, 1, 1e-5)),
        ("conv_act", fused::conv_act(fused::Act::Gelu, image, weight, None, options)),
    ] {
        match result {
            Err(RocmError::Unsupported { op, dtype: Some("i32"), what: None }) => assert_eq!(op, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let transforms = [
        ("rfft", error_of(|| drop(R::rfft(x(), 0, None)))),
        ("irfft", error_of(|| drop(R::irfft(x(), x(), 1, Some(5))))),
    ];
    for (name, error) in transforms {
        match error {
            RocmError::Unsupported { op, dtype: Some("i32"), what: None } => assert_eq!(op, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn dims_that_are_not_there() {
    let a = &[2, 3][..];
    let i64 = IntDType::I64;
    refused! {
        "float_sum_dim", "2": R::float_sum_dim(floats(a), 2);
        "float_mean_dim", "5": R::float_mean_dim(floats(a), 5);
        "float_argmax", "2": R::float_argmax(floats(a), 2, i64);
        "float_max_dim_with_indices", "2": R::float_max_dim_with_indices(floats(a), 2, i64);
        "int_cumsum", "2": R::int_cumsum(ints(a), 2);
        "float_sort", "2": R::float_sort(floats(a), 2, false);
        "float_topk", "4": R::float_topk(floats(a), 1, 4);
        "float_gather", "2": R::float_gather(2, floats(a), ints(a));
        "float_select", "2": R::float_select(floats(a), 2, ints(&[1]));
        "repeat_dim", "2": R::float_repeat_dim(floats(a), 2, 2);
        "cat", "2": R::float_cat(vec![floats(a)], 2);
        "swap_dims", "5": R::float_swap_dims(floats(a), 0, 5);
        "permute", "[0, 0]": R::float_permute(floats(a), &[0, 0]);
        "flip", "[2]": R::float_flip(floats(a), &[2]);
        "unfold", "2": R::float_unfold(floats(a), 2, 1, 1);
        "bool_any_dim", "2": R::bool_any_dim(bools(a), 2);
        "softmax", "2": R::softmax(floats(a), 2);
    }
}

#[test]
fn layers() {
    let conv = || ConvOptions::<2>::new([1, 1], [0, 0], [1, 1], 1);
    let pooled = |x: &[usize]| R::max_pool2d(floats(x), [9, 9], [1, 1], [0, 0], [1, 1], false);
    let larger = || InterpolateOptions::new(InterpolateMode::Nearest);
    refused! {
        "conv2d", "[4, 2, 3, 3]": R::conv2d(floats(&[1, 3, 8, 8]), floats(&[4, 2, 3, 3]), None, conv());
        "conv2d", "[2, 3]": R::conv2d(floats(&[2, 3]), floats(&[4, 2, 3, 3]), None, conv());
        "max_pool2d", "[1, 1, 4, 4]": pooled(&[1, 1, 4, 4]);
        "max_pool2d", "[4, 4]": pooled(&[4, 4]);
        "avg_pool2d", "[4, 4]": R::avg_pool2d(floats(&[4, 4]), [2, 2], [1, 1], [0, 0], true, false);
        "adaptive_avg_pool2d", "[4, 4]": R::adaptive_avg_pool2d(floats(&[4, 4]), [2, 2]);
        "interpolate", "[4, 4]": R::interpolate(floats(&[4, 4]), [2, 2], larger());
        "layer_norm", "[5]": R::layer_norm(floats(&[2, 3]), floats(&[5]), None, 1e-5);
    }
}

/// Shapes whose number of elements is right modulo 2^64.
#[test]
fn shapes_past_the_address_space() {
    let wraps = || Shape::from(vec![(1_usize << 62) + 1, 4]);
    let data = || TensorData { shape: wraps(), ..TensorData::new(vec![1f32; 4], [4]) };
    refused! {
        "reshape", "4611686018427387905": R::float_reshape(floats(&[4]), wraps());
        "reshape", "4611686018427387905": R::int_reshape(ints(&[2, 2]), wraps());
        "expand", "4611686018427387905": R::float_expand(floats(&[1, 4]), wraps());
        "from_data", "4611686018427387905": R::float_from_data(data(), &Default::default());
    }
}

/// An axis without elements has no valid index. The host knows this without a kernel.
#[test]
fn axes_without_elements() {
    let add = IndexingUpdateOp::Add;
    refused! {
        "float_gather", "size 0": R::float_gather(0, floats(&[0]), ints(&[2]));
        "float_select", "size 0": R::float_select(floats(&[0, 3]), 0, ints(&[2]));
        "float_select", "size 0": R::float_select(floats(&[0, 300]), 0, ints(&[2]));
        "float_scatter_add", "size 0": R::float_scatter_add(0, floats(&[0]), ints(&[2]), floats(&[2]));
        "bool_select_or", "size 0": R::bool_select_or(bools(&[3, 0]), 1, ints(&[2]), bools(&[3, 2]));
        "float_gather_nd", "size 0": R::float_gather_nd(floats(&[0, 3]), ints(&[2, 1]));
        "int_scatter_nd", "size 0": R::int_scatter_nd(ints(&[3, 0]), ints(&[2, 2]), ints(&[2]), add);
    }
}

/// Scalars that an op does not support.
#[test]
fn scalars() {
    let a = &[2, 3][..];
    refused! {
        "int_div_scalar", "0": R::int_div_scalar(ints(a), Scalar::Int(0));
        "int_div_scalar", "0": R::int_div_scalar(ints(a), Scalar::Float(0.3));
        "int_remainder_scalar", "0": R::int_remainder_scalar(longs(a), Scalar::Int(0));
        "int_arange_step", "0": R::int_arange_step(0..5, 0, &Default::default(), IntDType::I32);
    }
}
