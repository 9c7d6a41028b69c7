//! Empty tensors in every op of the three tensor traits: the result of burn-flex or, if burn-flex
//! panics too, a typed error.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_backend::tensor::{BoolTensor, FloatTensor, IndexingUpdateOp, IntTensor};
use burn_rocm::take_last_error;
use burn_rocm_tests::*;
use burn_std::future::block_on;

/// Empty shapes of each kind: nothing before, after and around an axis.
const EMPTY: &[&[usize]] = &[&[0], &[0, 3], &[3, 0], &[2, 0, 3], &[0, 0]];

fn f<B: Backend>(tensor: FloatTensor<B>) -> Vec<TensorData> {
    vec![read_float::<B>(tensor)]
}

fn i<B: Backend>(tensor: IntTensor<B>) -> Vec<TensorData> {
    vec![read_index::<B>(tensor)]
}

fn l<B: Backend>(tensor: BoolTensor<B>) -> Vec<TensorData> {
    vec![read_bool::<B>(tensor)]
}

fn fi<B: Backend>(pair: (FloatTensor<B>, IntTensor<B>)) -> Vec<TensorData> {
    vec![read_float::<B>(pair.0), read_index::<B>(pair.1)]
}

fn ii<B: Backend>(pair: (IntTensor<B>, IntTensor<B>)) -> Vec<TensorData> {
    vec![read_index::<B>(pair.0), read_index::<B>(pair.1)]
}

/// The results of an op, or the typed error of its panic.
type Outcome = Result<Vec<TensorData>, Option<String>>;

/// Every op's outcome on one backend.
fn outcomes<B: Backend>(shape: &[usize], dim: usize) -> Vec<(&'static str, Outcome)> {
    let d = &B::Device::default();
    let of = |shape: &[usize]| Shape::from(shape.to_vec());
    let (f32, f16, i64, native) = (FloatDType::F32, FloatDType::F16, IntDType::I64, BoolDType::Native);
    let (one, yes) = (Scalar::Int(1), Scalar::Bool(true));
    let x = || B::float_zeros(of(shape), d, f32);
    let n = || B::int_zeros(of(shape), d, i64);
    let b = || B::bool_zeros(of(shape), d, native);
    let none = || B::int_zeros(of(&[0]), d, i64);
    let nothing = || B::int_zeros(of(&[0, 1]), d, i64);
    let picked = |dim: usize| {
        let mut picked = shape.to_vec();
        picked[dim] = 0;
        of(&picked)
    };
    let (xs, ns) = (|dim| B::float_zeros(picked(dim), d, f32), |dim| B::int_zeros(picked(dim), d, i64));
    let bs = |dim| B::bool_zeros(picked(dim), d, native);
    let (xnd, nnd) = (|| xs(0), || ns(0));
    let flat = || of(&[0, 7]);
    let wide = || of(&[&[2], shape].concat());
    let turned: Vec<usize> = (0..shape.len()).rev().collect();
    let cut: Vec<Slice> = shape.iter().map(|_| Slice::new(0, None, 1)).collect();
    let mut all = vec![];
    macro_rules! each {
        ($($name:ident => $body:expr;)*) => {$(
            let outcome = catch_unwind(AssertUnwindSafe(|| $body))
                .map_err(|_| take_last_error().map(|error| error.to_string()));
            all.push((stringify!($name), outcome));
        )*};
    }
    each! {
        // floats
        float_into_int => i::<B>(B::float_into_int(x(), i64));
        float_repeat_dim => f::<B>(B::float_repeat_dim(x(), dim, 3));
        float_add => f::<B>(B::float_add(x(), x()));
        float_add_scalar => f::<B>(B::float_add_scalar(x(), one));
        float_clamp_min => f::<B>(B::float_clamp_min(x(), one));
        float_clamp_max => f::<B>(B::float_clamp_max(x(), one));
        float_clamp => f::<B>(B::float_clamp(x(), one, one));
        float_sub => f::<B>(B::float_sub(x(), x()));
        float_sub_scalar => f::<B>(B::float_sub_scalar(x(), one));
        float_mul => f::<B>(B::float_mul(x(), x()));
        float_mul_scalar => f::<B>(B::float_mul_scalar(x(), one));
        float_div => f::<B>(B::float_div(x(), x()));
        float_div_scalar => f::<B>(B::float_div_scalar(x(), one));
        float_remainder => f::<B>(B::float_remainder(x(), x()));
        float_remainder_scalar => f::<B>(B::float_remainder_scalar(x(), one));
        float_neg => f::<B>(B::float_neg(x()));
        float_recip => f::<B>(B::float_recip(x()));
        float_transpose => f::<B>(B::float_transpose(x()));
        float_swap_dims => f::<B>(B::float_swap_dims(x(), dim, 0));
        float_permute => f::<B>(B::float_permute(x(), &turned));
        float_flip => f::<B>(B::float_flip(x(), &[dim]));
        float_reshape => f::<B>(B::float_reshape(x(), flat()));
        float_gather => f::<B>(B::float_gather(dim, x(), n()));
        float_scatter_add => f::<B>(B::float_scatter_add(dim, x(), n(), x()));
        float_select => f::<B>(B::float_select(x(), dim, none()));
        float_select_add => f::<B>(B::float_select_add(x(), dim, none(), xs(dim)));
        float_slice => f::<B>(B::float_slice(x(), &cut));
        float_slice_assign => f::<B>(B::float_slice_assign(x(), &cut, B::float_slice(x(), &cut)));
        float_mask_where => f::<B>(B::float_mask_where(x(), b(), x()));
        float_mask_fill => f::<B>(B::float_mask_fill(x(), b(), one));
        float_equal => l::<B>(B::float_equal(x(), x(), native));
        float_not_equal => l::<B>(B::float_not_equal(x(), x(), native));
        float_equal_elem => l::<B>(B::float_equal_elem(x(), one, native));
        float_not_equal_elem => l::<B>(B::float_not_equal_elem(x(), one, native));
        float_greater => l::<B>(B::float_greater(x(), x(), native));
        float_greater_elem => l::<B>(B::float_greater_elem(x(), one, native));
        float_greater_equal => l::<B>(B::float_greater_equal(x(), x(), native));
        float_greater_equal_elem => l::<B>(B::float_greater_equal_elem(x(), one, native));
        float_lower => l::<B>(B::float_lower(x(), x(), native));
        float_lower_elem => l::<B>(B::float_lower_elem(x(), one, native));
        float_lower_equal => l::<B>(B::float_lower_equal(x(), x(), native));
        float_lower_equal_elem => l::<B>(B::float_lower_equal_elem(x(), one, native));
        float_sum => f::<B>(B::float_sum(x()));
        float_sum_dim => f::<B>(B::float_sum_dim(x(), dim));
        float_prod => f::<B>(B::float_prod(x()));
        float_prod_dim => f::<B>(B::float_prod_dim(x(), dim));
        float_mean => f::<B>(B::float_mean(x()));
        float_mean_dim => f::<B>(B::float_mean_dim(x(), dim));
        float_cumsum => f::<B>(B::float_cumsum(x(), dim));
        float_cumprod => f::<B>(B::float_cumprod(x(), dim));
        float_cummin => f::<B>(B::float_cummin(x(), dim));
        float_cummax => f::<B>(B::float_cummax(x(), dim));
        float_cast => f::<B>(B::float_cast(x(), f16));
        float_exp => f::<B>(B::float_exp(x()));
        float_log => f::<B>(B::float_log(x()));
        float_log1p => f::<B>(B::float_log1p(x()));
        float_powf => f::<B>(B::float_powf(x(), x()));
        float_powi => f::<B>(B::float_powi(x(), n()));
        float_powi_scalar => f::<B>(B::float_powi_scalar(x(), one));
        float_powf_scalar => f::<B>(B::float_powf_scalar(x(), one));
        float_sqrt => f::<B>(B::float_sqrt(x()));
        float_abs => f::<B>(B::float_abs(x()));
        float_cos => f::<B>(B::float_cos(x()));
        float_sin => f::<B>(B::float_sin(x()));
        float_tan => f::<B>(B::float_tan(x()));
        float_cosh => f::<B>(B::float_cosh(x()));
        float_sinh => f::<B>(B::float_sinh(x()));
        float_tanh => f::<B>(B::float_tanh(x()));
        float_acos => f::<B>(B::float_acos(x()));
        float_acosh => f::<B>(B::float_acosh(x()));
        float_asin => f::<B>(B::float_asin(x()));
        float_asinh => f::<B>(B::float_asinh(x()));
        float_atan => f::<B>(B::float_atan(x()));
        float_atanh => f::<B>(B::float_atanh(x()));
        float_atan2 => f::<B>(B::float_atan2(x(), x()));
        float_round => f::<B>(B::float_round(x()));
        float_floor => f::<B>(B::float_floor(x()));
        float_ceil => f::<B>(B::float_ceil(x()));
        float_trunc => f::<B>(B::float_trunc(x()));
        float_erf => f::<B>(B::float_erf(x()));
        float_cat => f::<B>(B::float_cat(vec![x(), x()], dim));
        float_argmax => i::<B>(B::float_argmax(x(), dim, i64));
        float_argtopk => i::<B>(B::float_argtopk(x(), dim, 0, i64));
        float_topk => f::<B>(B::float_topk(x(), dim, 0));
        float_argmin => i::<B>(B::float_argmin(x(), dim, i64));
        float_max => f::<B>(B::float_max(x()));
        float_max_dim => f::<B>(B::float_max_dim(x(), dim));
        float_max_dim_with_indices => fi::<B>(B::float_max_dim_with_indices(x(), dim, i64));
        float_min => f::<B>(B::float_min(x()));
        float_min_dim => f::<B>(B::float_min_dim(x(), dim));
        float_min_dim_with_indices => fi::<B>(B::float_min_dim_with_indices(x(), dim, i64));
        float_max_abs => f::<B>(B::float_max_abs(x()));
        float_max_abs_dim => f::<B>(B::float_max_abs_dim(x(), dim));
        float_any => l::<B>(B::float_any(x(), native));
        float_any_dim => l::<B>(B::float_any_dim(x(), dim, native));
        float_all => l::<B>(B::float_all(x(), native));
        float_all_dim => l::<B>(B::float_all_dim(x(), dim, native));
        float_sign => f::<B>(B::float_sign(x()));
        float_expand => f::<B>(B::float_expand(x(), wide()));
        float_sort => f::<B>(B::float_sort(x(), dim, true));
        float_sort_with_indices => fi::<B>(B::float_sort_with_indices(x(), dim, true, i64));
        float_argsort => i::<B>(B::float_argsort(x(), dim, true, i64));
        float_unfold => f::<B>(B::float_unfold(x(), dim, 1, 1));
        float_is_nan => l::<B>(B::float_is_nan(x(), native));
        float_is_inf => l::<B>(B::float_is_inf(x(), native));
        float_matmul => f::<B>(B::float_matmul(x(), B::float_transpose(x())));
        float_gather_nd => f::<B>(B::float_gather_nd(x(), nothing()));
        float_scatter_nd => f::<B>(B::float_scatter_nd(x(), nothing(), xnd(), IndexingUpdateOp::Add));
        // ints
        int_reshape => i::<B>(B::int_reshape(n(), flat()));
        int_slice => i::<B>(B::int_slice(n(), &cut));
        int_slice_assign => i::<B>(B::int_slice_assign(n(), &cut, B::int_slice(n(), &cut)));
        int_into_float => f::<B>(B::int_into_float(n(), f32));
        int_mask_where => i::<B>(B::int_mask_where(n(), b(), n()));
        int_mask_fill => i::<B>(B::int_mask_fill(n(), b(), one));
        int_gather => i::<B>(B::int_gather(dim, n(), n()));
        int_scatter_add => i::<B>(B::int_scatter_add(dim, n(), n(), n()));
        int_select => i::<B>(B::int_select(n(), dim, none()));
        int_select_add => i::<B>(B::int_select_add(n(), dim, none(), ns(dim)));
        int_repeat_dim => i::<B>(B::int_repeat_dim(n(), dim, 3));
        int_cat => i::<B>(B::int_cat(vec![n(), n()], dim));
        int_equal => l::<B>(B::int_equal(n(), n(), native));
        int_not_equal => l::<B>(B::int_not_equal(n(), n(), native));
        int_equal_elem => l::<B>(B::int_equal_elem(n(), one, native));
        int_not_equal_elem => l::<B>(B::int_not_equal_elem(n(), one, native));
        int_greater => l::<B>(B::int_greater(n(), n(), native));
        int_greater_elem => l::<B>(B::int_greater_elem(n(), one, native));
        int_greater_equal => l::<B>(B::int_greater_equal(n(), n(), native));
        int_greater_equal_elem => l::<B>(B::int_greater_equal_elem(n(), one, native));
        int_lower => l::<B>(B::int_lower(n(), n(), native));
        int_lower_elem => l::<B>(B::int_lower_elem(n(), one, native));
        int_lower_equal => l::<B>(B::int_lower_equal(n(), n(), native));
        int_lower_equal_elem => l::<B>(B::int_lower_equal_elem(n(), one, native));
        int_add => i::<B>(B::int_add(n(), n()));
        int_add_scalar => i::<B>(B::int_add_scalar(n(), one));
        int_powi => i::<B>(B::int_powi(n(), n()));
        int_powi_scalar => i::<B>(B::int_powi_scalar(n(), one));
        int_clamp_min => i::<B>(B::int_clamp_min(n(), one));
        int_clamp_max => i::<B>(B::int_clamp_max(n(), one));
        int_clamp => i::<B>(B::int_clamp(n(), one, one));
        int_sub => i::<B>(B::int_sub(n(), n()));
        int_sub_scalar => i::<B>(B::int_sub_scalar(n(), one));
        int_mul => i::<B>(B::int_mul(n(), n()));
        int_mul_scalar => i::<B>(B::int_mul_scalar(n(), one));
        int_div => i::<B>(B::int_div(n(), n()));
        int_div_scalar => i::<B>(B::int_div_scalar(n(), one));
        int_remainder => i::<B>(B::int_remainder(n(), n()));
        int_remainder_scalar => i::<B>(B::int_remainder_scalar(n(), one));
        int_neg => i::<B>(B::int_neg(n()));
        int_sum => i::<B>(B::int_sum(n()));
        int_sum_dim => i::<B>(B::int_sum_dim(n(), dim));
        int_prod => i::<B>(B::int_prod(n()));
        int_prod_dim => i::<B>(B::int_prod_dim(n(), dim));
        int_mean => i::<B>(B::int_mean(n()));
        int_mean_dim => i::<B>(B::int_mean_dim(n(), dim));
        int_cumsum => i::<B>(B::int_cumsum(n(), dim));
        int_cumprod => i::<B>(B::int_cumprod(n(), dim));
        int_cummin => i::<B>(B::int_cummin(n(), dim));
        int_cummax => i::<B>(B::int_cummax(n(), dim));
        int_argmax => i::<B>(B::int_argmax(n(), dim));
        int_argtopk => i::<B>(B::int_argtopk(n(), dim, 0));
        int_topk => i::<B>(B::int_topk(n(), dim, 0));
        int_argmin => i::<B>(B::int_argmin(n(), dim));
        int_max => i::<B>(B::int_max(n()));
        int_max_dim => i::<B>(B::int_max_dim(n(), dim));
        int_max_dim_with_indices => ii::<B>(B::int_max_dim_with_indices(n(), dim));
        int_max_abs => i::<B>(B::int_max_abs(n()));
        int_max_abs_dim => i::<B>(B::int_max_abs_dim(n(), dim));
        int_min => i::<B>(B::int_min(n()));
        int_min_dim => i::<B>(B::int_min_dim(n(), dim));
        int_min_dim_with_indices => ii::<B>(B::int_min_dim_with_indices(n(), dim));
        int_abs => i::<B>(B::int_abs(n()));
        int_transpose => i::<B>(B::int_transpose(n()));
        int_swap_dims => i::<B>(B::int_swap_dims(n(), dim, 0));
        int_permute => i::<B>(B::int_permute(n(), &turned));
        int_flip => i::<B>(B::int_flip(n(), &[dim]));
        int_any => l::<B>(B::int_any(n(), native));
        int_any_dim => l::<B>(B::int_any_dim(n(), dim, native));
        int_all => l::<B>(B::int_all(n(), native));
        int_all_dim => l::<B>(B::int_all_dim(n(), dim, native));
        int_sign => i::<B>(B::int_sign(n()));
        int_expand => i::<B>(B::int_expand(n(), wide()));
        int_sort => i::<B>(B::int_sort(n(), dim, true));
        int_sort_with_indices => ii::<B>(B::int_sort_with_indices(n(), dim, true));
        int_argsort => i::<B>(B::int_argsort(n(), dim, true));
        bitwise_and => i::<B>(B::bitwise_and(n(), n()));
        bitwise_and_scalar => i::<B>(B::bitwise_and_scalar(n(), one));
        bitwise_or => i::<B>(B::bitwise_or(n(), n()));
        bitwise_or_scalar => i::<B>(B::bitwise_or_scalar(n(), one));
        bitwise_xor => i::<B>(B::bitwise_xor(n(), n()));
        bitwise_xor_scalar => i::<B>(B::bitwise_xor_scalar(n(), one));
        bitwise_not => i::<B>(B::bitwise_not(n()));
        bitwise_left_shift => i::<B>(B::bitwise_left_shift(n(), n()));
        bitwise_left_shift_scalar => i::<B>(B::bitwise_left_shift_scalar(n(), one));
        bitwise_right_shift => i::<B>(B::bitwise_right_shift(n(), n()));
        bitwise_right_shift_scalar => i::<B>(B::bitwise_right_shift_scalar(n(), one));
        int_cast => i::<B>(B::int_cast(n(), i64));
        int_unfold => i::<B>(B::int_unfold(n(), dim, 1, 1));
        int_matmul => i::<B>(B::int_matmul(n(), B::int_transpose(n())));
        int_gather_nd => i::<B>(B::int_gather_nd(n(), nothing()));
        int_scatter_nd => i::<B>(B::int_scatter_nd(n(), nothing(), nnd(), IndexingUpdateOp::Max));
        // bools
        bool_into_int => i::<B>(B::bool_into_int(b(), i64));
        bool_into_float => f::<B>(B::bool_into_float(b(), f32));
        bool_reshape => l::<B>(B::bool_reshape(b(), flat()));
        bool_slice => l::<B>(B::bool_slice(b(), &cut));
        bool_slice_assign => l::<B>(B::bool_slice_assign(b(), &cut, B::bool_slice(b(), &cut)));
        bool_mask_where => l::<B>(B::bool_mask_where(b(), b(), b()));
        bool_mask_fill => l::<B>(B::bool_mask_fill(b(), b(), yes));
        bool_gather => l::<B>(B::bool_gather(dim, b(), n()));
        bool_scatter_or => l::<B>(B::bool_scatter_or(dim, b(), n(), b()));
        bool_select => l::<B>(B::bool_select(b(), dim, none()));
        bool_select_or => l::<B>(B::bool_select_or(b(), dim, none(), bs(dim)));
        bool_repeat_dim => l::<B>(B::bool_repeat_dim(b(), dim, 3));
        bool_cat => l::<B>(B::bool_cat(vec![b(), b()], dim));
        bool_equal => l::<B>(B::bool_equal(b(), b()));
        bool_not_equal => l::<B>(B::bool_not_equal(b(), b()));
        bool_equal_elem => l::<B>(B::bool_equal_elem(b(), yes));
        bool_not_equal_elem => l::<B>(B::bool_not_equal_elem(b(), yes));
        bool_not => l::<B>(B::bool_not(b()));
        bool_and => l::<B>(B::bool_and(b(), b()));
        bool_or => l::<B>(B::bool_or(b(), b()));
        bool_xor => l::<B>(B::bool_xor(b(), b()));
        bool_transpose => l::<B>(B::bool_transpose(b()));
        bool_swap_dims => l::<B>(B::bool_swap_dims(b(), dim, 0));
        bool_permute => l::<B>(B::bool_permute(b(), &turned));
        bool_flip => l::<B>(B::bool_flip(b(), &[dim]));
        bool_any => l::<B>(B::bool_any(b()));
        bool_any_dim => l::<B>(B::bool_any_dim(b(), dim));
        bool_all => l::<B>(B::bool_all(b()));
        bool_all_dim => l::<B>(B::bool_all_dim(b(), dim));
        bool_expand => l::<B>(B::bool_expand(b(), wide()));
        bool_unfold => l::<B>(B::bool_unfold(b(), dim, 1, 1));
        bool_argwhere => i::<B>(block_on(B::bool_argwhere(b(), i64)));
    }
    all
}

#[test]
fn every_op_takes_empty_tensors() {
    let (mut wrong, mut alone) = (vec![], vec![]);
    for shape in EMPTY {
        for dim in 0..shape.len() {
            let ours = outcomes::<R>(shape, dim);
            for ((name, ours), (_, theirs)) in ours.into_iter().zip(outcomes::<O>(shape, dim)) {
                let what = format!("{name} of {shape:?}, dim {dim}");
                match (ours, theirs) {
                    (Ok(ours), Ok(theirs)) => {
                        let compare = || assert_close(&what, &ours, &theirs, Tolerance::EXACT);
                        if catch_unwind(AssertUnwindSafe(compare)).is_err() {
                            wrong.push(format!("{what}: {ours:?} where burn-flex gives {theirs:?}"));
                        }
                    }
                    (Err(error), Ok(theirs)) => {
                        wrong.push(format!("{what}: {error:?} where burn-flex gives {theirs:?}"));
                    }
                    (Ok(ours), Err(_)) => alone.push(format!("{what}: {ours:?}")),
                    (Err(error), Err(_)) => assert!(error.is_some(), "{what} panics without an error"),
                }
            }
        }
    }
    println!("burn-flex panics at: {alone:#?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
