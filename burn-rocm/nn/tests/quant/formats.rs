//! What the device makes of a checkpoint's bytes.

use burn::tensor::quantization::{QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue};
use burn::tensor::{DType, Distribution, Int, Tensor, TensorData, TensorPrimitive};
use burn_rocm::fused::{QuantWeight, WeightParts};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_nn::language::quant::gguf::GgufBlocks;
use burn_rocm_nn::language::quant::{
    CompressedTensors, Gptq, GptqZeros, QuantEmbedding, QuantLinear, RawTensor,
};
use burn_rocm_tests::limits::unit;
use burn_rocm_tests::{Random, read_float};

use crate::weights::{Drawn, Zeros, awq, bytes, compressed, every, gguf, gptq, raw};

fn floats(tensor: burn_rocm::RocmTensor) -> Vec<f64> {
    read_float::<Rocm>(tensor).iter::<f64>().collect()
}

/// Each value is the product of a scale and a whole number, of which f32's product is the nearest
/// f32: `(value as f32)`. Q4_K's is the difference of two exact products.
#[test]
fn dequantised_weights_are_the_nearest_f32() {
    let random = Random::new();
    for drawn in every(&random) {
        let weight = QuantWeight::upload(&drawn.parts, &RocmDevice::default()).unwrap();
        let found = floats(weight.dequantize(DType::F32).unwrap());
        assert_eq!(found.len(), drawn.values.len(), "{}", drawn.name);
        for (at, (found, value)) in found.iter().zip(&drawn.values).enumerate() {
            assert_eq!(*found, f64::from(*value as f32), "{} at {at}", drawn.name);
        }
        // In 16 bits they are rounded once more.
        let found = floats(weight.dequantize(DType::BF16).unwrap());
        for (found, value) in found.iter().zip(&drawn.values) {
            let nearest = burn_rocm::bf16::from_f32(*value as f32).to_f64();
            assert_eq!(*found, nearest, "{} in bf16", drawn.name);
        }
    }
}

/// The words are those that GPTQModel writes: `0x8030_0f80 - 0x1111_1111` for 4 bits, and
/// `0x000f_0800 - 0x0101_0101` and `0x0800_0300 - 0x0101_0101` for 8. Codes are 0 and scales 1.
#[test]
fn a_zero_of_gptq_borrows_from_the_next() {
    const ZEROS: [f64; 8] = [0.0, 8.0, 15.0, 0.0, 0.0, 3.0, 0.0, 8.0];
    let cases: [(u32, &[u32]); 2] = [(4, &[0x6f1e_fe6f]), (8, &[0xff0e_06ff, 0x06ff_01ff])];
    for (bits, words) in cases {
        let qzeros: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (shape, zeros_shape) = ([bits as usize, 8], [1, words.len()]);
        let qweight = vec![0u8; 32 * bits as usize];
        let scales = burn_rocm::f16::ONE.to_le_bytes().repeat(8);
        let layer = Gptq {
            bits,
            group: None,
            zeros: GptqZeros::LessOne,
            qweight: raw("qweight", &qweight, &shape, DType::I32),
            qzeros: raw("qzeros", &qzeros, &zeros_shape, DType::I32),
            scales: raw("scales", &scales, &[1, 8], DType::F16),
            g_idx: None,
        };
        let weight = QuantWeight::upload(&layer.parts().unwrap(), &RocmDevice::default()).unwrap();
        let found = floats(weight.dequantize(DType::F32).unwrap());
        let expected: Vec<f64> = ZEROS.iter().flat_map(|zero| [-zero; 32]).collect();
        assert_eq!(found, expected, "{bits} bits");
    }
}

/// The strategy `tensor` of compressed-tensors has one scale and one zero, that of every output.
#[test]
fn one_scale_and_one_zero_are_those_of_each_output() {
    let random = Random::new();
    let (scale, zero) = (burn_rocm::f16::from_f32(0.5).to_le_bytes(), [-3i8 as u8]);
    for (bits, outs) in [(4, 1), (4, 64), (8, 1), (8, 64)] {
        let (words, packed) = (bytes(&random, outs * 64 * bits / 8), [outs, 2 * bits]);
        let parts = |scale: RawTensor<'_>, zero: RawTensor<'_>| {
            let layer = CompressedTensors {
                bits: bits as u32,
                group: None,
                shape: [outs, 64],
                weight: raw("weight_packed", &words, &packed, DType::I32),
                scale,
                zero_point: Some(zero),
                g_idx: None,
            };
            layer.parts().unwrap()
        };
        let one = parts(raw("scale", &scale, &[1], DType::F16), raw("zero", &zero, &[1], DType::I8));
        let (scales, zeros, each) = (scale.repeat(outs), zero.repeat(outs), [outs, 1]);
        let all = parts(raw("scale", &scales, &each, DType::F16), raw("zero", &zeros, &each, DType::I8));
        assert_eq!(one, all, "{bits} bits of {outs} outputs");
    }
}

/// The bytes of a weight that is not tiny exceed the file's by at most 3 %.
#[test]
fn bytes_hardly_grow() {
    let random = Random::new();
    let mut all = Vec::new();
    for bits in [4, 8] {
        for group in [Some(32), Some(64), Some(128), None] {
            let shape = [64, 1024];
            let zeros = GptqZeros::LessOne;
            all.push(gptq(&random, shape, bits, group, zeros, false));
            all.push(compressed(&random, shape, bits, group, Zeros::Packed, DType::F16, true, false));
            all.push(compressed(&random, shape, bits, group, Zeros::None, DType::BF16, true, false));
        }
    }
    for blocks in [GgufBlocks::Q4_0, GgufBlocks::Q8_0, GgufBlocks::Q4K, GgufBlocks::Q6K] {
        let drawn = gguf(&random, [64, 1024], blocks);
        assert_eq!(drawn.parts.bytes(), blocks.device_bytes([64, 1024]));
        all.push(drawn);
    }
    // Its numbers of 5 bits take 8.
    let drawn = gguf(&random, [64, 1024], GgufBlocks::Q5_0);
    assert_eq!(drawn.parts.bytes(), GgufBlocks::Q5_0.device_bytes([64, 1024]));
    assert_eq!(drawn.parts.bytes() * 22, drawn.file_bytes * 34);
    for drawn in all {
        let growth = drawn.parts.bytes() as f64 / drawn.file_bytes as f64;
        assert!(growth < 1.03, "{}: {growth}", drawn.name);
    }
}

/// An embedding reads the same rows, in any order of inputs.
#[test]
fn an_embedding_reads_rows() {
    let random = Random::new();
    for drawn in every(&random) {
        let [outs, width] = drawn.parts.shape();
        let weight = QuantWeight::upload(&drawn.parts, &RocmDevice::default()).unwrap();
        let count = 1 + random.below(9);
        let rows: Vec<i64> = (0..count).map(|_| random.below(outs) as i64).collect();
        let indices =
            Tensor::<Rocm, 1, Int>::from_data(TensorData::new(rows.clone(), [count]), &RocmDevice::default());
        let found = QuantEmbedding::new(weight, DType::F32).forward(indices).into_data();
        let found: Vec<f64> = found.iter::<f64>().collect();
        let expected: Vec<f64> = rows
            .iter()
            .flat_map(|&row| &drawn.values[row as usize * width..][..width])
            .map(|value| f64::from(*value as f32))
            .collect();
        assert_eq!(found, expected, "{}", drawn.name);
    }
}

/// Weights of one format become one, and others don't.
#[test]
fn weights_are_joined_by_their_outputs() {
    let random = Random::new();
    let inputs = 256 * (1 + random.below(3));
    let shape = |eights: usize| [8 * eights, inputs];
    let zeros = GptqZeros::LessOne;
    let draw: [&dyn Fn(usize) -> Drawn; 8] = [
        &|n| gguf(&random, shape(n), GgufBlocks::Q4_0),
        &|n| gguf(&random, shape(n), GgufBlocks::Q8_0),
        &|n| gguf(&random, shape(n), GgufBlocks::Q4K),
        &|n| gguf(&random, shape(n), GgufBlocks::Q6K),
        &|n| gptq(&random, shape(n), 4, Some(64), zeros, false),
        &|n| awq(&random, shape(n), Some(32)),
        &|n| compressed(&random, [n, inputs + 5], 8, None, Zeros::None, DType::BF16, true, false),
        &|n| gguf(&random, shape(n), GgufBlocks::Q5_0),
    ];
    let upload = |drawn: &Drawn| QuantWeight::upload(&drawn.parts, &RocmDevice::default()).unwrap();
    for draw in draw {
        let parts: Vec<Drawn> = (0..3).map(|_| draw(1 + random.below(5))).collect();
        let weights: Vec<QuantWeight> = parts.iter().map(upload).collect();
        let joined = QuantWeight::joined(&weights).unwrap().expect(&parts[0].name);
        let expected: Vec<f64> =
            weights.iter().flat_map(|w| floats(w.dequantize(DType::F32).unwrap())).collect();
        assert_eq!(floats(joined.dequantize(DType::F32).unwrap()), expected, "{}", parts[0].name);
        // The product's kernel too: each row of the identity selects an input.
        let width = joined.shape()[1];
        let one = Tensor::<Rocm, 2>::eye(width, &RocmDevice::default()).narrow(0, 0, 9);
        let found = QuantLinear::new::<Rocm>(joined, None).unwrap().forward(one).into_data();
        let found: Vec<f64> = found.iter::<f64>().collect();
        let outs = expected.len() / width;
        for (at, found) in found.iter().enumerate() {
            assert_eq!(*found, expected[at % outs * width + at / outs], "{} at {at}", parts[0].name);
        }
    }
    let others = |one: Drawn, other: Drawn| QuantWeight::joined(&[upload(&one), upload(&other)]).unwrap();
    assert!(QuantWeight::joined(&[]).unwrap().is_none());
    assert!(others(draw[2](1), draw[3](1)).is_none(), "other formats");
    assert!(others(draw[0](1), gguf(&random, [8, inputs + 256], GgufBlocks::Q4_0)).is_none(), "other inputs");
    assert!(others(draw[1](1), draw[7](1)).is_none(), "other codes of 0");
    let groups = gptq(&random, shape(1), 4, Some(128), zeros, false);
    assert!(others(draw[4](1), groups).is_none(), "other groups");
    let ordered = || gptq(&random, shape(1), 4, Some(64), zeros, true);
    assert!(others(ordered(), ordered()).is_none(), "inputs in orders of their own");
    assert!(others(draw[4](1), ordered()).is_none(), "one with an order");
}

/// Some outputs, and whole groups of inputs, have the same values as in the whole weight.
#[test]
fn weights_are_divided() {
    let random = Random::new();
    let device = RocmDevice::default();
    let (mut divided, mut refused) = (0, 0);
    for drawn in every(&random) {
        let [outs, inputs] = drawn.parts.shape();
        let upload = |parts: &WeightParts| QuantWeight::upload(parts, &device).unwrap();
        let whole = upload(&drawn.parts);
        let values = floats(whole.dequantize(DType::F32).unwrap());
        let first = random.below(outs);
        let rows = first..first + 1 + random.below(outs - first);
        let expected = &values[rows.start * inputs..rows.end * inputs];
        for part in
            [upload(&drawn.parts.outputs(rows.clone()).unwrap()), whole.outputs(rows.clone()).unwrap()]
        {
            assert_eq!(part.shape(), [rows.len(), inputs], "{}", drawn.name);
            assert_eq!(floats(part.dequantize(DType::F32).unwrap()), expected, "{}", drawn.name);
            // The product's kernel and the larger products read the part too.
            for count in [1, 20] {
                let x = Tensor::<Rocm, 2>::random([count, inputs], Distribution::Default, &device);
                let of = |weight: &QuantWeight| {
                    let layer = QuantLinear::new::<Rocm>(weight.clone(), None).unwrap();
                    layer.forward(x.clone())
                };
                let product = of(&whole).narrow(1, rows.start, rows.len()).into_data();
                let sum = |row: usize| values[row * inputs..][..inputs].iter().map(|v| v.abs()).sum::<f64>();
                let most = rows.clone().map(sum).fold(0.0, f64::max);
                // Two orders of a sum in f32 of terms whose magnitudes are at most these.
                let within = 2.0 * (inputs as f64 + 8.0) * unit(DType::F32) * most;
                let found = of(&part).into_data();
                for (a, b) in found.iter::<f64>().zip(product.iter::<f64>()) {
                    assert!((a - b).abs() <= within, "{}: {a}, not {b} within {within:e}", drawn.name);
                }
            }
        }
        for _ in 0..4 {
            let first = random.below(inputs.div_ceil(32)) * 32;
            let last = (first + 32 * (1 + random.below(inputs.div_ceil(32)))).min(inputs);
            match drawn.parts.inputs(first..last) {
                Ok(part) => {
                    divided += usize::from(first > 0 || last < inputs);
                    let columns = values.chunks(inputs).flat_map(|row| &row[first..last]).copied();
                    let found = floats(upload(&part).dequantize(DType::F32).unwrap());
                    assert_eq!(found, columns.collect::<Vec<_>>(), "{}, {first}..{last}", drawn.name);
                }
                Err(error) => {
                    refused += 1;
                    let text = error.to_string();
                    let known = ["whole groups of", "an order (`g_idx`)"];
                    assert!(known.iter().any(|known| text.contains(known)), "{}: {text}", drawn.name);
                    assert!(!(first == 0 && last == inputs) || text.contains("order"), "{}", drawn.name);
                }
            }
        }
        assert!(drawn.parts.inputs(0..inputs + 1).is_err() && drawn.parts.outputs(0..0).is_err());
        assert!(drawn.parts.inputs(1..inputs).is_err(), "{}", drawn.name);
    }
    assert!(divided > 5 && refused > 5, "{divided} parts, {refused} refused");
}

/// An index beyond the table reads zeros, and is reported.
#[test]
fn an_index_out_of_range_is_a_fault() {
    let random = Random::new();
    let drawn = gguf(&random, [5, 64], GgufBlocks::Q8_0);
    let weight = QuantWeight::upload(&drawn.parts, &RocmDevice::default()).unwrap();
    let device = RocmDevice::default();
    let ints = [5, -1, i32::MAX].map(|wrong| (i64::from(wrong), DType::I32));
    // The lower half of each is an index that exists.
    let wide = [(1i64 << 32) + 1, 1 - (1i64 << 32), i64::MIN].map(|wrong| (wrong, DType::I64));
    let unsigned = [((1i64 << 32) + 1, DType::U64), (i64::from(u32::MAX), DType::U32)];
    for (wrong, dtype) in ints.into_iter().chain(wide).chain(unsigned) {
        let data = TensorData::new(vec![1, wrong], [2]).convert_dtype(dtype);
        let indices = Tensor::<Rocm, 1, Int>::from_data(data, (&device, dtype));
        let rows = weight.embedding(indices.into_primitive(), DType::F32).unwrap();
        let (data, fault) = burn_rocm::read_with_fault(rows).unwrap();
        assert!(fault.is_some(), "{wrong}");
        assert!(data.iter::<f32>().skip(64).all(|value| value == 0.0), "{wrong}");
    }
}

/// Burn's own schemes, with one scale and with blocks.
#[test]
fn weights_that_burn_quantised() {
    let random = Random::new();
    let device = RocmDevice::default();
    for value in [QuantValue::Q8F, QuantValue::Q8S, QuantValue::Q4F, QuantValue::Q4S, QuantValue::Q2S] {
        for level in [QuantLevel::Tensor, QuantLevel::block([32]), QuantLevel::block([64])] {
            for store in [QuantStore::PackedU32(0), QuantStore::Native] {
                for param in [QuantParam::F32, QuantParam::F16] {
                    let native = matches!(value, QuantValue::Q8F | QuantValue::Q8S);
                    if store == QuantStore::Native && !native {
                        continue;
                    }
                    let scheme = QuantScheme { value, level, param, store, ..Default::default() };
                    let shape = [1 + random.below(20), 64 * (1 + random.below(4))];
                    let values: Vec<f32> =
                        (0..shape[0] * shape[1]).map(|_| random.uniform(-2.0, 2.0) as f32).collect();
                    let tensor = Tensor::<Rocm, 2>::from_data(TensorData::new(values, shape), &device);
                    let quantised = tensor.quantize_dynamic(&scheme);
                    let expected = quantised.clone().dequantize().into_data();
                    let TensorPrimitive::QFloat(primitive) = quantised.into_primitive() else {
                        panic!("a quantised tensor")
                    };
                    let parts = WeightParts::of_burn(&primitive).unwrap();
                    let weight = QuantWeight::upload(&parts, &device).unwrap();
                    let found = floats(weight.dequantize(DType::F32).unwrap());
                    assert_eq!(found, expected.iter::<f64>().collect::<Vec<_>>(), "{scheme:?} {shape:?}");
                }
            }
        }
    }
}

/// Weights that the device draws: all codes occur, the mean is near 0 and the deviation is that
/// asked for, within 5 standard deviations of each estimate.
#[test]
fn drawn_weights_have_their_deviation() {
    let device = RocmDevice::default();
    for (bits, group, deviation) in [(4, 64, 0.02), (8, 128, 0.5), (4, 32, 1.0), (8, 512, 0.05)] {
        let (outs, inputs) = (90, 300);
        let weight = QuantWeight::random([outs, inputs], bits, group, deviation, &device).unwrap();
        let values = floats(weight.dequantize(DType::F32).unwrap());
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let found = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n).sqrt();
        // The groups' zeros differ by a step of sqrt(12) / 15 deviations, half of which they add to
        // a mean.
        let groups = n / group as f64;
        let spread = deviation * (1.0 / n + if bits == 4 { 0.0134 / groups } else { 0.0 }).sqrt();
        assert!((mean - 0.0).abs() <= 5.0 * spread + deviation * 0.01, "{bits} bits: a mean of {mean}");
        // The kurtosis of uniform numbers is 1.8; the zeros add 0.0067 of the variance.
        let within = 5.0 * (0.8 / n).sqrt() / 2.0 + 0.0067 + 0.001;
        assert!((found / deviation - 1.0).abs() <= within, "{bits} bits: {found}, not {deviation}");
        let codes: std::collections::BTreeSet<u64> = values.iter().map(|value| value.to_bits()).collect();
        assert_eq!(codes.len(), if bits == 4 { 17 } else { 256 });
        // The product's kernel reads the same weights.
        let eye = Tensor::<Rocm, 2>::eye(inputs, &device).narrow(0, 0, 9);
        let found = QuantLinear::new::<Rocm>(weight, None).unwrap().forward(eye).into_data();
        for (at, found) in found.iter::<f64>().enumerate() {
            assert_eq!(found, values[at % outs * inputs + at / outs], "{bits} bits at {at}");
        }
    }
    let refused = |shape, bits, group, deviation| {
        QuantWeight::random(shape, bits, group, deviation, &device).unwrap_err().to_string()
    };
    assert!(refused([2, 2], 5, 64, 1.0).contains("4 or 8 bits"));
    assert!(refused([2, 2], 4, 48, 1.0).contains("a power of two from 32"));
    assert!(refused([2, 0], 4, 64, 1.0).contains("[outs, inputs]"));
    assert!(refused([2, 2], 4, 64, f64::NAN).contains("a normal f16"));
}
