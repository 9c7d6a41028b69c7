//! Quantisation of float weights: round to nearest.

use burn_rocm::fused::{GroupScales, GroupZeros, GroupedWeights, WeightParts};
use burn_rocm::{RocmError, f16};

use super::raw::invalid;

const OP: &str = "round to nearest";

/// What weights are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTo {
    /// 4 bits in groups of 64 inputs, between the least and the greatest weight of the group and 0
    /// (asymmetric): 4.375 bits a weight with scales of f16.
    Int4,
    /// 8 bits in groups of 128 inputs, between plus and minus the greatest magnitude (symmetric):
    /// 8.125 bits a weight with scales of f16.
    Int8,
}

impl RoundTo {
    /// The inputs that share a scale.
    pub fn group(self) -> usize {
        match self {
            Self::Int4 => 64,
            Self::Int8 => 128,
        }
    }

    /// The bits of a code.
    pub fn bits(self) -> u32 {
        match self {
            Self::Int4 => 4,
            Self::Int8 => 8,
        }
    }

    /// The bytes that a weight of this shape takes on the device with scales of f16. Each group
    /// takes 2 bytes more if one of the weight's scales is no normal f16: then all are f32.
    pub fn device_bytes(self, [outs, inputs]: [usize; 2]) -> usize {
        let (padded, groups) = (inputs.next_multiple_of(32), inputs.div_ceil(self.group()));
        outs * match self {
            Self::Int4 => padded / 2 + 3 * groups,
            Self::Int8 => padded + 2 * groups,
        }
    }
}

/// A group's scale and its code of 0, before the scale is rounded.
fn range(to: RoundTo, group: &[f32]) -> (f32, f32) {
    let fold = |f: fn(f32, f32) -> f32| group.iter().copied().fold(0.0, f);
    match to {
        RoundTo::Int4 => {
            let (least, greatest) = (fold(f32::min), fold(f32::max));
            ((greatest / 15.0 - least / 15.0), least)
        }
        RoundTo::Int8 => (fold(|most, x| most.max(x.abs())) / 127.0, 0.0),
    }
}

/// Rounds a weight `[outs, inputs]` to the nearest codes. Scales are f16, or f32 if one of them is
/// no normal f16.
///
/// # Errors
/// `Invalid` if the number of weights is not that of the shape, or if a weight is not finite.
pub fn round_to_nearest(weights: &[f32], shape: [usize; 2], to: RoundTo) -> Result<WeightParts, RocmError> {
    let [outs, inputs] = shape;
    if outs.checked_mul(inputs) != Some(weights.len()) || weights.is_empty() {
        return invalid(OP, format!("the elements of {shape:?}"), format!("{}", weights.len()));
    }
    if let Some(wrong) = weights.iter().find(|weight| !weight.is_finite()) {
        return invalid(OP, "finite weights", wrong.to_string());
    }
    let length = to.group();
    let groups = || weights.chunks_exact(inputs).flat_map(|row| row.chunks(length));
    let mut ranges: Vec<(f32, f32)> = groups().map(|group| range(to, group)).collect();
    // A group of zeros has any scale.
    ranges.iter_mut().filter(|(scale, _)| *scale == 0.0).for_each(|(scale, _)| *scale = 1.0);
    let least = f16::MIN_POSITIVE.to_f32();
    let is_half = ranges.iter().all(|(scale, _)| (least..=f16::MAX.to_f32()).contains(scale));
    let scales = match is_half {
        true => {
            let bits = ranges.iter_mut().map(|(scale, _)| {
                let half = f16::from_f32(*scale);
                *scale = half.to_f32();
                half.to_bits()
            });
            GroupScales::F16(bits.collect())
        }
        false => {
            // Below f32's normal numbers, quotients would lose digits.
            ranges.iter_mut().for_each(|(scale, _)| *scale = scale.max(f32::MIN_POSITIVE));
            GroupScales::F32(ranges.iter().map(|(scale, _)| *scale).collect())
        }
    };
    let zero = |(scale, least): (f32, f32)| (-least / scale).round().clamp(0.0, 15.0);
    let (bits, zeros) = match to {
        RoundTo::Int4 => (4, GroupZeros::Each(ranges.iter().map(|&range| zero(range) as u8).collect())),
        RoundTo::Int8 => (8, GroupZeros::All(128)),
    };
    let in_row = inputs.div_ceil(length);
    let code = |out: usize, input: usize| {
        let range = ranges[out * in_row + input / length];
        let steps = (weights[out * inputs + input] / range.0).round();
        match to {
            RoundTo::Int4 => (steps + zero(range)).clamp(0.0, 15.0) as u8,
            RoundTo::Int8 => (steps + 128.0).clamp(1.0, 255.0) as u8,
        }
    };
    let group = Some(length);
    WeightParts::grouped(GroupedWeights { shape, bits, group, scales, zeros, order: None }, code)
}
