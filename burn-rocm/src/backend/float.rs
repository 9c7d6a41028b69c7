//! Float tensor ops.

use burn_backend::ops::{FloatTensorOps, GridSampleOptions, GridSamplePaddingMode};
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Distribution, ExecutionError, Scalar, TensorData};
use burn_rocm_macros::traced;
use burn_std::{BoolDType, FloatDType, IntDType, Shape, Slice};
use hip::Functor;

use super::{BoolElement, FloatElement, IntElement, Rocm};
use crate::device::RocmDevice;
use crate::error::{OrRaise, execution};
use crate::ops::index::Join;
use crate::ops::interpolate::Padding;
use crate::ops::{
    binary, cast, cat, compare, create, index, index_nd, interpolate, mask, matmul, random, reduce, scan,
    slice_assign, sort, transfer, unary, view,
};
use crate::tensor::RocmTensor;

#[traced]
impl<F: FloatElement, I: IntElement, B: BoolElement> FloatTensorOps<Self> for Rocm<F, I, B> {
    fn float_from_data(data: TensorData, device: &RocmDevice) -> RocmTensor {
        Self::makes(data.dtype, device);
        let dtype = data.dtype;
        transfer::upload(data, dtype, device).or_raise()
    }

    fn float_random(
        shape: Shape,
        distribution: Distribution,
        device: &RocmDevice,
        dtype: FloatDType,
    ) -> RocmTensor {
        Self::makes(dtype, device);
        random::random(device, shape, distribution, dtype.into()).or_raise()
    }

    fn float_zeros(shape: Shape, device: &RocmDevice, dtype: FloatDType) -> RocmTensor {
        Self::makes(dtype, device);
        create::full(device, shape, 0i64.into(), dtype.into()).or_raise()
    }

    fn float_ones(shape: Shape, device: &RocmDevice, dtype: FloatDType) -> RocmTensor {
        Self::makes(dtype, device);
        create::full(device, shape, 1i64.into(), dtype.into()).or_raise()
    }

    fn float_full(shape: Shape, fill_value: Scalar, device: &RocmDevice, dtype: FloatDType) -> RocmTensor {
        Self::makes(dtype, device);
        create::full(device, shape, fill_value, dtype.into()).or_raise()
    }

    async fn float_into_data(tensor: RocmTensor) -> Result<TensorData, ExecutionError> {
        transfer::read(tensor).map_err(execution)
    }

    fn float_device(tensor: &RocmTensor) -> RocmDevice {
        tensor.device()
    }

    fn float_to_device(tensor: RocmTensor, device: &RocmDevice) -> RocmTensor {
        transfer::to_device(tensor, device).or_raise()
    }

    fn float_into_int(tensor: RocmTensor, out_dtype: IntDType) -> RocmTensor {
        cast::cast(tensor, out_dtype.into()).or_raise()
    }

    fn float_empty(shape: Shape, device: &RocmDevice, dtype: FloatDType) -> RocmTensor {
        Self::makes(dtype, device);
        create::empty(device, shape, dtype.into()).or_raise()
    }

    fn float_repeat_dim(tensor: RocmTensor, dim: usize, times: usize) -> RocmTensor {
        view::repeat_dim(tensor, dim, times).or_raise()
    }

    fn float_add(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("float_add", Functor::Add, lhs, rhs).or_raise()
    }

    fn float_add_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("float_add_scalar", Functor::Add, lhs, rhs).or_raise()
    }

    fn float_sub(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("float_sub", Functor::Sub, lhs, rhs).or_raise()
    }

    fn float_sub_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("float_sub_scalar", Functor::Sub, lhs, rhs).or_raise()
    }

    fn float_mul(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("float_mul", Functor::Mul, lhs, rhs).or_raise()
    }

    fn float_mul_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("float_mul_scalar", Functor::Mul, lhs, rhs).or_raise()
    }

    fn float_div(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("float_div", Functor::Div, lhs, rhs).or_raise()
    }

    fn float_div_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::divide_by_scalar("float_div_scalar", lhs, rhs).or_raise()
    }

    fn float_remainder(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("float_remainder", Functor::Rem, lhs, rhs).or_raise()
    }

    fn float_remainder_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("float_remainder_scalar", Functor::Rem, lhs, rhs).or_raise()
    }

    fn float_clamp_min(tensor: RocmTensor, min: Scalar) -> RocmTensor {
        unary::clamp("float_clamp_min", tensor, Some(min), None).or_raise()
    }

    fn float_clamp_max(tensor: RocmTensor, max: Scalar) -> RocmTensor {
        unary::clamp("float_clamp_max", tensor, None, Some(max)).or_raise()
    }

    fn float_clamp(tensor: RocmTensor, min: Scalar, max: Scalar) -> RocmTensor {
        unary::clamp("float_clamp", tensor, Some(min), Some(max)).or_raise()
    }

    fn float_matmul(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        matmul::matmul("float_matmul", lhs, rhs).or_raise()
    }

    fn float_cross(lhs: RocmTensor, rhs: RocmTensor, dim: usize) -> RocmTensor {
        binary::cross(lhs, rhs, dim).or_raise()
    }

    fn float_transpose(tensor: RocmTensor) -> RocmTensor {
        view::transpose(tensor).or_raise()
    }

    fn float_swap_dims(tensor: RocmTensor, dim1: usize, dim2: usize) -> RocmTensor {
        view::swap_dims(tensor, dim1, dim2).or_raise()
    }

    fn float_permute(tensor: RocmTensor, axes: &[usize]) -> RocmTensor {
        view::permute(tensor, axes).or_raise()
    }

    fn float_flip(tensor: RocmTensor, axes: &[usize]) -> RocmTensor {
        view::flip(tensor, axes).or_raise()
    }

    fn float_reshape(tensor: RocmTensor, shape: Shape) -> RocmTensor {
        view::reshape(tensor, shape.as_slice()).or_raise()
    }

    fn float_expand(tensor: RocmTensor, shape: Shape) -> RocmTensor {
        view::expand(tensor, shape.as_slice()).or_raise()
    }

    fn float_slice(tensor: RocmTensor, slices: &[Slice]) -> RocmTensor {
        view::slice(tensor, slices).or_raise()
    }

    fn float_slice_assign(tensor: RocmTensor, slices: &[Slice], value: RocmTensor) -> RocmTensor {
        slice_assign::slice_assign(tensor, slices, value).or_raise()
    }

    fn float_unfold(tensor: RocmTensor, dim: usize, size: usize, step: usize) -> RocmTensor {
        view::unfold(tensor, dim, size, step).or_raise()
    }

    fn float_cat(tensors: Vec<RocmTensor>, dim: usize) -> RocmTensor {
        cat::cat(tensors, dim).or_raise()
    }

    fn float_gather(dim: usize, tensor: RocmTensor, indices: RocmTensor) -> RocmTensor {
        index::gather("float_gather", dim, tensor, indices).or_raise()
    }

    fn float_scatter_add(
        dim: usize,
        tensor: RocmTensor,
        indices: RocmTensor,
        value: RocmTensor,
    ) -> RocmTensor {
        index_nd::scatter_joined("float_scatter_add", dim, tensor, indices, value, Join::Add).or_raise()
    }

    fn float_scatter_nd(
        data: RocmTensor,
        indices: RocmTensor,
        values: RocmTensor,
        reduction: IndexingUpdateOp,
    ) -> RocmTensor {
        index_nd::scatter("float_scatter_nd", data, indices, values, reduction).or_raise()
    }

    fn float_gather_nd(data: RocmTensor, indices: RocmTensor) -> RocmTensor {
        index_nd::gather("float_gather_nd", data, indices).or_raise()
    }

    fn float_select(tensor: RocmTensor, dim: usize, indices: RocmTensor) -> RocmTensor {
        index::select("float_select", tensor, dim, indices).or_raise()
    }

    fn float_select_add(
        tensor: RocmTensor,
        dim: usize,
        indices: RocmTensor,
        value: RocmTensor,
    ) -> RocmTensor {
        index::select_into("float_select_add", tensor, dim, indices, value, Join::Add).or_raise()
    }

    fn float_mask_where(tensor: RocmTensor, mask: RocmTensor, value: RocmTensor) -> RocmTensor {
        mask::mask_where("float_mask_where", tensor, mask, value).or_raise()
    }

    fn float_mask_fill(tensor: RocmTensor, mask: RocmTensor, value: Scalar) -> RocmTensor {
        mask::mask_fill("float_mask_fill", tensor, mask, value).or_raise()
    }

    fn float_equal(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("float_equal", Functor::Equal, lhs, rhs, out_dtype).or_raise()
    }

    fn float_equal_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("float_equal_elem", Functor::Equal, lhs, rhs, out_dtype).or_raise()
    }

    fn float_not_equal(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("float_not_equal", Functor::NotEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn float_not_equal_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("float_not_equal_elem", Functor::NotEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn float_greater(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("float_greater", Functor::Greater, lhs, rhs, out_dtype).or_raise()
    }

    fn float_greater_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("float_greater_elem", Functor::Greater, lhs, rhs, out_dtype).or_raise()
    }

    fn float_greater_equal(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("float_greater_equal", Functor::GreaterEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn float_greater_equal_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("float_greater_equal_elem", Functor::GreaterEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn float_lower(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("float_lower", Functor::Less, lhs, rhs, out_dtype).or_raise()
    }

    fn float_lower_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("float_lower_elem", Functor::Less, lhs, rhs, out_dtype).or_raise()
    }

    fn float_lower_equal(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("float_lower_equal", Functor::LessEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn float_lower_equal_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("float_lower_equal_elem", Functor::LessEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn float_sum(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("float_sum", Functor::Sum, tensor).or_raise()
    }

    fn float_sum_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::sum_dim("float_sum_dim", tensor, dim).or_raise()
    }

    fn float_prod(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("float_prod", Functor::Prod, tensor).or_raise()
    }

    fn float_prod_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("float_prod_dim", Functor::Prod, tensor, dim).or_raise()
    }

    fn float_mean(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("float_mean", Functor::Mean, tensor).or_raise()
    }

    fn float_mean_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("float_mean_dim", Functor::Mean, tensor, dim).or_raise()
    }

    fn float_max(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("float_max", Functor::Max, tensor).or_raise()
    }

    fn float_max_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("float_max_dim", Functor::Max, tensor, dim).or_raise()
    }

    fn float_min(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("float_min", Functor::Min, tensor).or_raise()
    }

    fn float_min_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("float_min_dim", Functor::Min, tensor, dim).or_raise()
    }

    fn float_max_abs(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("float_max_abs", Functor::MaxAbs, tensor).or_raise()
    }

    fn float_max_abs_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("float_max_abs_dim", Functor::MaxAbs, tensor, dim).or_raise()
    }

    fn float_cumsum(tensor: RocmTensor, dim: usize) -> RocmTensor {
        scan::scan("float_cumsum", Functor::CumSum, tensor, dim).or_raise()
    }

    fn float_cumprod(tensor: RocmTensor, dim: usize) -> RocmTensor {
        scan::scan("float_cumprod", Functor::CumProd, tensor, dim).or_raise()
    }

    fn float_cummin(tensor: RocmTensor, dim: usize) -> RocmTensor {
        scan::scan("float_cummin", Functor::CumMin, tensor, dim).or_raise()
    }

    fn float_cummax(tensor: RocmTensor, dim: usize) -> RocmTensor {
        scan::scan("float_cummax", Functor::CumMax, tensor, dim).or_raise()
    }

    fn float_cast(tensor: RocmTensor, dtype: FloatDType) -> RocmTensor {
        cast::cast(tensor, dtype.into()).or_raise()
    }

    fn float_neg(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_neg", Functor::Neg, tensor).or_raise()
    }

    fn float_recip(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_recip", Functor::Recip, tensor).or_raise()
    }

    fn float_exp(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_exp", Functor::Exp, tensor).or_raise()
    }

    fn float_log(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_log", Functor::Log, tensor).or_raise()
    }

    fn float_log1p(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_log1p", Functor::Log1p, tensor).or_raise()
    }

    fn float_sqrt(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_sqrt", Functor::Sqrt, tensor).or_raise()
    }

    fn float_abs(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_abs", Functor::Abs, tensor).or_raise()
    }

    fn float_cos(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_cos", Functor::Cos, tensor).or_raise()
    }

    fn float_sin(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_sin", Functor::Sin, tensor).or_raise()
    }

    fn float_tan(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_tan", Functor::Tan, tensor).or_raise()
    }

    fn float_cosh(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_cosh", Functor::Cosh, tensor).or_raise()
    }

    fn float_sinh(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_sinh", Functor::Sinh, tensor).or_raise()
    }

    fn float_tanh(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_tanh", Functor::Tanh, tensor).or_raise()
    }

    fn float_acos(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_acos", Functor::Acos, tensor).or_raise()
    }

    fn float_acosh(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_acosh", Functor::Acosh, tensor).or_raise()
    }

    fn float_asin(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_asin", Functor::Asin, tensor).or_raise()
    }

    fn float_asinh(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_asinh", Functor::Asinh, tensor).or_raise()
    }

    fn float_atan(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_atan", Functor::Atan, tensor).or_raise()
    }

    fn float_atanh(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_atanh", Functor::Atanh, tensor).or_raise()
    }

    fn float_round(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_round", Functor::Round, tensor).or_raise()
    }

    fn float_floor(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_floor", Functor::Floor, tensor).or_raise()
    }

    fn float_ceil(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_ceil", Functor::Ceil, tensor).or_raise()
    }

    fn float_trunc(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_trunc", Functor::Trunc, tensor).or_raise()
    }

    fn float_erf(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_erf", Functor::Erf, tensor).or_raise()
    }

    fn float_sign(tensor: RocmTensor) -> RocmTensor {
        unary::unary("float_sign", Functor::Sign, tensor).or_raise()
    }

    fn float_powf(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("float_powf", Functor::Pow, lhs, rhs).or_raise()
    }

    fn float_powi(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::powi("float_powi", lhs, rhs).or_raise()
    }

    fn float_powi_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        unary::powi_scalar("float_powi_scalar", lhs, rhs).or_raise()
    }

    fn float_powf_scalar(tensor: RocmTensor, value: Scalar) -> RocmTensor {
        match value {
            // Burn treats an infinite power, or one beyond i64's range, as a whole number and then
            // fails to convert it.
            Scalar::Float(power) if power.abs() >= i64::MAX as f64 => {
                Self::float_powf_scalar_impl(tensor, value)
            }
            _ => match value.try_as_integer() {
                Some(power) => Self::float_powi_scalar(tensor, power),
                None => Self::float_powf_scalar_impl(tensor, value),
            },
        }
    }

    fn float_powf_scalar_impl(tensor: RocmTensor, value: Scalar) -> RocmTensor {
        binary::scalar("float_powf_scalar", Functor::Pow, tensor, value).or_raise()
    }

    fn float_atan2(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("float_atan2", Functor::Atan2, lhs, rhs).or_raise()
    }

    fn float_argmax(tensor: RocmTensor, dim: usize, out_dtype: IntDType) -> RocmTensor {
        reduce::extreme_with_index("float_argmax", Functor::ArgMax, tensor, dim, out_dtype).or_raise().1
    }

    fn float_argmin(tensor: RocmTensor, dim: usize, out_dtype: IntDType) -> RocmTensor {
        reduce::extreme_with_index("float_argmin", Functor::ArgMin, tensor, dim, out_dtype).or_raise().1
    }

    fn float_max_dim_with_indices(
        tensor: RocmTensor,
        dim: usize,
        indices_dtype: IntDType,
    ) -> (RocmTensor, RocmTensor) {
        reduce::extreme_with_index("float_max_dim_with_indices", Functor::ArgMax, tensor, dim, indices_dtype)
            .or_raise()
    }

    fn float_min_dim_with_indices(
        tensor: RocmTensor,
        dim: usize,
        indices_dtype: IntDType,
    ) -> (RocmTensor, RocmTensor) {
        reduce::extreme_with_index("float_min_dim_with_indices", Functor::ArgMin, tensor, dim, indices_dtype)
            .or_raise()
    }

    fn float_any(tensor: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        reduce::test("float_any", Functor::Any, tensor, out_dtype).or_raise()
    }

    fn float_any_dim(tensor: RocmTensor, dim: usize, out_dtype: BoolDType) -> RocmTensor {
        reduce::test_dim("float_any_dim", Functor::Any, tensor, dim, out_dtype).or_raise()
    }

    fn float_all(tensor: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        reduce::test("float_all", Functor::All, tensor, out_dtype).or_raise()
    }

    fn float_all_dim(tensor: RocmTensor, dim: usize, out_dtype: BoolDType) -> RocmTensor {
        reduce::test_dim("float_all_dim", Functor::All, tensor, dim, out_dtype).or_raise()
    }

    fn float_argtopk(tensor: RocmTensor, dim: usize, k: usize, out_dtype: IntDType) -> RocmTensor {
        sort::argtopk("float_argtopk", tensor, dim, k, out_dtype.into()).or_raise()
    }

    fn float_topk(tensor: RocmTensor, dim: usize, k: usize) -> RocmTensor {
        sort::topk("float_topk", tensor, dim, k).or_raise()
    }

    fn float_sort(tensor: RocmTensor, dim: usize, descending: bool) -> RocmTensor {
        sort::sort("float_sort", tensor, dim, descending).or_raise()
    }

    fn float_argsort(tensor: RocmTensor, dim: usize, descending: bool, out_dtype: IntDType) -> RocmTensor {
        sort::argsort("float_argsort", tensor, dim, descending, out_dtype.into()).or_raise()
    }

    fn float_sort_with_indices(
        tensor: RocmTensor,
        dim: usize,
        descending: bool,
        indices_dtype: IntDType,
    ) -> (RocmTensor, RocmTensor) {
        let index = indices_dtype.into();
        sort::sort_with_indices("float_sort_with_indices", tensor, dim, descending, index).or_raise()
    }

    fn float_grid_sample_2d(tensor: RocmTensor, grid: RocmTensor, options: GridSampleOptions) -> RocmTensor {
        let padding = match options.padding_mode {
            GridSamplePaddingMode::Zeros => Padding::Zeros,
            GridSamplePaddingMode::Border => Padding::Border,
            GridSamplePaddingMode::Reflection => Padding::Reflection,
        };
        let mode = super::module::mode(options.mode);
        interpolate::grid_sample(tensor, grid, mode, padding, options.align_corners).or_raise()
    }

    fn float_is_nan(tensor: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::predicate("float_is_nan", Functor::IsNan, tensor, out_dtype).or_raise()
    }

    fn float_is_inf(tensor: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::predicate("float_is_inf", Functor::IsInf, tensor, out_dtype).or_raise()
    }
}
