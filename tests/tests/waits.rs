//! No op reads back or waits, except those in the list below.
//!
//! This is one test in a program of its own, because the counters belong to the device and other
//! tests read results.
#![allow(missing_docs, clippy::unwrap_used)]

use burn_backend::Distribution;
use burn_backend::tensor::IndexingUpdateOp;
use burn_rocm_tests::*;
use burn_std::future::block_on;

/// The ops whose output's shape depends on values. Each reads the size of its output once.
const READ_A_SIZE: &[&str] = &["bool_argwhere"];

macro_rules! each_op {
    ($device:ident, $($name:ident => $body:expr;)*) => {$(
        {
            let before = $device.counters();
            let kept = $body;
            let after = $device.counters();
            drop(kept);
            let sizes = READ_A_SIZE.contains(&stringify!($name)) as u64;
            assert_eq!(after.device_to_host, before.device_to_host + sizes, "{} reads back", stringify!($name));
            assert_eq!(after.waits, before.waits + sizes, "{} waits", stringify!($name));
        }
    )*};
}

#[test]
fn no_op_waits() {
    let d = Default::default();
    let hip = hip::Device::get(0).expect("a device");
    let random = Random::new();
    let a = float(&random, &[2, 3, 8, 8], DType::F32, View::Contiguous, 0.1, 0.9);
    let i = int(&random, &[2, 3, 8, 8], DType::I32, View::Contiguous, 0, 2);
    let m = mask(&random, &[2, 3, 8, 8], View::Contiguous);
    let (x, n, b) = (a.float::<R>(&d), i.int::<R>(&d), m.bool::<R>(&d));
    let w = float(&random, &[4, 3, 3, 3], DType::F32, View::Contiguous, -1.0, 1.0).float::<R>(&d);
    let g = float(&random, &[2, 4, 8, 8], DType::F32, View::Contiguous, -1.0, 1.0).float::<R>(&d);
    let at = int(&random, &[3], DType::I32, View::Contiguous, 0, 2).int::<R>(&d);
    let table = float(&random, &[10, 4], DType::F32, View::Contiguous, -1.0, 1.0).float::<R>(&d);
    let pairs = int(&random, &[5, 2], DType::I32, View::Contiguous, 0, 4).int::<R>(&d);
    let few = float(&random, &[5], DType::F32, View::Contiguous, -1.0, 1.0).float::<R>(&d);
    let shape = Shape::from(vec![2, 3, 8, 8]);
    let (f32, i32, native, s) = (FloatDType::F32, IntDType::I32, BoolDType::Native, Scalar::Float(0.5));
    let one = Scalar::Int(1);
    let cut = [
        Slice::new(0, Some(1), 1),
        Slice::new(0, Some(3), 2),
        Slice::new(1, Some(7), 1),
        Slice::new(0, None, 1),
    ];
    let conv = ConvOptions::<2>::new([1, 1], [1, 1], [1, 1], 1);
    let turned = ConvTransposeOptions::<2>::new([1, 1], [1, 1], [0, 0], [1, 1], 1);
    each_op! { hip,
        float_random => R::float_random(shape.clone(), Distribution::Default, &d, f32);
        float_normal => R::float_random(shape.clone(), Distribution::Normal(0.0, 1.0), &d, f32);
        float_bernoulli => R::float_random(shape.clone(), Distribution::Bernoulli(0.5), &d, f32);
        int_random => R::int_random(shape.clone(), Distribution::Uniform(0.0, 9.0), &d, i32);
        float_zeros => R::float_zeros(shape.clone(), &d, f32);
        float_full => R::float_full(shape.clone(), s, &d, f32);
        int_arange => R::int_arange(0..100, &d, i32);
        float_into_int => R::float_into_int(x.clone(), i32);
        int_into_float => R::int_into_float(n.clone(), f32);
        bool_into_float => R::bool_into_float(b.clone(), f32);
        float_cast => R::float_cast(x.clone(), FloatDType::F16);
        float_add => R::float_add(x.clone(), x.clone());
        float_add_strided => R::float_add(R::float_swap_dims(x.clone(), 2, 3), x.clone());
        float_mul_scalar => R::float_mul_scalar(x.clone(), s);
        float_div => R::float_div(x.clone(), x.clone());
        float_powf => R::float_powf(x.clone(), x.clone());
        float_powf_scalar => R::float_powf_scalar(x.clone(), s);
        float_clamp => R::float_clamp(x.clone(), s, s);
        int_add => R::int_add(n.clone(), n.clone());
        int_mul_scalar => R::int_mul_scalar(n.clone(), one);
        bitwise_and => R::bitwise_and(n.clone(), n.clone());
        bool_and => R::bool_and(b.clone(), b.clone());
        bool_not => R::bool_not(b.clone());
        float_matmul => R::float_matmul(x.clone(), R::float_swap_dims(x.clone(), 2, 3));
        int_matmul => R::int_matmul(n.clone(), n.clone());
        float_exp => R::float_exp(x.clone());
        float_erf => R::float_erf(x.clone());
        relu => R::relu(x.clone());
        gelu => R::gelu(x.clone());
        sigmoid => R::sigmoid(x.clone());
        softmax => R::softmax(x.clone(), 3);
        log_softmax => R::log_softmax(x.clone(), 1);
        float_sum => R::float_sum(x.clone());
        float_sum_dim => R::float_sum_dim(x.clone(), 2);
        float_mean_dim => R::float_mean_dim(x.clone(), 3);
        float_max_dim_with_indices => R::float_max_dim_with_indices(x.clone(), 1, i32);
        float_argmax => R::float_argmax(x.clone(), 3, i32);
        int_sum => R::int_sum(n.clone());
        bool_any => R::bool_any(b.clone());
        bool_all_dim => R::bool_all_dim(b.clone(), 1);
        float_greater => R::float_greater(x.clone(), x.clone(), native);
        float_equal_elem => R::float_equal_elem(x.clone(), s, native);
        float_mask_where => R::float_mask_where(x.clone(), b.clone(), x.clone());
        float_mask_fill => R::float_mask_fill(x.clone(), b.clone(), s);
        float_gather => R::float_gather(1, x.clone(), n.clone());
        float_scatter_add => R::float_scatter_add(1, x.clone(), n.clone(), x.clone());
        float_select => R::float_select(x.clone(), 0, at.clone());
        float_select_add => {
            let picked = R::float_select(table.clone(), 0, at.clone());
            R::float_select_add(table.clone(), 0, at.clone(), picked)
        };
        float_gather_nd => R::float_gather_nd(table.clone(), pairs.clone());
        float_scatter_nd => R::float_scatter_nd(table.clone(), pairs.clone(), few.clone(), IndexingUpdateOp::Max);
        float_scatter_nd_add => R::float_scatter_nd(table.clone(), pairs.clone(), few.clone(), IndexingUpdateOp::Add);
        bool_argwhere => block_on(R::bool_argwhere(b.clone(), i32));
        int_div => R::int_div(n.clone(), R::int_ones(shape.clone(), &d, i32));
        int_div_scalar => R::int_div_scalar(n.clone(), one);
        float_sort => R::float_sort(x.clone(), 3, false);
        embedding_backward => {
            let grad = R::float_ones(Shape::from(vec![1, 3, 4]), &d, f32);
            R::embedding_backward(table.clone(), grad, R::int_reshape(at.clone(), Shape::from(vec![1, 3])))
        };
        float_slice_assign => R::float_slice_assign(x.clone(), &cut, R::float_slice(x.clone(), &cut));
        float_cat => R::float_cat(vec![x.clone(), x.clone()], 1);
        float_repeat_dim => R::float_repeat_dim(x.clone(), 1, 2);
        float_reshape => R::float_reshape(R::float_swap_dims(x.clone(), 1, 2), Shape::from(vec![384]));
        embedding => R::embedding(table.clone(), R::int_reshape(at.clone(), Shape::from(vec![1, 3])));
        conv2d => R::conv2d(x.clone(), w.clone(), None, conv.clone());
        conv2d_x_backward => R::conv2d_x_backward(x.clone(), w.clone(), g.clone(), conv.clone());
        conv2d_weight_backward => R::conv2d_weight_backward(x.clone(), w.clone(), g.clone(), conv.clone());
        conv_transpose2d => R::conv_transpose2d(g.clone(), w.clone(), None, turned.clone());
        max_pool2d => R::max_pool2d(x.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false);
        max_pool2d_backward => {
            let found = R::max_pool2d_with_indices(x.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false);
            let (grad, indices) = (found.output, found.indices);
            R::max_pool2d_with_indices_backward(x.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false, grad, indices)
        };
        avg_pool2d => R::avg_pool2d(x.clone(), [2, 2], [2, 2], [0, 0], true, false);
        adaptive_avg_pool2d => R::adaptive_avg_pool2d(x.clone(), [3, 3]);
        layer_norm => R::layer_norm(x.clone(), R::float_ones(Shape::from(vec![8]), &d, f32), None, 1e-5);
        attention => R::attention(x.clone(), x.clone(), x.clone(), None, None, Default::default());
    }
    // Shows that the counters do count.
    let before = hip.counters();
    read_float::<R>(x);
    assert!(hip.counters().device_to_host > before.device_to_host, "reading data is counted");
}
