//! Gather and scatter by tuples of indices. A kernel first turns each tuple into one index into the
//! leading dims, which are merged into one.

use burn_std::DType;
use hip::{Fault, Functor, Template};

use super::cast::cast;
use super::cat::cat;
use super::copy::{contiguous, packed, writable};
use super::create::{arange, full_on};
use super::index::{self, Join, check_list, check_size, check_within, pick_rows, put_rows, select_into};
use super::launch::rows;
use super::sort::sort_with_indices;
use super::view::{expand, reshape, swap_dims};
use crate::arg::Arg;
use crate::burn::IndexingUpdateOp;
use crate::dtype::raw_type;
use crate::error::invalid;
use crate::tensor::{RocmTensor, check_axis, one_device, one_dtype};

/// The most dims whose indices one launch reads: `Sizes` in the kernels.
const DIMS: usize = 8;

/// From this many elements in a slice on, sorting the indices costs less than one atomic for each
/// element. On two cores of a Xeon, 10,000 slices of 64 elements took 0.7 ms sorted and 2.5 ms by
/// atomics; 100,000 slices of 1 took 2.4 and 0.6 ms.
const WIDE: usize = 16;

/// A tensor as seen by tuples of `length` indices: `slices` slices, each of the shape `rest`.
struct Slices {
    length: usize,
    tuples: Vec<usize>,
    slices: usize,
    rest: Vec<usize>,
}

impl Slices {
    fn new(op: &'static str, tensor: &RocmTensor, indices: &RocmTensor) -> hip::Result<Self> {
        let dims = tensor.dims();
        match indices.dims().split_last() {
            Some((&length, tuples)) if length <= dims.len() => Ok(Self {
                length,
                tuples: tuples.to_vec(),
                slices: dims[..length].iter().product(),
                rest: dims[length..].to_vec(),
            }),
            _ => invalid(
                op,
                format!("indices whose last dim is at most the rank of {dims:?}"),
                format!("{:?}", indices.dims()),
            ),
        }
    }

    fn count(&self) -> usize {
        self.tuples.iter().product()
    }

    fn slice(&self) -> usize {
        self.rest.iter().product()
    }

    /// The shape of the tuples, followed by that of a slice.
    fn shape(&self) -> Vec<usize> {
        [&self.tuples[..], &self.rest[..]].concat()
    }

    /// The index of the slice that each tuple selects, -1 for a tuple out of range.
    fn places(
        &self,
        op: &'static str,
        tensor: &RocmTensor,
        indices: RocmTensor,
        dtype: DType,
    ) -> hip::Result<RocmTensor> {
        let (device, count) = (tensor.hip_device(), self.count());
        if self.length == 0 {
            return full_on(device, [count], 0i64.into(), dtype);
        }
        let out = RocmTensor::empty(device, [count], dtype)?;
        if count == 0 {
            return Ok(out);
        }
        if self.slice() > 0 {
            check_size(op, self.slices)?;
        }
        let indices = contiguous(index::index(op, indices)?)?;
        let kernel = Template::tuple_places.ty(indices.kernel_type()?).ty(out.kernel_type()?);
        for (part, sizes) in tensor.dims()[..self.length].chunks(DIMS).enumerate() {
            let mut dims = [1; DIMS];
            for (to, &from) in dims.iter_mut().zip(sizes) {
                *to = from as u64;
            }
            let u = |v: usize| Arg::U32(v as u32);
            let head =
                [Arg::U64(count as u64), u(self.length), u(part * DIMS), u(sizes.len()), Arg::U64x8(dims)];
            let flag = [Arg::Flag(op, Fault::Index)];
            rows(op, device, kernel, device.grid(count), &head, &[&indices], &flag, &[&out])?;
        }
        Ok(out)
    }

    /// The shorter integer type that can hold the index of a slice.
    fn place_type(&self) -> DType {
        if self.slices <= i32::MAX as usize { DType::I32 } else { DType::I64 }
    }
}

/// The tensor's slices at tuples of indices, which lie along the last dim of `indices`.
pub(crate) fn gather(op: &'static str, tensor: RocmTensor, indices: RocmTensor) -> hip::Result<RocmTensor> {
    one_device(op, &[&tensor, &indices])?;
    let slices = Slices::new(op, &tensor, &indices)?;
    let places = slices.places(op, &tensor, indices, slices.place_type())?;
    let table = reshape(contiguous(tensor)?, &[slices.slices, slices.slice()])?;
    reshape(pick_rows(op, &table, &places)?, &slices.shape())
}

/// Combines each slice of `value` with the tensor's slice at its tuple of indices. If several
/// tuples select one slice, sums of floats and assignments depend on the order. The order is that
/// of the tuples if the slices are wide or `BURN_ROCM_DETERMINISTIC` is set; otherwise it is
/// undefined.
pub(crate) fn scatter(
    op: &'static str,
    tensor: RocmTensor,
    indices: RocmTensor,
    value: RocmTensor,
    update: IndexingUpdateOp,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&tensor, &indices, &value])?;
    one_dtype(op, &[&tensor, &value])?;
    let slices = Slices::new(op, &tensor, &indices)?;
    let shape = slices.shape();
    if value.dims() != shape {
        return invalid(op, format!("values of shape {shape:?}"), format!("{:?}", value.dims()));
    }
    let dims = tensor.dims().to_vec();
    let (count, slice) = (slices.count(), slices.slice());
    let join = match update {
        IndexingUpdateOp::Assign => Some(Join::Assign),
        IndexingUpdateOp::Add => Some(Join::Add),
        IndexingUpdateOp::Mul | IndexingUpdateOp::Min | IndexingUpdateOp::Max => None,
    };
    let ty = tensor.kernel_type()?;
    let value = reshape(value, &[count, slice])?;
    if let Some(join) = join.filter(|join| slice < WIDE && join.any_order(ty)) {
        let places = slices.places(op, &tensor, indices, slices.place_type())?;
        let out = reshape(writable(tensor)?, &[slices.slices, slice])?;
        put_rows(op, &out, &places, &value, join)?;
        return reshape(out, &dims);
    }
    let places = slices.places(op, &tensor, indices, slices.place_type())?;
    let out = writable(tensor)?;
    if value.is_empty() {
        return Ok(out);
    }
    // The sort is stable, so updates of one slice keep their order.
    let (places, order) = sort_with_indices(op, places, 0, false, DType::I32)?;
    let places = cast(places, DType::I64)?;
    let value = packed(value)?;
    let kernel = Template::scatter_sorted.name();
    let kernel = match update {
        IndexingUpdateOp::Assign => kernel.functor(Functor::Assign).ty(raw_type(ty)),
        IndexingUpdateOp::Add => kernel.functor(Functor::Add).ty(ty),
        IndexingUpdateOp::Mul => kernel.functor(Functor::Mul).ty(ty),
        IndexingUpdateOp::Min => kernel.functor(Functor::Min).ty(ty),
        IndexingUpdateOp::Max => kernel.functor(Functor::Max).ty(ty),
    };
    let device = out.hip_device();
    let head = [count, slice].map(|v| Arg::U64(v as u64));
    rows(op, device, kernel, device.grid(count * slice), &head, &[&places, &order, &value], &[], &[&out])?;
    Ok(out)
}

/// Combines each slice of `value` along an axis with the tensor's slice at the corresponding index
/// of a list.
pub(crate) fn select_assign(
    op: &'static str,
    tensor: RocmTensor,
    axis: usize,
    indices: RocmTensor,
    value: RocmTensor,
    update: IndexingUpdateOp,
) -> hip::Result<RocmTensor> {
    if update == IndexingUpdateOp::Add {
        return select_into(op, tensor, axis, indices, value, Join::Add);
    }
    check_axis(op, &tensor, axis)?;
    check_list(op, &indices)?;
    let mut shape = tensor.dims().to_vec();
    shape[axis] = indices.len();
    if value.dims() != shape {
        return invalid(op, format!("values of shape {shape:?}"), format!("{:?}", value.dims()));
    }
    let tuples = [indices.len(), 1];
    let indices = reshape(indices, &tuples)?;
    let out = scatter(op, swap_dims(tensor, 0, axis)?, indices, swap_dims(value, 0, axis)?, update)?;
    swap_dims(out, 0, axis)
}

/// From this many elements of the tensor for each value on, halves are added in place. With fewer, a
/// tensor in f32 costs less than a sort of the values.
const FEW: usize = 16;

/// `tensor[indices[i][j]][j] += value[i][j]` for axis 0, and so for the others (or `|=` for bools).
pub(crate) fn scatter_joined(
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
    let indices = index::index(op, indices)?;
    let dtype = tensor.dtype_of();
    // Each addition in a half would round, and sums of many terms would stagnate: they are kept in
    // f32 and rounded once. GPUs add f32 by atomics, in no fixed order unless `hip::deterministic()`.
    // Along a list of indices, `segment::add` rounds once.
    let widened = join == Join::Add
        && matches!(dtype, DType::F16 | DType::BF16)
        && indices.layout().rank() > 1
        && !value.is_empty();
    // Sorted values are added so in place. For few, that takes far less memory than a copy in f32.
    if widened && value.len() <= tensor.len() / FEW && value.len() <= i32::MAX as usize {
        return scatter_tuples(op, axis, tensor, indices, value, IndexingUpdateOp::Add);
    }
    let [tensor, value] = match widened {
        true => [cast(tensor, DType::F32)?, cast(value, DType::F32)?],
        false => [tensor, value],
    };
    let out = writable(tensor)?;
    index::put(op, index::flag(op), axis, &out, &indices, indices.layout().strides(), &value, join)?;
    cast(out, dtype)
}

/// Combines each element of `value` with the element at its index along an axis and at its own
/// position in the other axes.
pub(crate) fn scatter_along(
    op: &'static str,
    axis: usize,
    tensor: RocmTensor,
    indices: RocmTensor,
    value: RocmTensor,
    update: IndexingUpdateOp,
) -> hip::Result<RocmTensor> {
    if update == IndexingUpdateOp::Add {
        return scatter_joined(op, axis, tensor, indices, value, Join::Add);
    }
    check_within(op, &tensor, indices.dims(), axis)?;
    if indices.dims() != value.dims() {
        return invalid(op, format!("values of shape {:?}", indices.dims()), format!("{:?}", value.dims()));
    }
    scatter_tuples(op, axis, tensor, index::index(op, indices)?, value, update)
}

/// As [`scatter_along`], by [`scatter`]. The caller has checked the shapes and the indices' type.
fn scatter_tuples(
    op: &'static str,
    axis: usize,
    tensor: RocmTensor,
    indices: RocmTensor,
    value: RocmTensor,
    update: IndexingUpdateOp,
) -> hip::Result<RocmTensor> {
    // The tuple of an element: its own position in every axis but one, and its index in that axis.
    let (shape, count) = (indices.dims().to_vec(), indices.len());
    let (device, dtype) = (indices.rocm_device(), indices.dtype_of());
    let mut tuple = Vec::with_capacity(shape.len());
    for (d, &size) in shape.iter().enumerate() {
        let places = if d == axis {
            indices.clone()
        } else {
            let mut line = vec![1; shape.len()];
            line[d] = size;
            expand(reshape(arange(&device, 0..size as i64, 1, dtype)?, &line)?, &shape)?
        };
        tuple.push(reshape(places, &[count, 1])?);
    }
    scatter(op, tensor, cat(tuple, 1)?, reshape(value, &[count])?, update)
}
