//! Reductions along one axis or over all elements.

use std::sync::Arc;

use burn_backend::Scalar;
use burn_std::{BoolDType, BoolStore, DType, IntDType};
use hip::{Device, Grid, KernelName};

use super::binary::inverse;
use super::cast::cast;
use super::data::{full_on, packed};
use super::launch::rows;
use super::view::{permute, reshape};
use crate::dtype::{Value, is_index};
use crate::error::invalid;
use crate::tensor::{RocmTensor, check_axis};

/// Elements that one block sums of a tensor reduced whole: partial results beyond this many are summed again.
const CHUNK: usize = 16 * 1024;

/// A packed tensor seen as `[outer, len, inner]` around the axis reduced.
pub(super) struct Lines {
    pub tensor: RocmTensor,
    pub outer: usize,
    pub len: usize,
    pub inner: usize,
    /// The shape of the result, in the order of axes worked in.
    dims: Vec<usize>,
    /// What brings the result's axes back into the caller's order.
    back: Option<Vec<usize>>,
}

impl Lines {
    /// The axis of `tensor`, in the order that its elements lie in where that needs no copy.
    pub fn new(op: &'static str, tensor: RocmTensor, axis: usize) -> hip::Result<Self> {
        check_axis(op, &tensor, axis)?;
        let order = if tensor.is_contiguous() { None } else { tensor.layout().dense_order() };
        let (tensor, axis, back) = match order {
            Some(order) => {
                let back = inverse(&order);
                (permute(tensor, &order)?, back[axis], Some(back))
            }
            None => (tensor, axis, None),
        };
        let tensor = packed(tensor)?;
        let mut dims = tensor.dims().to_vec();
        let outer = dims[..axis].iter().product();
        let inner = dims[axis + 1..].iter().product();
        let len = dims[axis];
        dims[axis] = 1;
        Ok(Self { tensor, outer, len, inner, dims, back })
    }

    /// A result with the axis of size 1.
    fn output(&self, dtype: DType) -> hip::Result<RocmTensor> {
        RocmTensor::empty(self.tensor.hip_device(), self.dims.clone(), dtype)
    }

    /// The result's axes in the caller's order.
    pub fn restore(&self, out: RocmTensor) -> hip::Result<RocmTensor> {
        match &self.back {
            Some(back) => permute(out, back),
            None => Ok(out),
        }
    }

    /// Launches the row kernel, or the column kernel where elements of a line lie apart.
    pub fn launch(
        &self,
        op: &'static str,
        names: [KernelName; 2],
        outputs: &[&RocmTensor],
    ) -> hip::Result<()> {
        let device = self.tensor.hip_device();
        let (outer, len, inner) = (self.outer, self.len, self.inner);
        if outer * inner == 0 {
            return Ok(());
        }
        let [row, column] = names;
        let u = |v: usize| Value::U64(v as u64);
        match inner {
            1 => {
                let grid = device.grid_rows(outer, len);
                rows(op, device, row, grid, &[u(outer), u(len)], &[&self.tensor], &[], outputs)
            }
            _ => {
                let grid = column_grid(device, outer * inner, len);
                rows(op, device, column, grid, &[u(outer), u(len), u(inner)], &[&self.tensor], &[], outputs)
            }
        }
    }
}

/// A grid for one thread a column, counting each column's elements as its work.
fn column_grid(device: &Arc<Device>, columns: usize, len: usize) -> Grid {
    let whole = device.grid(columns.saturating_mul(len.max(1)));
    let enough = columns.div_ceil(whole.threads as usize).max(1);
    Grid { blocks: whole.blocks.min(enough.min(u32::MAX as usize) as u32), threads: whole.threads }
}

/// What a reduction gives for no element at all.
fn identity(op: &'static str, functor: &'static str, float: bool) -> hip::Result<Scalar> {
    match functor {
        "Sum" => Ok(0i64.into()),
        "Prod" => Ok(1i64.into()),
        "Mean" if float => Ok(f64::NAN.into()),
        "Mean" => Ok(0i64.into()),
        _ => invalid(op, "at least one element along the axis", "none"),
    }
}

/// The functor's result along an axis, which stays with size 1.
pub(crate) fn reduce_dim(
    op: &'static str,
    functor: &'static str,
    tensor: RocmTensor,
    axis: usize,
) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    let dtype = tensor.dtype_of();
    let lines = Lines::new(op, tensor, axis)?;
    if lines.len == 0 {
        let value = identity(op, functor, ty.is_float())?;
        return lines.restore(full_on(lines.tensor.hip_device(), lines.dims.clone(), value, dtype)?);
    }
    if lines.len == 1 && functor != "MaxAbs" {
        return lines.restore(lines.tensor.clone());
    }
    let out = lines.output(dtype)?;
    let name = |template| KernelName::new(template).name(functor).ty(ty);
    lines.launch(op, [name("reduce_rows"), name("reduce_columns")], &[&out])?;
    lines.restore(out)
}

/// All elements as one row, whatever the order.
fn one_row(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    let tensor = match tensor.layout().dense_order() {
        Some(order) => permute(tensor, &order)?,
        None => tensor,
    };
    let tensor = packed(tensor)?;
    let n = tensor.len();
    reshape(tensor, &[n])
}

/// The functor's result over all elements, of shape `[1]`.
pub(crate) fn reduce(op: &'static str, functor: &'static str, tensor: RocmTensor) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    let dtype = tensor.dtype_of();
    let n = tensor.len();
    if n <= CHUNK {
        return reduce_dim(op, functor, one_row(tensor)?, 0);
    }
    if matches!(dtype, DType::F16 | DType::BF16) && functor != "Max" && functor != "Min" && functor != "MaxAbs" {
        // Partial results in the tensor's own type would round, or overflow, on the way.
        return cast(reduce(op, functor, cast(tensor, DType::F32)?)?, dtype);
    }
    if functor == "Mean" {
        let total = reduce(op, "Sum", tensor)?;
        return super::binary::divide(op, "Div", total, count(n, ty));
    }
    let row = one_row(tensor)?;
    let device = row.hip_device().clone();
    // Whole chunks, then the rest as one more row. Chunks of whole vectors, so that the rest begins aligned.
    let full = n / CHUNK;
    let rest = n - full * CHUNK;
    let partial = RocmTensor::empty(&device, [full + (rest > 0) as usize], dtype)?;
    let kernel = KernelName::new("reduce_rows").name(functor).ty(ty);
    let piece = |start: usize, lines: usize, len: usize, at: usize| -> hip::Result<()> {
        let input = super::view::narrow(row.clone(), 0, start, lines * len)?;
        let output = super::view::narrow(partial.clone(), 0, at, lines)?;
        let dims = [Value::U64(lines as u64), Value::U64(len as u64)];
        rows(op, &device, kernel, device.grid_rows(lines, len), &dims, &[&input], &[], &[&output])
    };
    piece(0, full, CHUNK, 0)?;
    if rest > 0 {
        piece(full * CHUNK, 1, rest, full)?;
    }
    reduce(op, functor, partial)
}

/// An element count as the scalar of a dtype.
fn count(n: usize, ty: hip::DType) -> Scalar {
    if ty.is_float() { (n as f64).into() } else { (n as i64).into() }
}

/// Whether any, or every, element along an axis is true or not zero.
pub(crate) fn test_dim(
    op: &'static str,
    functor: &'static str,
    tensor: RocmTensor,
    axis: usize,
    out: BoolDType,
) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    let lines = Lines::new(op, tensor, axis)?;
    if lines.len == 0 {
        let value: Scalar = (functor == "All").into();
        return lines.restore(full_on(lines.tensor.hip_device(), lines.dims.clone(), value, out.into())?);
    }
    let answer = lines.output(DType::Bool(BoolStore::Native))?;
    let name = |template| KernelName::new(template).name(functor).ty(ty);
    lines.launch(op, [name("reduce_bool_rows"), name("reduce_bool_columns")], &[&answer])?;
    lines.restore(cast(answer, out.into())?)
}

/// Whether any, or every, element is true or not zero, of shape `[1]`.
pub(crate) fn test(
    op: &'static str,
    functor: &'static str,
    tensor: RocmTensor,
    out: BoolDType,
) -> hip::Result<RocmTensor> {
    let row = one_row(tensor)?;
    let n = row.len();
    if n <= CHUNK {
        return test_dim(op, functor, row, 0, out);
    }
    let full = n / CHUNK * CHUNK;
    let head = reshape(super::view::narrow(row.clone(), 0, 0, full)?, &[n / CHUNK, CHUNK])?;
    let head = reshape(test_dim(op, functor, head, 1, out)?, &[n / CHUNK])?;
    let parts = match n - full {
        0 => head,
        rest => {
            let tail = test_dim(op, functor, super::view::narrow(row, 0, full, rest)?, 0, out)?;
            super::view::cat(vec![head, tail], 0)?
        }
    };
    test(op, functor, parts, out)
}

/// The extreme along an axis and its first index, which has the dtype asked for.
pub(crate) fn extreme_with_index(
    op: &'static str,
    functor: &'static str,
    tensor: RocmTensor,
    axis: usize,
    index: IntDType,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let ty = tensor.kernel_type()?;
    let dtype = tensor.dtype_of();
    let lines = Lines::new(op, tensor, axis)?;
    let index: DType = index.into();
    if lines.len == 0 {
        return invalid(op, "at least one element along the axis", "none");
    }
    let values = lines.output(dtype)?;
    // The kernels write 32 and 64-bit indices; narrower ones are cast, as the host's would be.
    let indices = lines.output(if is_index(index) { index } else { DType::I64 })?;
    let position = indices.kernel_type()?;
    let name = |template| KernelName::new(template).name(functor).ty(ty).ty(position);
    lines.launch(op, [name("arg_rows"), name("arg_columns")], &[&values, &indices])?;
    Ok((lines.restore(values)?, lines.restore(cast(indices, index)?)?))
}

/// [`extreme_with_index`] of an int tensor, whose indices have the tensor's own dtype.
pub(crate) fn int_extreme(
    op: &'static str,
    functor: &'static str,
    tensor: RocmTensor,
    axis: usize,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let index = tensor.dtype_of().into();
    extreme_with_index(op, functor, tensor, axis, index)
}
