//! Bool tensor ops.

use burn_backend::ops::BoolTensorOps;
use burn_backend::{ExecutionError, Scalar, TensorData};
use burn_rocm_macros::traced;
use burn_std::{BoolDType, FloatDType, IntDType, Shape, Slice};
use hip::Functor;

use super::{BurnDevice, Rocm, own};
use crate::arg::truth;
use crate::error::{OrRaise, execution};
use crate::ops::index::Join;
use crate::ops::{
    argwhere, binary, cast, cat, compare, create, index, index_nd, mask, reduce, slice_assign, transfer,
    unary, view,
};
use crate::tensor::RocmTensor;

#[traced]
impl BoolTensorOps<Self> for Rocm {
    fn bool_empty(shape: Shape, device: &BurnDevice, dtype: BoolDType) -> RocmTensor {
        create::empty(&own(device), shape, dtype.into()).or_raise()
    }

    fn bool_zeros(shape: Shape, device: &BurnDevice, dtype: BoolDType) -> RocmTensor {
        create::full(&own(device), shape, false.into(), dtype.into()).or_raise()
    }

    fn bool_ones(shape: Shape, device: &BurnDevice, dtype: BoolDType) -> RocmTensor {
        create::full(&own(device), shape, true.into(), dtype.into()).or_raise()
    }

    async fn bool_into_data(tensor: RocmTensor) -> Result<TensorData, ExecutionError> {
        transfer::read(tensor).map_err(execution)
    }

    fn bool_from_data(data: TensorData, device: &BurnDevice) -> RocmTensor {
        transfer::upload_bools(data, &own(device)).or_raise()
    }

    fn bool_into_int(tensor: RocmTensor, out_dtype: IntDType) -> RocmTensor {
        cast::cast(tensor, out_dtype.into()).or_raise()
    }

    fn bool_into_float(tensor: RocmTensor, out_dtype: FloatDType) -> RocmTensor {
        cast::cast(tensor, out_dtype.into()).or_raise()
    }

    fn bool_to_device(tensor: RocmTensor, device: &BurnDevice) -> RocmTensor {
        transfer::to_device(tensor, &own(device)).or_raise()
    }

    fn bool_transpose(tensor: RocmTensor) -> RocmTensor {
        view::transpose(tensor).or_raise()
    }

    fn bool_swap_dims(tensor: RocmTensor, dim1: usize, dim2: usize) -> RocmTensor {
        view::swap_dims(tensor, dim1, dim2).or_raise()
    }

    fn bool_permute(tensor: RocmTensor, axes: &[usize]) -> RocmTensor {
        view::permute(tensor, axes).or_raise()
    }

    fn bool_flip(tensor: RocmTensor, axes: &[usize]) -> RocmTensor {
        view::flip(tensor, axes).or_raise()
    }

    fn bool_reshape(tensor: RocmTensor, shape: Shape) -> RocmTensor {
        view::reshape(tensor, shape.as_slice()).or_raise()
    }

    fn bool_expand(tensor: RocmTensor, shape: Shape) -> RocmTensor {
        view::expand(tensor, shape.as_slice()).or_raise()
    }

    fn bool_slice(tensor: RocmTensor, slices: &[Slice]) -> RocmTensor {
        view::slice(tensor, slices).or_raise()
    }

    fn bool_slice_assign(tensor: RocmTensor, slices: &[Slice], value: RocmTensor) -> RocmTensor {
        slice_assign::slice_assign(tensor, slices, value).or_raise()
    }

    fn bool_unfold(tensor: RocmTensor, dim: usize, size: usize, step: usize) -> RocmTensor {
        view::unfold(tensor, dim, size, step).or_raise()
    }

    fn bool_cat(tensors: Vec<RocmTensor>, dim: usize) -> RocmTensor {
        cat::cat(tensors, dim).or_raise()
    }

    fn bool_mask_where(tensor: RocmTensor, mask: RocmTensor, value: RocmTensor) -> RocmTensor {
        mask::mask_where("bool_mask_where", tensor, mask, value).or_raise()
    }

    fn bool_mask_fill(tensor: RocmTensor, mask: RocmTensor, value: Scalar) -> RocmTensor {
        mask::mask_fill("bool_mask_fill", tensor, mask, value).or_raise()
    }

    async fn bool_mask_select(tensor: RocmTensor, mask: RocmTensor) -> RocmTensor {
        argwhere::mask_select("bool_mask_select", tensor, mask).or_raise()
    }

    fn bool_gather(dim: usize, tensor: RocmTensor, indices: RocmTensor) -> RocmTensor {
        index::gather("bool_gather", dim, tensor, indices).or_raise()
    }

    fn bool_scatter_or(dim: usize, tensor: RocmTensor, indices: RocmTensor, value: RocmTensor) -> RocmTensor {
        index_nd::scatter_joined("bool_scatter_or", dim, tensor, indices, value, Join::Or).or_raise()
    }

    fn bool_select(tensor: RocmTensor, dim: usize, indices: RocmTensor) -> RocmTensor {
        index::select("bool_select", tensor, dim, indices).or_raise()
    }

    fn bool_select_or(tensor: RocmTensor, dim: usize, indices: RocmTensor, value: RocmTensor) -> RocmTensor {
        index::select_into("bool_select_or", tensor, dim, indices, value, Join::Or).or_raise()
    }

    fn bool_repeat_dim(tensor: RocmTensor, dim: usize, times: usize) -> RocmTensor {
        view::repeat_dim(tensor, dim, times).or_raise()
    }

    fn bool_equal(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        compare::bools("bool_equal", lhs, rhs, false).or_raise()
    }

    fn bool_not_equal(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        compare::bools("bool_not_equal", lhs, rhs, true).or_raise()
    }

    fn bool_equal_elem(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        compare::bool_scalar("bool_equal_elem", lhs, truth(rhs)).or_raise()
    }

    fn bool_not_equal_elem(lhs: RocmTensor, rhs: Scalar) -> RocmTensor {
        compare::bool_scalar("bool_not_equal_elem", lhs, !truth(rhs)).or_raise()
    }

    fn bool_not(tensor: RocmTensor) -> RocmTensor {
        unary::unary("bool_not", Functor::LogicNot, tensor).or_raise()
    }

    fn bool_and(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::logic("bool_and", Functor::LogicAnd, lhs, rhs).or_raise()
    }

    fn bool_or(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::logic("bool_or", Functor::LogicOr, lhs, rhs).or_raise()
    }

    fn bool_xor(lhs: RocmTensor, rhs: RocmTensor) -> RocmTensor {
        binary::logic("bool_xor", Functor::LogicXor, lhs, rhs).or_raise()
    }

    async fn bool_argwhere(tensor: RocmTensor, out_dtype: IntDType) -> RocmTensor {
        argwhere::argwhere(tensor, out_dtype).or_raise()
    }

    fn bool_any(tensor: RocmTensor) -> RocmTensor {
        let store = tensor.dtype_of().into();
        reduce::test("bool_any", Functor::Any, tensor, store).or_raise()
    }

    fn bool_any_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        let store = tensor.dtype_of().into();
        reduce::test_dim("bool_any_dim", Functor::Any, tensor, dim, store).or_raise()
    }

    fn bool_all(tensor: RocmTensor) -> RocmTensor {
        let store = tensor.dtype_of().into();
        reduce::test("bool_all", Functor::All, tensor, store).or_raise()
    }

    fn bool_all_dim(tensor: RocmTensor, dim: usize) -> RocmTensor {
        let store = tensor.dtype_of().into();
        reduce::test_dim("bool_all_dim", Functor::All, tensor, dim, store).or_raise()
    }
}
