//! Quantised weights of linear layers and embeddings. They are frozen: there is a gradient with
//! respect to the input only.
//!
//! A product with up to 16 rows, of less than 4 GiB, reads each weight once, and makes it a float in
//! registers. A larger product first writes the weights of up to 32 MiB at a time as floats, for rocBLAS.

mod cores;
mod divided;
mod drawn;
mod own;
mod parts;

use std::sync::Arc;

use burn_backend::Scalar;
use burn_std::DType;
use hip::{Device, Error as RocmError, Functor, Grid, KernelName, Template};

use super::binary::binary;
use super::cast::cast;
use super::cat::cat;
use super::copy::packed;
use super::create::full_on;
use super::index::select;
use super::language::around::{Around, Outputs};
use super::launch::{views, views_to};
use super::matmul::{Request, product, product_to};
use super::pad::{Border, pad};
use super::transfer;
use super::unary::clamp;
use super::view::{narrow, reshape, swap_dims};
use crate::arg::Arg;
use crate::device::RocmDevice;
use crate::error::{invalid, unsupported};
use crate::tensor::{RocmTensor, float_type, one_device, one_dtype};
use parts::{CHUNK, checked};
pub use parts::{GroupScales, GroupZeros, GroupedWeights, WeightFormat, WeightParts};

/// The most rows of a product for which a kernel reads the quantised weights.
pub const MOST_ROWS: usize = 16;

/// The numbers of rows that the product's kernel has instantiations for.
const ROWS: [usize; 3] = [1, 4, MOST_ROWS];

/// The rows of weights of which a block computes the sums at a time: on GPUs, and on the CPU device.
const OUTS: [usize; 2] = [4, 32];

/// The most threads of a block of the product's kernel.
const MOST_THREADS: usize = 256;
/// The same for one row. On an H200, 2048 x 8192 4-bit codes took 6.3 us, and with 256 threads 7.0.
const MOST_THREADS_OF_ONE: usize = 128;

/// The most bytes of weights that are floats at a time. They stay in the last cache of large GPUs.
const SLAB_BYTES: usize = 32 << 20;

/// A quantised weight `[outs, inputs]` on a device.
#[derive(Clone, Debug)]
pub struct QuantWeight {
    format: WeightFormat,
    shape: [usize; 2],
    codes: RocmTensor,
    upper: Option<RocmTensor>,
    scales: RocmTensor,
    extra: Option<RocmTensor>,
    /// The input at each place of a stored row, and the place of each input.
    order: Option<[RocmTensor; 2]>,
    kind: u32,
    zero: u8,
    groups: usize,
    shift: u32,
}

/// Bytes as a tensor.
fn bytes_on(device: &Arc<Device>, bytes: &[u8]) -> hip::Result<RocmTensor> {
    RocmTensor::new(device.upload(bytes)?, [bytes.len()].into(), DType::U8)
}

fn indices_on(device: &Arc<Device>, indices: &[u32]) -> hip::Result<RocmTensor> {
    let bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
    RocmTensor::new(device.upload(&bytes)?, [indices.len()].into(), DType::I32)
}

impl QuantWeight {
    /// Copies a weight to a device.
    ///
    /// # Errors
    /// An error of the device.
    pub fn upload(parts: &WeightParts, device: &RocmDevice) -> Result<Self, RocmError> {
        let device = &device.open()?;
        let some = |bytes: &Vec<u8>| match bytes.is_empty() {
            true => Ok(None),
            false => bytes_on(device, bytes).map(Some),
        };
        let order = match &parts.order {
            Some(order) => {
                let mut places = vec![0; order.len()];
                for (place, &input) in order.iter().enumerate() {
                    places[input as usize] = place as u32;
                }
                Some([indices_on(device, order)?, indices_on(device, &places)?])
            }
            None => None,
        };
        Ok(Self {
            format: parts.format,
            shape: parts.shape,
            codes: bytes_on(device, &parts.codes)?,
            upper: some(&parts.upper)?,
            scales: bytes_on(device, &parts.scales)?,
            extra: some(&parts.extra)?,
            order,
            kind: parts.kind,
            zero: parts.zero,
            groups: parts.groups,
            shift: parts.shift,
        })
    }

    /// Weights of the same inputs as one weight, with the outputs of each after those of the one
    /// before. `None` for no weights, and for weights that are stored in different ways or have
    /// their inputs in an order of their own.
    ///
    /// # Errors
    /// `Invalid` if the weights are on several devices, or if one weight can't have as many outputs;
    /// an error of the device.
    pub fn joined(weights: &[Self]) -> Result<Option<Self>, RocmError> {
        let Some(first) = weights.first() else { return Ok(None) };
        // All of an array's elements are in the order of the outputs.
        let alike = |one: &Self| {
            let of = |weight: &Self| {
                let Self { format, shape, kind, zero, groups, shift, .. } = *weight;
                (format, shape[1], kind, zero, groups, shift, weight.extra.is_some(), weight.order.is_some())
            };
            of(one) == of(first)
        };
        if first.order.is_some() || !weights.iter().all(alike) {
            return Ok(None);
        }
        let shape = [weights.iter().map(|weight| weight.shape[0]).sum(), first.shape[1]];
        checked(shape)?;
        let array = |of: fn(&Self) -> Option<&RocmTensor>| -> hip::Result<Option<RocmTensor>> {
            let all: Vec<RocmTensor> = weights.iter().filter_map(of).cloned().collect();
            if all.is_empty() { Ok(None) } else { cat(all, 0).map(Some) }
        };
        let (upper, extra) = (array(|weight| weight.upper.as_ref())?, array(|weight| weight.extra.as_ref())?);
        let codes = cat(weights.iter().map(|weight| weight.codes.clone()).collect(), 0)?;
        let scales = cat(weights.iter().map(|weight| weight.scales.clone()).collect(), 0)?;
        Ok(Some(Self { shape, codes, upper, scales, extra, order: None, ..first.clone() }))
    }

    /// `[outs, inputs]`.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// How the codes are stored.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// The device.
    pub fn device(&self) -> RocmDevice {
        self.codes.rocm_device()
    }

    /// The weight itself if it is on `device`, else a copy there.
    ///
    /// # Errors
    /// An error of a device.
    pub fn to_device(&self, device: &RocmDevice) -> Result<Self, RocmError> {
        let copy = |tensor: &RocmTensor| transfer::to_device(tensor.clone(), device);
        let order = match &self.order {
            Some([order, places]) => Some([copy(order)?, copy(places)?]),
            None => None,
        };
        Ok(Self {
            codes: copy(&self.codes)?,
            upper: self.upper.as_ref().map(copy).transpose()?,
            scales: copy(&self.scales)?,
            extra: self.extra.as_ref().map(copy).transpose()?,
            order,
            ..*self
        })
    }

    /// The bytes that a product reads of the weight.
    pub fn bytes(&self) -> usize {
        let of = |tensor: &RocmTensor| tensor.len() * tensor.dtype_size();
        let arrays = [Some(&self.codes), self.upper.as_ref(), Some(&self.scales), self.extra.as_ref()];
        let order = self.order.as_ref().map_or(0, |[order, _]| of(order));
        arrays.into_iter().flatten().map(of).sum::<usize>() + order
    }

    /// The inputs of a stored row.
    fn padded(&self) -> usize {
        self.shape[1].next_multiple_of(CHUNK)
    }

    fn functor(&self) -> Functor {
        match self.format {
            WeightFormat::Int4 => Functor::Int4,
            WeightFormat::Int8 => Functor::Int8,
            WeightFormat::Q4K => Functor::Q4K,
            WeightFormat::Q6K => Functor::Q6K,
        }
    }

    fn sizes(&self, rows: usize, first: usize, [gate, parts, inverse, epsilon]: [u32; 4]) -> Arg {
        let [outs, inputs] = self.shape;
        // `checked` has bounded the shape, and the callers' rows come from tensors that fit.
        let [rows, outs, padded, inputs, groups, first] =
            [rows, outs, self.padded(), inputs, self.groups, first].map(|size| size as u32);
        let zero = f32::from(self.zero).to_bits();
        let Self { shift, kind, .. } = *self;
        let stored = [rows, outs, padded, inputs, groups, shift, kind, zero, first];
        let mut all = [0; 18];
        all[..9].copy_from_slice(&stored);
        all[9..13].copy_from_slice(&[gate, parts, inverse, epsilon]);
        Arg::U32x18(all)
    }

    fn arrays(&self) -> [Option<&RocmTensor>; 4] {
        [Some(&self.codes), self.upper.as_ref(), Some(&self.scales), self.extra.as_ref()]
    }

    /// `count` rows as floats, in the stored order of inputs: those at the indices, or those from
    /// `first` on.
    fn floats(
        &self,
        op: &'static str,
        [first, count]: [usize; 2],
        indices: Option<&RocmTensor>,
        dtype: DType,
    ) -> hip::Result<RocmTensor> {
        let device = self.codes.hip_device();
        let out = RocmTensor::empty(device, [count, self.shape[1]], dtype)?;
        let kernel = Template::qweight_dequantize.functor(self.functor()).ty(narrow_type(op, &out)?);
        if count == 0 {
            return Ok(out);
        }
        let grid = match device.block_threads() {
            1 => device.grid_rows(count, self.shape[1]),
            _ => device.grid(count * self.padded() / CHUNK),
        };
        let flag = Arg::Flag(op, hip::Fault::Index);
        let [codes, upper, scales, extra] = self.arrays();
        let inputs = [codes, upper, scales, extra, indices];
        views(op, device, kernel, grid, &[self.sizes(count, first, [0; 4])], &inputs, &[flag], &out)?;
        Ok(out)
    }

    /// All weights as floats.
    ///
    /// # Shapes
    /// - output: `[outs, inputs]`
    ///
    /// # Errors
    /// `Unsupported` for a dtype other than f32, f16 and bf16; an error of the device.
    pub fn dequantize(&self, dtype: DType) -> Result<RocmTensor, RocmError> {
        const OP: &str = "quant_dequantize";
        self.in_order(OP, self.floats(OP, [0, self.shape[0]], None, dtype)?)
    }

    /// Columns in the stored order, in the inputs' order.
    fn in_order(&self, op: &'static str, columns: RocmTensor) -> hip::Result<RocmTensor> {
        match &self.order {
            Some([_, places]) => select(op, columns, 1, places.clone()),
            None => Ok(columns),
        }
    }

    /// Rows as floats, as an embedding.
    ///
    /// # Shapes
    /// - indices: any
    /// - output: the shape of the indices, then `inputs`
    ///
    /// # Errors
    /// `Invalid` for indices that are no integers or on another device; `Unsupported` for a dtype
    /// other than f32, f16 and bf16; an error of the device. An index out of range is a fault, which
    /// reads report.
    pub fn embedding(&self, indices: RocmTensor, dtype: DType) -> Result<RocmTensor, RocmError> {
        const OP: &str = "quant_embedding";
        one_device(OP, &[&self.codes, &indices])?;
        let from = indices.dtype_of();
        if !from.is_int() && !from.is_uint() {
            return invalid(OP, "indices of an int type", from.name());
        }
        let shape = [indices.dims(), &[self.shape[1]]].concat();
        let count = indices.len();
        // Indices out of range stay so as I32.
        let indices = match from {
            DType::I64 | DType::U64 | DType::U32 => {
                let limits = [-1, self.shape[0] as i64].map(|limit| Some(Scalar::Int(limit)));
                clamp(OP, indices, limits[0], limits[1])?
            }
            _ => indices,
        };
        let indices = packed(cast(indices, DType::I32)?)?;
        let rows = self.floats(OP, [0, count], Some(&indices), dtype)?;
        reshape(self.in_order(OP, rows)?, &shape)
    }
}

/// The kernels' type of a tensor, which must be f32, f16 or bf16.
pub(crate) fn narrow_type(op: &'static str, tensor: &RocmTensor) -> hip::Result<hip::DType> {
    match float_type(op, tensor)? {
        hip::DType::F64 => unsupported(op, tensor.dtype_of()),
        ty => Ok(ty),
    }
}

/// `x` as rows, after a check of its last axis.
pub(super) fn rows_of(
    op: &'static str,
    x: RocmTensor,
    width: usize,
) -> hip::Result<(RocmTensor, Vec<usize>)> {
    match x.dims().split_last() {
        Some((&last, leading)) if last == width => {
            let leading = leading.to_vec();
            let rows = leading.iter().product();
            Ok((reshape(x, &[rows, width])?, leading))
        }
        _ => invalid(op, format!("a last axis of {width}"), format!("{:?}", x.dims())),
    }
}

/// `x` times the transposed weight, plus the bias. Sums are f32. With more than 16 rows, weights are
/// first rounded to the dtype of `x`.
///
/// # Shapes
/// - `x`: `[.., inputs]`
/// - `bias`: `[outs]`
/// - output: `[.., outs]`
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for a dtype other than f32, f16
/// and bf16; an error of the device.
pub fn quant_linear(
    x: RocmTensor,
    weight: &QuantWeight,
    bias: Option<RocmTensor>,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "quant_linear";
    one_device(OP, &[&x, &weight.codes])?;
    narrow_type(OP, &x)?;
    let [outs, inputs] = weight.shape;
    if let Some(bias) = &bias {
        one_device(OP, &[&x, bias])?;
        one_dtype(OP, &[&x, bias])?;
        if bias.dims() != [outs] {
            return invalid(OP, format!("a bias of shape [{outs}]"), format!("{:?}", bias.dims()));
        }
    }
    let (x, mut shape) = rows_of(OP, x, inputs)?;
    shape.push(outs);
    let bias = bias.map(packed).transpose()?;
    let around = Around { bias: bias.as_ref(), ..Around::default() };
    if let Some(Outputs { out, .. }) = weight.few(OP, &x, &around)? {
        return reshape(out, &shape);
    }
    let x = weight.stored_order(OP, x)?;
    let out = RocmTensor::empty(x.hip_device(), [x.dims()[0], outs], x.dtype_of())?;
    if out.is_empty() {
        return reshape(out, &shape);
    }
    let dtype = x.dtype_of();
    by_slabs(OP, x, weight.shape, &out, |first, count| weight.floats(OP, [first, count], None, dtype))?;
    let out = reshape(out, &shape)?;
    match bias {
        Some(bias) => binary(OP, Functor::Add, out, bias),
        None => Ok(out),
    }
}

impl QuantWeight {
    /// `x` with its columns in the stored order of inputs.
    fn stored_order(&self, op: &'static str, x: RocmTensor) -> hip::Result<RocmTensor> {
        match &self.order {
            Some([order, _]) => select(op, x, 1, order.clone()),
            None => Ok(x),
        }
    }

    /// The product of few rows `[rows, inputs]` by the kernel that reads the codes, with what is
    /// around it; `None` for no rows, or too many.
    pub(crate) fn few(
        &self,
        op: &'static str,
        x: &RocmTensor,
        around: &Around<'_>,
    ) -> hip::Result<Option<Outputs>> {
        one_device(op, &[x, &self.codes])?;
        let [rows, inputs] = [x.dims()[0], x.dims()[1]];
        // The kernel's byte offsets into `x` have 32 bits.
        let reachable = rows.saturating_mul(self.padded()).saturating_mul(x.dtype_size());
        if x.is_empty() || self.shape[0] == 0 || rows > MOST_ROWS || reachable > u32::MAX as usize {
            return Ok(None);
        }
        let mut x = self.stored_order(op, x.clone())?;
        let behind = self.padded() - inputs;
        if behind > 0 {
            x = pad(op, x, &[(0, 0), (0, behind)], Border::Constant(Scalar::Int(0)))?;
        }
        let x = packed(x)?;
        let (device, outs) = (x.hip_device(), self.shape[0]);
        let ty = x.kernel_type()?;
        let Launch { kernel, grid, tile } = match self.on_cores(ty, rows, around, device)? {
            Some(launch) => launch,
            None => self.on_vector_units(ty, rows, around, device),
        };
        let outputs = around.outputs(device, rows, outs, tile, x.dtype_of())?;
        let [codes, upper, scales, extra] = self.arrays();
        let [squares, bias, residual, factor] = around.inputs();
        let read = [Some(&x), codes, upper, scales, extra, squares, bias, residual, factor];
        let sizes = self.sizes(rows, 0, around.numbers(inputs));
        views_to(op, device, kernel, grid, &[sizes], &read, &[], &outputs.all())?;
        Ok(Some(outputs))
    }
}

/// The launch of a product with few rows.
struct Launch {
    kernel: KernelName,
    grid: Grid,
    /// The rows of weights of a block.
    tile: usize,
}

impl QuantWeight {
    /// The product by `qweight_product`.
    fn on_vector_units(&self, ty: hip::DType, rows: usize, around: &Around<'_>, device: &Device) -> Launch {
        let most = ROWS.into_iter().find(|&most| rows <= most).unwrap_or(MOST_ROWS);
        let kernel = Template::qweight_product.functor(self.functor()).ty(ty).int(most as i32);
        let tile = OUTS[usize::from(device.block_threads() == 1)];
        let per_access = if self.format == WeightFormat::Int8 { 16 } else { 32 };
        let most_threads = if rows == 1 { MOST_THREADS_OF_ONE } else { MOST_THREADS };
        let accesses = (self.padded() / per_access).min(most_threads);
        Launch { kernel, grid: device.grid_rows(around.tiles(self.shape[0], tile), accesses), tile }
    }
}

/// The product by rocBLAS, with some rows of weights as floats at a time. `floats` returns a number of
/// rows from a first one on.
pub(super) fn by_slabs(
    op: &'static str,
    x: RocmTensor,
    [outs, inputs]: [usize; 2],
    out: &RocmTensor,
    floats: impl Fn(usize, usize) -> hip::Result<RocmTensor>,
) -> hip::Result<()> {
    let slab = (SLAB_BYTES / (inputs * x.dtype_size())).max(1);
    for first in (0..outs).step_by(slab) {
        let count = slab.min(outs - first);
        let turned = swap_dims(floats(first, count)?, 0, 1)?;
        product_to(Request::new(op, 1.0), x.clone(), turned, &narrow(out.clone(), 1, first, count)?)?;
    }
    Ok(())
}

/// The gradient of [`quant_linear`] with respect to `x`. While it runs, it holds all weights as floats
/// of the gradient's dtype.
///
/// # Shapes
/// - `grad`: `[.., outs]`
/// - output: `[.., inputs]`
///
/// # Errors
/// As for [`quant_linear`].
pub fn quant_linear_x_backward(grad: RocmTensor, weight: &QuantWeight) -> Result<RocmTensor, RocmError> {
    const OP: &str = "quant_linear_x_backward";
    one_device(OP, &[&grad, &weight.codes])?;
    narrow_type(OP, &grad)?;
    let [outs, inputs] = weight.shape;
    let (grad, mut shape) = rows_of(OP, grad, outs)?;
    shape.push(inputs);
    if grad.is_empty() {
        return full_on(grad.hip_device(), shape, Scalar::Int(0), grad.dtype_of());
    }
    let floats = weight.floats(OP, [0, outs], None, grad.dtype_of())?;
    let by_x = product(Request::gradient(OP, 1.0), grad, floats)?;
    reshape(weight.in_order(OP, by_x)?, &shape)
}
