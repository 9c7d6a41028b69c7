//! Ops that read or write where an int tensor says.

use burn_std::DType;
use hip::KernelName;

use super::cast::cast;
use super::data::writable;
use super::launch::{MAX_REACH, Operand, Output, Walk, rows};
use crate::dtype::{Value, is_index, raw_type};
use crate::error::{invalid, unsupported};
use crate::tensor::{RocmTensor, check_axis, one_device, one_dtype};

/// Indices as the kernels read them: 32 or 64 bits, signed.
fn index(op: &'static str, indices: RocmTensor) -> hip::Result<RocmTensor> {
    let dtype = indices.dtype_of();
    if is_index(dtype) {
        return Ok(indices);
    }
    if !dtype.is_int() && !dtype.is_uint() {
        return invalid(op, "indices of an int type", dtype.name());
    }
    cast(indices, DType::I64)
}

/// That `shape` is within `tensor`'s in every axis but `axis`.
fn check_within(op: &'static str, tensor: &RocmTensor, shape: &[usize], axis: usize) -> hip::Result<()> {
    check_axis(op, tensor, axis)?;
    let dims = tensor.dims();
    let fits = dims.len() == shape.len() && (0..dims.len()).all(|d| d == axis || shape[d] <= dims[d]);
    if !fits {
        return invalid(op, format!("indices within {dims:?} but for axis {axis}"), format!("{shape:?}"));
    }
    Ok(())
}

/// The strides of `tensor` with the axis' own taken out, and that one with the axis' size as the kernels take them.
fn without_axis(op: &'static str, tensor: &RocmTensor, axis: usize) -> hip::Result<(Vec<isize>, [Value; 2])> {
    let span = tensor.layout().span().map_or(0, |(low, high)| high - low);
    if span > MAX_REACH {
        return unsupported(op, format!("{} of more than {MAX_REACH} elements", tensor.dtype_of().name()));
    }
    let mut strides = tensor.layout().strides().to_vec();
    let step = core::mem::replace(&mut strides[axis], 0);
    Ok((strides, [Value::I32(step as i32), Value::U32(tensor.dims()[axis] as u32)]))
}

/// Element `[.., indices[..], ..]` of the tensor, over `shape`, the indices read with the strides given.
fn pick(
    op: &'static str,
    axis: usize,
    tensor: &RocmTensor,
    indices: &RocmTensor,
    index_strides: &[isize],
    shape: &[usize],
) -> hip::Result<RocmTensor> {
    let out = RocmTensor::empty(tensor.hip_device(), shape.to_vec(), tensor.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    let (strides, axis) = without_axis(op, tensor, axis)?;
    Walk::new(
        op,
        KernelName::new("gather").ty(raw_type(tensor.kernel_type()?)).ty(indices.kernel_type()?),
        shape,
        &[Operand::new(tensor, &strides), Operand::new(indices, index_strides)],
        Output::Row(&out),
    )
    .scalars(&axis)
    .launch()?;
    Ok(out)
}

/// `out[i][j] = tensor[indices[i][j]][j]` for axis 0, and so for the others.
pub(crate) fn gather(
    op: &'static str,
    axis: usize,
    tensor: RocmTensor,
    indices: RocmTensor,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&tensor, &indices])?;
    check_within(op, &tensor, indices.dims(), axis)?;
    let indices = index(op, indices)?;
    pick(op, axis, &tensor, &indices, indices.layout().strides(), indices.dims())
}

/// The strides with which a list of indices is read along one axis of a shape.
fn along(indices: &RocmTensor, rank: usize, axis: usize) -> Vec<isize> {
    let mut strides = vec![0; rank];
    strides[axis] = indices.layout().strides()[0];
    strides
}

fn check_list(op: &'static str, indices: &RocmTensor) -> hip::Result<()> {
    match indices.layout().rank() {
        1 => Ok(()),
        rank => invalid(op, "indices of rank 1", format!("rank {rank}")),
    }
}

/// The slices of the tensor along an axis that a list of indices names.
pub(crate) fn select(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    indices: RocmTensor,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&tensor, &indices])?;
    check_axis(op, &tensor, axis)?;
    check_list(op, &indices)?;
    let indices = index(op, indices)?;
    let mut shape = tensor.dims().to_vec();
    shape[axis] = indices.len();
    if axis == 0 && tensor.is_contiguous() && indices.is_contiguous() {
        return select_rows(op, &tensor, &indices, &shape);
    }
    pick(op, axis, &tensor, &indices, &along(&indices, shape.len(), axis), &shape)
}

/// Whole rows of a contiguous tensor.
fn select_rows(
    op: &'static str,
    tensor: &RocmTensor,
    indices: &RocmTensor,
    shape: &[usize],
) -> hip::Result<RocmTensor> {
    let out = RocmTensor::empty(tensor.hip_device(), shape.to_vec(), tensor.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    let bytes = shape[1..].iter().product::<usize>() * tensor.dtype_size();
    let Ok(size) = u32::try_from(tensor.dims()[0]) else {
        return unsupported(op, format!("{} of more than {} rows", tensor.dtype_of().name(), u32::MAX));
    };
    let device = out.hip_device();
    rows(
        op,
        device,
        KernelName::new("select_rows").ty(indices.kernel_type()?),
        device.grid_rows(indices.len(), bytes.div_ceil(16)),
        &[Value::U64(indices.len() as u64), Value::U64(bytes as u64)],
        &[tensor, indices],
        &[Value::U32(size)],
        &[&out],
    )?;
    Ok(out)
}

/// How two values that meet in one element are joined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    Add,
    Or,
}

/// `tensor[indices[i][j]][j] += value[i][j]` for axis 0, and so for the others (or `|=` for bools).
pub(crate) fn scatter(
    op: &'static str,
    axis: usize,
    tensor: RocmTensor,
    indices: RocmTensor,
    value: RocmTensor,
    join: Join,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&tensor, &indices, &value])?;
    one_dtype(op, &[&tensor, &value])?;
    check_within(op, &tensor, indices.dims(), axis)?;
    if indices.dims() != value.dims() {
        return invalid(op, format!("values of shape {:?}", indices.dims()), format!("{:?}", value.dims()));
    }
    let indices = index(op, indices)?;
    let out = writable(tensor)?;
    put(op, axis, &out, &indices, indices.layout().strides(), &value, join)?;
    Ok(out)
}

/// Adds each slice of `value` along an axis to the slice of the tensor that a list of indices names.
pub(crate) fn select_into(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    indices: RocmTensor,
    value: RocmTensor,
    join: Join,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&tensor, &indices, &value])?;
    one_dtype(op, &[&tensor, &value])?;
    check_axis(op, &tensor, axis)?;
    check_list(op, &indices)?;
    let mut shape = tensor.dims().to_vec();
    shape[axis] = indices.len();
    if value.dims() != shape {
        return invalid(op, format!("values of shape {shape:?}"), format!("{:?}", value.dims()));
    }
    let indices = index(op, indices)?;
    let out = writable(tensor)?;
    put(op, axis, &out, &indices, &along(&indices, shape.len(), axis), &value, join)?;
    Ok(out)
}

/// Whether the device adds to this type atomically; the others are added by one thread a line.
fn has_atomic_add(ty: hip::DType) -> bool {
    use hip::DType as D;
    matches!(ty, D::F32 | D::F64 | D::I32 | D::U32 | D::I64 | D::U64)
}

fn put(
    op: &'static str,
    axis: usize,
    out: &RocmTensor,
    indices: &RocmTensor,
    index_strides: &[isize],
    value: &RocmTensor,
    join: Join,
) -> hip::Result<()> {
    if value.is_empty() {
        return Ok(());
    }
    let ty = out.kernel_type()?;
    let (out_strides, along_axis) = without_axis(op, out, axis)?;
    let functor = match join {
        Join::Add => "Add",
        Join::Or => "Or",
    };
    let name = |template| -> hip::Result<KernelName> {
        Ok(KernelName::new(template).name(functor).ty(ty).ty(indices.kernel_type()?))
    };
    // Or is the same whatever the order; sums of floats are not, and atomic ones come in any.
    let unordered = join == Join::Or || (has_atomic_add(ty) && !(hip::deterministic() && ty.is_float()));
    if unordered {
        return Walk::new(
            op,
            name("scatter")?,
            value.dims(),
            &[Operand::new(indices, index_strides), Operand::whole(value)],
            Output::First(Operand::new(out, &out_strides)),
        )
        .scalars(&along_axis)
        .launch();
    }
    let drop_axis = |strides: &[isize]| -> Vec<isize> {
        strides.iter().enumerate().filter(|&(d, _)| d != axis).map(|(_, &stride)| stride).collect()
    };
    let lines: Vec<usize> =
        value.dims().iter().enumerate().filter(|&(d, _)| d != axis).map(|(_, &dim)| dim).collect();
    let (i, v, o) = (drop_axis(index_strides), drop_axis(value.layout().strides()), drop_axis(&out_strides));
    // One thread a line adds its elements in order.
    let steps = [Value::I32(index_strides[axis] as i32), Value::I32(value.layout().strides()[axis] as i32)];
    let inputs = [Operand::new(indices, &i), Operand::new(value, &v)];
    Walk::new(op, name("scatter_ordered")?, &lines, &inputs, Output::First(Operand::new(out, &o)))
        .around_metadata(&[Value::U32(value.dims()[axis] as u32)], &steps)
        .scalars(&along_axis)
        .launch()
}
