//! GGUF's blocks. Their layouts are those of `ggml-common.h` in <https://github.com/ggml-org/ggml>.

use burn_rocm::RocmError;
use burn_rocm::fused::{GroupScales, GroupZeros, GroupedWeights, WeightFormat, WeightParts};

use super::raw::invalid;

const OP: &str = "GGUF";

/// A type of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufBlocks {
    /// 32 numbers of 4 bits and an f16 scale: 18 bytes.
    Q4_0,
    /// 32 numbers of 5 bits and an f16 scale: 22 bytes. On the device a number takes 8 bits.
    Q5_0,
    /// 32 numbers of 8 bits and an f16 scale: 34 bytes.
    Q8_0,
    /// 256 numbers of 4 bits; each 32 have a scale and a least value of 6 bits: 144 bytes.
    Q4K,
    /// 256 numbers of 6 bits; each 16 have a scale of 8 bits: 210 bytes.
    Q6K,
}

impl GgufBlocks {
    /// The elements and the bytes of a block.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::Q4_0 => (32, 18),
            Self::Q5_0 => (32, 22),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
        }
    }

    /// The bytes that a weight of this shape takes on the device.
    pub fn device_bytes(self, [outs, inputs]: [usize; 2]) -> usize {
        let (elements, bytes) = self.block();
        let bytes = match self {
            Self::Q5_0 => 34,
            Self::Q4K => bytes + 4,
            Self::Q4_0 | Self::Q8_0 | Self::Q6K => bytes,
        };
        outs * inputs / elements * bytes
    }

    /// The weight `[outs, inputs]` of whole rows of blocks.
    ///
    /// # Errors
    /// `Invalid` for rows that are no whole blocks, and for another number of bytes.
    pub fn parts(self, bytes: &[u8], shape: [usize; 2]) -> Result<WeightParts, RocmError> {
        let (elements, size) = self.block();
        let [outs, inputs] = shape;
        let expected = outs.checked_mul(inputs / elements).and_then(|blocks| blocks.checked_mul(size));
        if !inputs.is_multiple_of(elements) || expected != Some(bytes.len()) {
            let found = format!("{} bytes for {shape:?}", bytes.len());
            return invalid(
                OP,
                format!("rows of whole blocks of {elements} elements in {size} bytes"),
                found,
            );
        }
        let blocks = || bytes.chunks_exact(size);
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => {
                let (bits, zero) = match self {
                    Self::Q4_0 => (4, 8),
                    Self::Q5_0 => (8, 16),
                    _ => (8, 128),
                };
                let scales = blocks().map(|block| u16::from_le_bytes([block[0], block[1]])).collect();
                let weights = GroupedWeights {
                    shape,
                    bits,
                    group: Some(32),
                    scales: GroupScales::F16(scales),
                    zeros: GroupZeros::All(zero),
                    order: None,
                };
                let row = inputs / 32;
                WeightParts::grouped(weights, |out, input| {
                    let block = &bytes[(out * row + input / 32) * size + 2..];
                    match self {
                        // Numbers j and j + 16 are the halves of byte j.
                        Self::Q4_0 if input % 32 < 16 => block[input % 16] & 15,
                        Self::Q4_0 => block[input % 16] >> 4,
                        Self::Q5_0 => q5_0(block, input % 32),
                        _ => block[input % 32].wrapping_add(128),
                    }
                })
            }
            Self::Q4K => {
                let mut arrays: [Vec<u8>; 4] = Default::default();
                blocks().for_each(|block| q4_k(block, &mut arrays));
                WeightParts::k_quants(WeightFormat::Q4K, shape, arrays)
            }
            Self::Q6K => {
                let mut arrays: [Vec<u8>; 4] = Default::default();
                blocks().for_each(|block| q6_k(block, &mut arrays));
                WeightParts::k_quants(WeightFormat::Q6K, shape, arrays)
            }
        }
    }
}

/// Four bytes of the fifth bits, one bit for each number, and 16 bytes of the lower four, as in Q4_0.
fn q5_0(block: &[u8], at: usize) -> u8 {
    let low = block[4 + at % 16];
    let low = if at < 16 { low & 15 } else { low >> 4 };
    low | (block[at / 8] >> (at % 8) & 1) << 4
}

/// Two f16 scales, 12 bytes of groups' scales and least values, 128 bytes of numbers: 32 bytes have
/// the numbers of two groups, in their lower and upper halves.
fn q4_k(block: &[u8], [codes, _, scales, extra]: &mut [Vec<u8>; 4]) {
    extra.extend_from_slice(&block[..4]);
    let (packed, numbers) = (&block[4..16], &block[16..]);
    for group in 0..8 {
        // The upper two bits of groups 4 to 7 lie above the 6 bits of groups 0 to 3.
        let both = match group {
            0..4 => [packed[group] & 63, packed[group + 4] & 63],
            _ => [
                packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
                packed[group + 4] >> 4 | packed[group] >> 6 << 4,
            ],
        };
        scales.extend(both);
        let bytes = &numbers[group / 2 * 32..][..32];
        let number = |at: usize| if group.is_multiple_of(2) { bytes[at] & 15 } else { bytes[at] >> 4 };
        codes.extend((0..16).map(|at| number(at) | number(at + 16) << 4));
    }
}

/// 128 bytes of the lower 4 bits, 64 bytes of the upper 2 bits, 16 scales, an f16 scale of the
/// scales. Each half of the block has 4 groups of 32 numbers, which share 64 and 32 bytes.
fn q6_k(block: &[u8], [codes, upper, scales, extra]: &mut [Vec<u8>; 4]) {
    let (low, high) = (&block[..128], &block[128..192]);
    for group in 0..8 {
        let (half, group) = (group / 4, group % 4);
        let low = &low[half * 64 + group % 2 * 32..][..32];
        let low = |at: usize| if group < 2 { low[at] & 15 } else { low[at] >> 4 };
        let high = |at: usize| high[half * 32 + at] >> (2 * group) & 3;
        codes.extend((0..16).map(|at| low(at) | low(at + 16) << 4));
        upper.extend((0..8).map(|at| high(at) | high(at + 8) << 2 | high(at + 16) << 4 | high(at + 24) << 6));
    }
    scales.extend_from_slice(&block[192..208]);
    extra.extend_from_slice(&block[208..210]);
}
