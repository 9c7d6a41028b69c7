//! Int tensor ops.

use core::ops::Range;

use burn_backend::ops::IntTensorOps;
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Distribution, ExecutionError, Scalar, TensorData};
use burn_rocm_macros::traced;
use burn_std::{BoolDType, FloatDType, IntDType, Shape, Slice};
use hip::Functor;

use super::{BoolElement, FloatElement, IntElement, Rocm};
use crate::device::RocmDevice;
use crate::error::{OrRaise, execution};
use crate::ops::index::Join;
use crate::ops::{
    binary, cast, cat, compare, create, index, index_nd, mask, matmul, random, reduce, scan, slice_assign,
    sort, transfer, unary, view,
};
use crate::tensor::RocmTensor;

#[traced]
impl<F: FloatElement, I: IntElement, B: BoolElement> IntTensorOps<Self> for Rocm<F, I, B> {
    fn int_empty(shape: Shape, device: &RocmDevice, dtype: IntDType) -> RocmTensor {
        Self::makes(dtype, device);
        create::empty(device, shape, dtype.into()).or_raise()
    }

    async fn int_into_data(tensor: RocmTensor) -> Result<TensorData, ExecutionError> {
        transfer::read(tensor).map_err(execution)
    }

    fn int_from_data(data: TensorData, device: &RocmDevice) -> RocmTensor {
        Self::makes(data.dtype, device);
        let dtype = data.dtype;
        transfer::upload(data, dtype, device).or_raise()
    }

    fn int_device(tensor: &RocmTensor) -> RocmDevice {
        tensor.device()
    }

    fn int_to_device(tensor: RocmTensor, device: &RocmDevice) -> RocmTensor {
        transfer::to_device(tensor, device).or_raise()
    }

    fn int_transpose(tensor: RocmTensor) -> RocmTensor {
        view::transpose(tensor).or_raise()
    }

    fn int_swap_dims(tensor: RocmTensor, dim1: usize, dim2: usize) -> RocmTensor {
        view::swap_dims(tensor, dim1, dim2).or_raise()
    }

    fn int_permute(tensor: RocmTensor, axes: &[usize]) -> RocmTensor {
        view::permute(tensor, axes).or_raise()
    }

    fn int_flip(tensor: RocmTensor, axes: &[usize]) -> RocmTensor {
        view::flip(tensor, axes).or_raise()
    }

    fn int_reshape(tensor: RocmTensor, shape: Shape) -> RocmTensor {
        view::reshape(tensor, shape.as_slice()).or_raise()
    }

    fn int_expand(tensor: RocmTensor, shape: Shape) -> RocmTensor {
        view::expand(tensor, shape.as_slice()).or_raise()
    }

    fn int_slice(tensor: RocmTensor, slices: &[Slice]) -> RocmTensor {
        view::slice(tensor, slices).or_raise()
    }

    fn int_slice_assign(tensor: RocmTensor, slices: &[Slice], value: RocmTensor) -> RocmTensor {
        slice_assign::slice_assign(tensor, slices, value).or_raise()
    }

    fn int_unfold(tensor: RocmTensor, dim: usize, size: usize, step: usize) -> RocmTensor {
        view::unfold(tensor, dim, size, step).or_raise()
    }

    fn int_cat(tensors: Vec<RocmTensor>, dim: usize) -> RocmTensor {
        cat::cat(tensors, dim).or_raise()
    }

    fn int_into_float(tensor: RocmTensor, out_dtype: FloatDType) -> RocmTensor {
        cast::cast(tensor, out_dtype.into()).or_raise()
    }

    fn int_cast(tensor: RocmTensor, dtype: IntDType) -> RocmTensor {
        cast::cast(tensor, dtype.into()).or_raise()
    }

    fn int_mask_where(tensor: RocmTensor, mask: RocmTensor, value: RocmTensor) -> RocmTensor {
        mask::mask_where("int_mask_where", tensor, mask, value).or_raise()
    }

    fn int_mask_fill(tensor: RocmTensor, mask: RocmTensor, value: Scalar) -> RocmTensor {
        mask::mask_fill("int_mask_fill", tensor, mask, value).or_raise()
    }

    fn int_gather(dim: usize, tensor: RocmTensor, indices: RocmTensor) -> RocmTensor {
        index::gather("int_gather", dim, tensor, indices).or_raise()
    }

    fn int_scatter_add(dim: usize, tensor: RocmTensor, indices: RocmTensor, value: RocmTensor) -> RocmTensor {
        index_nd::scatter_joined("int_scatter_add", dim, tensor, indices, value, Join::Add).or_raise()
    }

    fn int_scatter_nd(
        data: RocmTensor,
        indices: RocmTensor,
        values: RocmTensor,
        reduction: IndexingUpdateOp,
    ) -> RocmTensor {
        index_nd::scatter("int_scatter_nd", data, indices, values, reduction).or_raise()
    }

    fn int_gather_nd(data: RocmTensor, indices: RocmTensor) -> RocmTensor {
        index_nd::gather("int_gather_nd", data, indices).or_raise()
    }

    fn int_select(tensor: RocmTensor, dim: usize, indices: RocmTensor) -> RocmTensor {
        index::select("int_select", tensor, dim, indices).or_raise()
    }

    fn int_select_add(tensor: RocmTensor, dim: usize, indices: RocmTensor, value: RocmTensor) -> RocmTensor {
        index::select_into("int_select_add", tensor, dim, indices, value, Join::Add).or_raise()
    }

    fn int_repeat_dim(tensor: RocmTensor, dim: usize, times: usize) -> RocmTensor {
        view::repeat_dim(tensor, dim, times).or_raise()
    }

    fn int_equal(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("int_equal", Functor::Equal, lhs, rhs, out_dtype).or_raise()
    }

    fn int_equal_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("int_equal_elem", Functor::Equal, lhs, rhs, out_dtype).or_raise()
    }

    fn int_not_equal(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("int_not_equal", Functor::NotEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn int_not_equal_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("int_not_equal_elem", Functor::NotEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn int_greater(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("int_greater", Functor::Greater, lhs, rhs, out_dtype).or_raise()
    }

    fn int_greater_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("int_greater_elem", Functor::Greater, lhs, rhs, out_dtype).or_raise()
    }

    fn int_greater_equal(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("int_greater_equal", Functor::GreaterEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn int_greater_equal_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("int_greater_equal_elem", Functor::GreaterEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn int_lower(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("int_lower", Functor::Less, lhs, rhs, out_dtype).or_raise()
    }

    fn int_lower_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("int_lower_elem", Functor::Less, lhs, rhs, out_dtype).or_raise()
    }

    fn int_lower_equal(lhs: RocmTensor, rhs: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        compare::compare("int_lower_equal", Functor::LessEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn int_lower_equal_elem(lhs: RocmTensor, rhs: Scalar, out_dtype: BoolDType) -> RocmTensor {
        compare::scalar("int_lower_equal_elem", Functor::LessEqual, lhs, rhs, out_dtype).or_raise()
    }

    fn int_add(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("int_add", Functor::Add, lhs, rhs).or_raise()
    }

    fn int_add_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("int_add_scalar", Functor::Add, lhs, rhs).or_raise()
    }

    fn int_sub(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("int_sub", Functor::Sub, lhs, rhs).or_raise()
    }

    fn int_sub_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("int_sub_scalar", Functor::Sub, lhs, rhs).or_raise()
    }

    fn int_mul(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("int_mul", Functor::Mul, lhs, rhs).or_raise()
    }

    fn int_mul_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("int_mul_scalar", Functor::Mul, lhs, rhs).or_raise()
    }

    fn int_div(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("int_div", Functor::Div, lhs, rhs).or_raise()
    }

    fn int_div_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::divide("int_div_scalar", Functor::Div, lhs, rhs).or_raise()
    }

    fn int_remainder(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("int_remainder", Functor::Rem, lhs, rhs).or_raise()
    }

    fn int_remainder_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::divide("int_remainder_scalar", Functor::Rem, lhs, rhs).or_raise()
    }

    fn int_powi(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("int_powi", Functor::Pow, lhs, rhs).or_raise()
    }

    fn int_powi_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        unary::powi_scalar("int_powi_scalar", lhs, rhs).or_raise()
    }

    fn int_clamp_min(tensor: RocmTensor, min: Scalar) -> RocmTensor {
        unary::clamp("int_clamp_min", tensor, Some(min), None).or_raise()
    }

    fn int_clamp_max(tensor: RocmTensor, max: Scalar) -> RocmTensor {
        unary::clamp("int_clamp_max", tensor, None, Some(max)).or_raise()
    }

    fn int_clamp(tensor: RocmTensor, min: Scalar, max: Scalar) -> RocmTensor {
        unary::clamp("int_clamp", tensor, Some(min), Some(max)).or_raise()
    }

    fn int_matmul(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        matmul::matmul("int_matmul", lhs, rhs).or_raise()
    }

    fn int_neg(tensor: RocmTensor) -> RocmTensor {
        unary::unary("int_neg", Functor::Neg, tensor).or_raise()
    }

    fn int_abs(tensor: RocmTensor) -> RocmTensor {
        unary::unary("int_abs", Functor::Abs, tensor).or_raise()
    }

    fn int_sign(tensor: RocmTensor) -> RocmTensor {
        unary::unary("int_sign", Functor::Sign, tensor).or_raise()
    }

    fn int_zeros(shape: Shape, device: &RocmDevice, dtype: IntDType) -> RocmTensor {
        Self::makes(dtype, device);
        create::full(device, shape, 0i64.into(), dtype.into()).or_raise()
    }

    fn int_ones(shape: Shape, device: &RocmDevice, dtype: IntDType) -> RocmTensor {
        Self::makes(dtype, device);
        create::full(device, shape, 1i64.into(), dtype.into()).or_raise()
    }

    fn int_full(shape: Shape, fill_value: Scalar, device: &RocmDevice, dtype: IntDType) -> RocmTensor {
        Self::makes(dtype, device);
        create::full(device, shape, fill_value, dtype.into()).or_raise()
    }

    fn int_sum(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("int_sum", Functor::Sum, tensor).or_raise()
    }

    fn int_sum_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("int_sum_dim", Functor::Sum, tensor, dim).or_raise()
    }

    fn int_prod(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("int_prod", Functor::Prod, tensor).or_raise()
    }

    fn int_prod_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("int_prod_dim", Functor::Prod, tensor, dim).or_raise()
    }

    fn int_mean(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("int_mean", Functor::Mean, tensor).or_raise()
    }

    fn int_mean_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("int_mean_dim", Functor::Mean, tensor, dim).or_raise()
    }

    fn int_max(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("int_max", Functor::Max, tensor).or_raise()
    }

    fn int_max_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("int_max_dim", Functor::Max, tensor, dim).or_raise()
    }

    fn int_min(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("int_min", Functor::Min, tensor).or_raise()
    }

    fn int_min_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("int_min_dim", Functor::Min, tensor, dim).or_raise()
    }

    fn int_max_abs(tensor: RocmTensor) -> RocmTensor {
        reduce::reduce("int_max_abs", Functor::MaxAbs, tensor).or_raise()
    }

    fn int_max_abs_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::reduce_dim("int_max_abs_dim", Functor::MaxAbs, tensor, dim).or_raise()
    }

    fn int_cumsum(tensor: RocmTensor, dim: usize) -> RocmTensor {
        scan::scan("int_cumsum", Functor::CumSum, tensor, dim).or_raise()
    }

    fn int_cumprod(tensor: RocmTensor, dim: usize) -> RocmTensor {
        scan::scan("int_cumprod", Functor::CumProd, tensor, dim).or_raise()
    }

    fn int_cummin(tensor: RocmTensor, dim: usize) -> RocmTensor {
        scan::scan("int_cummin", Functor::CumMin, tensor, dim).or_raise()
    }

    fn int_cummax(tensor: RocmTensor, dim: usize) -> RocmTensor {
        scan::scan("int_cummax", Functor::CumMax, tensor, dim).or_raise()
    }

    fn int_argmax(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::int_extreme("int_argmax", Functor::ArgMax, tensor, dim).or_raise().1
    }

    fn int_argmin(tensor: RocmTensor, dim: usize) -> RocmTensor {
        reduce::int_extreme("int_argmin", Functor::ArgMin, tensor, dim).or_raise().1
    }

    fn int_max_dim_with_indices(tensor: RocmTensor, dim: usize) -> (RocmTensor, RocmTensor) {
        reduce::int_extreme("int_max_dim_with_indices", Functor::ArgMax, tensor, dim).or_raise()
    }

    fn int_min_dim_with_indices(tensor: RocmTensor, dim: usize) -> (RocmTensor, RocmTensor) {
        reduce::int_extreme("int_min_dim_with_indices", Functor::ArgMin, tensor, dim).or_raise()
    }

    fn int_any(tensor: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        reduce::test("int_any", Functor::Any, tensor, out_dtype).or_raise()
    }

    fn int_any_dim(tensor: RocmTensor, dim: usize, out_dtype: BoolDType) -> RocmTensor {
        reduce::test_dim("int_any_dim", Functor::Any, tensor, dim, out_dtype).or_raise()
    }

    fn int_all(tensor: RocmTensor, out_dtype: BoolDType) -> RocmTensor {
        reduce::test("int_all", Functor::All, tensor, out_dtype).or_raise()
    }

    fn int_all_dim(tensor: RocmTensor, dim: usize, out_dtype: BoolDType) -> RocmTensor {
        reduce::test_dim("int_all_dim", Functor::All, tensor, dim, out_dtype).or_raise()
    }

    fn int_argtopk(tensor: RocmTensor, dim: usize, k: usize) -> RocmTensor {
        let index = sort::index_dtype(&tensor);
        sort::argtopk("int_argtopk", tensor, dim, k, index).or_raise()
    }

    fn int_topk(tensor: RocmTensor, dim: usize, k: usize) -> RocmTensor {
        sort::topk("int_topk", tensor, dim, k).or_raise()
    }

    fn int_sort(tensor: RocmTensor, dim: usize, descending: bool) -> RocmTensor {
        sort::sort("int_sort", tensor, dim, descending).or_raise()
    }

    fn int_argsort(tensor: RocmTensor, dim: usize, descending: bool) -> RocmTensor {
        let index = sort::index_dtype(&tensor);
        sort::argsort("int_argsort", tensor, dim, descending, index).or_raise()
    }

    fn int_sort_with_indices(tensor: RocmTensor, dim: usize, descending: bool) -> (RocmTensor, RocmTensor) {
        let index = sort::index_dtype(&tensor);
        sort::sort_with_indices("int_sort_with_indices", tensor, dim, descending, index).or_raise()
    }

    fn int_random(
        shape: Shape,
        distribution: Distribution,
        device: &RocmDevice,
        dtype: IntDType,
    ) -> RocmTensor {
        Self::makes(dtype, device);
        random::random(device, shape, distribution, dtype.into()).or_raise()
    }

    fn int_arange_step(range: Range<i64>, step: usize, device: &RocmDevice, dtype: IntDType) -> RocmTensor {
        Self::makes(dtype, device);
        create::arange(device, range, step, dtype.into()).or_raise()
    }

    fn bitwise_and(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("bitwise_and", Functor::BitAnd, lhs, rhs).or_raise()
    }

    fn bitwise_and_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("bitwise_and_scalar", Functor::BitAnd, lhs, rhs).or_raise()
    }

    fn bitwise_or(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("bitwise_or", Functor::BitOr, lhs, rhs).or_raise()
    }

    fn bitwise_or_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("bitwise_or_scalar", Functor::BitOr, lhs, rhs).or_raise()
    }

    fn bitwise_xor(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("bitwise_xor", Functor::BitXor, lhs, rhs).or_raise()
    }

    fn bitwise_xor_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("bitwise_xor_scalar", Functor::BitXor, lhs, rhs).or_raise()
    }

    fn bitwise_left_shift(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("bitwise_left_shift", Functor::Shl, lhs, rhs).or_raise()
    }

    fn bitwise_left_shift_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("bitwise_left_shift_scalar", Functor::Shl, lhs, rhs).or_raise()
    }

    fn bitwise_right_shift(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::binary("bitwise_right_shift", Functor::Shr, lhs, rhs).or_raise()
    }

    fn bitwise_right_shift_scalar(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        binary::scalar("bitwise_right_shift_scalar", Functor::Shr, lhs, rhs).or_raise()
    }

    fn bitwise_not(tensor: RocmTensor) -> RocmTensor {
        unary::unary("bitwise_not", Functor::BitNot, tensor).or_raise()
    }
}
