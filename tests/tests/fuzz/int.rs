//! Ops on integers and bools.

use crate::draw::{Draw, Side};
use crate::run::{Bound::*, table};
use burn_backend::tensor::{BoolTensor, IntTensor};
use burn_rocm_tests::*;

const MOST: usize = 3000;

fn i<B: Backend>(tensor: IntTensor<B>) -> Vec<TensorData> {
    vec![read_int::<B>(tensor)]
}
fn b<B: Backend>(tensor: BoolTensor<B>) -> Vec<TensorData> {
    vec![read_bool::<B>(tensor)]
}
fn one<B: Backend>(c: &Side<'_, B>) -> IntTensor<B> {
    c.int(0, &c.d.shape(MOST), 3)
}
fn two<B: Backend>(c: &Side<'_, B>) -> (IntTensor<B>, IntTensor<B>) {
    let shape = c.d.shape(MOST);
    let operand = |k| c.int(k, &c.d.narrowed(k, &shape), 3);
    (operand(0), operand(1))
}
fn axis<B: Backend>(c: &Side<'_, B>) -> (IntTensor<B>, usize) {
    let shape = c.d.shape(MOST);
    (c.int(0, &shape, 3), c.d.axis(&shape))
}
fn bools<B: Backend>(c: &Side<'_, B>) -> (BoolTensor<B>, BoolTensor<B>) {
    let shape = c.d.shape(MOST);
    let operand = |k| c.bool(k, &c.d.narrowed(k, &shape));
    (operand(0), operand(1))
}
fn mask<B: Backend>(c: &Side<'_, B>) -> (BoolTensor<B>, usize) {
    let shape = c.d.shape(MOST);
    (c.bool(0, &shape), c.d.axis(&shape))
}

macro_rules! unary {
    ($c:ident, $B:ident, $op:ident) => {
        i::<$B>($B::$op(one($c)))
    };
}
macro_rules! binary {
    ($c:ident, $B:ident, $op:ident) => {{
        let (x, y) = two($c);
        i::<$B>($B::$op(x, y))
    }};
}
/// With a right-hand side of small positive numbers, which shifts, divisors and powers require.
macro_rules! by_small {
    ($c:ident, $B:ident, $op:ident, $range:expr) => {{
        let shape = $c.d.shape(MOST);
        let by = $c.int_in(1, &$c.d.narrowed(1, &shape), $range.start, $range.end);
        i::<$B>($B::$op($c.int(0, &$c.d.narrowed(0, &shape), 3), by))
    }};
}
macro_rules! scalar {
    ($c:ident, $B:ident, $op:ident) => {
        i::<$B>($B::$op(one($c), $c.d.int_scalar(1)))
    };
}
macro_rules! scalar_in {
    ($c:ident, $B:ident, $op:ident, $range:expr) => {
        i::<$B>($B::$op(
            one($c),
            Scalar::Int($range.start + $c.d.knob(1, ($range.end - $range.start) as usize) as i64),
        ))
    };
}
macro_rules! along {
    ($c:ident, $B:ident, $op:ident) => {{
        let (x, dim) = axis($c);
        i::<$B>($B::$op(x, dim))
    }};
}
macro_rules! index_along {
    ($c:ident, $B:ident, $op:ident) => {{
        let (mut x, dim) = axis($c);
        if $c.oracle() {
            x = ordered(x, $c);
        }
        vec![read_index::<$B>($B::$op(x, dim))]
    }};
}
macro_rules! compared {
    ($c:ident, $B:ident, $op:ident) => {{
        let (x, y) = two($c);
        b::<$B>($B::$op(x, y, $c.d.store()))
    }};
}
macro_rules! compared_scalar {
    ($c:ident, $B:ident, $op:ident) => {
        b::<$B>($B::$op(one($c), $c.d.int_scalar(1), $c.d.store()))
    };
}
macro_rules! bool_binary {
    ($c:ident, $B:ident, $op:ident) => {{
        let (x, y) = bools($c);
        b::<$B>($B::$op(x, y))
    }};
}

/// An empty tensor has no extreme: an error here, some number in the oracle. The oracle's `any_dim`
/// fails.
fn empty(d: &Draw) -> bool {
    d.dims.contains(&0)
}

/// As [`empty`], along the op's axis.
fn empty_axis(d: &Draw) -> bool {
    d.dims[d.axis(&d.dims)] == 0
}

/// A bound of a clamp. A bound beyond the type's range counts as the end of the range. The oracle
/// would wrap it, so it gets the end itself.
fn end<B: Backend>(c: &Side<'_, B>, k: usize) -> Scalar {
    if c.oracle() { c.d.held(k) } else { c.d.int_scalar(k) }
}

/// The oracle's operand in the order of `x`, as the widest signed type, because the oracle can't
/// find extremes of some types.
fn ordered<B: Backend>(x: IntTensor<B>, c: &Side<'_, B>) -> IntTensor<B> {
    if c.d.int_type() != DType::U64 {
        return B::int_cast(x, IntDType::I64);
    }
    let data = read_int::<B>(x);
    let moved: Vec<i64> = data.iter::<u64>().map(|x| (x ^ (1 << 63)) as i64).collect();
    B::int_from_data(TensorData::new(moved, data.shape), &c.device)
}

/// `x >> by` of u64 for the oracle, which shifts u64 as if it were signed.
fn shifted<B: Backend>(c: &Side<'_, B>, x: IntTensor<B>, by: IntTensor<B>) -> Vec<TensorData> {
    let longest = |(&x, &by): (&usize, &usize)| if x == 1 { by } else { x };
    let shape = Shape::from(x.shape().iter().zip(by.shape().iter()).map(longest).collect::<Vec<_>>());
    let [x, by] = [x, by].map(|t| read_int::<B>(B::int_expand(t, shape.clone())));
    let out: Vec<u64> = x.iter::<u64>().zip(by.iter::<u64>()).map(|(x, by)| x >> by).collect();
    i::<B>(B::int_from_data(TensorData::new(out, shape), &c.device))
}

/// Whether the host computes the oracle's side, as for u64.
fn by_host<B: Backend>(c: &Side<'_, B>) -> bool {
    c.oracle() && c.d.int_type() == DType::U64
}

table! { |c, B|
    int_neg, Exact => unary!(c, B, int_neg);
    int_abs, Exact => unary!(c, B, int_abs);
    int_sign, Exact => unary!(c, B, int_sign);
    bitwise_not, Exact => unary!(c, B, bitwise_not);
    int_add, Exact => binary!(c, B, int_add);
    int_sub, Exact => binary!(c, B, int_sub);
    int_mul, Exact => binary!(c, B, int_mul);
    int_div, Exact => by_small!(c, B, int_div, 1i64..100);
    int_remainder, Exact => by_small!(c, B, int_remainder, 1i64..100);
    int_powi, Exact => by_small!(c, B, int_powi, 0i64..4);
    bitwise_and, Exact => binary!(c, B, bitwise_and);
    bitwise_or, Exact => binary!(c, B, bitwise_or);
    bitwise_xor, Exact => binary!(c, B, bitwise_xor);
    bitwise_left_shift, Exact => by_small!(c, B, bitwise_left_shift, 0i64..8);
    bitwise_right_shift, Exact => {
        let shape = c.d.shape(MOST);
        let by = c.int_in(1, &c.d.narrowed(1, &shape), 0, 8);
        let x = c.int(0, &c.d.narrowed(0, &shape), 3);
        if by_host(c) { shifted(c, x, by) } else { i::<B>(B::bitwise_right_shift(x, by)) }
    };
    int_add_scalar, Exact => scalar!(c, B, int_add_scalar);
    int_sub_scalar, Exact => scalar!(c, B, int_sub_scalar);
    int_mul_scalar, Exact => scalar!(c, B, int_mul_scalar);
    int_div_scalar, Exact => scalar_in!(c, B, int_div_scalar, 1i64..100);
    int_remainder_scalar, Exact => scalar_in!(c, B, int_remainder_scalar, 1i64..100);
    int_powi_scalar, Exact => scalar_in!(c, B, int_powi_scalar, 0i64..5);
    int_clamp_min, Exact => i::<B>(B::int_clamp_min(one(c), end(c, 1)));
    int_clamp_max, Exact => i::<B>(B::int_clamp_max(one(c), end(c, 1)));
    int_clamp, Exact => {
        let (low, high) = (end(c, 1), end(c, 2));
        let order = |scalar: &Scalar| scalar.elem::<f64>();
        let (low, high) = if order(&low) <= order(&high) { (low, high) } else { (high, low) };
        i::<B>(B::int_clamp(one(c), low, high))
    };
    bitwise_and_scalar, Exact => scalar!(c, B, bitwise_and_scalar);
    bitwise_or_scalar, Exact => scalar!(c, B, bitwise_or_scalar);
    bitwise_xor_scalar, Exact => scalar!(c, B, bitwise_xor_scalar);
    bitwise_left_shift_scalar, Exact => scalar_in!(c, B, bitwise_left_shift_scalar, 0i64..8);
    bitwise_right_shift_scalar, Exact => {
        let (x, by) = (one(c), Scalar::Int(c.d.knob(1, 8) as i64));
        if by_host(c) {
            let by = B::int_full(x.shape(), by, &c.device, IntDType::U64);
            return shifted(c, x, by);
        }
        i::<B>(B::bitwise_right_shift_scalar(x, by))
    };
    int_equal, Exact => compared!(c, B, int_equal);
    int_not_equal, Exact => compared!(c, B, int_not_equal);
    int_greater, Exact => compared!(c, B, int_greater);
    int_greater_equal, Exact => compared!(c, B, int_greater_equal);
    int_lower, Exact => compared!(c, B, int_lower);
    int_lower_equal, Exact => compared!(c, B, int_lower_equal);
    int_equal_elem, Exact => compared_scalar!(c, B, int_equal_elem);
    int_not_equal_elem, Exact => compared_scalar!(c, B, int_not_equal_elem);
    int_greater_elem, Exact => compared_scalar!(c, B, int_greater_elem);
    int_greater_equal_elem, Exact => compared_scalar!(c, B, int_greater_equal_elem);
    int_lower_elem, Exact => compared_scalar!(c, B, int_lower_elem);
    int_lower_equal_elem, Exact => compared_scalar!(c, B, int_lower_equal_elem);
    int_sum, Exact => unary!(c, B, int_sum);
    int_prod, Exact => unary!(c, B, int_prod);
    int_mean, Exact, unless empty => {
        let x = one(c);
        if !c.oracle() {
            return i::<B>(B::int_mean(x));
        }
        // The oracle has means of unsigned types only along a dim.
        let count = x.shape().num_elements();
        i::<B>(B::int_mean_dim(B::int_reshape(x, Shape::from(vec![count])), 0))
    };
    int_max, Exact, unless empty => unary!(c, B, int_max);
    int_min, Exact, unless empty => unary!(c, B, int_min);
    int_max_abs, Exact, unless empty => unary!(c, B, int_max_abs);
    int_sum_dim, Exact => along!(c, B, int_sum_dim);
    int_prod_dim, Exact => along!(c, B, int_prod_dim);
    int_mean_dim, Exact, unless empty_axis => along!(c, B, int_mean_dim);
    int_max_dim, Exact, unless empty_axis => along!(c, B, int_max_dim);
    int_min_dim, Exact, unless empty_axis => along!(c, B, int_min_dim);
    int_max_abs_dim, Exact, unless empty_axis => along!(c, B, int_max_abs_dim);
    int_cumsum, Exact => along!(c, B, int_cumsum);
    int_cumprod, Exact => along!(c, B, int_cumprod);
    int_cummin, Exact => along!(c, B, int_cummin);
    int_cummax, Exact => along!(c, B, int_cummax);
    int_argmax, Exact, unless empty_axis => index_along!(c, B, int_argmax);
    int_argmin, Exact, unless empty_axis => index_along!(c, B, int_argmin);
    int_max_dim_with_indices, Exact, unless empty_axis => {
        let (x, dim) = axis(c);
        let (max, at) = B::int_max_dim_with_indices(x, dim);
        vec![read_int::<B>(max), read_index::<B>(at)]
    };
    int_min_dim_with_indices, Exact, unless empty_axis => {
        let (x, dim) = axis(c);
        let (min, at) = B::int_min_dim_with_indices(x, dim);
        vec![read_int::<B>(min), read_index::<B>(at)]
    };
    int_any, Exact => b::<B>(B::int_any(one(c), c.d.store()));
    int_all, Exact => b::<B>(B::int_all(one(c), c.d.store()));
    int_any_dim, Exact, unless empty => {
        let (x, dim) = axis(c);
        b::<B>(B::int_any_dim(x, dim, c.d.store()))
    };
    int_all_dim, Exact, unless empty => {
        let (x, dim) = axis(c);
        b::<B>(B::int_all_dim(x, dim, c.d.store()))
    };
    int_sort, Exact => {
        let (x, dim) = axis(c);
        i::<B>(B::int_sort(x, dim, c.d.knob(1, 2) == 1))
    };
    int_sort_with_indices, Exact => {
        let (x, dim) = axis(c);
        let (values, at) = B::int_sort_with_indices(x.clone(), dim, c.d.knob(1, 2) == 1);
        vec![read_int::<B>(values), read_int::<B>(B::int_gather(dim, x, at))]
    };
    int_argsort, Exact => {
        let (x, dim) = axis(c);
        let at = B::int_argsort(x.clone(), dim, c.d.knob(1, 2) == 1);
        i::<B>(B::int_gather(dim, x, at))
    };
    int_topk, Exact, unless empty_axis => {
        let (x, dim) = axis(c);
        let k = 1 + c.d.knob(2, x.shape()[dim]);
        i::<B>(B::int_topk(x, dim, k))
    };
    int_argtopk, Exact, unless empty_axis => {
        let (x, dim) = axis(c);
        let k = 1 + c.d.knob(2, x.shape()[dim]);
        if c.oracle() {
            return i::<B>(B::int_topk(x, dim, k)); // it has no argtopk
        }
        let at = B::int_argtopk(x.clone(), dim, k);
        i::<B>(B::int_gather(dim, x, at))
    };
    int_matmul, Exact, unless |d| empty(d) || (2..5).any(|k| d.knob(k, 24) == 0) => {
        let batch = &c.d.of_rank(6, 60)[..c.d.knob(1, 4)];
        let [m, k, n] = [2, 3, 4].map(|knob| c.d.knob(knob, 24));
        let shape = |operand, rows, columns| {
            let mut shape = c.d.narrowed(operand, batch);
            shape.extend([rows, columns]);
            shape
        };
        let (a, b) = (c.int(0, &shape(0, m, k), 3), c.int(1, &shape(1, k, n), 3));
        if !c.oracle() {
            return i::<B>(B::int_matmul(a, b));
        }
        // The oracle multiplies two types only. Products in the widest type, cut to the dtype, wrap
        // in the same way.
        let wide = B::int_matmul(B::int_cast(a, IntDType::I64), B::int_cast(b, IntDType::I64));
        i::<B>(B::int_cast(wide, int_dtype(c.d.int_type())))
    };
    int_cast, Exact => i::<B>(B::int_cast(one(c), int_dtype(INTS[c.d.knob(1, 8)])));
    int_into_float, Near(1.0) => {
        let to = FLOATS[c.d.knob(1, 4)];
        vec![read_float::<B>(B::int_into_float(one(c), float_dtype(to)))]
    };
    int_full, Exact => {
        let dtype = int_dtype(c.d.int_type());
        if by_host(c) {
            // The oracle takes no scalar above i64.
            let shape = c.d.shape(MOST);
            let values = vec![c.d.int_scalar(1).elem::<u64>(); shape.iter().product()];
            return vec![TensorData::new(values, Shape::from(shape))];
        }
        i::<B>(B::int_full(Shape::from(c.d.shape(MOST)), c.d.int_scalar(1), &c.device, dtype))
    };
    int_arange_step, Exact => {
        let start = c.d.knob(1, 100) as i64;
        let end = start + c.d.knob(2, 27) as i64;
        i::<B>(B::int_arange_step(start..end, 1 + c.d.knob(3, 5), &c.device, int_dtype(c.d.int_type())))
    };

    bool_not, Exact => b::<B>(B::bool_not(mask(c).0));
    bool_and, Exact => bool_binary!(c, B, bool_and);
    bool_or, Exact => bool_binary!(c, B, bool_or);
    bool_xor, Exact => bool_binary!(c, B, bool_xor);
    bool_equal, Exact => bool_binary!(c, B, bool_equal);
    bool_not_equal, Exact => bool_binary!(c, B, bool_not_equal);
    bool_equal_elem, Exact => b::<B>(B::bool_equal_elem(mask(c).0, Scalar::Bool(c.d.knob(1, 2) == 1)));
    bool_not_equal_elem, Exact => b::<B>(B::bool_not_equal_elem(mask(c).0, Scalar::Bool(c.d.knob(1, 2) == 1)));
    bool_any, Exact => b::<B>(B::bool_any(mask(c).0));
    bool_all, Exact => b::<B>(B::bool_all(mask(c).0));
    bool_any_dim, Exact, unless empty => {
        let (x, dim) = mask(c);
        b::<B>(B::bool_any_dim(x, dim))
    };
    bool_all_dim, Exact, unless empty => {
        let (x, dim) = mask(c);
        b::<B>(B::bool_all_dim(x, dim))
    };
    bool_into_int, Exact => i::<B>(B::bool_into_int(mask(c).0, int_dtype(c.d.int_type())));
    bool_into_float, Exact => vec![read_float::<B>(B::bool_into_float(mask(c).0, float_dtype(c.d.float_type())))];
    bool_argwhere, Exact => {
        let dtype = [IntDType::I64, IntDType::I32][c.d.knob(1, 2)];
        i::<B>(burn_std::future::block_on(B::bool_argwhere(mask(c).0, dtype)))
    };
}
