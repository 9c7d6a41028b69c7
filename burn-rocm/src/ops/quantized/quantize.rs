//! Quantisation and dequantisation, and transfers of quantised tensors. The device computes
//! everything. The host only appends the scales to the values, as in Burn's data format.

use burn_backend::quantization::QuantScheme;
use burn_backend::{Scalar, TensorData};
use burn_std::{BoolStore, Bytes, DType, FloatDType};
use hip::{Functor, Template};

use crate::arg::Arg;
use crate::burn;
use crate::device::RocmDevice;
use crate::error::invalid;
use crate::layout::inverse;
use crate::ops::binary::{binary, scalar};
use crate::ops::cast::cast;
use crate::ops::compare;
use crate::ops::copy::{contiguous, copy, packed};
use crate::ops::create::full_on;
use crate::ops::launch::{Operand, Output, Walk, rows};
use crate::ops::mask::mask_where;
use crate::ops::reduce::reduce;
use crate::ops::transfer::{self, Part, read_parts, to_device};
use crate::ops::unary::{clamp, unary};
use crate::ops::view;
use crate::qtensor::{Format, Levels, RocmQTensor};
use crate::scales::{Narrow, Scales};
use crate::tensor::{RocmTensor, float_type, one_device};

/// Up to this number of elements, a single block finds the range.
const SMALL: usize = 1024;

/// Quantises `tensor` by the scheme. The scales are given (one for each block, and the scale that
/// those are relative to) or computed from the tensor's range. The computed scales are those of
/// `burn-flex`'s `quantize_dynamic`: `scale = 2 * max |x| / (high - low)` over each block.
pub(crate) fn quantize(
    op: &'static str,
    tensor: RocmTensor,
    scheme: &QuantScheme,
    scales: Option<(RocmTensor, Option<RocmTensor>)>,
) -> hip::Result<RocmQTensor> {
    let format = Format::of(op, scheme, tensor.dims())?;
    let levels = burn::scales(op, scheme, tensor.dims())?;
    let ty = float_type(op, &tensor)?;
    let shape = tensor.layout().shape().clone();
    format.scales(op, tensor.dims())?;
    let tensor = packed(tensor)?;
    let count = levels.count(tensor.len());
    let (blocks, global) = match (scales, levels.relative_to) {
        (Some((blocks, global)), most) if global.is_some() == most.is_some() => (
            rounded_up(op, given(op, &tensor, blocks, count, format.param)?, levels.up)?,
            global.map(|global| given(op, &tensor, global, 1, 0)).transpose()?,
        ),
        (Some((_, global)), _) => {
            let found = if global.is_some() { "one" } else { "none" };
            return invalid(
                op,
                format!("a scale of the whole tensor if and only if {scheme:?} has one"),
                found,
            );
        }
        (None, None) => (rounded_up(op, measured(op, &tensor, count, &levels, format)?, levels.up)?, None),
        (None, Some(most)) => {
            let blocks = measured(op, &tensor, count, &levels, format)?;
            let peak = match blocks.is_empty() {
                true => full_on(tensor.hip_device(), [1], 0i64.into(), DType::F32)?,
                false => reduce(op, Functor::Max, blocks.clone())?,
            };
            let global = scalar(op, Functor::Div, peak, f64::from(most).into())?;
            let global = given(op, &tensor, global, 1, 0)?;
            let blocks = given(op, &tensor, binary(op, Functor::Div, blocks, global.clone())?, count, 0)?;
            (rounded_up(op, blocks, levels.up)?, Some(global))
        }
    };
    let (scales, levels) = of_levels(op, blocks, global, &levels)?;
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
    RocmQTensor::new(op, out, scales, levels, shape, *scheme)
}

impl Scales {
    /// The number of blocks of a tensor with `len` elements.
    fn count(&self, len: usize) -> usize {
        match (&self.grid, self.run) {
            (Some(grid), _) => grid.iter().map(|[blocks, _]| blocks).product(),
            (None, Some(run)) => len / run,
            (None, None) => 1,
        }
    }
}

/// The factors of the values: each block scale times the scale that it is relative to, one factor
/// for each run of values. Also the scales that the factors were made from, if those differ.
fn of_levels(
    op: &'static str,
    blocks: RocmTensor,
    global: Option<RocmTensor>,
    levels: &Scales,
) -> hip::Result<(RocmTensor, Option<Levels>)> {
    if global.is_none() && levels.grid.is_none() {
        return Ok((blocks, None));
    }
    let mut scales = match &global {
        Some(global) => binary(op, Functor::Mul, blocks.clone(), global.clone())?,
        None => blocks.clone(),
    };
    if let Some(grid) = &levels.grid {
        let apart: Vec<usize> = grid.iter().flat_map(|[blocks, _]| [*blocks, 1]).collect();
        let wide: Vec<usize> = grid.iter().flatten().copied().collect();
        let count = wide.iter().product();
        scales = view::reshape(view::expand(view::reshape(scales, &apart)?, &wide)?, &[count])?;
    }
    Ok((packed(scales)?, Some(Levels { blocks, global })))
}

/// Rounds positive scales up to numbers that a narrower type holds.
fn rounded_up(op: &'static str, scales: RocmTensor, to: Option<Narrow>) -> hip::Result<RocmTensor> {
    let Some(Narrow { step, most, subnormal }) = to.filter(|_| !scales.is_empty()) else { return Ok(scales) };
    let scales = clamp(op, scales, None, Some(f64::from(most).into()))?;
    // Positive floats have the same order as their bits have as integers.
    let bits = scalar(op, Functor::Add, scales.clone().reinterpret(DType::I32), i64::from(step - 1).into())?;
    let mask = i64::from(!(step - 1) as i32);
    let up = scalar(op, Functor::BitAnd, bits, mask.into())?.reinterpret(DType::F32);
    let Some([normal, distance]) = subnormal else { return Ok(up) };
    let distance: Scalar = f64::from(distance).into();
    let steps = unary(op, Functor::Ceil, scalar(op, Functor::Div, scales.clone(), distance)?)?;
    let small = scalar(op, Functor::Mul, steps, distance)?;
    let mask = compare::scalar(op, Functor::Less, scales, f64::from(normal).into(), BoolStore::U8)?;
    mask_where(op, up, mask, small)
}

/// The caller's scales, rounded to a precision of the kernel. No result is 0 or infinite.
fn given(
    op: &'static str,
    tensor: &RocmTensor,
    scales: RocmTensor,
    count: usize,
    param: u32,
) -> hip::Result<RocmTensor> {
    one_device(op, &[tensor, &scales])?;
    float_type(op, &scales)?;
    if scales.len() != count {
        return invalid(op, format!("{count} scales for {:?}", tensor.dims()), format!("{}", scales.len()));
    }
    let scales = packed(cast(scales, DType::F32)?)?;
    let device = tensor.hip_device();
    let out = RocmTensor::empty(device, [count], DType::F32)?;
    if count > 0 {
        let dims = [Arg::U64(count as u64), Arg::U32(param)];
        let kernel = Template::quantize_params.name();
        rows(op, device, kernel, device.grid(count), &dims, &[&scales], &[], &[&out])?;
    }
    Ok(out)
}

/// The scales of a packed tensor's own range.
fn measured(
    op: &'static str,
    tensor: &RocmTensor,
    count: usize,
    levels: &Scales,
    format: Format,
) -> hip::Result<RocmTensor> {
    let (device, n) = (tensor.hip_device(), tensor.len());
    if let (Some(grid), Some(run)) = (&levels.grid, levels.run) {
        // Separates the tensor's axes into blocks.
        let apart: Vec<usize> = grid.iter().flatten().copied().chain([run]).collect();
        let order: Vec<usize> =
            (0..apart.len() - 1).step_by(2).chain((1..apart.len() - 1).step_by(2)).collect();
        let order = [order, vec![apart.len() - 1]].concat();
        let tensor = packed(view::permute(view::reshape(tensor.clone(), &apart)?, &order)?)?;
        let out = RocmTensor::empty(device, [count], DType::F32)?;
        if count > 0 {
            scales_of(op, &tensor, count, n / count, format, &out)?;
        }
        return Ok(out);
    }
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
pub(crate) fn unpacked(op: &'static str, tensor: &RocmQTensor) -> hip::Result<RocmTensor> {
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

/// Packs values, one in each byte, into the storage format.
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
    // A view of the whole storage keeps its blocks, because a reshape keeps them.
    let whole = layout.is_contiguous()
        && layout.offset() == 0
        && tensor.values().len() == format.bytes(n)
        && tensor.scales().len() == count;
    if whole {
        return Ok(tensor);
    }
    let scheme = *tensor.scheme_of();
    let movable = |block: usize| {
        tensor.blocks_fit(layout.dims())
            && (n == 0 || (layout.is_contiguous() && layout.offset().is_multiple_of(block)))
    };
    let scales = match format.block {
        None => tensor.scales().clone(),
        Some(block) if movable(block) => {
            let first = if n == 0 { 0 } else { layout.offset() / block };
            copy(&view::narrow(tensor.scales().clone(), 0, first, count)?)?
        }
        Some(_) => return quantize(op, dequantize(op, &tensor, FloatDType::F32)?, &scheme, None),
    };
    let values = pack(op, unpacked(op, &tensor)?, format)?;
    // `values` may still be a view that begins inside its buffer.
    let values = if values.layout().offset() == 0 { values } else { copy(&values)? };
    RocmQTensor::new(op, values, scales, None, layout.shape().clone(), scheme)
}

/// Uploads quantised data: values in the scheme's storage format, followed by the scales.
pub(crate) fn upload(op: &'static str, data: &TensorData, device: &RocmDevice) -> hip::Result<RocmQTensor> {
    let DType::QFloat(scheme) = burn::dtype(data) else {
        return invalid(op, "quantised data", burn::dtype(data).name());
    };
    let shape = burn::shape(data);
    let dims = shape.as_slice();
    let (format, levels) = (Format::of(op, &scheme, dims)?, burn::scales(op, &scheme, dims)?);
    let len = dims.iter().product();
    format.scales(op, dims)?;
    let (values, count) = (format.bytes(len), levels.count(len));
    let behind = burn::scale_bytes(&scheme, count);
    let bytes: &[u8] = burn::bytes(data);
    if bytes.len() != values + behind {
        return invalid(
            op,
            format!("{values} bytes of values and {behind} of scales for {dims:?}"),
            format!("{} bytes", bytes.len()),
        );
    }
    let device = device.open()?;
    let (values, scales) = bytes.split_at(values);
    let values = RocmTensor::new(device.upload(values)?, [values.len()].into(), DType::I8)?;
    let (scales, global) = burn::read_scales(scales, &scheme, shape);
    let on_device = |scales: &[f32]| {
        RocmTensor::new(device.upload(bytemuck::cast_slice(scales))?, [scales.len()].into(), DType::F32)
    };
    let global = global.map(|global| on_device(&[global])).transpose()?;
    let (scales, levels) = of_levels(op, on_device(&scales)?, global, &levels)?;
    RocmQTensor::new(op, values, scales, levels, shape.clone(), scheme)
}

/// A quantised tensor that is read, and room for its values and scales on the host.
struct Reading {
    tensor: RocmQTensor,
    values: Values,
    scales: Vec<f32>,
    /// The scale that the others are relative to, if there is one.
    global: f32,
}

/// Burn reads values of fewer than 8 bits as words, and others as bytes. The vector's element type
/// gives the alignment.
enum Values {
    Bytes(Vec<i8>),
    Words(Vec<u32>),
}

impl Reading {
    fn new(op: &'static str, tensor: RocmQTensor) -> hip::Result<Self> {
        let tensor = dense(op, tensor)?;
        let count = tensor.levels().map_or(tensor.scales(), |levels| &levels.blocks).len();
        let len = tensor.values().len();
        // `data` appends the scales.
        let capacity = len + size_of::<f32>() * (count + 1);
        let values = if tensor.format().bits == 8 {
            let mut bytes = Vec::with_capacity(capacity);
            bytes.resize(len, 0);
            Values::Bytes(bytes)
        } else {
            let mut words = Vec::with_capacity(capacity.div_ceil(4));
            words.resize(len / 4, 0);
            Values::Words(words)
        };
        Ok(Self { tensor, values, scales: vec![0.0; count], global: 0.0 })
    }

    fn parts(&mut self) -> Vec<Part<'_>> {
        let Self { tensor, values, scales, global } = self;
        let (blocks, whole) = match tensor.levels() {
            Some(Levels { blocks, global }) => (blocks, global.as_ref()),
            None => (tensor.scales(), None),
        };
        let values: &mut [u8] = match values {
            Values::Bytes(bytes) => bytemuck::cast_slice_mut(bytes),
            Values::Words(words) => bytemuck::cast_slice_mut(words),
        };
        let mut parts: Vec<Part<'_>> =
            vec![(tensor.values(), values), (blocks, bytemuck::cast_slice_mut(scales))];
        if let Some(whole) = whole {
            parts.push((whole, bytemuck::bytes_of_mut(global)));
        }
        parts
    }

    /// The values and scales in the format that [`upload`] takes, once they have been read.
    fn data(self) -> TensorData {
        let Self { tensor, values, scales, global } = self;
        let global = tensor.levels().and_then(|levels| levels.global.as_ref()).map(|_| global);
        let scales = burn::write_scales(&scales, global, tensor.scheme_of());
        let mut bytes = match values {
            Values::Bytes(bytes) => Bytes::from_elems(bytes),
            Values::Words(words) => Bytes::from_elems(words),
        };
        bytes.extend_from_byte_slice_aligned(&scales, align_of::<f32>());
        let dtype = DType::QFloat(*tensor.scheme_of());
        TensorData::from_bytes(bytes, tensor.layout().shape().clone(), dtype)
    }
}

/// Reads the tensor's values and scales in the format that [`upload`] takes. Waits as [`read_parts`]
/// does.
pub(crate) fn read(op: &'static str, tensor: RocmQTensor) -> hip::Result<TensorData> {
    let mut reading = Reading::new(op, tensor)?;
    read_parts(reading.parts())?;
    Ok(reading.data())
}

/// The data of tensors and of quantised tensors, which are read together. Waits as [`read_parts`]
/// does.
pub(crate) fn read_all(
    op: &'static str,
    tensors: Vec<RocmTensor>,
    quantised: Vec<RocmQTensor>,
) -> hip::Result<[Vec<TensorData>; 2]> {
    let mut plain = tensors.into_iter().map(transfer::Reading::new).collect::<hip::Result<Vec<_>>>()?;
    let quantised = quantised.into_iter().map(|tensor| Reading::new(op, tensor));
    let mut quantised = quantised.collect::<hip::Result<Vec<_>>>()?;
    let parts = plain.iter_mut().map(transfer::Reading::part);
    read_parts(parts.chain(quantised.iter_mut().flat_map(Reading::parts)).collect())?;
    let plain = plain.into_iter().map(transfer::Reading::data).collect();
    Ok([plain, quantised.into_iter().map(Reading::data).collect()])
}

/// Copies the tensor's values and scales to another device, under the same view.
pub(crate) fn move_to(tensor: RocmQTensor, device: &RocmDevice) -> hip::Result<RocmQTensor> {
    let values = to_device(tensor.values().clone(), device)?;
    let scales = to_device(contiguous(tensor.scales().clone())?, device)?;
    let levels = match tensor.levels().cloned() {
        Some(Levels { blocks, global }) => Some(Levels {
            blocks: to_device(contiguous(blocks)?, device)?,
            global: global.map(|global| to_device(contiguous(global)?, device)).transpose()?,
        }),
        None => None,
    };
    Ok(tensor.with_storage(values, scales, levels))
}
