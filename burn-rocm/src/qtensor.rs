//! The quantised primitive.

use burn_backend::quantization::{QuantScheme, QuantStore, QuantValue};
use burn_std::{DType, Shape};

use crate::arg::Arg;
use crate::burn;
use crate::error::{invalid, unsupported_with};
use crate::layout::{Layout, count};
use crate::scales::Scales;
use crate::tensor::RocmTensor;

/// A quantised tensor: a view of packed values, and the scales of the values' blocks.
///
/// The values are stored in row-major order, packed as `Format` says. Runs of consecutive stored
/// values share a scale, whatever the view.
#[derive(Clone, Debug)]
pub struct RocmQTensor {
    /// The stored bytes, beginning at the buffer's start.
    values: RocmTensor,
    /// The view. It counts values, and offset 0 is the first stored value.
    layout: Layout,
    /// The factors of the stored values, in f32. They are rounded to the scheme's scale type when
    /// they are made.
    scales: RocmTensor,
    levels: Option<Levels>,
    scheme: QuantScheme,
    format: Format,
}

/// The scales as Burn's data holds them. Kept only if the factors that the values are multiplied by
/// were derived from these scales and differ from them.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    /// One scale for each block, in f32.
    pub(crate) blocks: RocmTensor,
    /// The scale that the block scales are relative to, `[1]` in f32.
    pub(crate) global: Option<RocmTensor>,
}

impl RocmQTensor {
    /// A tensor of `shape` from stored values and their scales.
    ///
    /// # Errors
    /// `Invalid` if there are fewer bytes or scales than the shape and the scheme need. Every
    /// kernel launch relies on this check.
    pub(crate) fn new(
        op: &'static str,
        values: RocmTensor,
        scales: RocmTensor,
        levels: Option<Levels>,
        shape: impl Into<Shape>,
        scheme: QuantScheme,
    ) -> hip::Result<Self> {
        let layout = Layout::contiguous(shape);
        if count(layout.dims()).is_none() {
            return invalid(op, "a shape that fits memory", format!("{:?}", layout.dims()));
        }
        let format = Format::of(op, &scheme, layout.dims())?;
        let (bytes, count) = (format.bytes(layout.len()), format.scales(op, layout.dims())?);
        if values.len() < bytes || scales.len() < count {
            let found = format!("{} bytes and {} scales", values.len(), scales.len());
            return invalid(op, format!("{bytes} bytes and {count} scales"), found);
        }
        Ok(Self { values, layout, scales, levels, scheme, format })
    }

    /// The same values under another layout, which was derived from this tensor's.
    pub(crate) fn view(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// The same values under another layout, which is this tensor's layout with its axes permuted.
    pub(crate) fn permuted(self, axes: &[usize], layout: Layout) -> Self {
        Self { layout, scheme: burn::permuted(self.scheme, axes), ..self }
    }

    /// The same tensor with a copy of its values and scales.
    pub(crate) fn with_storage(self, values: RocmTensor, scales: RocmTensor, levels: Option<Levels>) -> Self {
        debug_assert_eq!((values.len(), scales.len()), (self.values.len(), self.scales.len()));
        Self { values, scales, levels, ..self }
    }

    /// Whether the stored scales are also those of the scheme's blocks in a tensor of shape `dims`.
    pub(crate) fn blocks_fit(&self, dims: &[usize]) -> bool {
        self.format.block.is_none()
            || self.levels.is_none()
                && burn::scales("quantised tensor", &self.scheme, dims)
                    .is_ok_and(|scales| scales.run == self.format.block && scales.grid.is_none())
    }

    /// The scheme, for callers without Burn's trait in scope.
    pub(crate) fn scheme_of(&self) -> &QuantScheme {
        &self.scheme
    }

    /// The stored bytes.
    pub(crate) fn values(&self) -> &RocmTensor {
        &self.values
    }

    /// The scales as Burn's data holds them, if they differ from [`Self::scales`].
    pub(crate) fn levels(&self) -> Option<&Levels> {
        self.levels.as_ref()
    }

    /// The factors of the stored values, in the order of the blocks.
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

    /// Whether the tensor has no elements.
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

/// A scheme as the kernels take it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Format {
    /// The bits of a stored value: 8 in native storage, as few as the value needs in packed
    /// storage.
    pub(crate) bits: usize,
    /// The number of values that share a scale; `None` if all values do.
    pub(crate) block: Option<usize>,
    /// The smallest and the largest value.
    pub(crate) range: (f32, f32),
    /// The scales' precision, numbered as in `quantize.hip`.
    pub(crate) param: u32,
}

impl Format {
    /// The format of a tensor of this scheme and of shape `dims`.
    ///
    /// # Errors
    /// `Unsupported` for float values, which Burn's own data format can't hold, and for values
    /// packed along a dim other than the last.
    pub(crate) fn of(op: &'static str, scheme: &QuantScheme, dims: &[usize]) -> hip::Result<Self> {
        let dtype = || DType::QFloat(*scheme);
        let bits = match scheme.value {
            QuantValue::Q8F | QuantValue::Q8S => 8,
            QuantValue::Q4F | QuantValue::Q4S => 4,
            QuantValue::Q2F | QuantValue::Q2S => 2,
            value @ (QuantValue::E5M2 | QuantValue::E4M3 | QuantValue::E2M1) => {
                return unsupported_with(op, dtype(), format!("values of {value:?}"));
            }
        };
        let bits = match scheme.store {
            QuantStore::Native => 8,
            QuantStore::PackedU32(0) => bits,
            store @ (QuantStore::PackedU32(_) | QuantStore::PackedNative(_)) => {
                return unsupported_with(op, dtype(), format!("values stored as {store:?}"));
            }
        };
        let Scales { run, param, .. } = burn::scales(op, scheme, dims)?;
        Ok(Self { bits, block: run, range: scheme.value.range(), param })
    }

    /// Values in a 32-bit word.
    pub(crate) fn per_word(&self) -> usize {
        32 / self.bits
    }

    /// The bytes of `count` values. Values of fewer than 8 bits fill whole words.
    pub(crate) fn bytes(&self, count: usize) -> usize {
        if self.bits == 8 { count } else { count.div_ceil(self.per_word()) * 4 }
    }

    /// The number of scales of a tensor.
    ///
    /// # Errors
    /// `Invalid` if the elements do not fill whole blocks.
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
