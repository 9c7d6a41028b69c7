//! The quantised primitive.

use burn_backend::quantization::{QuantScheme, QuantStore, QuantValue};
use burn_std::Shape;

use crate::arg::Arg;
use crate::burn;
use crate::error::{invalid, unsupported};
use crate::layout::Layout;
use crate::tensor::RocmTensor;

/// A quantised tensor: a view of packed values, and the scales of their blocks.
///
/// The values lie in row-major order as `Format` says, and a block is so many of them that follow on each other
/// there, whatever the view makes of them: that is how `burn-flex` and Burn's own calibration read a block of
/// several dims, too.
#[derive(Clone, Debug)]
pub struct RocmQTensor {
    /// The storage, byte by byte, from its buffer's start.
    values: RocmTensor,
    /// The view, in values: offset 0 is the storage's first.
    layout: Layout,
    /// f32 whatever the scheme's parameter type is, as in Burn's data of quantised tensors; rounded to that type
    /// when they are made.
    scales: RocmTensor,
    scheme: QuantScheme,
    format: Format,
}

impl RocmQTensor {
    /// Values stored for `shape` with their scales.
    ///
    /// # Errors
    /// `Invalid` where there are fewer bytes or scales than the shape and the scheme need; every kernel launch
    /// rests on this check.
    pub(crate) fn new(
        op: &'static str,
        values: RocmTensor,
        scales: RocmTensor,
        shape: impl Into<Shape>,
        scheme: QuantScheme,
    ) -> hip::Result<Self> {
        let format = Format::of(op, &scheme)?;
        let layout = Layout::contiguous(shape);
        let (bytes, count) = (format.bytes(layout.len()), format.scales(op, layout.dims())?);
        if values.len() < bytes || scales.len() < count {
            let found = format!("{} bytes and {} scales", values.len(), scales.len());
            return invalid(op, format!("{bytes} bytes and {count} scales"), found);
        }
        Ok(Self { values, layout, scales, scheme, format })
    }

    /// The same values under another layout made from this one's.
    pub(crate) fn view(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// The same values and scales, held elsewhere.
    pub(crate) fn with_storage(self, values: RocmTensor, scales: RocmTensor) -> Self {
        debug_assert_eq!((values.len(), scales.len()), (self.values.len(), self.scales.len()));
        Self { values, scales, ..self }
    }

    /// The scheme, without Burn's trait in scope.
    pub(crate) fn scheme_of(&self) -> &QuantScheme {
        &self.scheme
    }

    /// The storage.
    pub(crate) fn values(&self) -> &RocmTensor {
        &self.values
    }

    /// The scales, in the order of their blocks.
    pub fn scales(&self) -> &RocmTensor {
        &self.scales
    }

    /// Shape, strides and offset, in values.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Sizes of the dimensions.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    /// How the values are stored.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn hip_device(&self) -> &std::sync::Arc<hip::Device> {
        self.values.hip_device()
    }
}

/// What the kernels know of a scheme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Format {
    /// Of a value as stored: natively a byte each, packed as many as it needs.
    pub(crate) bits: usize,
    /// Values that share a scale; `None` where all do.
    pub(crate) block: Option<usize>,
    /// The least and the greatest value.
    pub(crate) range: (f32, f32),
    /// The scales' precision as `quantize.hip` numbers it.
    pub(crate) param: u32,
}

impl Format {
    /// The format of a scheme.
    ///
    /// # Errors
    /// `Unsupported` for floats as values, for Burn's own data format knows none, and for what is packed along
    /// another dim than the last.
    pub(crate) fn of(op: &'static str, scheme: &QuantScheme) -> hip::Result<Self> {
        let bits = match scheme.value {
            QuantValue::Q8F | QuantValue::Q8S => 8,
            QuantValue::Q4F | QuantValue::Q4S => 4,
            QuantValue::Q2F | QuantValue::Q2S => 2,
            value @ (QuantValue::E5M2 | QuantValue::E4M3 | QuantValue::E2M1) => {
                return unsupported(op, format!("quantised values of {value:?}"));
            }
        };
        let bits = match scheme.store {
            QuantStore::Native => 8,
            QuantStore::PackedU32(0) => bits,
            store @ (QuantStore::PackedU32(_) | QuantStore::PackedNative(_)) => {
                return unsupported(op, format!("quantised values stored as {store:?}"));
            }
        };
        let (block, param) = burn::scales(op, scheme)?;
        Ok(Self { bits, block, range: scheme.value.range(), param })
    }

    /// Values in a 32-bit word.
    pub(crate) fn per_word(&self) -> usize {
        32 / self.bits
    }

    /// The bytes of `count` values: whole words of values that are smaller than a byte.
    pub(crate) fn bytes(&self, count: usize) -> usize {
        if self.bits == 8 { count } else { count.div_ceil(self.per_word()) * 4 }
    }

    /// The number of scales of a tensor.
    ///
    /// # Errors
    /// `Invalid` where the elements don't make whole blocks.
    pub(crate) fn scales(&self, op: &'static str, dims: &[usize]) -> hip::Result<usize> {
        let Some(block) = self.block else { return Ok(1) };
        let count: usize = dims.iter().product();
        if block == 0 || u32::try_from(block).is_err() || !count.is_multiple_of(block) {
            return invalid(op, format!("elements in whole blocks of {block}"), format!("{dims:?}"));
        }
        Ok(count / block)
    }

    /// The block's size and its logarithm, as the kernels take them.
    pub(crate) fn block_values(&self) -> [Arg; 2] {
        let block = self.block.unwrap_or(0);
        let shift = if block.is_power_of_two() { block.trailing_zeros() } else { 32 };
        [Arg::U32(block as u32), Arg::U32(shift)]
    }
}
