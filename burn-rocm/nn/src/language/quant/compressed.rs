//! Checkpoints of compressed-tensors (`llm-compressor`, vLLM): weights of 4 or 8 bits.

use burn_backend::DType;
use burn_rocm::RocmError;
use burn_rocm::fused::{GroupZeros, GroupedWeights, WeightParts};

use super::raw::{RawTensor, invalid, order_of};

const OP: &str = "compressed-tensors";

/// A linear layer's tensors. A weight is `scale * (number - zero)`, with signed numbers and zeros.
/// Packed numbers lie in words of 32 bits, the first in the lowest bits, each with `2^(bits - 1)`
/// added.
#[derive(Clone, Copy, Debug)]
pub struct CompressedTensors<'a> {
    /// `num_bits`: 4 or 8.
    pub bits: u32,
    /// `group_size`; `None` for the strategies `channel` and `tensor`.
    pub group: Option<usize>,
    /// `[outputs, inputs]` (`weight_shape`).
    pub shape: [usize; 2],
    /// `weight_packed` `[outputs, inputs * bits / 32]`, the last word of a row perhaps in part
    /// (`pack-quantized`); or `weight` in i8 (`int-quantized`).
    pub weight: RawTensor<'a>,
    /// `weight_scale`: `[outputs, groups]`, or `[1]` for the strategy `tensor`.
    pub scale: RawTensor<'a>,
    /// `weight_zero_point`: i32 `[outputs * bits / 32, groups]` packed along the outputs, or i8
    /// `[outputs, groups]`, or i8 `[1]` for the strategy `tensor`. `None` if quantisation is
    /// symmetric.
    pub zero_point: Option<RawTensor<'a>>,
    /// `weight_g_idx` `[inputs]`: the group of each input (`actorder`).
    pub g_idx: Option<RawTensor<'a>>,
}

impl CompressedTensors<'_> {
    /// The weight `[outputs, inputs]`.
    ///
    /// # Errors
    /// `Invalid` for bits other than 4 and 8, for tensors whose shapes or types do not fit each
    /// other, for groups that are no multiple of 32, and for inputs' groups of other sizes.
    pub fn parts(&self) -> Result<WeightParts, RocmError> {
        let (bits, [outs, inputs]) = (self.bits, self.shape);
        if bits != 4 && bits != 8 {
            return invalid(OP, "4 or 8 bits", format!("{bits} bits"));
        }
        let (per_word, mask, offset) = packing(bits);
        // The codes come first. Their bytes bound the number of outputs, each of which may get a copy
        // of one scale.
        self.weight.matrix(OP)?;
        if matches!(self.weight.dtype, DType::I8) {
            let numbers = self.weight.bytes(OP, &[outs, inputs])?;
            if bits == 4
                && let Some(&wide) = numbers.iter().find(|&&number| !(-8..8).contains(&(number as i8)))
            {
                return invalid(OP, "numbers of 4 bits", (wide as i8).to_string());
            }
            return WeightParts::grouped(self.groups()?, |out, input| {
                numbers[out * inputs + input].wrapping_add(offset) & mask as u8
            });
        }
        let width = inputs.div_ceil(per_word);
        let words = self.weight.words(OP, &[outs, width])?;
        WeightParts::grouped(self.groups()?, |out, input| {
            (words[out * width + input / per_word] >> (bits as usize * (input % per_word)) & mask) as u8
        })
    }

    /// Everything but the codes.
    fn groups(&self) -> Result<GroupedWeights, RocmError> {
        let (bits, [outs, inputs]) = (self.bits, self.shape);
        let (per_word, mask, offset) = packing(bits);
        let group = self.group.filter(|&group| group < inputs);
        let groups = match group {
            Some(0) => return invalid(OP, "groups of at least 32 inputs", "groups of 0"),
            Some(group) => inputs.div_ceil(group),
            None => 1,
        };
        let shape = [outs, groups];
        let zeros = match &self.zero_point {
            None => GroupZeros::All(offset),
            Some(zeros) if matches!(zeros.dtype, DType::I8 | DType::U8) => {
                GroupZeros::Each(spread(zeros, shape, |zeros| {
                    let zeros = zeros.bytes(OP, &shape)?;
                    Ok(zeros.iter().map(|zero| zero.wrapping_add(offset) & mask as u8).collect())
                })?)
            }
            Some(zeros) => {
                let words = zeros.words(OP, &[outs.div_ceil(per_word), groups])?;
                let places = (0..outs).flat_map(|out| (0..groups).map(move |group| (out, group)));
                let zero = |(out, group): (usize, usize)| {
                    (words[out / per_word * groups + group] >> (bits as usize * (out % per_word)) & mask)
                        as u8
                };
                GroupZeros::Each(places.map(zero).collect())
            }
        };
        let scales = spread(&self.scale, shape, |scale| scale.scales(OP, shape, false))?;
        let order = match &self.g_idx {
            Some(g_idx) => order_of(OP, g_idx, inputs, group)?,
            None => None,
        };
        Ok(GroupedWeights { shape: self.shape, bits, group, scales, zeros, order })
    }
}

/// How many numbers a word has, a number's bits, and what is added to each number.
fn packing(bits: u32) -> (usize, u32, u8) {
    ((32 / bits) as usize, (1 << bits) - 1, 1 << (bits - 1))
}

/// Reads a tensor of `[outputs, groups]`. If it has one element (strategy `tensor`), each output
/// gets a copy.
fn spread<T>(
    tensor: &RawTensor<'_>,
    shape: [usize; 2],
    read: impl FnOnce(&RawTensor<'_>) -> Result<T, RocmError>,
) -> Result<T, RocmError> {
    let [outs, groups] = shape;
    let is_one = tensor.shape.iter().all(|&axis| axis == 1) && tensor.bytes.len() == tensor.dtype.size();
    if groups > 1 || !is_one {
        return read(tensor);
    }
    let bytes = tensor.bytes.repeat(outs);
    read(&RawTensor { bytes: &bytes, shape: &shape, ..*tensor })
}
