//! Drawn checkpoints, with the values that their formats define. Nothing here uses the importers'
//! code: words are read bit by bit.

use burn::tensor::DType;
use burn_rocm::fused::WeightParts;
use burn_rocm::{bf16, f16};
use burn_rocm_nn::language::quant::gguf::GgufBlocks;
use burn_rocm_nn::language::quant::{Awq, CompressedTensors, Gptq, GptqZeros, RawTensor};
use burn_rocm_tests::Random;

/// A weight, its values in f64, and the sums of magnitudes of which a value is made.
pub(crate) struct Drawn {
    pub(crate) name: String,
    pub(crate) parts: WeightParts,
    pub(crate) values: Vec<f64>,
    pub(crate) magnitudes: Vec<f64>,
    /// The bytes of the tensors of the checkpoint.
    pub(crate) file_bytes: usize,
}

pub(crate) fn bytes(random: &Random, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.bits() as u8).collect()
}

/// The number in some bits of little-endian bytes, the first in the lowest bits.
pub(crate) fn field(bytes: &[u8], first: usize, bits: usize) -> u32 {
    (0..bits).map(|bit| u32::from(bytes[(first + bit) / 8] >> ((first + bit) % 8) & 1) << bit).sum()
}

/// Scales of a type: positive and negative, as the format allows, and finite.
pub(crate) fn scales(random: &Random, count: usize, dtype: DType) -> (Vec<u8>, Vec<f64>) {
    let mut stored = Vec::new();
    let values = (0..count).map(|_| {
        let sign = if random.below(8) == 0 { -1.0 } else { 1.0 };
        let number = sign * random.uniform(-9.0, 1.0).exp();
        match dtype {
            DType::F16 => {
                let half = f16::from_f64(number);
                stored.extend(half.to_le_bytes());
                half.to_f64()
            }
            DType::BF16 => {
                let half = bf16::from_f64(number);
                stored.extend(half.to_le_bytes());
                half.to_f64()
            }
            _ => {
                stored.extend((number as f32).to_le_bytes());
                f64::from(number as f32)
            }
        }
    });
    let values = values.collect();
    (stored, values)
}

pub(crate) fn raw<'a>(name: &'a str, bytes: &'a [u8], shape: &'a [usize], dtype: DType) -> RawTensor<'a> {
    RawTensor { name, bytes, shape, dtype }
}

/// Where each input is in the order of groups: a drawn permutation's groups.
fn drawn_groups(random: &Random, inputs: usize, group: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..inputs).collect();
    for at in (1..inputs).rev() {
        order.swap(at, random.below(at + 1));
    }
    let mut groups = vec![0; inputs];
    order.into_iter().enumerate().for_each(|(place, input)| groups[input] = (place / group) as u32);
    groups
}

/// Values of all `(out, input)`.
fn each([outs, inputs]: [usize; 2], value: impl Fn(usize, usize) -> [f64; 2]) -> (Vec<f64>, Vec<f64>) {
    (0..outs)
        .flat_map(|out| (0..inputs).map(move |input| (out, input)))
        .map(|(out, input)| value(out, input))
        .map(|[value, magnitude]| (value, magnitude))
        .unzip()
}

pub(crate) fn gptq(
    random: &Random,
    [outs, inputs]: [usize; 2],
    bits: usize,
    group: Option<usize>,
    zeros: GptqZeros,
    act_order: bool,
) -> Drawn {
    let size = group.unwrap_or(inputs);
    let groups = inputs.div_ceil(size);
    let qweight = bytes(random, outs * inputs * bits / 8);
    let zero_words = outs.div_ceil(32 / bits);
    let qzeros = bytes(random, groups * zero_words * 4);
    let (stored, scale) = scales(random, groups * outs, DType::F16);
    let of = match act_order {
        true => drawn_groups(random, inputs, size),
        false => (0..inputs).map(|input| (input / size) as u32).collect(),
    };
    let g_idx: Vec<u8> = of.iter().flat_map(|of| of.to_le_bytes()).collect();
    let per_word = 32 / bits;
    let (shape_w, shape_z, shape_s) = ([inputs / per_word, outs], [groups, zero_words], [groups, outs]);
    let list = [inputs];
    let layer = Gptq {
        bits: bits as u32,
        group,
        zeros,
        qweight: raw("qweight", &qweight, &shape_w, DType::I32),
        qzeros: raw("qzeros", &qzeros, &shape_z, DType::I32),
        scales: raw("scales", &stored, &shape_s, DType::F16),
        g_idx: Some(raw("g_idx", &g_idx, &list, DType::I32)),
    };
    let (values, magnitudes) = each([outs, inputs], |out, input| {
        let group = of[input] as usize;
        // Word (input / per_word, out), bits `input % per_word`.
        let code = field(&qweight, (input / per_word * outs + out) * 32 + input % per_word * bits, bits);
        let word = (group * zero_words + out / per_word) * 32;
        let stored = |place: usize| field(&qzeros, word + place * bits, bits);
        let zero = match zeros {
            // Each field plus one, and the carry of the sum before it.
            GptqZeros::LessOne => {
                let sum = |before: u32, place| stored(place) + 1 + (before >> bits);
                (0..=out % per_word).fold(0, sum) % (1 << bits)
            }
            GptqZeros::Plain => stored(out % per_word),
        };
        let value = scale[group * outs + out] * (f64::from(code) - f64::from(zero));
        [value, value.abs()]
    });
    Drawn {
        name: format!("GPTQ {outs}x{inputs} {bits} bits {group:?} {zeros:?} act-order {act_order}"),
        parts: layer.parts().unwrap(),
        values,
        magnitudes,
        file_bytes: qweight.len() + qzeros.len() + stored.len() + g_idx.len(),
    }
}

pub(crate) fn awq(random: &Random, [outs, inputs]: [usize; 2], group: Option<usize>) -> Drawn {
    let size = group.unwrap_or(inputs);
    let groups = inputs.div_ceil(size);
    let qweight = bytes(random, outs * inputs / 2);
    let qzeros = bytes(random, groups * outs / 2);
    let (stored, scale) = scales(random, groups * outs, DType::F16);
    let (shape_w, shape_z, shape_s) = ([inputs, outs / 8], [groups, outs / 8], [groups, outs]);
    let layer = Awq {
        group,
        qweight: raw("qweight", &qweight, &shape_w, DType::I32),
        qzeros: raw("qzeros", &qzeros, &shape_z, DType::I32),
        scales: raw("scales", &stored, &shape_s, DType::F16),
    };
    // AutoAWQ packs output `[0, 2, 4, 6, 1, 3, 5, 7][i]` of eight at bit `4 i`.
    let place = |out: usize| [0, 4, 1, 5, 2, 6, 3, 7][out % 8];
    let (values, magnitudes) = each([outs, inputs], |out, input| {
        let number = |all: &[u8], row: usize| {
            f64::from(field(all, (row * outs / 8 + out / 8) * 32 + 4 * place(out), 4))
        };
        let group = input / size;
        let value = scale[group * outs + out] * (number(&qweight, input) - number(&qzeros, group));
        [value, value.abs()]
    });
    Drawn {
        name: format!("AWQ {outs}x{inputs} {group:?}"),
        parts: layer.parts().unwrap(),
        values,
        magnitudes,
        file_bytes: qweight.len() + qzeros.len() + stored.len(),
    }
}

/// How a checkpoint of compressed-tensors stores zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Zeros {
    None,
    Packed,
    Bytes,
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn compressed(
    random: &Random,
    [outs, inputs]: [usize; 2],
    bits: usize,
    group: Option<usize>,
    zeros: Zeros,
    dtype: DType,
    packed: bool,
    act_order: bool,
) -> Drawn {
    let size = group.unwrap_or(inputs);
    let groups = inputs.div_ceil(size);
    let per_word = 32 / bits;
    let offset = 1i32 << (bits - 1);
    let width = inputs.div_ceil(per_word);
    let weight = bytes(random, if packed { outs * width * 4 } else { outs * inputs });
    let (zero_shape, zero_dtype) = match zeros {
        Zeros::Bytes => ([outs, groups], DType::I8),
        _ => ([outs.div_ceil(per_word), groups], DType::I32),
    };
    let mut zero = bytes(random, zero_shape[0] * zero_shape[1] * zero_dtype.size());
    if zeros == Zeros::Bytes && bits == 4 {
        zero.iter_mut().for_each(|zero| *zero = (*zero % 16).wrapping_sub(8));
    }
    let (stored, scale) = scales(random, groups * outs, dtype);
    let of = match act_order {
        true => drawn_groups(random, inputs, size),
        false => (0..inputs).map(|input| (input / size) as u32).collect(),
    };
    let g_idx: Vec<u8> = of.iter().flat_map(|of| of.to_le_bytes()).collect();
    let packed_shape = [outs, width];
    let (shape, scale_shape, list) = ([outs, inputs], [outs, groups], [inputs]);
    let layer = CompressedTensors {
        bits: bits as u32,
        group,
        shape,
        weight: match packed {
            true => raw("weight_packed", &weight, &packed_shape, DType::I32),
            false => raw("weight", &weight, &shape, DType::I8),
        },
        scale: raw("weight_scale", &stored, &scale_shape, dtype),
        zero_point: (zeros != Zeros::None).then(|| raw("weight_zero_point", &zero, &zero_shape, zero_dtype)),
        g_idx: act_order.then(|| raw("weight_g_idx", &g_idx, &list, DType::I32)),
    };
    let (values, magnitudes) = each(shape, |out, input| {
        let group = of[input] as usize;
        let number = match packed {
            true => {
                field(&weight, (out * width + input / per_word) * 32 + input % per_word * bits, bits) as i32
                    - offset
            }
            false => i32::from(weight[out * inputs + input] as i8),
        };
        let zero = match zeros {
            Zeros::None => 0,
            Zeros::Bytes => i32::from(zero[out * groups + group] as i8),
            Zeros::Packed => {
                let first = (out / per_word * groups + group) * 32 + out % per_word * bits;
                field(&zero, first, bits) as i32 - offset
            }
        };
        let value = scale[out * groups + group] * f64::from(number - zero);
        [value, value.abs()]
    });
    Drawn {
        name: format!(
            "compressed {outs}x{inputs} {bits} bits {group:?} {zeros:?} packed {packed} {act_order}"
        ),
        parts: layer.parts().unwrap(),
        values,
        magnitudes,
        file_bytes: weight.len() + stored.len() + if zeros == Zeros::None { 0 } else { zero.len() },
    }
}

/// Replaces bytes that are an infinite f16 or NaN.
fn finite(bytes: &mut [u8], at: usize) {
    if bytes[at + 1] & 0x7c == 0x7c {
        bytes[at + 1] &= 0xbf;
    }
}

fn half(bytes: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f64()
}

pub(crate) fn gguf(random: &Random, [outs, inputs]: [usize; 2], blocks: GgufBlocks) -> Drawn {
    let (elements, size) = blocks.block();
    let mut file = bytes(random, outs * inputs / elements * size);
    for block in file.chunks_exact_mut(size) {
        match blocks {
            GgufBlocks::Q4_0 | GgufBlocks::Q5_0 | GgufBlocks::Q8_0 => finite(block, 0),
            GgufBlocks::Q4K => [0, 2].into_iter().for_each(|at| finite(block, at)),
            GgufBlocks::Q6K => finite(block, 208),
        }
    }
    let (values, magnitudes) = each([outs, inputs], |out, input| {
        let at = out * inputs + input;
        let block = &file[at / elements * size..][..size];
        let at = at % elements;
        match blocks {
            // dequantize_row_q4_0: y[j] of the lower half, y[j + 16] of the upper half of byte j.
            GgufBlocks::Q4_0 => {
                let byte = block[2 + at % 16];
                let number = if at < 16 { byte & 15 } else { byte >> 4 };
                let value = half(block, 0) * (f64::from(number) - 8.0);
                [value, value.abs()]
            }
            // dequantize_row_q5_0: the fifth bits are a little-endian word, bit j that of y[j].
            GgufBlocks::Q5_0 => {
                let fifths = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
                let byte = block[6 + at % 16];
                let number = u32::from(if at < 16 { byte & 15 } else { byte >> 4 }) | (fifths >> at & 1) << 4;
                let value = half(block, 0) * (f64::from(number) - 16.0);
                [value, value.abs()]
            }
            GgufBlocks::Q8_0 => {
                let value = half(block, 0) * f64::from(block[2 + at] as i8);
                [value, value.abs()]
            }
            // dequantize_row_q4_K and get_scale_min_k4: `is` counts groups of 32.
            GgufBlocks::Q4K => {
                let (is, q) = (at / 32, &block[4..16]);
                let (sc, m) = if is < 4 {
                    (q[is] & 63, q[is + 4] & 63)
                } else {
                    ((q[is + 4] & 0xf) | ((q[is - 4] >> 6) << 4), (q[is + 4] >> 4) | ((q[is] >> 6) << 4))
                };
                let byte = block[16 + at / 64 * 32 + at % 32];
                let number = if at % 64 < 32 { byte & 15 } else { byte >> 4 };
                let scaled = half(block, 0) * f64::from(sc) * f64::from(number);
                let least = half(block, 2) * f64::from(m);
                [scaled - least, scaled.abs() + least.abs()]
            }
            // dequantize_row_q6_K: two halves of 128, in each four runs of 32.
            GgufBlocks::Q6K => {
                let (n, run, l) = (at / 128, at % 128 / 32, at % 32);
                let (ql, qh) = (&block[64 * n..], block[128 + 32 * n + l]);
                let low = [ql[l] & 15, ql[l + 32] & 15, ql[l] >> 4, ql[l + 32] >> 4][run];
                let number = i32::from(low | (qh >> (2 * run) & 3) << 4) - 32;
                let scale = block[192 + 8 * n + l / 16 + 2 * run] as i8;
                let value = half(block, 208) * f64::from(scale) * f64::from(number);
                [value, value.abs()]
            }
        }
    });
    Drawn {
        name: format!("{blocks:?} {outs}x{inputs}"),
        parts: blocks.parts(&file, [outs, inputs]).unwrap(),
        values,
        magnitudes,
        file_bytes: file.len(),
    }
}

/// One weight of each kind, with drawn sizes.
pub(crate) fn every(random: &Random) -> Vec<Drawn> {
    let outs = || 1 + random.below(40);
    let inputs = |unit: usize| unit * (1 + random.below(6));
    let group = || [None, Some(32), Some(64), Some(96), Some(128)][random.below(5)];
    let mut all = Vec::new();
    for bits in [4, 8] {
        for zeros in [GptqZeros::LessOne, GptqZeros::Plain] {
            for act_order in [false, true] {
                let shape = [outs(), inputs(32)];
                all.push(gptq(random, shape, bits, group(), zeros, act_order));
            }
        }
        for zeros in [Zeros::None, Zeros::Packed, Zeros::Bytes] {
            // Rows that are no whole words.
            let shape = [outs(), 1 + random.below(200)];
            let dtype = [DType::F16, DType::BF16, DType::F32][random.below(3)];
            all.push(compressed(random, shape, bits, group(), zeros, dtype, true, random.below(2) == 0));
        }
    }
    let shape = [outs(), 1 + random.below(200)];
    all.push(compressed(random, shape, 8, group(), Zeros::None, DType::BF16, false, false));
    all.push(awq(random, [8 * (1 + random.below(6)), inputs(32)], group()));
    all.push(awq(random, [8, 1 + random.below(300)], None));
    all.push(gguf(random, [outs(), inputs(32)], GgufBlocks::Q4_0));
    all.push(gguf(random, [outs(), inputs(32)], GgufBlocks::Q5_0));
    all.push(gguf(random, [outs(), inputs(32)], GgufBlocks::Q8_0));
    all.push(gguf(random, [outs(), inputs(256)], GgufBlocks::Q4K));
    all.push(gguf(random, [outs(), inputs(256)], GgufBlocks::Q6K));
    all
}
