//! Round to nearest.

use burn::tensor::DType;
use burn_rocm::fused::QuantWeight;
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_nn::language::quant::{RoundTo, round_to_nearest};
use burn_rocm_tests::{Random, read_float};

/// A scale `s` of f16 is off by 2^-11, so the ends of a group's range, up to 15 steps (127) from 0,
/// move by 15 / 2^11 (127 / 2^11) steps. A weight is off by half a step and, where the code is
/// clamped, by what its end moved. Asymmetric codes of 0 are rounded too, which moves an end by at
/// most half a step more.
#[test]
fn weights_are_off_by_at_most_a_step() {
    let random = Random::new();
    for (to, steps, limit) in
        [(RoundTo::Int4, 15.0, 1.0 + 15.0 / 2048.0), (RoundTo::Int8, 254.0, 0.5 + 127.0 / 2048.0)]
    {
        // Scales of f16, and scales below f16's normal numbers.
        for size in [1.0, 1e-6, 1e-30] {
            for lean in [-1.0, 0.0, 0.9, 3.0] {
                let shape = [1 + random.below(9), 1 + random.below(300)];
                let draw = |_| ((random.uniform(-1.0, 1.0) + lean) * size) as f32;
                let weights: Vec<f32> = (0..shape[0] * shape[1]).map(draw).collect();
                let parts = round_to_nearest(&weights, shape, to).unwrap();
                let weight = QuantWeight::upload(&parts, &RocmDevice::default()).unwrap();
                let found = read_float::<Rocm>(weight.dequantize(DType::F32).unwrap());
                let found: Vec<f64> = found.iter::<f64>().collect();
                for (row, found) in weights.chunks(shape[1]).zip(found.chunks(shape[1])) {
                    for (row, found) in row.chunks(to.group()).zip(found.chunks(to.group())) {
                        let most = row.iter().fold(0f64, |most, &x| most.max(f64::from(x.abs())));
                        let [least, greatest] =
                            [f64::min, f64::max].map(|f| row.iter().fold(0f64, |end, &x| f(end, x.into())));
                        let span = if to == RoundTo::Int4 { greatest - least } else { 2.0 * most };
                        let step = (span / steps).max(f64::from(f32::MIN_POSITIVE));
                        for (&x, found) in row.iter().zip(found) {
                            let off = (f64::from(x) - found).abs();
                            assert!(
                                off <= (limit + 1e-4) * step,
                                "{to:?}: {found}, not {x}, in steps of {step}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for to in [RoundTo::Int4, RoundTo::Int8] {
        let mut weights = vec![0.0; 2 * 256];
        weights[300] = 7.0;
        let parts = round_to_nearest(&weights, [2, 256], to).unwrap();
        let weight = QuantWeight::upload(&parts, &RocmDevice::default()).unwrap();
        let found = read_float::<Rocm>(weight.dequantize(DType::F32).unwrap());
        for (x, found) in weights.iter().zip(found.iter::<f32>()) {
            assert_eq!(*x == 0.0, found == 0.0, "{to:?}");
        }
    }
}

#[test]
fn bytes_are_as_said() {
    let random = Random::new();
    for to in [RoundTo::Int4, RoundTo::Int8] {
        for _ in 0..20 {
            let shape = [1 + random.below(9), 1 + random.below(400)];
            // Scales of f16, and of f32.
            let groups = shape[0] * shape[1].div_ceil(to.group());
            for (weight, more) in [(1.0, 0), (1e-6, 2 * groups)] {
                let parts = round_to_nearest(&vec![weight; shape[0] * shape[1]], shape, to).unwrap();
                assert_eq!(parts.bytes(), to.device_bytes(shape) + more, "{to:?} {shape:?} {weight}");
            }
        }
    }
}
