//! Tensors `[batch, channels, height, width]` whose channels are innermost in memory (NHWC). Their
//! strides show the order, and their shape stays as it is. Ops that take them compute on their rows:
//! the contiguous view `[batch, height, width, channels]`.

use burn_std::DType;
use hip::ChannelsLast;

use super::copy::packed;
use super::view::{expand, permute};
use crate::tensor::RocmTensor;

/// Whether 2-D convolutions of this dtype may put channels last: f16 and bf16 with
/// `BURN_ROCM_CHANNELS_LAST=on`. Libraries run these two on matrix cores, whose kernels read NHWC.
/// cuDNN's f32 convolutions took twice the time in NHWC, so f32 never changes its order.
pub(crate) fn is_on(dtype: DType) -> hip::Result<bool> {
    Ok(matches!(dtype, DType::F16 | DType::BF16) && hip::channels_last()? == ChannelsLast::On)
}

/// Whether the elements of a tensor of rank 4 lie in NHWC order without gaps, and not in row-major
/// order as well.
pub(crate) fn is_channels_last(tensor: &RocmTensor) -> bool {
    let (&[_, channels, height, width], &[by_sample, by_channel, by_row, by_column]) =
        (tensor.dims(), tensor.layout().strides())
    else {
        return false;
    };
    let mut step = 1;
    let axes = [(channels, by_channel), (width, by_column), (height, by_row), (tensor.dims()[0], by_sample)];
    let dense = axes.into_iter().all(|(dim, stride)| {
        let fits = dim == 1 || stride == step;
        step *= dim as isize;
        fits
    });
    dense && !tensor.is_contiguous()
}

/// A tensor of rank 4 seen as `[batch, height, width, channels]`.
pub(crate) fn rows_of(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    permute(tensor, &[0, 2, 3, 1])
}

/// Undoes [`rows_of`].
pub(crate) fn from_rows(rows: RocmTensor) -> hip::Result<RocmTensor> {
    permute(rows, &[0, 3, 1, 2])
}

/// The packed rows of a tensor of rank 4: a view if its channels are last, else a copy.
pub(crate) fn packed_rows(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    packed(rows_of(tensor)?)
}

/// The rows of an element-wise op's operands, which broadcast to `shape`; `None` if the op is not to
/// compute in NHWC order. It is if an operand of this shape has its channels last, and
/// - each other operand has them last too or is broadcast, or
/// - convolutions of the first operand's dtype put channels last. Operands in another order are then
///   copied.
pub(crate) fn operands<const N: usize>(
    operands: [&RocmTensor; N],
    shape: &[usize],
) -> hip::Result<Option<[RocmTensor; N]>> {
    let last = |tensor: &&RocmTensor| is_channels_last(tensor);
    if !operands.iter().any(|operand| operand.dims() == shape && last(operand)) {
        return Ok(None);
    }
    let fits = |operand: &&RocmTensor| operand.dims() != shape || last(operand);
    if !operands.iter().all(fits) && !is_on(operands[0].dtype_of())? {
        return Ok(None);
    }
    let rows = |operand: &RocmTensor| match operand.dims() == shape {
        true => packed_rows(operand.clone()),
        false => rows_of(expand(operand.clone(), shape)?),
    };
    let rows = operands.into_iter().map(rows).collect::<hip::Result<Vec<_>>>()?;
    Ok(rows.try_into().ok())
}

/// The packed rows of tensors of one shape, of which one has its channels last; `None` otherwise.
pub(crate) fn same_order<const N: usize>(tensors: [&RocmTensor; N]) -> hip::Result<Option<[RocmTensor; N]>> {
    match tensors.iter().all(|tensor| tensor.dims() == tensors[0].dims()) {
        true => operands(tensors, tensors[0].dims()),
        false => Ok(None),
    }
}
