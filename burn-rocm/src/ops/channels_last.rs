//! Tensors `[batch, channels, height, width]` whose channels are innermost in memory (NHWC). Their
//! strides show the order, and their shape stays as it is. Ops that take them compute on their rows:
//! the contiguous view `[batch, height, width, channels]`.

use burn_std::DType;
use hip::ChannelsLast;

use super::copy::{copy, packed};
use super::view::{expand, permute};
use crate::tensor::RocmTensor;

/// Whether 2-D convolutions of this dtype may put channels last: f16 and bf16 with
/// `BURN_ROCM_CHANNELS_LAST` `auto` or `on`. Libraries run these two on matrix cores, whose kernels read NHWC.
/// cuDNN's f32 convolutions took twice the time in NHWC, so f32 never changes its order.
pub(crate) fn is_on(dtype: DType) -> hip::Result<bool> {
    Ok(matches!(dtype, DType::F16 | DType::BF16) && hip::channels_last()? != ChannelsLast::Off)
}

/// Whether the elements of a tensor of rank 4 lie in NHWC order without gaps, and not in row-major
/// order as well.
pub fn is_channels_last(tensor: &RocmTensor) -> bool {
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

/// A tensor of rank 4 seen as `[batch, height, width, channels]`, in the same memory.
///
/// # Errors
/// `Invalid` unless the tensor has four axes.
pub fn rows_of(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    permute(tensor, &[0, 2, 3, 1])
}

/// Undoes [`rows_of`].
///
/// # Errors
/// As for [`rows_of`].
pub fn from_rows(rows: RocmTensor) -> hip::Result<RocmTensor> {
    permute(rows, &[0, 3, 1, 2])
}

/// A copy in memory of its own, which no other tensor shares. Channels that are last stay last;
/// every other order becomes row-major.
///
/// # Errors
/// `OutOfMemory`; an error of the device.
pub fn copied(tensor: &RocmTensor) -> hip::Result<RocmTensor> {
    match is_channels_last(tensor) {
        true => from_rows(copy(&rows_of(tensor.clone())?)?),
        false => copy(tensor),
    }
}

/// The packed rows of a tensor of rank 4: a view if its channels are last, else a copy.
pub(crate) fn packed_rows(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    packed(rows_of(tensor)?)
}

/// The operands of an op.
pub(crate) enum Operands<const N: usize> {
    /// Their rows, because the op is to compute in NHWC order.
    Rows([RocmTensor; N]),
    /// As they were given.
    Given([RocmTensor; N]),
}

/// The rows of an element-wise op's operands, which broadcast to `shape`, if the op is to compute in
/// NHWC order. It is if an operand of this shape has its channels last, and
/// - each other operand has them last too or is broadcast, or
/// - convolutions of the first operand's dtype put channels last. Operands in another order are then
///   copied.
///
/// Rows have no other owner than their operand had, so the op may overwrite them as it would the
/// operand.
pub(crate) fn operands<const N: usize>(
    mut operands: [RocmTensor; N],
    shape: &[usize],
) -> hip::Result<Operands<N>> {
    if !operands.iter().any(|operand| operand.dims() == shape && is_channels_last(operand)) {
        return Ok(Operands::Given(operands));
    }
    let fits = |operand: &RocmTensor| operand.dims() != shape || is_channels_last(operand);
    if !operands.iter().all(fits) && !is_on(operands[0].dtype_of())? {
        return Ok(Operands::Given(operands));
    }
    for operand in &mut operands {
        *operand = match operand.dims() == shape {
            true => packed_rows(operand.clone())?,
            false => rows_of(expand(operand.clone(), shape)?)?,
        };
    }
    Ok(Operands::Rows(operands))
}

/// The packed rows of tensors of one shape, if one has its channels last and [`operands`] takes them.
pub(crate) fn same_order<const N: usize>(tensors: [RocmTensor; N]) -> hip::Result<Operands<N>> {
    let shape = tensors[0].dims().to_vec();
    match tensors.iter().all(|tensor| tensor.dims() == shape) {
        true => operands(tensors, &shape),
        false => Ok(Operands::Given(tensors)),
    }
}
