//! Ops that read or write elements at the indices that an int tensor holds.

use burn_std::DType;
use hip::{Device, Fault, Functor, KernelName, Template};

use super::cast::cast;
use super::copy::writable;
use super::launch::{Operand, Output, Walk, packed, rows, submit};
use super::segment;
use crate::arg::Arg;
use crate::dtype::{is_index, raw_type};
use crate::error::invalid;
use crate::tensor::{RocmTensor, check_axis, one_device, one_dtype};

/// The indices in a type that the kernels read: signed, of 32 or 64 bits.
pub(crate) fn index(op: &'static str, indices: RocmTensor) -> hip::Result<RocmTensor> {
    let dtype = indices.dtype_of();
    if is_index(dtype) {
        return Ok(indices);
    }
    if !dtype.is_int() && !dtype.is_uint() {
        return invalid(op, "indices of an int type", dtype.name());
    }
    cast(indices, DType::I64)
}

/// Checks that `shape` is no larger than the tensor's shape in every axis but `axis`.
pub(super) fn check_within(
    op: &'static str,
    tensor: &RocmTensor,
    shape: &[usize],
    axis: usize,
) -> hip::Result<()> {
    check_axis(op, tensor, axis)?;
    let dims = tensor.dims();
    let fits = dims.len() == shape.len() && (0..dims.len()).all(|d| d == axis || shape[d] <= dims[d]);
    if !fits {
        return invalid(
            op,
            format!("indices of a shape within {dims:?}, except along axis {axis}"),
            format!("{shape:?}"),
        );
    }
    Ok(())
}

/// The strides of `tensor` with that of `axis` set to 0, then the stride and the size of `axis` as
/// kernel arguments.
fn without_axis(tensor: &RocmTensor, axis: usize) -> (Vec<isize>, [Arg; 2]) {
    let mut strides = tensor.layout().strides().to_vec();
    let step = core::mem::replace(&mut strides[axis], 0);
    let size = tensor.dims()[axis] as u64;
    (strides, [Arg::I64(step as i64), Arg::U64(size)])
}

/// The fault flag that the kernel raises for an index out of range.
pub(super) fn flag(op: &'static str) -> Arg {
    Arg::Flag(op, Fault::Index)
}

/// Checks that the indexed axis has elements. If it has none, every index is out of range, and the
/// host knows so before any kernel runs.
pub(crate) fn check_size(op: &'static str, size: usize) -> hip::Result<()> {
    match size {
        0 => invalid(op, "indices from 0 to below the axis' size", "an axis of size 0"),
        _ => Ok(()),
    }
}

/// No fault flag, for indices that another kernel has checked. A fault found there is kept with the
/// indices, and the result takes it over.
const NO_FLAG: Arg = Arg::U64(0);

/// Element `[.., indices[..], ..]` of the tensor for every index of `shape`. The indices are read
/// by the given strides.
fn pick(
    op: &'static str,
    flag: Arg,
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
    check_size(op, tensor.dims()[axis])?;
    let (strides, [step, size]) = without_axis(tensor, axis);
    Walk::new(
        op,
        Template::gather.ty(raw_type(tensor.kernel_type()?)).ty(indices.kernel_type()?),
        shape,
        &[Operand::new(tensor, &strides), Operand::new(indices, index_strides)],
        Output::Row(&out),
    )
    .scalars(&[step, size, flag])
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
    pick(op, flag(op), axis, &tensor, &indices, indices.layout().strides(), indices.dims())
}

/// The strides that read a list of indices along one axis of a shape of `rank` axes.
fn along(indices: &RocmTensor, rank: usize, axis: usize) -> Vec<isize> {
    let mut strides = vec![0; rank];
    strides[axis] = indices.layout().strides()[0];
    strides
}

pub(super) fn check_list(op: &'static str, indices: &RocmTensor) -> hip::Result<()> {
    match indices.layout().rank() {
        1 => Ok(()),
        rank => invalid(op, "indices of rank 1", format!("rank {rank}")),
    }
}

/// The fewest bytes of a row that a whole block copies. With shorter rows, most of its threads
/// would be idle.
const LEAST_ROW: usize = 64;

/// The tensor's slices along an axis at a list of indices.
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
    select_along(op, flag(op), &tensor, axis, &indices, &shape)
}

/// The tensor's slices along an axis at `indices`; the result has the shape `shape`.
fn select_along(
    op: &'static str,
    flag: Arg,
    tensor: &RocmTensor,
    axis: usize,
    indices: &RocmTensor,
    shape: &[usize],
) -> hip::Result<RocmTensor> {
    let row = shape[axis + 1..].iter().product::<usize>() * tensor.dtype_size();
    if axis == 0 && row >= LEAST_ROW && tensor.is_contiguous() && indices.is_contiguous() {
        return select_rows(op, flag, tensor, indices, shape);
    }
    pick(op, flag, axis, tensor, indices, &along(indices, shape.len(), axis), shape)
}

/// [`select`] on the first of two axes, for indices that a kernel has checked.
pub(super) fn pick_rows(
    op: &'static str,
    table: &RocmTensor,
    places: &RocmTensor,
) -> hip::Result<RocmTensor> {
    let shape = [places.len(), table.dims()[1]];
    select_along(op, NO_FLAG, table, 0, places, &shape)
}

/// Whole rows of a contiguous tensor.
fn select_rows(
    op: &'static str,
    flag: Arg,
    tensor: &RocmTensor,
    indices: &RocmTensor,
    shape: &[usize],
) -> hip::Result<RocmTensor> {
    let out = RocmTensor::empty(tensor.hip_device(), shape.to_vec(), tensor.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    check_size(op, tensor.dims()[0])?;
    let bytes = shape[1..].iter().product::<usize>() * tensor.dtype_size();
    let device = out.hip_device();
    let launch = packed(
        op,
        device,
        Template::select_rows.ty(indices.kernel_type()?),
        &[Arg::U64(indices.len() as u64), Arg::U64(bytes as u64)],
        &[tensor, indices],
        &[Arg::U64(tensor.dims()[0] as u64), flag],
        &[&out],
    )?;
    // It reads only the rows that it copies.
    let moved = || indices.len() * (2 * bytes + indices.dtype_size());
    submit(launch.moves(moved), device.grid_rows(indices.len(), bytes.div_ceil(16)))?;
    Ok(out)
}

/// How a value is combined with the element at its index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    Add,
    Or,
    Assign,
}

impl Join {
    /// Whether values with the same index may be combined in any order. `Or` gives the same result
    /// in any order; sums of floats and assignments do not. Sums also need an atomic addition,
    /// which not every type has.
    pub(super) fn any_order(self, ty: hip::DType) -> bool {
        match self {
            Self::Or => true,
            Self::Add => has_atomic_add(ty) && !(hip::deterministic() && ty.is_float()),
            Self::Assign => !hip::deterministic(),
        }
    }
}

/// Combines each slice of `value` along an axis with the tensor's slice at the corresponding index
/// of a list.
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
    put(op, flag(op), axis, &out, &indices, &along(&indices, shape.len(), axis), &value, join)?;
    Ok(out)
}

/// Whether the device has an atomic addition for this type. Without one, a single thread adds all
/// values of a line.
fn has_atomic_add(ty: hip::DType) -> bool {
    use hip::DType as D;
    matches!(ty, D::F32 | D::F64 | D::I32 | D::U32 | D::I64 | D::U64)
}

/// Combines each row of `value` with the row of `out` at its index. Another kernel has checked the
/// indices.
pub(super) fn put_rows(
    op: &'static str,
    out: &RocmTensor,
    places: &RocmTensor,
    value: &RocmTensor,
    join: Join,
) -> hip::Result<()> {
    put(op, NO_FLAG, 0, out, places, &along(places, 2, 0), value, join)
}

/// Whether one thread for each value combines it with its element, whatever the order.
pub(super) fn joins_in_any_order(device: &Device, ty: hip::DType, join: Join) -> bool {
    // On the CPU device, whose blocks have one thread, adding in order costs less than atomics.
    let in_order = join == Join::Add && device.info().max_threads_per_block == 1;
    join.any_order(ty) && !in_order
}

/// The fewest columns that a block of `scatter_columns` takes.
const COLUMNS_PER_BLOCK: usize = 256;

#[allow(clippy::too_many_arguments)]
pub(super) fn put(
    op: &'static str,
    flag: Arg,
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
    let ty = match join {
        Join::Assign => raw_type(out.kernel_type()?),
        Join::Add | Join::Or => out.kernel_type()?,
    };
    check_size(op, out.dims()[axis])?;
    let (out_strides, [step, size]) = without_axis(out, axis);
    let along_axis = [step, size, flag];
    let functor = match join {
        Join::Add => Functor::Add,
        Join::Or => Functor::Or,
        Join::Assign => Functor::Assign,
    };
    let name = |template: Template| -> hip::Result<KernelName> {
        Ok(template.functor(functor).ty(ty).ty(indices.kernel_type()?))
    };
    if joins_in_any_order(out.hip_device(), ty, join) {
        return Walk::new(
            op,
            name(Template::scatter)?,
            value.dims(),
            &[Operand::new(indices, index_strides), Operand::whole(value)],
            Output::First(Operand::new(out, &out_strides)),
        )
        .scalars(&along_axis)
        .launch();
    }
    let shared = indices.layout().rank() == 1;
    let dims = value.dims();
    // `scatter_columns` walks values and tensor by one shape, but the values may be narrower than
    // the tensor in any axis.
    let alike = (0..dims.len()).all(|d| d == axis || dims[d] == out.dims()[d]);
    // The CPU device adds f32 and f64 in order, which needs no sort and rounds no more often.
    let serial = out.hip_device().info().max_threads_per_block == 1 && ty.size() >= 4;
    if join == Join::Add && ty.is_float() && shared && alike && out.is_contiguous() && !serial {
        return segment::add(op, flag, axis, out, indices, value);
    }
    if join == Join::Add && alike && out.is_contiguous() && value.is_contiguous() && indices.is_contiguous() {
        let (outer, inner): (usize, usize) =
            (dims[..axis].iter().product(), dims[axis + 1..].iter().product());
        let device = out.hip_device();
        let mut grid = device.grid(value.len());
        // Every block walks all indices, which pays only if it has enough columns.
        let most = (outer * inner).div_ceil(COLUMNS_PER_BLOCK);
        grid.blocks = grid.blocks.min(u32::try_from(most).unwrap_or(u32::MAX));
        let [outer, len, inner, size] =
            [outer, dims[axis], inner, out.dims()[axis]].map(|v| Arg::U64(v as u64));
        let dims = [outer, len, inner, size, Arg::U32(shared.into())];
        let kernel = name(Template::scatter_columns)?;
        return rows(op, device, kernel, grid, &dims, &[indices, value], &[flag], &[out]);
    }
    let drop_axis = |strides: &[isize]| -> Vec<isize> {
        strides.iter().enumerate().filter(|&(d, _)| d != axis).map(|(_, &stride)| stride).collect()
    };
    let lines: Vec<usize> =
        value.dims().iter().enumerate().filter(|&(d, _)| d != axis).map(|(_, &dim)| dim).collect();
    let (i, v, o) = (drop_axis(index_strides), drop_axis(value.layout().strides()), drop_axis(&out_strides));
    // One thread adds the elements of a line in order.
    let steps = [index_strides[axis], value.layout().strides()[axis]].map(|step| Arg::I64(step as i64));
    let inputs = [Operand::new(indices, &i), Operand::new(value, &v)];
    Walk::new(op, name(Template::scatter_ordered)?, &lines, &inputs, Output::First(Operand::new(out, &o)))
        .around_metadata(&[Arg::U64(value.dims()[axis] as u64)], &steps)
        .work(value.dims()[axis])
        .scalars(&along_axis)
        .launch()
}
