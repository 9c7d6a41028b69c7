//! What the device makes of a checkpoint's bytes.

use burn::tensor::quantization::{QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue};
use burn::tensor::{DType, Int, Tensor, TensorData, TensorPrimitive};
use burn_rocm::fused::{QuantWeight, WeightParts};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_nn::language::quant::gguf::GgufBlocks;
use burn_rocm_nn::language::quant::{GptqZeros, QuantEmbedding, QuantLinear};
use burn_rocm_tests::{Random, read_float};

use crate::weights::{Drawn, Zeros, awq, compressed, every, gguf, gptq};

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
    let draw: [&dyn Fn(usize) -> Drawn; 7] = [
        &|n| gguf(&random, shape(n), GgufBlocks::Q4_0),
        &|n| gguf(&random, shape(n), GgufBlocks::Q8_0),
        &|n| gguf(&random, shape(n), GgufBlocks::Q4K),
        &|n| gguf(&random, shape(n), GgufBlocks::Q6K),
        &|n| gptq(&random, shape(n), 4, Some(64), zeros, false),
        &|n| awq(&random, shape(n), Some(32)),
        &|n| compressed(&random, [n, inputs + 5], 8, None, Zeros::None, DType::BF16, true, false),
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
    let groups = gptq(&random, shape(1), 4, Some(128), zeros, false);
    assert!(others(draw[4](1), groups).is_none(), "other groups");
    let ordered = || gptq(&random, shape(1), 4, Some(64), zeros, true);
    assert!(others(ordered(), ordered()).is_none(), "inputs in orders of their own");
    assert!(others(draw[4](1), ordered()).is_none(), "one with an order");
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
