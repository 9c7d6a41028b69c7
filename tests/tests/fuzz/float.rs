//! Ops on floats.

use crate::draw::{ANY, Draw, NUMBERS, Range, SUMMED, Side, TAME};
use crate::run::{Bound::*, table};
use crate::sums::{multiplied, summed};
use burn_backend::tensor::FloatTensor;
use burn_rocm_tests::*;

const MOST: usize = 3000;
/// The range for functions with steep slopes or long periods.
const SMALL: Range = Range { low: -10.0, high: 10.0, wildest: 2, nan: true };

/// The oracle's atanh is off nearer to 1: it gives -4.107646 for -0.99945909, where -4.107565 is
/// right.
const INSIDE: Range = Range { low: -0.98, high: 0.98, wildest: 1, nan: true };

const UNIFORM: Range = Range { low: -10.0, high: 10.0, wildest: 1, nan: true };

fn f<B: Backend>(tensor: FloatTensor<B>) -> Vec<TensorData> {
    vec![read_float::<B>(tensor)]
}

fn one<B: Backend>(c: &Side<'_, B>, range: Range) -> FloatTensor<B> {
    c.float(0, &c.d.shape(MOST), range)
}

/// Two operands that broadcast to one shape.
fn two<B: Backend>(c: &Side<'_, B>, range: Range) -> (FloatTensor<B>, FloatTensor<B>) {
    let shape = c.d.shape(MOST);
    let operand = |k| c.float(k, &c.d.narrowed(k, &shape), range);
    (operand(0), operand(1))
}

/// An operand and one of its axes.
fn axis<B: Backend>(c: &Side<'_, B>, range: Range) -> (FloatTensor<B>, usize) {
    let shape = c.d.shape(MOST);
    (c.float(0, &shape, range), c.d.axis(&shape))
}

fn int_out<B: Backend>(c: &Side<'_, B>) -> IntDType {
    [IntDType::I64, IntDType::I32][c.d.knobs[9] % 2]
}

macro_rules! unary {
    ($c:ident, $B:ident, $op:ident, $range:expr) => {
        f::<$B>($B::$op(one($c, $range)))
    };
}
macro_rules! binary {
    ($c:ident, $B:ident, $op:ident, $range:expr) => {{
        let (a, b) = two($c, $range);
        f::<$B>($B::$op(a, b))
    }};
}
macro_rules! scalar {
    ($c:ident, $B:ident, $op:ident, $range:expr) => {
        f::<$B>($B::$op(one($c, $range), $c.d.scalar(1)))
    };
}
/// A scalar that the op takes as an element of the tensor's type. The oracle computes in f32, so it
/// gets the scalar rounded to that type.
fn element<B: Backend>(c: &Side<'_, B>, k: usize) -> Scalar {
    let scalar = c.d.scalar(k);
    if !c.oracle() {
        return scalar;
    }
    let data = TensorData::new(vec![scalar.elem::<f64>()], [1]).convert_dtype(c.d.float_type());
    Scalar::Float(data.iter::<f64>().next().expect("one element"))
}
/// Whether a divisor is neither 0 nor NaN and has a magnitude like the values'.
fn is_middling(scalar: Scalar) -> bool {
    (0.1..=10.0).contains(&scalar.elem::<f64>().abs())
}

macro_rules! along {
    ($c:ident, $B:ident, $op:ident, $range:expr) => {{
        let (a, dim) = axis($c, $range);
        f::<$B>($B::$op(a, dim))
    }};
}
macro_rules! compared {
    ($c:ident, $B:ident, $op:ident) => {{
        let (a, b) = two($c, ANY);
        vec![read_bool::<$B>($B::$op(a, b, $c.d.store()))]
    }};
}
macro_rules! compared_scalar {
    ($c:ident, $B:ident, $op:ident) => {
        vec![read_bool::<$B>($B::$op(one($c, ANY), $c.d.scalar(1), $c.d.store()))]
    };
}
macro_rules! truth {
    ($c:ident, $B:ident, $op:ident) => {
        vec![read_bool::<$B>($B::$op(one($c, ANY), $c.d.store()))]
    };
}
macro_rules! truth_along {
    ($c:ident, $B:ident, $op:ident) => {{
        let (a, dim) = axis($c, ANY);
        vec![read_bool::<$B>($B::$op(a, dim, $c.d.store()))]
    }};
}
macro_rules! gradient {
    ($c:ident, $B:ident, $op:ident, $range:expr) => {{
        let shape = $c.d.shape(MOST);
        f::<$B>($B::$op($c.float(0, &shape, $range), $c.float(1, &shape, TAME)))
    }};
}

/// An empty tensor has no extreme: an error here, an infinity in the oracle. The oracle's `any_dim`
/// fails.
fn empty(d: &Draw) -> bool {
    d.dims.contains(&0)
}

/// As [`empty`], along the op's axis.
fn empty_axis(d: &Draw) -> bool {
    d.dims[d.axis(&d.dims)] == 0
}

/// A sum or mean along an axis. `float_sum` describes the oracle's errors on views.
macro_rules! summed_along {
    ($c:ident, $B:ident, $op:ident) => {{
        let (a, dim) = axis($c, SUMMED);
        let a = $c.settled(a);
        summed($c, a.shape()[dim], [&a], |[a]| $B::$op(a, dim))
    }};
}
/// A product along an axis.
macro_rules! multiplied_along {
    ($c:ident, $B:ident, $op:ident) => {{
        let shape = $c.d.shape(200);
        let dim = $c.d.axis(&shape);
        let a = $c.float(0, &shape, Range { low: -1.3, high: 1.3, wildest: 2, nan: true });
        multiplied($c, shape[dim], [&a], |[a]| $B::$op(a, dim))
    }};
}
/// A sum or mean of all elements.
macro_rules! summed_whole {
    ($c:ident, $B:ident, $op:ident) => {{
        let a = $c.settled(one($c, SUMMED));
        summed($c, a.shape().num_elements(), [&a], |[a]| $B::$op(a))
    }};
}

table! { |c, B|
    float_neg, Exact => unary!(c, B, float_neg, ANY);
    float_abs, Exact => unary!(c, B, float_abs, ANY);
    float_sign, Exact => unary!(c, B, float_sign, ANY);
    float_round, Exact => unary!(c, B, float_round, ANY);
    float_floor, Exact => unary!(c, B, float_floor, ANY);
    float_ceil, Exact => unary!(c, B, float_ceil, ANY);
    float_trunc, Exact => unary!(c, B, float_trunc, ANY);
    float_recip, Near(2.0) => unary!(c, B, float_recip, ANY);
    float_exp, Near(8.0) => unary!(c, B, float_exp, ANY);
    float_log, Near(8.0) => unary!(c, B, float_log, ANY);
    float_log1p, Near(8.0) => unary!(c, B, float_log1p, ANY);
    float_sqrt, Near(2.0) => unary!(c, B, float_sqrt, ANY);
    float_cos, Near(8.0) => unary!(c, B, float_cos, ANY);
    float_sin, Near(8.0) => unary!(c, B, float_sin, ANY);
    float_tan, Near(64.0) => unary!(c, B, float_tan, ANY);
    float_cosh, Near(8.0) => unary!(c, B, float_cosh, ANY);
    float_sinh, Near(8.0) => unary!(c, B, float_sinh, ANY);
    float_tanh, Near(8.0) => unary!(c, B, float_tanh, ANY);
    float_acos, Near(8.0) => unary!(c, B, float_acos, ANY);
    float_acosh, Near(8.0) => unary!(c, B, float_acosh, ANY);
    float_asin, Near(8.0) => unary!(c, B, float_asin, ANY);
    float_asinh, Near(8.0) => unary!(c, B, float_asinh, ANY);
    float_atan, Near(8.0) => unary!(c, B, float_atan, ANY);
    float_atanh, Near(8.0) => unary!(c, B, float_atanh, INSIDE);
    float_erf, Near(8.0) => unary!(c, B, float_erf, ANY);
    // Burn's own definition of relu and clamp (masks by comparisons) keeps NaN; the oracle drops
    // it.
    relu, Exact => unary!(c, B, relu, NUMBERS);
    gelu, Near(8.0) => unary!(c, B, gelu, ANY);
    sigmoid, Near(8.0) => unary!(c, B, sigmoid, ANY);
    log_sigmoid, Near(8.0) => unary!(c, B, log_sigmoid, ANY);
    float_is_nan, Exact => truth!(c, B, float_is_nan);
    float_is_inf, Exact => truth!(c, B, float_is_inf);
    float_any, Exact => truth!(c, B, float_any);
    float_all, Exact => truth!(c, B, float_all);
    float_any_dim, Exact, unless empty => truth_along!(c, B, float_any_dim);
    float_all_dim, Exact, unless empty => truth_along!(c, B, float_all_dim);

    float_add, Near(2.0) => binary!(c, B, float_add, ANY);
    float_sub, Near(2.0) => binary!(c, B, float_sub, ANY);
    float_mul, Near(2.0) => binary!(c, B, float_mul, ANY);
    float_div, Near(2.0) => binary!(c, B, float_div, ANY);
    // The oracle is wrong for an infinite divisor and for a long quotient.
    float_remainder, Near(16.0) => binary!(c, B, float_remainder, UNIFORM);
    float_powf, Near(32.0) => binary!(c, B, float_powf, ANY);
    float_atan2, Near(8.0) => binary!(c, B, float_atan2, ANY);
    float_add_scalar, Near(2.0) => scalar!(c, B, float_add_scalar, ANY);
    float_sub_scalar, Near(2.0) => scalar!(c, B, float_sub_scalar, ANY);
    float_mul_scalar, Near(2.0) => scalar!(c, B, float_mul_scalar, ANY);
    float_div_scalar, Near(2.0) => scalar!(c, B, float_div_scalar, ANY);
    float_remainder_scalar, Near(16.0), unless |d| d.wild >= 2 && !is_middling(d.scalar(1)) => {
        f::<B>(B::float_remainder_scalar(one(c, UNIFORM), element(c, 1)))
    };
    // The oracle panics for a power that i64 can't hold.
    float_powf_scalar, Near(32.0), unless |d| d.scalar(1).elem::<f64>().abs() >= i64::MAX as f64 => {
        scalar!(c, B, float_powf_scalar, ANY)
    };
    float_clamp_min, Exact => f::<B>(B::float_clamp_min(one(c, NUMBERS), c.d.scalar(1)));
    float_clamp_max, Exact => f::<B>(B::float_clamp_max(one(c, NUMBERS), c.d.scalar(1)));
    float_clamp, Exact => {
        let (low, high) = (c.d.number(1).elem::<f64>(), c.d.number(2).elem::<f64>());
        f::<B>(B::float_clamp(one(c, NUMBERS), Scalar::Float(low.min(high)), Scalar::Float(low.max(high))))
    };
    float_powi_scalar, Near(32.0) => {
        let power = Scalar::Int([0, 1, 2, 3, -1, -2, 5, 8][c.d.knob(1, 8)]);
        f::<B>(B::float_powi_scalar(one(c, SMALL), power))
    };
    float_powi, Near(32.0) => {
        let shape = c.d.shape(MOST);
        let power = c.indices(1, &shape, 4);
        f::<B>(B::float_powi(c.float(0, &shape, SMALL), power))
    };
    leaky_relu, Near(2.0) => scalar!(c, B, leaky_relu, ANY);
    hard_sigmoid, Near(4.0) => f::<B>(B::hard_sigmoid(one(c, ANY), Scalar::Float(0.2), Scalar::Float(0.5)));
    prelu, Near(2.0) => {
        let shape = c.d.shape(MOST);
        f::<B>(B::prelu(c.float(0, &shape, ANY), c.float(1, &shape, TAME)))
    };
    relu_backward, Near(2.0) => gradient!(c, B, relu_backward, TAME);
    gelu_backward, Near(32.0) => gradient!(c, B, gelu_backward, TAME);
    sigmoid_backward, Near(16.0) => gradient!(c, B, sigmoid_backward, TAME);
    log_sigmoid_backward, Near(16.0) => gradient!(c, B, log_sigmoid_backward, TAME);
    softmax, Near(16.0), unless empty_axis => along!(c, B, softmax, SUMMED);
    log_softmax, Near(16.0), unless empty_axis => along!(c, B, log_softmax, SUMMED);
    softmin, Near(16.0), unless empty_axis => along!(c, B, softmin, SUMMED);

    float_equal, Exact => compared!(c, B, float_equal);
    float_not_equal, Exact => compared!(c, B, float_not_equal);
    float_greater, Exact => compared!(c, B, float_greater);
    float_greater_equal, Exact => compared!(c, B, float_greater_equal);
    float_lower, Exact => compared!(c, B, float_lower);
    float_lower_equal, Exact => compared!(c, B, float_lower_equal);
    float_equal_elem, Exact => compared_scalar!(c, B, float_equal_elem);
    float_not_equal_elem, Exact => compared_scalar!(c, B, float_not_equal_elem);
    float_greater_elem, Exact => compared_scalar!(c, B, float_greater_elem);
    float_greater_equal_elem, Exact => compared_scalar!(c, B, float_greater_equal_elem);
    float_lower_elem, Exact => compared_scalar!(c, B, float_lower_elem);
    float_lower_equal_elem, Exact => compared_scalar!(c, B, float_lower_equal_elem);

    // If an f32 view has as many elements as its memory, the oracle sums the memory instead of the
    // view: for a -1 repeated three times it gives 0, the sum of the -1 and its two neighbours, not
    // -3. For repeated rows that were sliced backwards its means read past the memory.
    float_sum, Within => summed_whole!(c, B, float_sum);
    float_mean, Within => summed_whole!(c, B, float_mean);
    float_max, Exact, unless empty => f::<B>(B::float_max(c.settled(one(c, NUMBERS))));
    float_min, Exact, unless empty => f::<B>(B::float_min(c.settled(one(c, NUMBERS))));
    float_max_abs, Exact, unless empty => f::<B>(B::float_max_abs(c.settled(one(c, NUMBERS))));
    float_prod, Within => {
        // Many factors of one sign underflow.
        let most = if c.d.one_sign { 4 } else { 30 };
        let a = c.float(0, &c.d.shape(most), Range { low: -1.5, high: 1.5, wildest: 2, nan: true });
        multiplied(c, a.shape().num_elements(), [&a], |[a]| B::float_prod(a))
    };
    // The oracle reads some views that begin inside their memory at a wrong address, and repeated
    // rows past their end.
    float_sum_dim, Within => summed_along!(c, B, float_sum_dim);
    float_mean_dim, Within, unless empty_axis => summed_along!(c, B, float_mean_dim);
    float_prod_dim, Within => multiplied_along!(c, B, float_prod_dim);
    float_max_dim, Exact, unless empty_axis => along!(c, B, float_max_dim, NUMBERS);
    float_min_dim, Exact, unless empty_axis => along!(c, B, float_min_dim, NUMBERS);
    float_max_abs_dim, Exact, unless empty_axis => along!(c, B, float_max_abs_dim, NUMBERS);
    float_max_dim_with_indices, Exact, unless empty_axis => {
        let (a, dim) = axis(c, NUMBERS);
        let (max, at) = B::float_max_dim_with_indices(a, dim, int_out(c));
        vec![read_float::<B>(max), read_int::<B>(at)]
    };
    float_min_dim_with_indices, Exact, unless empty_axis => {
        let (a, dim) = axis(c, NUMBERS);
        let (min, at) = B::float_min_dim_with_indices(a, dim, int_out(c));
        vec![read_float::<B>(min), read_int::<B>(at)]
    };
    float_argmax, Exact, unless empty_axis => {
        let (a, dim) = axis(c, NUMBERS);
        vec![read_int::<B>(B::float_argmax(a, dim, int_out(c)))]
    };
    float_argmin, Exact, unless empty_axis => {
        let (a, dim) = axis(c, NUMBERS);
        vec![read_int::<B>(B::float_argmin(a, dim, int_out(c)))]
    };
    float_cumsum, Within => summed_along!(c, B, float_cumsum);
    float_cumprod, Within => multiplied_along!(c, B, float_cumprod);
    float_cummin, Exact => along!(c, B, float_cummin, ANY);
    float_cummax, Exact => along!(c, B, float_cummax, ANY);

    float_sort, Exact => {
        let (a, dim) = axis(c, ANY);
        f::<B>(B::float_sort(a, dim, c.d.knob(1, 2) == 1))
    };
    float_topk, Exact, unless empty_axis => {
        let (a, dim) = axis(c, ANY);
        let k = 1 + c.d.knob(2, a.shape()[dim]);
        f::<B>(B::float_topk(a, dim, k))
    };
    float_sort_with_indices, Exact => {
        // The oracle's sort is not stable, so the values at the indices are compared.
        let (a, dim) = axis(c, ANY);
        let (values, at) = B::float_sort_with_indices(a.clone(), dim, c.d.knob(1, 2) == 1, int_out(c));
        vec![read_float::<B>(values), read_float::<B>(B::float_gather(dim, a, at))]
    };
    float_argsort, Exact => {
        let (a, dim) = axis(c, ANY);
        let at = B::float_argsort(a.clone(), dim, c.d.knob(1, 2) == 1, int_out(c));
        f::<B>(B::float_gather(dim, a, at))
    };
    float_argtopk, Exact, unless empty_axis => {
        let (a, dim) = axis(c, ANY);
        let k = 1 + c.d.knob(2, a.shape()[dim]);
        if c.oracle() {
            return f::<B>(B::float_topk(a, dim, k)); // it has no argtopk
        }
        let at = B::float_argtopk(a.clone(), dim, k, int_out(c));
        f::<B>(B::float_gather(dim, a, at))
    };

    float_cast, Near(1.0) => {
        let to = FLOATS[c.d.knob(1, 4)];
        f::<B>(B::float_cast(one(c, ANY), float_dtype(to)))
    };
    float_into_int, Exact => {
        let to = INTS[c.d.knob(1, 8)];
        vec![read_int::<B>(B::float_into_int(one(c, ANY), int_dtype(to)))]
    };
    float_full, Near(1.0) => {
        let dtype = float_dtype(c.d.float_type());
        f::<B>(B::float_full(Shape::from(c.d.shape(MOST)), c.d.scalar(1), &c.device, dtype))
    };
    // The oracle computes a product of no batches as one product, and reads past its operands.
    float_matmul, Within, unless |d| d.of_rank(6, 60)[..d.knob(1, 4)].contains(&0) => {
        // Up to three dims of batch, broadcast, in front of a product.
        let batch = &c.d.of_rank(6, 60)[..c.d.knob(1, 4)];
        let [m, k, n] = [2, 3, 4].map(|knob| c.d.knob(knob, 24));
        let shape = |operand, rows, columns| {
            let mut shape = c.d.narrowed(operand, batch);
            shape.extend([rows, columns]);
            shape
        };
        let (a, b) = (c.float(0, &shape(0, m, k), SUMMED), c.float(1, &shape(1, k, n), SUMMED));
        summed(c, k, [&a, &b], |[a, b]| B::float_matmul(a, b))
    };
    float_cross, Near(16.0) => {
        let mut shape = c.d.shape(MOST / 3);
        let dim = c.d.axis(&shape);
        shape[dim] = 3;
        f::<B>(B::float_cross(c.float(0, &shape, TAME), c.float(1, &shape, TAME), dim))
    };
}
