//! Making tensors, filling them, and moving them between host and devices.

use std::sync::Arc;

use burn_backend::{Scalar, TensorData};
use burn_std::{BoolStore, Bytes, DType, Shape, bf16, f16};
use hip::{Device, KernelName, Operands};

use super::launch::{Operand, Output, Walk, flat, is_packed, put_off, views};
use crate::device::RocmDevice;
use crate::dtype::{Value, bits, kernel_type, raw_type};
use crate::error::invalid;
use crate::layout::collapse;
use crate::staging;
use crate::tensor::RocmTensor;

/// A tensor of unspecified elements.
pub(crate) fn empty(device: &RocmDevice, shape: Shape, dtype: DType) -> hip::Result<RocmTensor> {
    RocmTensor::empty(&device.open()?, shape, dtype)
}

/// A tensor with every element `value`.
pub(crate) fn full(
    device: &RocmDevice,
    shape: Shape,
    value: Scalar,
    dtype: DType,
) -> hip::Result<RocmTensor> {
    full_on(&device.open()?, shape, value, dtype)
}

/// [`full`] on an open device.
pub(crate) fn full_on(
    device: &Arc<Device>,
    shape: impl Into<Shape>,
    value: Scalar,
    dtype: DType,
) -> hip::Result<RocmTensor> {
    let out = RocmTensor::empty(device, shape, dtype)?;
    fill(&out, value)?;
    Ok(out)
}

/// Sets every element of a packed tensor.
fn fill(out: &RocmTensor, value: Scalar) -> hip::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let raw = bits(value, out.dtype_of())?;
    let value = match (out.dtype_of(), raw) {
        (DType::F32, Value::U32(bits)) => Some(f32::from_bits(bits)),
        (DType::F16, Value::U16(bits)) => Some(f16::from_bits(bits).to_f32()),
        (DType::BF16, Value::U16(bits)) => Some(bf16::from_bits(bits).to_f32()),
        _ => None,
    };
    if let Some(value) = value
        && put_off("full", "Fill", Operands::Value(value), out)?
    {
        return Ok(());
    }
    if matches!(raw, Value::U64(0) | Value::U32(0) | Value::U16(0) | Value::U8(0)) {
        let bytes = out.len() * out.dtype_size();
        return out.hip_device().fill_bytes(out.buffer(), out.byte_offset(), 0, bytes);
    }
    let kernel = KernelName::new("fill").ty(raw_type(out.kernel_type()?));
    flat("full", kernel, out.len(), &[], &[raw], &[out])
}

/// `start`, `start + step`, ... below `end`.
pub(crate) fn arange(
    device: &RocmDevice,
    range: core::ops::Range<i64>,
    step: usize,
    dtype: DType,
) -> hip::Result<RocmTensor> {
    if step == 0 {
        return invalid("int_arange_step", "a step from 1", "0");
    }
    let span = range.end.checked_sub(range.start).unwrap_or(i64::MAX).max(0) as usize;
    let out = empty(device, Shape::new([span.div_ceil(step)]), dtype)?;
    if !out.is_empty() {
        let kernel = KernelName::new("arange").ty(out.kernel_type()?);
        let scalars = [Value::I64(range.start), Value::I64(step as i64)];
        flat("int_arange_step", kernel, out.len(), &[], &scalars, &[&out])?;
    }
    Ok(out)
}

/// The host's data on the device.
pub(crate) fn upload(data: TensorData, dtype: DType, device: &RocmDevice) -> hip::Result<RocmTensor> {
    kernel_type(dtype)?;
    let TensorData { bytes, shape, .. } = data;
    let size = shape.as_slice().iter().product::<usize>() * dtype.size();
    if bytes.len() < size {
        return invalid(
            "from_data",
            format!("{size} bytes for {:?} of {}", shape.as_slice(), dtype.name()),
            format!("{} bytes", bytes.len()),
        );
    }
    let device = device.open()?;
    let buffer = match staging::upload(&device, bytes) {
        Ok(buffer) => buffer?,
        Err(bytes) => device.upload(&bytes[..size])?,
    };
    RocmTensor::new(buffer, shape, dtype)
}

/// The dtype of a bool tensor made of host data: bytes and words count as bools stored so.
pub(crate) fn bool_dtype(dtype: DType) -> DType {
    match dtype {
        DType::U8 => DType::Bool(BoolStore::U8),
        DType::U32 => DType::Bool(BoolStore::U32),
        other => other,
    }
}

/// Elements on the host. A vector of the element's own size gives the bytes its alignment.
enum Elements {
    Bytes(Vec<u8>),
    Halves(Vec<u16>),
    Words(Vec<u32>),
    Doubles(Vec<u64>),
}

impl Elements {
    fn new(tensor: &RocmTensor) -> Self {
        let n = tensor.len();
        match tensor.dtype_size() {
            1 => Self::Bytes(vec![0; n]),
            2 => Self::Halves(vec![0; n]),
            4 => Self::Words(vec![0; n]),
            _ => Self::Doubles(vec![0; n]),
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Bytes(elements) => elements,
            Self::Halves(elements) => bytemuck::cast_slice_mut(elements),
            Self::Words(elements) => bytemuck::cast_slice_mut(elements),
            Self::Doubles(elements) => bytemuck::cast_slice_mut(elements),
        }
    }

    fn of(self, tensor: &RocmTensor) -> TensorData {
        let bytes = match self {
            Self::Bytes(elements) => Bytes::from_elems(elements),
            Self::Halves(elements) => Bytes::from_elems(elements),
            Self::Words(elements) => Bytes::from_elems(elements),
            Self::Doubles(elements) => Bytes::from_elems(elements),
        };
        // One-byte bools are 0 or 1 under either name, and to the host a bool is Rust's: Burn's own suite compares
        // what is read with such, also where its dispatch has asked for `U8`.
        let dtype = match tensor.dtype_of() {
            DType::Bool(BoolStore::U8) => DType::Bool(BoolStore::Native),
            dtype => dtype,
        };
        TensorData::from_bytes(bytes, tensor.layout().shape().clone(), dtype)
    }
}

/// The tensor's elements on the host. Waits for the device.
pub(crate) fn read(tensor: RocmTensor) -> hip::Result<TensorData> {
    let (data, fault) = read_with_fault(tensor)?;
    fault.map_or(Ok(data), Err)
}

/// The tensor's elements on the host, and its fault if a kernel found an index out of range or a
/// division by zero: for finding out which elements are concerned. Burn's reads only return the
/// fault. Waits for the device.
///
/// # Errors
/// The device's own.
pub fn read_with_fault(tensor: RocmTensor) -> hip::Result<(TensorData, Option<hip::Error>)> {
    let tensor = contiguous(tensor)?;
    let mut elements = Elements::new(&tensor);
    let (from, to) = (tensor.byte_offset(), elements.bytes());
    let fault = tensor.hip_device().read_with_fault(tensor.buffer(), from, to)?;
    Ok((elements.of(&tensor), fault))
}

/// Several tensors' elements on the host, with one wait for each device that holds some.
pub(crate) fn read_all(tensors: Vec<RocmTensor>) -> hip::Result<Vec<TensorData>> {
    let tensors = tensors.into_iter().map(contiguous).collect::<hip::Result<Vec<_>>>()?;
    let mut elements: Vec<Elements> = tensors.iter().map(Elements::new).collect();
    let mut devices: Vec<(&Arc<Device>, Vec<hip::Read<'_>>)> = Vec::new();
    for (tensor, elements) in tensors.iter().zip(&mut elements) {
        let (buffer, byte_offset) = (tensor.buffer(), tensor.byte_offset());
        let read = hip::Read { buffer, byte_offset, out: elements.bytes() };
        match devices.iter_mut().find(|(device, _)| Arc::ptr_eq(device, tensor.hip_device())) {
            Some((_, reads)) => reads.push(read),
            None => devices.push((tensor.hip_device(), vec![read])),
        }
    }
    for (device, reads) in devices {
        device.read_all(reads)?;
    }
    Ok(elements.into_iter().zip(&tensors).map(|(elements, tensor)| elements.of(tensor)).collect())
}

/// The tensor on `device`: itself, or a copy that the two devices order between themselves.
pub(crate) fn to_device(tensor: RocmTensor, device: &RocmDevice) -> hip::Result<RocmTensor> {
    if tensor.device() == *device {
        return Ok(tensor);
    }
    let target = device.open()?;
    let tensor = contiguous(tensor)?;
    let bytes = tensor.len() * tensor.dtype_size();
    let buffer = target.copy_from_device(tensor.buffer(), tensor.byte_offset(), bytes)?;
    RocmTensor::new(buffer, tensor.layout().shape().clone(), tensor.dtype_of())
}

/// The tensor with its elements in row-major order.
pub(crate) fn contiguous(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    if tensor.is_contiguous() { Ok(tensor) } else { copy(&tensor) }
}

/// The tensor as the contiguous kernels take it: row-major from an aligned byte.
pub(crate) fn packed(tensor: RocmTensor) -> hip::Result<RocmTensor> {
    if is_packed(&tensor) { Ok(tensor) } else { copy(&tensor) }
}

/// A copy in row-major order, in a buffer of its own.
pub(crate) fn copy(tensor: &RocmTensor) -> hip::Result<RocmTensor> {
    let out = tensor.empty_like()?;
    if tensor.is_contiguous() {
        let bytes = tensor.len() * tensor.dtype_size();
        if bytes > 0 {
            out.hip_device().copy(tensor.buffer(), tensor.byte_offset(), out.buffer(), 0, bytes)?;
        }
        return Ok(out);
    }
    let raw = raw_type(tensor.kernel_type()?);
    if let Some(plane) = Transposed::of(tensor) {
        plane.copy(tensor, &out, KernelName::new("copy_transposed").ty(raw))?;
        return Ok(out);
    }
    let kernel = KernelName::new("copy_strided").ty(raw);
    if !in_units(tensor, &out)? {
        Walk::new("copy", kernel, tensor.dims(), &[Operand::whole(tensor)], Output::Row(&out)).launch()?;
    }
    Ok(out)
}

/// Copies by 16 bytes where runs of the tensor's elements lie side by side in memory, as where the outer axes alone
/// are permuted: whether they do.
fn in_units(tensor: &RocmTensor, out: &RocmTensor) -> hip::Result<bool> {
    const BYTES: usize = 16;
    if out.hip_device().block_threads() == 1 {
        return Ok(false); // a core copies a run as fast by elements
    }
    let per_unit = BYTES / tensor.dtype_size();
    let merged = collapse(tensor.dims(), [tensor.layout().strides()]);
    let (mut shape, mut strides) = (merged.shape, merged.strides[0].clone());
    let (Some(run), Some(&step)) = (shape.last_mut(), strides.last()) else { return Ok(false) };
    let whole = |stride: &isize| stride.unsigned_abs().is_multiple_of(per_unit);
    let outer = strides.len() - 1;
    if step != 1
        || !run.is_multiple_of(per_unit)
        || !strides[..outer].iter().all(whole)
        || !tensor.layout().offset().is_multiple_of(per_unit)
    {
        return Ok(false);
    }
    *run /= per_unit;
    for stride in &mut strides[..outer] {
        *stride /= per_unit as isize;
    }
    let kernel = KernelName::new("copy_strided_units").int(BYTES as i32);
    let from = Operand::units(tensor, &strides, BYTES);
    Walk::new("copy", kernel, &shape, &[from], Output::Row(out)).units(BYTES).launch()?;
    Ok(true)
}

/// A packed tensor that the caller may write: this one if nobody else holds its buffer, else a copy.
pub(crate) fn writable(mut tensor: RocmTensor) -> hip::Result<RocmTensor> {
    if is_packed(&tensor) && tensor.can_overwrite() { Ok(tensor) } else { copy(&tensor) }
}

/// Copies `value` over the elements of `target` that `region`, a view of it, names.
pub(crate) fn assign(op: &'static str, region: &RocmTensor, value: &RocmTensor) -> hip::Result<()> {
    if region.dims() != value.dims() {
        return invalid(op, format!("a value of shape {:?}", region.dims()), format!("{:?}", value.dims()));
    }
    if region.is_empty() {
        return Ok(());
    }
    if region.is_contiguous() && value.is_contiguous() {
        let bytes = region.len() * region.dtype_size();
        let (from, to) = (value.byte_offset(), region.byte_offset());
        return region.hip_device().copy(value.buffer(), from, region.buffer(), to, bytes);
    }
    let kernel = KernelName::new("copy_to_strided").ty(raw_type(region.kernel_type()?));
    Walk::new(op, kernel, region.dims(), &[Operand::whole(value)], Output::Last(Operand::whole(region)))
        .launch()
}

/// A batch of transposed matrices: rows lie one element apart, columns further.
struct Transposed {
    batches: usize,
    rows: usize,
    columns: usize,
    batch_stride: usize,
    column_stride: usize,
}

impl Transposed {
    /// The tile of `copy_transposed`; smaller matrices go element by element.
    const TILE: usize = 32;

    fn of(tensor: &RocmTensor) -> Option<Self> {
        let merged = collapse(tensor.dims(), [tensor.layout().strides()]);
        let strides = merged.strides[0].as_slice();
        let (batches, batch_stride, rows, columns, column_stride) = match (merged.shape.as_slice(), strides) {
            (&[rows, columns], &[1, c]) => (1, 0, rows, columns, c),
            (&[batches, rows, columns], &[b, 1, c]) => (batches, b, rows, columns, c),
            _ => return None,
        };
        let large = rows >= Self::TILE && columns >= Self::TILE;
        (large && batch_stride >= 0 && column_stride > 0).then_some(Self {
            batches,
            rows,
            columns,
            batch_stride: batch_stride as usize,
            column_stride: column_stride as usize,
        })
    }

    fn copy(&self, tensor: &RocmTensor, out: &RocmTensor, kernel: KernelName) -> hip::Result<()> {
        let device = out.hip_device();
        // In registers a block transposes 64 x 64 elements of 4 bytes.
        let side = if device.block_threads() == 1 { Self::TILE } else { 2 * Self::TILE };
        let tiles = self.batches * self.rows.div_ceil(side) * self.columns.div_ceil(side);
        let grid = device.grid_rows(tiles, usize::MAX);
        let dims = [self.batches, self.rows, self.columns, self.batch_stride, self.column_stride]
            .map(|value| Value::U64(value as u64));
        // The view is dense in another order, or has gaps between columns: its own span is what is read.
        views("copy", device, kernel, grid, &dims, &[Some(tensor)], &[], out)
    }
}
