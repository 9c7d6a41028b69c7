//! fp8 against `ml_dtypes` (`tests/fp8/reference.py` wrote `fp8.bin`).

use burn::tensor::{DType, TensorData};
use burn_rocm::fused::{Fp8Type, Fp8Weight, fp8_decode, fp8_encode, upload};
use burn_rocm::{Rocm, RocmDevice, RocmError, RocmTensor, bf16, f16};
use burn_rocm_tests::limits::unit;
use burn_rocm_tests::{Random, read_float};

const FILE: &[u8] = include_bytes!("fp8.bin");

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The numbers of a type's codes.
fn numbers(ty: usize) -> Vec<f32> {
    floats(&FILE[1024 * ty..][..1024])
}

fn inputs() -> Vec<f32> {
    let count = u32::from_le_bytes([FILE[4096], FILE[4097], FILE[4098], FILE[4099]]) as usize;
    assert_eq!(FILE.len(), 4100 + 8 * count);
    floats(&FILE[4100..][..4 * count])
}

/// The codes of the inputs.
fn codes(ty: usize) -> &'static [u8] {
    let count = inputs().len();
    &FILE[4100 + (4 + ty) * count..][..count]
}

/// Equal bits, and any NaN for NaN.
#[track_caller]
fn same(what: &str, found: f32, expected: f32) {
    assert!(
        found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
        "{what}: {found}, not {expected}"
    );
}

fn on_device(data: TensorData, dtype: DType) -> RocmTensor {
    upload(data, dtype, &RocmDevice::default()).unwrap()
}

fn read_bytes(tensor: RocmTensor) -> Vec<u8> {
    burn_rocm::fused::read_all(vec![tensor]).unwrap().remove(0).to_vec::<u8>().unwrap()
}

#[test]
fn all_codes() {
    for (at, ty) in Fp8Type::ALL.into_iter().enumerate() {
        let expected = numbers(at);
        let all: Vec<u8> = (0..=255).collect();
        let tensor = on_device(TensorData::new(all.clone(), [256]), DType::U8);
        let found = read_float::<Rocm>(fp8_decode(tensor.clone(), ty, None, DType::F32).unwrap());
        for ((code, found), expected) in all.iter().zip(found.iter::<f32>()).zip(&expected) {
            same(&format!("{ty:?} {code:#x} on the device"), found, *expected);
            same(&format!("{ty:?} {code:#x}"), ty.decode(*code), *expected);
        }
        // Every number is one of bf16 or is rounded to it once.
        let found = read_float::<Rocm>(fp8_decode(tensor, ty, None, DType::BF16).unwrap());
        for (found, expected) in found.iter::<f32>().zip(&expected) {
            same(&format!("{ty:?} in bf16"), found, bf16::from_f32(*expected).to_f32());
        }
    }
}

#[test]
fn numbers_round_to_nearest_even() {
    for (at, ty) in Fp8Type::ALL.into_iter().enumerate() {
        let (inputs, expected) = (inputs(), codes(at));
        let tensor = on_device(TensorData::new(inputs.clone(), [inputs.len()]), DType::F32);
        let of_device = read_bytes(fp8_encode(tensor.clone(), ty, false).unwrap());
        let saturated = read_bytes(fp8_encode(tensor, ty, true).unwrap());
        let greatest = numbers(at).into_iter().filter(|x| x.is_finite()).fold(0.0, f32::max);
        for (k, &input) in inputs.iter().enumerate() {
            let (what, number) = (format!("{ty:?} of {input:e}"), ty.decode(expected[k]));
            same(&what, ty.decode(ty.encode(input, false)), number);
            same(&format!("{what} on the device"), ty.decode(of_device[k]), number);
            let number = if input.is_nan() || number.is_finite() { number } else { greatest.copysign(input) };
            same(&format!("{what}, saturated"), ty.decode(ty.encode(input, true)), number);
            same(&format!("{what}, saturated on the device"), ty.decode(saturated[k]), number);
        }
    }
}

/// Every f16, which the device widens before it rounds, and drawn bits of f32.
#[test]
fn device_and_host_agree() {
    let random = Random::new();
    let halves: Vec<f16> = (0..=u16::MAX)
        .step_by(if burn_rocm_tests::lockstep::in_lockstep() { 37 } else { 1 })
        .map(f16::from_bits)
        .collect();
    let drawn: Vec<f32> = (0..4096).map(|_| f32::from_bits(random.bits() as u32)).collect();
    for ty in Fp8Type::ALL {
        for saturate in [false, true] {
            let tensor = on_device(TensorData::new(halves.clone(), [halves.len()]), DType::F16);
            let found = read_bytes(fp8_encode(tensor, ty, saturate).unwrap());
            for (half, found) in halves.iter().zip(found) {
                same(
                    &format!("{ty:?} of {half}"),
                    ty.decode(found),
                    ty.decode(ty.encode(half.to_f32(), saturate)),
                );
            }
            let tensor = on_device(TensorData::new(drawn.clone(), [drawn.len()]), DType::F32);
            let found = read_bytes(fp8_encode(tensor, ty, saturate).unwrap());
            for (x, found) in drawn.iter().zip(found) {
                same(&format!("{ty:?} of {x}"), ty.decode(found), ty.decode(ty.encode(*x, saturate)));
            }
        }
    }
}

#[test]
fn codes_of_ocp_as_fnuz() {
    for ty in [Fp8Type::E4M3, Fp8Type::E5M2] {
        for code in 0..=255 {
            let (own, found) = (ty.decode(code), 2.0 * ty.fnuz().decode(ty.to_fnuz(code)));
            assert!(
                found == own || found.is_nan() && !own.is_finite(),
                "{ty:?} {code:#x}: {found}, not {own}"
            );
        }
    }
}

/// A product within (terms + 4) u of f32 and, as weights and the result are rounded to the dtype, 2 u
/// of the dtype and a term for numbers below its normal ones.
#[test]
fn products_by_conversion() {
    let random = Random::new();
    let device = RocmDevice::default();
    for ty in Fp8Type::ALL {
        for dtype in [DType::F32, DType::BF16] {
            for per_output in [false, true] {
                let [rows, outs, inputs] = [1 + random.below(20), 1 + random.below(20), 1 + random.below(90)];
                let draw = |_| loop {
                    let code = random.bits() as u8;
                    if ty.decode(code).is_finite() {
                        return code;
                    }
                };
                let codes: Vec<u8> = (0..outs * inputs).map(draw).collect();
                let scales: Vec<f32> = (0..if per_output { outs } else { 1 })
                    .map(|_| random.uniform(0.01, 2.0) as f32)
                    .collect();
                let x: Vec<f32> =
                    (0..rows * inputs).map(|_| bf16::from_f64(random.uniform(-2.0, 2.0)).to_f32()).collect();
                let weight = |as_fnuz| match as_fnuz {
                    true => Fp8Weight::upload_as_fnuz(ty, [outs, inputs], &codes, &scales, &device).unwrap(),
                    false => Fp8Weight::upload(ty, [outs, inputs], &codes, &scales, &device).unwrap(),
                };
                let data = TensorData::new(x.clone(), [rows, inputs]).convert_dtype(dtype);
                let y =
                    read_float::<Rocm>(weight(false).linear(on_device(data.clone(), dtype), None).unwrap());
                let fnuz = read_float::<Rocm>(weight(true).linear(on_device(data, dtype), None).unwrap());
                let y: Vec<f64> = y.iter::<f64>().collect();
                assert_eq!(y, fnuz.iter::<f64>().collect::<Vec<_>>(), "{ty:?} as FNUZ");
                for (at, found) in y.iter().enumerate() {
                    let (row, out) = (at / outs, at % outs);
                    let scale = f64::from(scales[if per_output { out } else { 0 }]);
                    let terms = (0..inputs).map(|k| {
                        let weight = scale * f64::from(ty.decode(codes[out * inputs + k]));
                        f64::from(x[row * inputs + k]) * weight
                    });
                    let (value, size) =
                        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                    let share = (inputs as f64 + 4.0) * unit(DType::F32) + 2.0 * unit(dtype);
                    assert!(
                        (found - value).abs() <= share * 1.01 * size + 1e-36,
                        "{ty:?} {dtype:?}: {found}, not {value}"
                    );
                }
            }
        }
    }
}

#[test]
fn wrong_weights_of_fp8() {
    let device = RocmDevice::default();
    for (codes, scales) in [(5, 1), (6, 3), (6, 0)] {
        let found = Fp8Weight::upload(Fp8Type::E4M3, [2, 3], &vec![0; codes], &vec![1.0; scales], &device);
        assert!(matches!(found, Err(RocmError::Invalid { .. })), "{codes} codes, {scales} scales");
    }
    let codes = on_device(TensorData::new(vec![0f32; 4], [4]), DType::F32);
    assert!(matches!(fp8_decode(codes, Fp8Type::E4M3, None, DType::F32), Err(RocmError::Invalid { .. })));
    let x = on_device(TensorData::new(vec![0f64; 4], [4]), DType::F64);
    assert!(matches!(fp8_encode(x, Fp8Type::E5M2, true), Err(RocmError::Unsupported { .. })));
}
