//! Many tensors in one, for collectives and for ops over all parameters.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use burn_backend::TensorData;
use burn_std::DType;
use hip::{Buffer, Functor, Grid, Launch, Template};

use super::binary::{binary, scalar};
use super::cat::{Copies, fill};
use super::copy::may_be_written;
use super::create::full;
use super::launch::{Beside, flat_in_place, is_packed, submit, submit_beside};
use super::view::{expand, narrow, reshape};
use crate::arg::compute;
use crate::device::RocmDevice;
use crate::error::invalid;
use crate::tensor::{RocmTensor, float_type, one_device, one_dtype};
use crate::waiting::enqueue_own;

/// Joins the elements of the tensors, each in row-major order, into one tensor with one axis. One
/// launch takes up to 55 tensors; tensors whose bytes or places are no multiples of 16 have their
/// own launches.
///
/// # Errors
/// `Invalid` for no tensors, or for tensors of several dtypes or devices; an error of the device.
pub fn pack(tensors: &[RocmTensor]) -> hip::Result<RocmTensor> {
    const OP: &str = "pack";
    let operands: Vec<&RocmTensor> = tensors.iter().collect();
    if operands.is_empty() {
        return invalid(OP, "at least one tensor", "none");
    }
    let (device, dtype) = (one_device(OP, &operands)?, one_dtype(OP, &operands)?);
    let total: usize = tensors.iter().map(RocmTensor::len).sum();
    let out = RocmTensor::empty(device, [total], dtype)?;
    let mut start = 0;
    let places = tensors.iter().map(|tensor| {
        start += tensor.len();
        part(&out, start - tensor.len(), tensor.dims())
    });
    fill(OP, &out, tensors, places, true)?;
    Ok(out)
}

/// The elements of a range of [`pack`]'s result, as a tensor of their own.
///
/// # Errors
/// As [`pack`]; `Invalid` if the range is empty or ends behind the last element.
pub fn pack_range(tensors: &[RocmTensor], range: Range<usize>) -> hip::Result<RocmTensor> {
    let total: usize = tensors.iter().map(RocmTensor::len).sum();
    if range.is_empty() || range.end > total {
        return invalid("pack_range", format!("a range within 0..{total}, not empty"), format!("{range:?}"));
    }
    let mut start = 0;
    let mut pieces = Vec::new();
    for tensor in tensors {
        let (begin, end) = (range.start.max(start), range.end.min(start + tensor.len()));
        if begin < end {
            pieces.push(part(&flat(tensor.clone())?, begin - start, &[end - begin])?);
        }
        start += tensor.len();
    }
    pack(&pieces)
}

/// The elements in row-major order along one axis; a view where strides can express it.
///
/// # Errors
/// An error of the device.
pub fn flat(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    let elements = tensor.len();
    reshape(tensor, &[elements])
}

/// Launches on another stream that fill a tensor which exists.
pub(crate) struct Fill<'a> {
    /// None of them if the tensor has its elements already.
    copies: Option<Copies<'a>>,
    out: &'a RocmTensor,
    factor: Option<f64>,
}

impl<'a> Fill<'a> {
    /// Packs `tensors` into `out`, and multiplies its elements by the factor. `None` if a tensor's
    /// layout needs more than [`pack`]'s own kernel.
    ///
    /// # Errors
    /// `Invalid` for another dtype or device than that of `out`, or if `out` has not as many
    /// elements, in order; `Unsupported` for a factor of a dtype that is not a float type.
    pub(crate) fn packed(
        tensors: &'a [RocmTensor],
        out: &'a RocmTensor,
        factor: Option<f64>,
    ) -> hip::Result<Option<Self>> {
        const OP: &str = "pack";
        let operands: Vec<&RocmTensor> = tensors.iter().chain([out]).collect();
        one_device(OP, &operands)?;
        one_dtype(OP, &operands)?;
        let total: usize = tensors.iter().map(RocmTensor::len).sum();
        if out.dims() != [total] || !is_packed(out) {
            return invalid(OP, format!("a packed result of [{total}]"), format!("{:?}", out.layout()));
        }
        let mut start = 0;
        let places = tensors.iter().map(|tensor| {
            start += tensor.len();
            part(out, start - tensor.len(), tensor.dims())
        });
        let Some(copies) = Copies::new(OP, out, tensors, places)? else { return Ok(None) };
        Ok(Self::in_place(out, factor)?.map(|fill| Self { copies: Some(copies), ..fill }))
    }

    /// Multiplies the elements by the factor. `None` if the layout needs a copy.
    ///
    /// # Errors
    /// `Unsupported` for a factor of a dtype that is not a float type.
    pub(crate) fn in_place(out: &'a RocmTensor, factor: Option<f64>) -> hip::Result<Option<Self>> {
        if factor.is_some() {
            float_type("scale", out)?;
        }
        Ok(is_packed(out).then_some(Self { copies: None, out, factor }))
    }

    /// Loads the kernels, which may compile them. Returns a function that enqueues their launches,
    /// once.
    pub(crate) fn prepare(self) -> hip::Result<impl FnMut(Beside<'_>) -> hip::Result<()> + use<'a>> {
        let mut launches = self.copies.map_or_else(|| Ok(Vec::new()), Copies::launches)?;
        if let Some(factor) = self.factor {
            launches.push(scaling(self.out, factor)?);
        }
        Ok(move |mut beside: Beside<'_>| {
            launches.drain(..).try_for_each(|(launch, grid)| submit_beside(launch, grid, &mut beside))
        })
    }
}

/// For each tensor, whether it may be overwritten: its elements are packed, no other tensor than these
/// holds the memory, no graph that reads the memory again, and no other one of these has its elements.
/// In a capture, only memory of the graph that is being captured may be overwritten: what was computed
/// before the capture, or by another graph, is not computed anew in a replay. No for `None`.
pub fn held_alone(tensors: &[Option<RocmTensor>]) -> Vec<bool> {
    // The op that was put off may be another holder. If it fails, reads of its result report the error.
    let _ = enqueue_own();
    let mut holders: HashMap<*const Buffer, Vec<&RocmTensor>> = HashMap::new();
    for tensor in tensors.iter().flatten() {
        if let Ok(buffer) = tensor.shared_buffer() {
            holders.entry(Arc::as_ptr(buffer)).or_default().push(tensor);
        }
    }
    let range = |tensor: &RocmTensor| {
        let start = tensor.layout().offset();
        start..start + tensor.len()
    };
    let alone = |tensor: &RocmTensor| {
        let Ok(buffer) = tensor.shared_buffer() else { return false };
        let Some(all) = holders.get(&Arc::as_ptr(buffer)) else { return false };
        let own = range(tensor);
        let is_read_again = match buffer.device().is_capturing() {
            true => !buffer.is_captured(),
            false => buffer.is_of_graph(),
        };
        let meets = |other: &&&RocmTensor| match other.is_contiguous() {
            true => range(other).start < own.end && own.start < range(other).end,
            false => true,
        };
        is_packed(tensor)
            && Arc::strong_count(buffer) == all.len()
            && !buffer.is_foreign()
            && !is_read_again
            && all.iter().filter(meets).count() == 1
    };
    tensors.iter().map(|tensor| tensor.as_ref().is_some_and(alone)).collect()
}

/// The tensors of these shapes that [`pack`] joined, as views. Elements behind the last one are
/// left out.
///
/// # Errors
/// `Invalid` if `packed` has other than one axis, or fewer elements than the shapes.
pub fn unpack<'a>(
    packed: &RocmTensor,
    shapes: impl IntoIterator<Item = &'a [usize]>,
) -> hip::Result<Vec<RocmTensor>> {
    let mut start = 0;
    let next = |shape: &'a [usize]| {
        let elements: usize = shape.iter().product();
        start += elements;
        if packed.dims().len() != 1 || start > packed.len() {
            return invalid(
                "unpack",
                format!("one axis of at least {start}"),
                format!("{:?}", packed.dims()),
            );
        }
        part(packed, start - elements, shape)
    };
    shapes.into_iter().map(next).collect()
}

/// The elements from `start` on as a tensor of this shape.
fn part(packed: &RocmTensor, start: usize, shape: &[usize]) -> hip::Result<RocmTensor> {
    reshape(narrow(packed.clone(), 0, start, shape.iter().product())?, shape)
}

/// A tensor of shape `[1]` with this value.
///
/// # Errors
/// `Unsupported` for a dtype without kernels; an error of the device.
pub fn one_value(device: &RocmDevice, value: f64, dtype: DType) -> hip::Result<RocmTensor> {
    full(device, [1].into(), value.into(), dtype)
}

/// A tensor of shape `[1]` as one of `count` elements, which all share its memory.
///
/// # Errors
/// `Invalid` for a tensor of another shape.
pub fn repeated(tensor: &RocmTensor, count: usize) -> hip::Result<RocmTensor> {
    expand(tensor.clone(), &[count])
}

/// The sum of two tensors of one shape. Overwrites one that has no other owner.
///
/// # Errors
/// `Invalid` for several dtypes, shapes or devices; an error of the device.
pub fn add(lhs: RocmTensor, rhs: RocmTensor) -> hip::Result<RocmTensor> {
    binary("add", Functor::Add, lhs, rhs)
}

/// A float tensor times a factor. Overwrites a tensor that has no other owner.
///
/// # Errors
/// `Unsupported` for a dtype that is not a float type; an error of the device.
pub fn scale(tensor: RocmTensor, factor: f64) -> hip::Result<RocmTensor> {
    float_type("scale", &tensor)?;
    scalar("scale", Functor::Mul, tensor, factor.into())
}

/// A float tensor times a factor, in the tensor's own memory, also if something else holds it.
///
/// # Errors
/// `Unsupported` for a dtype that is not a float type; `Invalid` unless the elements are packed, or
/// for read-only memory; an error of the device.
pub fn scale_in_place(tensor: &RocmTensor, factor: f64) -> hip::Result<()> {
    const OP: &str = "scale";
    float_type(OP, tensor)?;
    may_be_written(OP, tensor)?;
    if tensor.is_empty() {
        return Ok(());
    }
    let (launch, grid) = scaling(tensor, factor)?;
    submit(launch, grid)
}

/// The launch of [`scale_in_place`]: the same op as that of [`scale`].
fn scaling(tensor: &RocmTensor, factor: f64) -> hip::Result<(Launch<'_>, Grid)> {
    let ty = tensor.kernel_type()?;
    let kernel = Template::binary_scalar.functor(Functor::Mul).ty(ty);
    flat_in_place("scale", kernel, tensor, &[compute(factor.into(), ty)])
}

/// The elements of several tensors on the host, with one wait for each device, or for each 64 MiB of
/// a device's.
///
/// Those of a device are from before another thread's replay of a graph or from after it, except for
/// views whose elements are not in row-major order: each is copied first, and a replay may come
/// between two of these copies.
///
/// # Errors
/// An error of the device, or a fault of the tensors.
pub fn read_all(tensors: Vec<RocmTensor>) -> hip::Result<Vec<TensorData>> {
    super::transfer::read_all(tensors)
}
