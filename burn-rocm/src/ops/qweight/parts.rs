//! Quantised weights on the host, arranged as the kernels read them (`hip/kernels/qweight.h`).

use hip::Error as RocmError;

use crate::error::invalid;

const OP: &str = "quantised weights";

/// The weights of a chunk, to a multiple of which rows are padded.
pub(super) const CHUNK: usize = 32;

/// The greatest zero of 4-bit codes: bf16 holds 128 + 127, but not every whole number above 256.
const MOST_INT4_ZERO: u8 = 127;

/// How the codes of weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// 4 bits, with a scale for each group.
    Int4,
    /// 8 bits, with a scale for each group.
    Int8,
    /// GGUF's Q4_K: 4 bits. Each 32 weights have a scale and a least value of 6 bits, and each 256
    /// have an f16 scale of both.
    Q4K,
    /// GGUF's Q6_K: 6 bits. Each 16 weights have a scale of 8 bits, and each 256 an f16 scale of
    /// these.
    Q6K,
}

/// The scales of groups, `[outs, groups]` in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupScales {
    /// The bits of f16.
    F16(Vec<u16>),
    /// The bits of bf16.
    BF16(Vec<u16>),
    /// f32.
    F32(Vec<f32>),
}

/// The codes that stand for 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupZeros {
    /// The same for all groups.
    All(u8),
    /// One for each group, `[outs, groups]` in row-major order.
    Each(Vec<u8>),
}

/// Everything but the codes of weights in groups.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedWeights {
    /// `[outs, inputs]`.
    pub shape: [usize; 2],
    /// 4 or 8.
    pub bits: u32,
    /// The inputs that share a scale: a multiple of 32; `None` if a whole row does. The last group
    /// of a row may be shorter.
    pub group: Option<usize>,
    /// The scales.
    pub scales: GroupScales,
    /// The codes of 0.
    pub zeros: GroupZeros,
    /// The input whose weight is stored at each place of a row. Groups are of places.
    pub order: Option<Vec<u32>>,
}

/// A quantised weight on the host: `scale * (code - zero)` for each element.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightParts {
    pub(super) format: WeightFormat,
    pub(super) shape: [usize; 2],
    pub(super) codes: Vec<u8>,
    pub(super) upper: Vec<u8>,
    pub(super) scales: Vec<u8>,
    /// The type of the scales, numbered as in `qweight.h`.
    pub(super) kind: u32,
    pub(super) extra: Vec<u8>,
    pub(super) zero: u8,
    pub(super) groups: usize,
    pub(super) shift: u32,
    pub(super) order: Option<Vec<u32>>,
}

impl GroupScales {
    fn len(&self) -> usize {
        match self {
            Self::F16(bits) | Self::BF16(bits) => bits.len(),
            Self::F32(numbers) => numbers.len(),
        }
    }

    /// The bytes, with each scale repeated, and the type's number.
    fn into_bytes(self, times: impl Fn(usize) -> usize) -> (Vec<u8>, u32) {
        fn spread<T: Copy, const N: usize>(
            all: &[T],
            times: impl Fn(usize) -> usize,
            bytes: impl Fn(T) -> [u8; N],
        ) -> Vec<u8> {
            all.iter().enumerate().flat_map(|(at, &one)| bytes(one).repeat(times(at))).collect()
        }
        match self {
            Self::F16(bits) => (spread(&bits, times, u16::to_le_bytes), 0),
            Self::BF16(bits) => (spread(&bits, times, u16::to_le_bytes), 1),
            Self::F32(numbers) => (spread(&numbers, times, f32::to_le_bytes), 2),
        }
    }
}

/// The shape, if the kernels can index it.
pub(super) fn checked([outs, inputs]: [usize; 2]) -> hip::Result<()> {
    let most = i32::MAX as usize - CHUNK;
    let fits = (1..=most).contains(&outs)
        && (1..=most).contains(&inputs)
        && outs.checked_mul(inputs.next_multiple_of(CHUNK)).is_some_and(|all| isize::try_from(all).is_ok());
    match fits {
        true => Ok(()),
        false => invalid(OP, "[outs, inputs] of 1 to 2^31 - 33 each", format!("[{outs}, {inputs}]")),
    }
}

impl WeightParts {
    /// Weights in groups. `code` gives the code of an output's weight for an input; of 4-bit codes
    /// only the lower four bits count.
    ///
    /// # Errors
    /// `Invalid` for a shape without elements, bits other than 4 and 8, groups that are no multiple
    /// of 32, scales or zeros of another number than outputs times groups, zeros of 4-bit codes above
    /// 127, and an order that does not have each input once.
    pub fn grouped(weights: GroupedWeights, code: impl Fn(usize, usize) -> u8) -> Result<Self, RocmError> {
        let GroupedWeights { shape, bits, group, scales, zeros, order } = weights;
        checked(shape)?;
        let [outs, inputs] = shape;
        let format = match bits {
            4 => WeightFormat::Int4,
            8 => WeightFormat::Int8,
            _ => return invalid(OP, "4 or 8 bits", format!("{bits} bits")),
        };
        let group = group.filter(|&group| group < inputs);
        if group.is_some_and(|group| group == 0 || !group.is_multiple_of(CHUNK)) {
            return invalid(OP, "groups of a multiple of 32 inputs, or of a whole row", format!("{group:?}"));
        }
        let given = group.map_or(1, |group| inputs.div_ceil(group));
        let zero_count = match &zeros {
            GroupZeros::All(_) => outs * given,
            GroupZeros::Each(zeros) => zeros.len(),
        };
        if [scales.len(), zero_count] != [outs * given; 2] {
            let found = format!("{} scales and {zero_count} zeros", scales.len());
            return invalid(OP, format!("{given} groups for each of {outs} outputs"), found);
        }
        let most = match &zeros {
            GroupZeros::All(zero) => *zero,
            GroupZeros::Each(zeros) => zeros.iter().copied().max().unwrap_or(0),
        };
        // `few_codes.hip` relies on this. Zeros above 15, which are no 4-bit codes, are allowed.
        if format == WeightFormat::Int4 && most > MOST_INT4_ZERO {
            return invalid(OP, format!("zeros of 4-bit codes up to {MOST_INT4_ZERO}"), most.to_string());
        }
        if let Some(order) = &order {
            check_order(order, inputs)?;
        }
        // The kernels find a group by a shift. Other groups become several equal ones.
        let stored = group.map(|group| CHUNK << (group / CHUNK).trailing_zeros());
        let groups = stored.map_or(1, |stored| inputs.div_ceil(stored));
        let times = |at: usize| match (group, stored) {
            (Some(group), Some(stored)) if group != stored => {
                let begin = at % given * group;
                (begin + group).min(inputs).div_ceil(stored) - begin / stored
            }
            _ => 1,
        };
        let (scales, kind) = scales.into_bytes(times);
        let (zero, extra) = match zeros {
            GroupZeros::All(zero) => (zero, Vec::new()),
            GroupZeros::Each(zeros) => {
                let spread = zeros.iter().enumerate().flat_map(|(at, &zero)| vec![zero; times(at)]);
                (0, spread.collect())
            }
        };
        let shift = stored.map_or(31, |stored| (stored / CHUNK).trailing_zeros());
        let codes = codes(format, shape, order.as_deref(), code);
        let upper = Vec::new();
        Ok(Self { format, shape, codes, upper, scales, kind, extra, zero, groups, shift, order })
    }

    /// GGUF's Q4_K or Q6_K. For each chunk of 32 inputs: `codes` of 16 bytes, with weight `j` in the
    /// lower and weight `j + 16` in the upper half of byte `j`; for Q6_K, `upper` of 8 bytes, with
    /// the upper two bits of weights `j`, `j + 8`, `j + 16` and `j + 24` in byte `j`, the first in
    /// the lowest bits; `scales` of two bytes, Q4_K's scale and least value or the scales of Q6_K's
    /// halves. For each 256 inputs, `extra` has Q4_K's f16 scales of scales and of least values, or
    /// Q6_K's f16 scale of scales.
    ///
    /// # Errors
    /// `Invalid` for another format, for rows that are no multiple of 256, and for other numbers of
    /// bytes.
    pub fn k_quants(
        format: WeightFormat,
        shape: [usize; 2],
        [codes, upper, scales, extra]: [Vec<u8>; 4],
    ) -> Result<Self, RocmError> {
        checked(shape)?;
        let (upper_bytes, extra_bytes) = match format {
            WeightFormat::Q4K => (0, 4),
            WeightFormat::Q6K => (8, 2),
            WeightFormat::Int4 | WeightFormat::Int8 => {
                return invalid(OP, "Q4_K or Q6_K", format!("{format:?}"));
            }
        };
        if !shape[1].is_multiple_of(256) {
            return invalid(OP, "rows of a multiple of 256 inputs", format!("{shape:?}"));
        }
        let chunks = shape[0] * shape[1] / CHUNK;
        let expected = [16 * chunks, upper_bytes * chunks, 2 * chunks, extra_bytes * chunks / 8];
        let found = [&codes, &upper, &scales, &extra].map(Vec::len);
        if found != expected {
            return invalid(OP, format!("{expected:?} bytes of {shape:?}"), format!("{found:?}"));
        }
        let (groups, shift) = (shape[1] / CHUNK, 0);
        Ok(Self { format, shape, codes, upper, scales, kind: 0, extra, zero: 0, groups, shift, order: None })
    }

    /// `[outs, inputs]`.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The bytes on the device.
    pub fn bytes(&self) -> usize {
        let order = self.order.as_ref().map_or(0, |order| 8 * order.len());
        self.codes.len() + self.upper.len() + self.scales.len() + self.extra.len() + order
    }
}

/// Checks that the order has each input once.
fn check_order(order: &[u32], inputs: usize) -> hip::Result<()> {
    let mut seen = vec![false; inputs];
    for &input in order {
        match seen.get_mut(input as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => {
                return invalid(
                    OP,
                    format!("each of {inputs} inputs once"),
                    format!("{input} again or beyond"),
                );
            }
        }
    }
    match order.len() == inputs {
        true => Ok(()),
        false => invalid(OP, format!("an order of {inputs} inputs"), order.len().to_string()),
    }
}

/// The codes, row by row, padded to whole chunks.
fn codes(
    format: WeightFormat,
    [outs, inputs]: [usize; 2],
    order: Option<&[u32]>,
    code: impl Fn(usize, usize) -> u8,
) -> Vec<u8> {
    let input = |place: usize| order.map_or(place, |order| order[place] as usize);
    let padded = inputs.next_multiple_of(CHUNK);
    let at = |out: usize, place: usize| if place < inputs { code(out, input(place)) } else { 0 };
    if format == WeightFormat::Int8 {
        return (0..outs)
            .flat_map(|out| (0..padded).map(move |place| (out, place)))
            .map(|(o, p)| at(o, p))
            .collect();
    }
    let mut codes = Vec::with_capacity(outs * padded / 2);
    for out in 0..outs {
        for chunk in (0..padded).step_by(CHUNK) {
            codes.extend((chunk..chunk + 16).map(|place| at(out, place) & 15 | at(out, place + 16) << 4));
        }
    }
    codes
}
