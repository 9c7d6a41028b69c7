//! Tensors in device memory, each with its values in f64, for comparison with plain references.
#![allow(dead_code, unreachable_pub)] // Each test binary uses its part.

use std::sync::Arc;

use half::{bf16, f16};
use hip::{Buffer, DType, Device};

pub fn device() -> Arc<Device> {
    Device::get(0).expect("a device")
}

/// A tensor on the device and its values.
pub struct Tensor {
    pub buffer: Buffer,
    pub values: Vec<f64>,
}

/// Uploads `values`, rounded to `dtype`. The values that are kept are rounded too.
pub fn tensor(device: &Arc<Device>, dtype: DType, values: &[f64]) -> Tensor {
    let bytes = encode(dtype, values);
    let values = decode(dtype, &bytes);
    Tensor { buffer: device.upload(&bytes).expect("an upload"), values }
}

/// Random values in [-1, 1] in steps of 1/64, or small integers: exact in every dtype.
pub fn random(seed: u64, count: usize, dtype: DType) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    let scale = if dtype == DType::I8 { 1.0 } else { 64.0 };
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 33) % 129) as f64 / scale - 64.0 / scale
        })
        .collect()
}

pub fn random_tensor(device: &Arc<Device>, seed: u64, dtype: DType, count: usize) -> Tensor {
    tensor(device, dtype, &random(seed, count, dtype))
}

/// Memory for `count` elements, filled with NaN (or -1).
pub fn output(device: &Arc<Device>, dtype: DType, count: usize) -> Buffer {
    device.upload(&vec![0xff; count * dtype.size()]).expect("an upload")
}

pub fn read(device: &Arc<Device>, buffer: &Buffer, dtype: DType, count: usize) -> Vec<f64> {
    let mut bytes = vec![0; count * dtype.size()];
    device.read(buffer, 0, &mut bytes).expect("a read");
    decode(dtype, &bytes)
}

/// Asserts that the values are close. `tolerance` is for a value of the largest expected magnitude.
#[track_caller]
pub fn close(name: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}");
    let largest = want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs() / largest;
        assert!(
            error <= tolerance,
            "{name}: element {i} is {got}, expected {want} (error {error:.1e} of {tolerance:.1e})"
        );
    }
}

/// A few roundings of the dtype.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 3e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 0.0,
    }
}

pub fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let each = |f: &dyn Fn(f64) -> Vec<u8>| values.iter().flat_map(|&v| f(v)).collect();
    match dtype {
        DType::F64 => each(&|v| v.to_le_bytes().to_vec()),
        DType::F32 => each(&|v| (v as f32).to_le_bytes().to_vec()),
        DType::F16 => each(&|v| f16::from_f64(v).to_le_bytes().to_vec()),
        DType::BF16 => each(&|v| bf16::from_f64(v).to_le_bytes().to_vec()),
        DType::I32 => each(&|v| (v as i32).to_le_bytes().to_vec()),
        DType::I8 => each(&|v| (v as i8).to_le_bytes().to_vec()),
        other => panic!("{other:?}"),
    }
}

pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    macro_rules! each {
        ($n:literal, $from:expr) => {
            bytes.chunks_exact($n).map(|b| $from(b.try_into().expect("a whole element"))).collect()
        };
    }
    match dtype {
        DType::F64 => each!(8, f64::from_le_bytes),
        DType::F32 => each!(4, |b| f64::from(f32::from_le_bytes(b))),
        DType::F16 => each!(2, |b| f16::from_le_bytes(b).to_f64()),
        DType::BF16 => each!(2, |b| bf16::from_le_bytes(b).to_f64()),
        DType::I64 => each!(8, |b| i64::from_le_bytes(b) as f64),
        DType::I32 | DType::U32 => each!(4, |b| f64::from(i32::from_le_bytes(b))),
        DType::I8 => bytes.iter().map(|&b| f64::from(b as i8)).collect(),
        other => panic!("{other:?}"),
    }
}
