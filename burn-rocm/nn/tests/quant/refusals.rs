//! What is refused, with a typed error that says what was expected and found.

use burn::tensor::quantization::{QuantLevel, QuantScheme, QuantValue};
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_rocm::fused::{
    GroupScales, GroupZeros, GroupedWeights, QuantWeight, WeightFormat, WeightParts, quant_linear,
    quant_linear_x_backward,
};
use burn_rocm::{Rocm, RocmDevice, RocmError, RocmTensor};
use burn_rocm_nn::language::quant::gguf::GgufBlocks;
use burn_rocm_nn::language::quant::{
    Awq, CompressedTensors, Gptq, GptqZeros, QuantLinear, RawTensor, RoundTo, round_to_nearest,
};

#[track_caller]
fn refused<T>(result: Result<T, RocmError>, words: &str) {
    match result {
        Err(error @ (RocmError::Invalid { .. } | RocmError::Unsupported { .. })) => {
            assert!(error.to_string().contains(words), "{error}");
        }
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("not refused: {words}"),
    }
}

fn raw<'a>(name: &'a str, bytes: &'a [u8], shape: &'a [usize], dtype: DType) -> RawTensor<'a> {
    RawTensor { name, bytes, shape, dtype }
}

#[test]
fn wrong_tensors_of_gptq() {
    let bytes = [0; 4096];
    let good = Gptq {
        bits: 4,
        group: Some(32),
        zeros: GptqZeros::LessOne,
        qweight: raw("w", &bytes[..8 * 16 * 4], &[8, 16], DType::I32),
        qzeros: raw("z", &bytes[..2 * 2 * 4], &[2, 2], DType::I32),
        scales: raw("s", &bytes[..2 * 16 * 2], &[2, 16], DType::F16),
        g_idx: None,
    };
    good.parts().unwrap();
    refused(Gptq { bits: 3, ..good }.parts(), "4 or 8 bits");
    refused(Gptq { group: Some(0), ..good }.parts(), "groups");
    refused(Gptq { group: Some(16), ..good }.parts(), "`z`");
    refused(
        Gptq { qweight: raw("w", &bytes[..512], &[8, 16, 1], DType::I32), ..good }.parts(),
        "`w`: a matrix",
    );
    refused(Gptq { qweight: raw("w", &bytes[..511], &[8, 16], DType::I32), ..good }.parts(), "511 bytes");
    refused(Gptq { qweight: raw("w", &bytes[..512], &[8, 16], DType::F32), ..good }.parts(), "`w`");
    // The bytes of this shape are 0 modulo 2^64.
    refused(Gptq { qweight: raw("w", &[], &[1 << 32, 1 << 32], DType::I32), ..good }.parts(), "`w`");
    refused(Gptq { qzeros: raw("z", &bytes[..16], &[1, 4], DType::I32), ..good }.parts(), "`z`");
    refused(Gptq { scales: raw("s", &bytes[..64], &[16, 2], DType::F16), ..good }.parts(), "`s`");
    refused(Gptq { scales: raw("s", &bytes[..64], &[2, 16], DType::I16), ..good }.parts(), "`s`");
    // Groups of other sizes, beyond the last, and negative.
    for wrong in [[0u32, 0], [1, 2], [u32::MAX, 1]] {
        let of: Vec<u8> = (0..64).flat_map(|at| wrong[usize::from(at >= 32)].to_le_bytes()).collect();
        refused(Gptq { g_idx: Some(raw("g", &of, &[64], DType::I32)), ..good }.parts(), "`g`");
    }
    let of = [0u8; 4 * 63];
    refused(Gptq { g_idx: Some(raw("g", &of, &[63], DType::I32)), ..good }.parts(), "`g`");
    // Groups of 24 inputs.
    let odd = Gptq {
        group: Some(24),
        qzeros: raw("z", &bytes[..3 * 2 * 4], &[3, 2], DType::I32),
        scales: raw("s", &bytes[..3 * 16 * 2], &[3, 16], DType::F16),
        ..good
    };
    refused(odd.parts(), "multiple of 32");
}

#[test]
fn wrong_tensors_of_awq_and_compressed_tensors() {
    let bytes = [0; 4096];
    let good = Awq {
        group: Some(32),
        qweight: raw("w", &bytes[..64 * 2 * 4], &[64, 2], DType::I32),
        qzeros: raw("z", &bytes[..2 * 2 * 4], &[2, 2], DType::I32),
        scales: raw("s", &bytes[..2 * 16 * 2], &[2, 16], DType::F16),
    };
    good.parts().unwrap();
    refused(Awq { group: Some(0), ..good }.parts(), "groups");
    refused(Awq { group: Some(64), ..good }.parts(), "`z`");
    refused(Awq { scales: raw("s", &bytes[..60], &[2, 15], DType::F16), ..good }.parts(), "`s`");
    refused(Awq { qweight: raw("w", &[], &[64, 0], DType::I32), ..good }.parts(), "`w`: a matrix");

    let good = CompressedTensors {
        bits: 4,
        group: Some(32),
        shape: [16, 60],
        weight: raw("w", &bytes[..16 * 8 * 4], &[16, 8], DType::I32),
        scale: raw("s", &bytes[..16 * 2 * 2], &[16, 2], DType::BF16),
        zero_point: None,
        g_idx: None,
    };
    good.parts().unwrap();
    refused(CompressedTensors { bits: 2, ..good }.parts(), "4 or 8 bits");
    refused(CompressedTensors { group: Some(0), ..good }.parts(), "groups");
    refused(CompressedTensors { shape: [16, 70], ..good }.parts(), "`w`");
    refused(CompressedTensors { shape: [15, 60], ..good }.parts(), "`w`");
    refused(CompressedTensors { scale: raw("s", &bytes[..64], &[32], DType::BF16), ..good }.parts(), "`s`");
    // One scale, for more outputs than memory holds.
    let one = CompressedTensors { group: None, scale: raw("s", &bytes[..2], &[1], DType::BF16), ..good };
    one.parts().unwrap();
    refused(CompressedTensors { shape: [usize::MAX / 2, 60], ..one }.parts(), "`w`");
    let shape = [usize::MAX, 0];
    refused(CompressedTensors { shape, weight: raw("w", &[], &shape, DType::I8), ..one }.parts(), "`w`");
    let zero = raw("z", &bytes[..16], &[2, 2], DType::F32);
    refused(CompressedTensors { zero_point: Some(zero), ..good }.parts(), "`z`");
    let wide = [9u8; 16 * 60];
    let weight = raw("w", &wide, &[16, 60], DType::I8);
    refused(CompressedTensors { weight, ..good }.parts(), "numbers of 4 bits");
}

#[test]
fn wrong_blocks_of_gguf() {
    use GgufBlocks::{Q4_0, Q4K, Q5_0, Q6K, Q8_0};
    for blocks in [Q4_0, Q5_0, Q8_0, Q4K, Q6K] {
        let (elements, size) = blocks.block();
        refused(blocks.parts(&vec![0; 2 * size - 1], [2, elements]), "whole blocks");
        refused(blocks.parts(&vec![0; 2 * size], [2, elements + 1]), "whole blocks");
        refused(blocks.parts(&[], [0, elements]), "[0, ");
    }
    let arrays = || [vec![0; 128], vec![0; 64], vec![0; 16], vec![0; 2]];
    WeightParts::k_quants(WeightFormat::Q6K, [1, 256], arrays()).unwrap();
    refused(WeightParts::k_quants(WeightFormat::Q4K, [1, 256], arrays()), "bytes");
    refused(WeightParts::k_quants(WeightFormat::Int4, [1, 256], arrays()), "Q4_K");
    refused(WeightParts::k_quants(WeightFormat::Q6K, [8, 32], arrays()), "256");
}

#[test]
fn wrong_groups() {
    let good = || GroupedWeights {
        shape: [2, 64],
        bits: 4,
        group: Some(32),
        scales: GroupScales::F32(vec![1.0; 4]),
        zeros: GroupZeros::Each(vec![8; 4]),
        order: None,
    };
    let parts = |weights| WeightParts::grouped(weights, |_, _| 0);
    parts(good()).unwrap();
    refused(parts(GroupedWeights { bits: 6, ..good() }), "4 or 8 bits");
    refused(parts(GroupedWeights { shape: [0, 64], ..good() }), "[0, 64]");
    refused(parts(GroupedWeights { shape: [2, usize::MAX], ..good() }), "2^31");
    refused(parts(GroupedWeights { scales: GroupScales::F16(vec![0; 5]), ..good() }), "5 scales");
    refused(parts(GroupedWeights { zeros: GroupZeros::Each(vec![0; 3]), ..good() }), "3 zeros");
    parts(GroupedWeights { zeros: GroupZeros::All(127), ..good() }).unwrap();
    refused(parts(GroupedWeights { zeros: GroupZeros::All(128), ..good() }), "up to 127");
    refused(parts(GroupedWeights { zeros: GroupZeros::Each(vec![8, 8, 200, 8]), ..good() }), "200");
    for order in [vec![0; 64], (0..63).collect(), (1..65).collect()] {
        refused(parts(GroupedWeights { order: Some(order), ..good() }), "");
    }
}

#[test]
fn weights_that_are_not_finite() {
    for wrong in [f32::NAN, f32::INFINITY] {
        refused(round_to_nearest(&[1.0, wrong], [1, 2], RoundTo::Int4), "finite");
    }
    refused(round_to_nearest(&[1.0, 2.0], [1, 3], RoundTo::Int8), "[1, 3]");
    refused(round_to_nearest(&[], [0, 3], RoundTo::Int8), "[0, 3]");
}

fn weight() -> QuantWeight {
    let parts = round_to_nearest(&[1.0; 3 * 40], [3, 40], RoundTo::Int8).unwrap();
    QuantWeight::upload(&parts, &RocmDevice::default()).unwrap()
}

fn zeros(shape: &[usize], dtype: DType) -> RocmTensor {
    let data = TensorData::zeros::<f32, _>(shape.to_vec()).convert_dtype(dtype);
    burn_rocm::fused::upload(data, dtype, &RocmDevice::default()).unwrap()
}

#[test]
fn operands_that_do_not_fit() {
    let weight = weight();
    quant_linear(zeros(&[2, 40], DType::F32), &weight, None).unwrap();
    refused(quant_linear(zeros(&[2, 39], DType::F32), &weight, None), "40");
    refused(quant_linear(zeros(&[2, 40], DType::F64), &weight, None), "f64");
    refused(quant_linear(zeros(&[2, 40], DType::I32), &weight, None), "i32");
    let bias = Some(zeros(&[4], DType::F32));
    refused(quant_linear(zeros(&[2, 40], DType::F32), &weight, bias), "[3]");
    let bias = Some(zeros(&[3], DType::F16));
    refused(quant_linear(zeros(&[2, 40], DType::F32), &weight, bias), "f16");
    refused(quant_linear_x_backward(zeros(&[2, 40], DType::F32), &weight), "3");
    refused(weight.dequantize(DType::F64), "f64");
    refused(weight.embedding(zeros(&[2], DType::F32), DType::F32), "int");
    let bias = Tensor::<Rocm, 1>::zeros([4], &RocmDevice::default());
    refused(QuantLinear::new(weight, Some(bias)), "[3]");
}

#[test]
fn another_backend_is_refused() {
    let layer = QuantLinear::new::<Rocm>(weight(), None).unwrap();
    let x = Tensor::<burn_flex::Flex, 2>::zeros([1, 40], &Default::default());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| layer.forward(x)));
    assert!(caught.is_err());
    let error = burn_rocm::take_last_error();
    assert!(matches!(error, Some(RocmError::Unsupported { op: "QuantLinear", .. })), "{error:?}");
}

#[test]
fn blocks_of_burn_that_no_row_holds() {
    let tensor = Tensor::<Rocm, 2>::ones([4, 48], &RocmDevice::default());
    for (block, words) in [(16, "blocks of 16"), (64, "blocks of 64")] {
        let scheme =
            QuantScheme { value: QuantValue::Q8S, level: QuantLevel::block([block]), ..Default::default() };
        let TensorPrimitive::QFloat(primitive) = tensor.clone().quantize_dynamic(&scheme).into_primitive()
        else {
            panic!("a quantised tensor")
        };
        refused(WeightParts::of_burn(&primitive), words);
    }
}
