//! Quantisation and dequantisation, and transfers of quantised tensors. The device computes
//! everything. The host only appends the scales to the values, as in Burn's data format.

use burn_backend::TensorData;
use burn_backend::quantization::QuantScheme;
use burn_std::{Bytes, DType, FloatDType};
use hip::Template;

use crate::arg::Arg;
use crate::burn;
use crate::device::RocmDevice;
use crate::error::{invalid, unsupported};
use crate::layout::inverse;
use crate::ops::cast::cast;
use crate::ops::copy::{contiguous, copy, packed};
use crate::ops::launch::{Operand, Output, Walk, rows};
use crate::ops::transfer::to_device;
use crate::ops::view;
use crate::qtensor::{Format, RocmQTensor};
use crate::tensor::{RocmTensor, one_device};

/// Below this number of elements, a single block finds the range.
const SMALL: usize = 1024;

/// The kernel type of a float tensor. Checks that the tensor is one.
fn float(op: &'static str, tensor: &RocmTensor) -> hip::Result<hip::DType> {
    match tensor.kernel_type()? {
        ty if ty.is_float() => Ok(ty),
        ty => unsupported(op, ty),
    }
}

/// Quantises `tensor` by the scheme, with the given scales (one for each block) or with scales from
/// its own range. The latter are those of `burn-flex`'s `quantize_dynamic`:
/// `scale = 2 * max |x| / (high - low)` over each block.
pub(crate) fn quantize(
    op: &'static str,
    tensor: RocmTensor,
    scheme: &QuantScheme,
    scales: Option<RocmTensor>,
) -> hip::Result<RocmQTensor> {
    let format = Format::of(op, scheme)?;
    let ty = float(op, &tensor)?;
    let shape = tensor.layout().shape().clone();
    let count = format.scales(op, tensor.dims())?;
    let tensor = packed(tensor)?;
    let scales = match scales {
        Some(scales) => given(op, &tensor, scales, count, format)?,
        None => measured(op, &tensor, count, format)?,
    };
    let device = tensor.hip_device();
    let n = tensor.len();
    let out = RocmTensor::empty(device, [format.bytes(n)], DType::I8)?;
    if n > 0 {
        let [block, shift] = format.block_values();
        let (low, high) = format.range;
        let dims = [Arg::U64(n as u64), Arg::F32(low), Arg::F32(high), block, shift];
        let kernel = Template::quantize.ty(ty).int(format.bits as i32);
        rows(op, device, kernel, device.grid(n), &dims, &[&tensor, &scales], &[], &[&out])?;
    }
    RocmQTensor::new(op, out, scales, shape, *scheme)
}

/// The caller's scales, rounded to the scheme's precision. None becomes 0 or infinite.
fn given(
    op: &'static str,
    tensor: &RocmTensor,
    scales: RocmTensor,
    count: usize,
    format: Format,
) -> hip::Result<RocmTensor> {
    one_device(op, &[tensor, &scales])?;
    float(op, &scales)?;
    if scales.len() != count {
        return invalid(op, format!("{count} scales for {:?}", tensor.dims()), format!("{}", scales.len()));
    }
    let scales = packed(cast(scales, DType::F32)?)?;
    let device = tensor.hip_device();
    let out = RocmTensor::empty(device, [count], DType::F32)?;
    if count > 0 {
        let dims = [Arg::U64(count as u64), Arg::U32(format.param)];
        let kernel = Template::quantize_params.name();
        rows(op, device, kernel, device.grid(count), &dims, &[&scales], &[], &[&out])?;
    }
    Ok(out)
}

/// The scales of a packed tensor's own range.
fn measured(op: &'static str, tensor: &RocmTensor, count: usize, format: Format) -> hip::Result<RocmTensor> {
    let device = tensor.hip_device();
    let n = tensor.len();
    let out = RocmTensor::empty(device, [count], DType::F32)?;
    if count == 0 {
        return Ok(out);
    }
    if format.block.is_none() && n > SMALL {
        let parts = (4 * device.info().compute_units as usize).clamp(1, n / SMALL);
        let extents = RocmTensor::empty(device, [parts], DType::F32)?;
        let dims = [Arg::U64(parts as u64), Arg::U64(n as u64)];
        let kernel = Template::quantize_extent.ty(tensor.kernel_type()?);
        rows(op, device, kernel, device.grid_rows(parts, n / parts), &dims, &[tensor], &[], &[&extents])?;
        scales_of(op, &extents, 1, parts, format, &out)?;
    } else {
        scales_of(op, tensor, count, n / count, format, &out)?;
    }
    Ok(out)
}

fn scales_of(
    op: &'static str,
    tensor: &RocmTensor,
    count: usize,
    len: usize,
    format: Format,
    out: &RocmTensor,
) -> hip::Result<()> {
    let device = tensor.hip_device();
    let (low, high) = format.range;
    let dims = [Arg::U64(count as u64), Arg::U64(len as u64), Arg::F32(high - low), Arg::U32(format.param)];
    let kernel = Template::quantize_scales.ty(tensor.kernel_type()?);
    rows(op, device, kernel, device.grid(count * len), &dims, &[tensor], &[], &[out])
}

/// The tensor's values as floats.
pub(crate) fn dequantize(
    op: &'static str,
    tensor: &RocmQTensor,
    dtype: FloatDType,
) -> hip::Result<RocmTensor> {
    let layout = tensor.layout();
    if !layout.is_contiguous()
        && let Some(order) = layout.dense_order()
    {
        let stored = tensor.clone().view(layout.permute(op, &order)?);
        return view::permute(dequantize(op, &stored, dtype)?, &inverse(&order));
    }
    let device = tensor.hip_device();
    let out = RocmTensor::empty(device, layout.shape().clone(), dtype.into())?;
    if out.is_empty() {
        return Ok(out);
    }
    let format = tensor.format();
    let [block, shift] = format.block_values();
    let ty = out.kernel_type()?;
    if layout.is_contiguous() {
        let n = out.len();
        let dims = [Arg::U64(n as u64), Arg::U64(layout.offset() as u64), block, shift];
        let kernel = Template::dequantize.ty(ty).int(format.bits as i32);
        let inputs = [tensor.values(), tensor.scales()];
        rows(op, device, kernel, device.grid(n), &dims, &inputs, &[], &[&out])?;
        return Ok(out);
    }
    let still = vec![0; layout.rank()];
    let values = Operand::packed(tensor.values(), layout, format.bits);
    let scalars = [Arg::U32(format.bits as u32), block, shift];
    Walk::new(
        op,
        Template::dequantize_strided.ty(ty),
        layout.dims(),
        &[values, Operand::new(tensor.scales(), &still)],
        Output::Row(&out),
    )
    .scalars(&scalars)
    .launch()?;
    Ok(out)
}

/// The view's quantised values, one in each byte, in row-major order, without the scales.
pub(super) fn unpacked(op: &'static str, tensor: &RocmQTensor) -> hip::Result<RocmTensor> {
    if tensor.format().bits == 8 {
        return Ok(tensor.values().clone().view(tensor.layout().clone()));
    }
    let out = RocmTensor::empty(tensor.hip_device(), tensor.layout().shape().clone(), DType::I8)?;
    if !out.is_empty() {
        let bits = tensor.format().bits;
        Walk::new(
            op,
            Template::unpack_strided.name(),
            tensor.dims(),
            &[Operand::packed(tensor.values(), tensor.layout(), bits)],
            Output::Row(&out),
        )
        .scalars(&[Arg::U32(bits as u32)])
        .launch()?;
    }
    Ok(out)
}

/// Packs values, one in each byte, to the storage format.
pub(super) fn pack(op: &'static str, values: RocmTensor, format: Format) -> hip::Result<RocmTensor> {
    let n = values.len();
    let values = view::reshape(packed(values)?, &[n])?;
    if format.bits == 8 {
        return Ok(values);
    }
    let device = values.hip_device();
    let out = RocmTensor::empty(device, [format.bytes(n)], DType::I8)?;
    if n > 0 {
        let kernel = Template::pack.int(format.bits as i32);
        rows(op, device, kernel, device.grid(n), &[Arg::U64(n as u64)], &[&values], &[], &[&out])?;
    }
    Ok(out)
}

/// The tensor in row-major order in a buffer that holds nothing else.
///
/// Values that share one scale, and whole blocks, are moved unchanged. Other views of blocks are
/// quantised again in new blocks, as in `burn-flex`.
pub(crate) fn dense(op: &'static str, tensor: RocmQTensor) -> hip::Result<RocmQTensor> {
    let format = tensor.format();
    let (layout, n) = (tensor.layout().clone(), tensor.len());
    let count = format.scales(op, tensor.dims())?;
    let whole = layout.is_contiguous()
        && layout.offset() == 0
        && tensor.values().len() == format.bytes(n)
        && tensor.scales().len() == count;
    if whole {
        return Ok(tensor);
    }
    let scheme = *tensor.scheme_of();
    let scales = match format.block {
        None => tensor.scales().clone(),
        Some(block) if n == 0 || (layout.is_contiguous() && layout.offset().is_multiple_of(block)) => {
            let first = if n == 0 { 0 } else { layout.offset() / block };
            copy(&view::narrow(tensor.scales().clone(), 0, first, count)?)?
        }
        Some(_) => return quantize(op, dequantize(op, &tensor, FloatDType::F32)?, &scheme, None),
    };
    let values = pack(op, unpacked(op, &tensor)?, format)?;
    // `values` may still be a view that begins inside its buffer.
    let values = if values.layout().offset() == 0 { values } else { copy(&values)? };
    RocmQTensor::new(op, values, scales, layout.shape().clone(), scheme)
}

/// Uploads quantised data: values in the scheme's storage format, followed by f32 scales.
pub(crate) fn upload(op: &'static str, data: &TensorData, device: &RocmDevice) -> hip::Result<RocmQTensor> {
    let DType::QFloat(scheme) = burn::dtype(data) else {
        return invalid(op, "quantised data", burn::dtype(data).name());
    };
    let format = Format::of(op, &scheme)?;
    let dims = burn::shape(data).as_slice();
    let (values, count) = (format.bytes(dims.iter().product()), format.scales(op, dims)?);
    let bytes: &[u8] = burn::bytes(data);
    if bytes.len() != values + 4 * count {
        return invalid(
            op,
            format!("{values} bytes of values and {count} f32 scales for {dims:?}"),
            format!("{} bytes", bytes.len()),
        );
    }
    let device = device.open()?;
    let (values, scales) = bytes.split_at(values);
    let values = RocmTensor::new(device.upload(values)?, [values.len()].into(), DType::I8)?;
    let scales = RocmTensor::new(device.upload(scales)?, [count].into(), DType::F32)?;
    RocmQTensor::new(op, values, scales, burn::shape(data).clone(), scheme)
}

/// Reads the tensor's values and scales in the format that [`upload`] takes. Waits for the device.
pub(crate) fn read(op: &'static str, tensor: RocmQTensor) -> hip::Result<TensorData> {
    let tensor = dense(op, tensor)?;
    let (values, scales) = (tensor.values(), tensor.scales());
    let [first, second] = [values.len(), 4 * scales.len()];
    let device = tensor.hip_device();
    let fill = |out: &mut [u8]| {
        let (to, rest) = out.split_at_mut(first);
        device.read(values.buffer(), values.byte_offset(), to)?;
        device.read(scales.buffer(), scales.byte_offset(), rest)
    };
    // Burn reads values of less than 8 bits as words, and others as bytes. The vector's element
    // type gives the alignment.
    let bytes = if tensor.format().bits == 8 {
        let mut bytes = vec![0i8; first + second];
        fill(bytemuck::cast_slice_mut(&mut bytes))?;
        Bytes::from_elems(bytes)
    } else {
        let mut words = vec![0u32; (first + second) / 4];
        fill(bytemuck::cast_slice_mut(&mut words))?;
        Bytes::from_elems(words)
    };
    Ok(TensorData::from_bytes(bytes, tensor.layout().shape().clone(), DType::QFloat(*tensor.scheme_of())))
}

/// Copies the tensor's values and scales to another device, under the same view.
pub(crate) fn move_to(tensor: RocmQTensor, device: &RocmDevice) -> hip::Result<RocmQTensor> {
    let values = to_device(tensor.values().clone(), device)?;
    let scales = to_device(contiguous(tensor.scales().clone())?, device)?;
    Ok(tensor.with_storage(values, scales))
}
