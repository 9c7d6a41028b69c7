//! Quantisation, dequantisation and transfers: every scheme against `burn-flex`. Each of the two
//! backends reads the other's data.

use burn_backend::quantization::{
    QuantLevel, QuantParam, QuantScheme, QuantStore, QuantValue, QuantizationParametersPrimitive,
    QuantizedBytes,
};
use burn_backend::tensor::QuantizedTensor;
use burn_rocm_tests::*;
use burn_std::{bf16, f16};

/// The value types of quantised integers.
pub(crate) const VALUES: [QuantValue; 6] =
    [QuantValue::Q8S, QuantValue::Q8F, QuantValue::Q4S, QuantValue::Q4F, QuantValue::Q2S, QuantValue::Q2F];
/// How the integers are stored.
pub(crate) const STORES: [QuantStore; 2] = [QuantStore::Native, QuantStore::PackedU32(0)];

/// Shapes, each with the block sizes that divide it. Some end within a word, within a wave or
/// within a chunk.
const CASES: &[(&[usize], &[&[u8]])] = &[
    (&[0], &[&[4]]),
    (&[0, 3], &[&[4], &[2, 3]]),
    (&[1], &[&[1]]),
    (&[3], &[&[1], &[3]]),
    (&[17], &[&[17]]),
    (&[32], &[&[4], &[8], &[16], &[32]]),
    (&[5, 7], &[&[5], &[7], &[35]]),
    (&[6, 10], &[&[2, 5], &[3, 2], &[4], &[15]]),
    (&[3, 4, 6], &[&[2, 3], &[3, 2, 2], &[6]]),
    (&[257], &[&[]]),
    (&[9, 130], &[&[10], &[65], &[3, 130], &[234]]),
    (&[33, 64], &[&[32], &[64], &[3, 32]]),
];

/// Every scheme for a shape with these block sizes.
pub(crate) fn schemes(blocks: &[&[u8]]) -> Vec<QuantScheme> {
    let levels: Vec<QuantLevel> = std::iter::once(QuantLevel::Tensor)
        .chain(blocks.iter().filter(|block| !block.is_empty()).map(QuantLevel::block))
        .collect();
    let mut schemes = Vec::new();
    for value in VALUES {
        for store in STORES {
            for &level in &levels {
                schemes.push(QuantScheme::default().with_value(value).with_store(store).with_level(level));
            }
        }
    }
    schemes
}

/// Reads the quantised data to the host.
pub(crate) fn read_q<B: Backend>(tensor: QuantizedTensor<B>) -> TensorData {
    burn_std::future::block_on(B::q_into_data(tensor)).expect("the data can be read")
}

/// The values and scales in the data.
pub(crate) fn parts(data: TensorData) -> (Vec<i8>, Vec<f32>) {
    let DType::QFloat(scheme) = data.dtype else { panic!("quantised data, not {:?}", data.dtype) };
    let num_elements = data.num_elements();
    let (values, params) = QuantizedBytes { bytes: data.into_bytes(), scheme, num_elements }.into_vec_i8();
    (values, params.scales)
}

/// Asserts that two quantised tensors have the same values and scales, to the bit.
#[track_caller]
pub(crate) fn same(what: &str, ours: TensorData, theirs: TensorData) {
    assert_eq!(ours.shape, theirs.shape, "{what}");
    let ((values, scales), (expected, expected_scales)) = (parts(ours), parts(theirs));
    if let Some(i) = (0..values.len()).find(|&i| values[i] != expected[i]) {
        panic!("{what}: value {i} is {} instead of {}", values[i], expected[i]);
    }
    assert_eq!(values.len(), expected.len(), "{what}");
    assert_eq!(scales, expected_scales, "{what}");
}

fn scheme_of(data: &TensorData) -> QuantScheme {
    match data.dtype {
        DType::QFloat(scheme) => scheme,
        other => panic!("quantised data, not {other:?}"),
    }
}

/// burn-flex has no scale for a tensor without blocks.
fn flex_takes(shape: &[usize], scheme: &QuantScheme) -> bool {
    !shape.contains(&0) || scheme.level == QuantLevel::Tensor
}

#[test]
fn quantized_by_their_own_range_and_back() {
    let random = Random::new();
    for &(shape, blocks) in CASES {
        for scheme in schemes(blocks) {
            let dtype = FLOATS[random.below(4)];
            let view = View::ALL[random.below(5)];
            let x = float(&random, shape, dtype, view, -3.0, 2.0);
            let what = format!("{scheme:?} of {dtype:?} {shape:?} {view:?}");
            let ours = R::quantize_dynamic(x.float::<R>(&Default::default()), &scheme);
            assert_eq!(ours.dtype(), DType::QFloat(scheme), "{what}");
            assert_eq!(ours.shape().as_slice(), shape, "{what}");
            let data = read_q::<R>(ours.clone());
            assert_eq!(scheme_of(&data), scheme, "{what}");
            if !flex_takes(shape, &scheme) {
                assert!(data.bytes.is_empty(), "{what}");
                let back = R::dequantize(ours, FloatDType::F32);
                assert_eq!(back.shape().as_slice(), shape, "{what}");
                continue;
            }
            let theirs = O::quantize_dynamic(x.float::<O>(&Default::default()), &scheme);
            same(&what, data, read_q::<O>(theirs.clone()));
            for dtype in FLOATS {
                let ours = R::dequantize(ours.clone(), float_dtype(dtype));
                let theirs = O::dequantize(theirs.clone(), float_dtype(dtype));
                let (ours, theirs) = (read_float::<R>(ours), read_float::<O>(theirs));
                assert_close(&what, &[ours], &[theirs], Tolerance::EXACT);
            }
        }
    }
}

#[test]
fn quantized_by_given_scales() {
    let random = Random::new();
    for &(shape, blocks) in CASES {
        for scheme in schemes(blocks) {
            if !flex_takes(shape, &scheme) {
                continue;
            }
            let count = match scheme.level {
                QuantLevel::Tensor => 1,
                QuantLevel::Block(block) => shape.iter().product::<usize>() / block.num_elements(),
            };
            let dtype = FLOATS[random.below(4)];
            let x = float(&random, shape, dtype, View::ALL[random.below(5)], -3.0, 2.0);
            // Scales that clip some values, and one that is not a valid scale.
            let scales = Input::new(&[count], dtype, View::Contiguous, || match random.below(8) {
                0 => 0.0,
                _ => random.uniform(0.004, 0.7),
            });
            let what = format!("{scheme:?} of {dtype:?} {shape:?}");
            let ours = R::quantize(
                x.float::<R>(&Default::default()),
                &scheme,
                QuantizationParametersPrimitive { scales: scales.float::<R>(&Default::default()) },
            );
            let theirs = O::quantize(
                x.float::<O>(&Default::default()),
                &scheme,
                QuantizationParametersPrimitive { scales: scales.float::<O>(&Default::default()) },
            );
            same(&what, read_q::<R>(ours), read_q::<O>(theirs));
        }
    }
}

/// Rounding, clipping, and values without a range: ties, zeros, NaN, infinities, the extremes of
/// f32.
#[test]
fn special_values() {
    let rows: &[&[f32]] = &[
        &[0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 126.5, 127.0],
        &[0.49999997, -0.49999997, 1.4999999, 126.49999, 126.50001, -126.5, 64.5, -127.0],
        &[0.0; 8],
        &[-0.0, 0.0, 1e-40, -1e-40, 0.0, 0.0, 0.0, 0.0],
        &[f32::NAN, 1.0, -2.0, f32::NAN, 0.3, 0.0, -0.1, 2.0],
        &[f32::NAN; 8],
        &[f32::INFINITY, 1.0, -2.0, f32::NAN, 0.3, 0.0, -0.1, f32::NEG_INFINITY],
        &[f32::MAX, f32::MIN, 1.0, 0.0, -1.0, 1e30, -1e38, 3e38],
        &[f32::MAX / 4.0, 1.0, 0.0, -1e38, 1e37, -1e36, 0.0, 1.0],
        &[f32::MIN_POSITIVE, -f32::MIN_POSITIVE, 0.0, 1e-38, 0.0, 0.0, 0.0, 0.0],
    ];
    let values = rows.concat();
    for value in VALUES {
        for store in STORES {
            for level in [QuantLevel::Tensor, QuantLevel::block([8])] {
                let scheme = QuantScheme::default().with_value(value).with_store(store).with_level(level);
                let data = TensorData::new(values.clone(), [rows.len(), 8]);
                let ours =
                    R::quantize_dynamic(R::float_from_data(data.clone(), &Default::default()), &scheme);
                let theirs = O::quantize_dynamic(O::float_from_data(data, &Default::default()), &scheme);
                same(&format!("{scheme:?}"), read_q::<R>(ours), read_q::<O>(theirs));
            }
        }
    }
}

/// The nearest number of the parameter's type that is a valid scale.
fn rounded(scale: f32, param: QuantParam) -> f32 {
    let among = |candidates: &mut dyn Iterator<Item = f32>| {
        let mut best = (f32::INFINITY, 0.0, 0);
        for (i, candidate) in candidates.enumerate() {
            let distance = (candidate - scale).abs();
            // A tie goes to the even mantissa. The loop visits the encodings in order.
            if distance < best.0 || (distance == best.0 && best.2 % 2 == 1) {
                best = (distance, candidate, i + 1);
            }
        }
        best.1
    };
    match param {
        QuantParam::F32 => scale,
        QuantParam::F16 => f16::from_f32(scale).to_f32().clamp(2f32.powi(-24), 65504.0),
        QuantParam::BF16 => bf16::from_f32(scale).to_f32().min(bf16::MAX.to_f32()),
        QuantParam::UE8M0 => (-126..=127).map(|e| 2f32.powi(e)).find(|&p| p >= scale).unwrap(),
        QuantParam::UE4M3 => {
            // The encodings 1 to 0x7e; those below 8 are subnormal. The first one is odd.
            let decode = |code: u32| match code {
                0..8 => code as f32 * 2f32.powi(-9),
                _ => (8 + code % 8) as f32 * 2f32.powi((code / 8) as i32 - 10),
            };
            among(&mut (1..0x7f).map(decode))
        }
    }
}

#[test]
fn scales_have_the_precision_of_the_scheme() {
    let random = Random::new();
    let params = [QuantParam::F32, QuantParam::F16, QuantParam::BF16, QuantParam::UE8M0, QuantParam::UE4M3];
    for param in params {
        for size in [1e-9, 1e-3, 0.1, 1.0, 30.0, 1e4, 1e9] {
            for value in VALUES {
                let scheme = QuantScheme::default()
                    .with_value(value)
                    .with_param(param)
                    .with_store(STORES[random.below(2)])
                    .with_level(QuantLevel::block([16]));
                let x = float(&random, &[40, 16], DType::F32, View::Contiguous, -size, size);
                let x_data = read_float::<R>(x.float::<R>(&Default::default())).to_vec::<f32>().unwrap();
                let ours = R::quantize_dynamic(x.float::<R>(&Default::default()), &scheme);
                let back = R::dequantize(ours.clone(), FloatDType::F32);
                let back = read_float::<R>(back).to_vec::<f32>().unwrap();
                let (q, scales) = parts(read_q::<R>(ours));
                let (low, high) = value.range();
                for (b, block) in x_data.chunks(16).enumerate() {
                    let most = block.iter().fold(0f32, |most, x| most.max(x.abs()));
                    let scale = rounded(2.0 * most / (high - low), param);
                    assert_eq!(scales[b], scale, "{scheme:?}, range {most}");
                    for (i, x) in block.iter().enumerate() {
                        let expected = (x * (1.0 / scale)).round().clamp(low, high);
                        assert_eq!(f32::from(q[16 * b + i]), expected, "{scheme:?}: {x} by {scale}");
                        assert_eq!(back[16 * b + i], expected * scale, "{scheme:?}: {x} by {scale}");
                    }
                }
            }
        }
    }
}

#[test]
fn data_goes_to_burn_flex_and_comes_from_it() {
    let random = Random::new();
    for &(shape, blocks) in CASES {
        for scheme in schemes(blocks) {
            if !flex_takes(shape, &scheme) {
                continue;
            }
            let x = float(&random, shape, DType::F32, View::Contiguous, -3.0, 2.0);
            let what = format!("{scheme:?} {shape:?}");
            let ours = R::quantize_dynamic(x.float::<R>(&Default::default()), &scheme);
            let data = read_q::<R>(ours.clone());
            let there = O::q_from_data(data.clone(), &Default::default());
            let floats = [read_float::<R>(R::dequantize(ours, FloatDType::F32))];
            let loaded = read_float::<O>(O::dequantize(there.clone(), FloatDType::F32));
            assert_close(&what, &floats, &[loaded], Tolerance::EXACT);
            // And in the other direction: burn-flex writes every value as a byte.
            let back = R::q_from_data(read_q::<O>(there), &Default::default());
            let again = read_float::<R>(R::dequantize(back, FloatDType::F32));
            assert_close(&what, &floats, &[again], Tolerance::EXACT);
            // This backend's own data comes back unchanged.
            let again = read_q::<R>(R::q_from_data(data.clone(), &Default::default()));
            assert_eq!(again.dtype, data.dtype, "{what}");
            assert_eq!(again.as_bytes(), data.as_bytes(), "{what}");
        }
    }
}

#[test]
fn dtype_usage_tells_what_is_computed() {
    let device = Default::default();
    let usage = |scheme| !R::dtype_usage(&device, DType::QFloat(scheme)).is_empty();
    for scheme in schemes(&[&[32], &[2, 16]]) {
        assert!(usage(scheme), "{scheme:?}");
    }
    for value in [QuantValue::E4M3, QuantValue::E5M2, QuantValue::E2M1] {
        assert!(!usage(QuantScheme::default().with_value(value)), "{value:?}");
    }
    for store in [QuantStore::PackedU32(1), QuantStore::PackedNative(0)] {
        assert!(!usage(QuantScheme::default().with_store(store)), "{store:?}");
    }
}
