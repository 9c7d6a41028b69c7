//! The element types of GGUF, and their values in f32.
//!
//! The layouts are those of `ggml-common.h` in <https://github.com/ggml-org/ggml>.

use burn::tensor::DType;
use burn_rocm_nn::language::quant::gguf::GgufBlocks;
use half::f16;

/// An element type that this program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quant {
    F32,
    F16,
    Bf16,
    /// 32 numbers of 8 bits and a scale.
    Q8_0,
    /// 32 numbers of 4 bits and a scale.
    Q4_0,
    /// 32 numbers of 4 bits, a scale and a least value.
    Q4_1,
    /// 32 numbers of 5 bits and a scale.
    Q5_0,
    /// 32 numbers of 5 bits, a scale and a least value.
    Q5_1,
    /// 256 numbers of 4 bits; each 32 have a scale and a least value of 6 bits.
    Q4K,
    /// 256 numbers of 6 bits; each 16 have a scale of 8 bits.
    Q6K,
}

/// The types, for errors.
pub(super) const SUPPORTED: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K or Q6_K";

/// The names of all types, by their numbers, for errors.
const NAMES: [&str; 31] = [
    "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K",
    "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16",
];

impl Quant {
    /// The type with this number, or its name.
    pub(super) fn of(number: u32) -> Result<Self, String> {
        Ok(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            other => {
                let name = NAMES.get(other as usize).map(|&name| name.to_owned());
                return Err(name.unwrap_or_else(|| format!("type {other}")));
            }
        })
    }

    /// The dtype whose bytes these are, if it is one of Burn's.
    pub(super) fn dtype(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// The blocks that stay quantised on the device. The others become floats: the device's formats
    /// have no f16 least value for every 32 numbers.
    pub(super) fn blocks(self) -> Option<GgufBlocks> {
        Some(match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::Q4_1 | Self::Q5_1 => return None,
            Self::Q8_0 => GgufBlocks::Q8_0,
            Self::Q4_0 => GgufBlocks::Q4_0,
            Self::Q5_0 => GgufBlocks::Q5_0,
            Self::Q4K => GgufBlocks::Q4K,
            Self::Q6K => GgufBlocks::Q6K,
        })
    }

    /// The elements and bytes of a block.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
        }
    }

    /// Writes the values of whole blocks. `out` has as many elements as the blocks.
    pub(super) fn values(self, bytes: &[u8], out: &mut [f32]) {
        let (elements, size) = self.block();
        for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(elements)) {
            match self {
                Self::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
                Self::F16 => out[0] = half(block, 0),
                Self::Bf16 => out[0] = half::bf16::from_le_bytes([block[0], block[1]]).to_f32(),
                Self::Q8_0 => {
                    let scale = half(block, 0);
                    for (out, &byte) in out.iter_mut().zip(&block[2..]) {
                        *out = f32::from(byte as i8) * scale;
                    }
                }
                Self::Q4_0 => of_32(block, 2, &[0; 4], out, |number, scale| (number - 8.0) * scale),
                Self::Q4_1 => {
                    let least = half(block, 2);
                    of_32(block, 4, &[0; 4], out, |number, scale| number * scale + least);
                }
                Self::Q5_0 => of_32(block, 6, &block[2..6], out, |number, scale| (number - 16.0) * scale),
                Self::Q5_1 => {
                    let least = half(block, 2);
                    of_32(block, 8, &block[4..8], out, |number, scale| number * scale + least);
                }
                Self::Q4K => q4_k(block, out),
                Self::Q6K => q6_k(block, out),
            }
        }
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The values of a block that begins with an f16 scale and whose last 16 bytes, from byte `first`
/// on, have the lower 4 bits of numbers: the first 16 in the lower halves, the others in the upper
/// ones. Bit `j` of the four bytes `fifths` is the fifth bit of number `j`.
fn of_32(block: &[u8], first: usize, fifths: &[u8], out: &mut [f32], value: impl Fn(f32, f32) -> f32) {
    let scale = half(block, 0);
    for (at, out) in out.iter_mut().enumerate() {
        let byte = block[first + at % 16];
        let low = if at < 16 { byte & 15 } else { byte >> 4 };
        let fifth = fifths[at / 8] >> (at % 8) & 1;
        *out = value(f32::from(low | fifth << 4), scale);
    }
}

/// Scale and least value of group `at` of 8, of 6 bits each. The upper two bits of groups 4 to 7
/// lie above the 6 bits of groups 0 to 3.
fn scale_and_least(scales: &[u8], at: usize) -> (f32, f32) {
    let (scale, least) = if at < 4 {
        (scales[at] & 63, scales[at + 4] & 63)
    } else {
        let (low, high) = (scales[at + 4] & 15, scales[at + 4] >> 4);
        (low | (scales[at - 4] >> 6) << 4, high | (scales[at] >> 6) << 4)
    };
    (scale.into(), least.into())
}

/// Two scales, 12 bytes of groups' scales, 128 bytes of numbers. 32 bytes have the numbers of two
/// groups, in their lower and upper halves.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (of_scales, of_leasts) = (half(block, 0), half(block, 2));
    let (scales, numbers) = (&block[4..16], &block[16..144]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, least) = scale_and_least(scales, group);
        let (scale, least) = (of_scales * scale, of_leasts * least);
        let bytes = &numbers[group / 2 * 32..][..32];
        for (out, &byte) in out.iter_mut().zip(bytes) {
            let number = if group.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
            *out = scale * f32::from(number) - least;
        }
    }
}

/// 128 bytes of the lower 4 bits, 64 bytes of the upper 2 bits, 16 scales, one scale of the scales.
/// Each half of the block has 4 groups of 32 numbers, which share 64 bytes and 32 bytes.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (lower, upper, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let of_scales = half(block, 208);
    for (at, out) in out.iter_mut().enumerate() {
        let (part, group, within) = (at / 128, at % 128 / 32, at % 32);
        let low = lower[part * 64 + group % 2 * 32 + within];
        let low = if group < 2 { low & 15 } else { low >> 4 };
        let high = upper[part * 32 + within] >> (2 * group) & 3;
        let number = i32::from(low | high << 4) - 32;
        *out = of_scales * f32::from(scales[at / 16] as i8) * number as f32;
    }
}
