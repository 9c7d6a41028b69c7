//! Quantised tensors: rectangular blocks, two levels of scales, scales in their own type, and
//! refused schemes.
//!
//! Values and scales are computed in f32 in the same order as in burn-flex, so they have the same
//! bits.

use burn_backend::quantization::{
    Calibration, QuantMode, QuantScheme, QuantStore, QuantValue, ScaleDtype, compute_q_params, compute_range,
};
use burn_backend::{DTypeUsage, TensorPrimitive};

use crate::harness::*;
use crate::same;

const SCALES: [ScaleDtype; 5] =
    [ScaleDtype::F32, ScaleDtype::F16, ScaleDtype::BF16, ScaleDtype::UE8M0, ScaleDtype::UE4M3];

/// Schemes with byte values, and shapes that fit them: one scale for the tensor, runs, rectangles,
/// and two levels of each.
fn schemes() -> Vec<(QuantScheme, Vec<usize>)> {
    let native = |value| QuantScheme::default().with_value(value).with_store(QuantStore::Native);
    let mut all = Vec::new();
    for value in [QuantValue::Q8S, QuantValue::Q8F, QuantValue::Q4S, QuantValue::Q2S] {
        for dtype in SCALES {
            all.push((native(value).per_tensor(dtype), vec![3, 5]));
            let blocks: [(&[u8], &[usize]); 8] = [
                (&[4], &[8]),
                (&[8], &[3, 24]),
                (&[2, 4], &[6, 8]),
                (&[2, 8], &[6, 8]),
                (&[3, 1], &[6, 5]),
                (&[6, 8], &[6, 8]),
                (&[2, 3, 2], &[4, 3, 6]),
                (&[2, 2], &[3, 4, 2]),
            ];
            for (block, shape) in blocks {
                let scheme = native(value).per_block(block, dtype);
                all.push((scheme, shape.to_vec()));
                if matches!(dtype, ScaleDtype::F16 | ScaleDtype::UE4M3) {
                    all.push((scheme.per_tensor(ScaleDtype::F32), shape.to_vec()));
                }
            }
        }
    }
    all
}

/// Magnitudes over many powers of two, so that the blocks' scales differ much. Some blocks are
/// zeros. The scale of a block of zeros is the smallest scale. In UE8M0 it is 2^-126 here, which is
/// not a subnormal number, and 2^-127 in burn-flex. Nor do both backends have the same two levels
/// for a tensor of zeros; both levels are positive.
fn input(random: &Random, shape: &[usize], dtype: DType, scheme: &QuantScheme) -> Input {
    let zeros = random.below(3) == 0 && scheme.scale_dtype() != ScaleDtype::UE8M0;
    loop {
        let x = Input::new(shape, dtype, view(random), || match zeros {
            true if random.below(2) == 0 => 0.0,
            _ => random.uniform(-1.0, 1.0) * 2f64.powi(random.below(14) as i32 - 9),
        });
        if exact(&x).iter().any(|x| *x != 0.0) {
            return x;
        }
    }
}

fn read<B: Backend>(tensor: burn_backend::tensor::QuantizedTensor<B>) -> TensorData {
    wait(B::q_into_data(tensor)).unwrap()
}

#[test]
fn quantise_and_back() {
    let random = Random::new();
    for (scheme, shape) in schemes() {
        for dtype in FLOATS {
            let x = input(&random, &shape, dtype, &scheme);
            same!(format!("{scheme:?} of {dtype:?} {shape:?}"), |B, device| {
                let q = B::quantize_dynamic(x.float::<B>(&device), &scheme);
                assert_eq!(q.dtype(), DType::QFloat(scheme));
                let mut all = vec![read::<B>(q.clone())];
                for to in [FloatDType::F32, FloatDType::F16, FloatDType::BF16, FloatDType::F64] {
                    all.push(read_float::<B>(B::dequantize(q.clone(), to)));
                }
                all
            });
        }
    }
}

/// A transaction gives the data of several quantised tensors in their order. `device22.rs` counts
/// its waits.
#[test]
fn read_together() {
    let random = Random::new();
    let quantised = schemes().into_iter().map(|(scheme, shape)| {
        let x = input(&random, &shape, DType::F32, &scheme);
        R::quantize_dynamic(x.float::<R>(&device()), &scheme)
    });
    let quantised: Vec<_> = quantised.collect();
    let single: Vec<TensorData> = quantised.iter().map(|tensor| read::<R>(tensor.clone())).collect();
    let transaction = TransactionPrimitive::<R>::new(vec![], quantised, vec![], vec![]);
    let together = wait(R::tr_execute(transaction)).unwrap();
    assert_same(&"quantised tensors", &together.read_qfloats, &single);
}

/// Uses Burn's own calibration, whose scales have the shape of the blocks.
#[test]
fn calibrated() {
    let random = Random::new();
    for (scheme, shape) in schemes() {
        for dtype in [DType::F32, DType::F16] {
            let x = input(&random, &shape, dtype, &scheme);
            let parameters = |x: &Input| {
                // Calibrates once, because a division of f16 here need not have the oracle's bits.
                let x = x.float::<O>(&Default::default());
                let (min, max) = compute_range::<O>(&scheme, x, &Calibration::MinMax);
                let given = compute_q_params::<O>(&scheme, min, max);
                (read_float::<O>(given.scales), given.global.map(read_float::<O>))
            };
            let (scales, global) = parameters(&x);
            same!(format!("{scheme:?} of {dtype:?} {shape:?}"), |B, device| {
                let given = burn_backend::quantization::QuantizationParametersPrimitive {
                    scales: B::float_from_data(scales.clone(), &device),
                    global: global.clone().map(|global| B::float_from_data(global, &device)),
                };
                let q = B::quantize(x.float::<B>(&device), &scheme, given);
                vec![read::<B>(q.clone()), read_float::<B>(B::dequantize(q, FloatDType::F32))]
            });
        }
    }
}

/// Host data returns from the device unchanged, and burn-flex reads the same values in it.
#[test]
fn data_round_trips() {
    let random = Random::new();
    for (scheme, shape) in schemes() {
        let x = input(&random, &shape, DType::F32, &scheme);
        let data = read::<O>(O::quantize_dynamic(x.float::<O>(&Default::default()), &scheme));
        same!(format!("{scheme:?} {shape:?}"), |B, device| {
            let q = B::q_from_data(data.clone(), &device);
            vec![read::<B>(q.clone()), read_float::<B>(B::dequantize(q, FloatDType::F32))]
        });
    }
}

/// Packed words of small values: burn-flex unpacks the values that are dequantised here, and the
/// words return unchanged.
#[test]
fn packed_data_round_trips() {
    let random = Random::new();
    let device = device();
    for (scheme, shape) in schemes() {
        let packed = scheme.with_store(QuantStore::PackedU32(0));
        let x = input(&random, &shape, DType::F32, &scheme);
        let what = format!("{packed:?} {shape:?}");
        let data = read::<R>(R::quantize_dynamic(x.float::<R>(&device), &packed));
        assert_eq!(data.dtype(), DType::QFloat(packed), "{what}");
        let again = read::<R>(R::q_from_data(data.clone(), &device));
        assert_eq!(again.as_bytes(), data.as_bytes(), "{what}");
        let native = read::<R>(R::quantize_dynamic(x.float::<R>(&device), &scheme));
        let flex = O::q_from_data(data, &Default::default());
        assert_eq!(read::<O>(flex).as_bytes(), native.as_bytes(), "{what}");
    }
}

/// An empty tensor can be quantised here, like any other. burn-flex refuses it.
#[test]
fn nothing_round_trips() {
    let device = device();
    let native = QuantScheme::default().with_value(QuantValue::Q8S).with_store(QuantStore::Native);
    for scheme in [
        native.per_block([16], ScaleDtype::F16),
        native.per_block([16], ScaleDtype::UE4M3).per_tensor(ScaleDtype::F32),
        native.per_block([4, 16], ScaleDtype::F32),
    ] {
        let nothing = R::float_zeros(Shape::from([0, 32]), &device, FloatDType::F32);
        let data = read::<R>(R::quantize_dynamic(nothing, &scheme));
        assert_eq!(data.as_bytes().len(), if scheme.num_levels() == 2 { 4 } else { 0 }, "{scheme:?}");
        let q = R::q_from_data(data, &device);
        assert_eq!(R::dequantize(q, FloatDType::F32).shape().as_slice(), [0, 32], "{scheme:?}");
    }
}

/// Views move no data and have the tensor's elements. Values that are stored again are within one
/// step of their block's scale.
#[test]
fn views() {
    let random = Random::new();
    let device = device();
    for (scheme, shape) in schemes() {
        if shape.len() < 2 {
            continue;
        }
        let x = input(&random, &shape, DType::F32, &scheme);
        let what = format!("{scheme:?} {shape:?}");
        let q = || R::quantize_dynamic(x.float::<R>(&device), &scheme);
        let plain = || R::dequantize(q(), FloatDType::F32);
        let floats = |q| read_float::<R>(R::dequantize(q, FloatDType::F32));
        let last = shape.len() - 1;
        let axes: Vec<usize> = (0..shape.len()).rev().collect();
        let count: usize = shape.iter().product();
        let pairs = [
            (
                floats(R::q_swap_dims(q(), 0, last)),
                read_float::<R>(R::float_swap_dims(plain(), 0, last)),
                "swap",
            ),
            (floats(R::q_permute(q(), &axes)), read_float::<R>(R::float_permute(plain(), &axes)), "permute"),
            (floats(R::q_flip(q(), &[0])), read_float::<R>(R::float_flip(plain(), &[0])), "flip"),
            (
                floats(R::q_slice(q(), &[(1..2).into()])),
                read_float::<R>(R::float_slice(plain(), &[(1..2).into()])),
                "slice",
            ),
        ];
        for (found, expected, name) in pairs {
            assert_same(&format!("{name} of {what}"), &[found], &[expected]);
        }
        // The scheme's block axes are permuted with the tensor's axes.
        let mut turned = scheme;
        turned.permute_block_dims(shape.len(), &axes);
        assert_eq!(R::q_permute(q(), &axes).dtype(), DType::QFloat(turned), "{what}");
        assert_eq!(
            O::q_permute(O::quantize_dynamic(x.float::<O>(&Default::default()), &scheme), &axes).dtype(),
            DType::QFloat(turned)
        );
        // Values that are stored again use the permuted scheme, as in burn-flex.
        let stored = read::<R>(R::q_permute(q(), &axes));
        assert_eq!(stored.dtype(), DType::QFloat(turned), "{what}");
        let oracle = O::q_permute(O::q_from_data(read::<R>(q()), &Default::default()), &axes);
        let expected = values(&read_float::<O>(O::dequantize(oracle, FloatDType::F32)));
        let again = R::dequantize(R::q_from_data(stored, &device), FloatDType::F32);
        // Both backends quantise the same numbers by the same formula.
        assert_within(
            &format!("stored permuted {what}"),
            &read_float::<R>(again),
            &expected,
            &vec![0.0; count],
        );
        let list = int(&random, &[3], DType::I32, View::Contiguous, 0, shape[0] as i64);
        // Whole blocks move unchanged. Others are quantised again, within half a step and the
        // rounding of scales.
        if scheme.block_size().is_none() {
            let picked = floats(R::q_select(q(), 0, list.int::<R>(&device)));
            let expected = read_float::<R>(R::float_select(plain(), 0, list.int::<R>(&device)));
            assert_same(&format!("select of {what}"), &[picked], &[expected]);
        }
    }
}

/// A reshape that keeps the blocks is a view. One that cuts blocks quantises again, as in
/// burn-flex.
#[test]
fn reshapes() {
    let random = Random::new();
    let native = |value| QuantScheme::default().with_value(value).with_store(QuantStore::Native);
    for (block, from, to) in [
        (&[4u8] as &[u8], &[2usize, 8] as &[usize], &[16usize] as &[usize]),
        (&[4], &[16], &[2, 8]),
        (&[2, 4], &[4, 8], &[2, 16]),
        (&[2, 2], &[4, 4], &[2, 2, 4]),
        (&[2, 4], &[2, 4, 4], &[8, 4]),
    ] {
        for value in [QuantValue::Q8S, QuantValue::Q4S] {
            for two in [false, true] {
                let scheme = native(value).per_block(block, ScaleDtype::F16);
                let scheme = if two { scheme.per_tensor(ScaleDtype::F32) } else { scheme };
                let x = input(&random, from, DType::F32, &scheme);
                let data = read::<O>(O::quantize_dynamic(x.float::<O>(&Default::default()), &scheme));
                let what = format!("{scheme:?} {from:?} to {to:?}");
                let reshaped =
                    R::q_reshape(R::q_from_data(data.clone(), &device()), Shape::from(to.to_vec()));
                let theirs =
                    O::q_reshape(O::q_from_data(data.clone(), &Default::default()), Shape::from(to.to_vec()));
                let plain = values(&read_float::<O>(O::dequantize(
                    O::q_from_data(data, &Default::default()),
                    FloatDType::F32,
                )));
                let kept =
                    values(&read_float::<R>(R::dequantize(reshaped.clone(), FloatDType::F32))) == plain;
                if !kept {
                    let found = [read::<R>(reshaped)];
                    assert_same(&what, &found, &[read::<O>(theirs)]);
                } else {
                    let again = R::q_from_data(read::<R>(reshaped), &device());
                    assert_eq!(
                        values(&read_float::<R>(R::dequantize(again, FloatDType::F32))),
                        plain,
                        "{what}"
                    );
                }
            }
        }
    }
}

/// Products of values that dequantise to whole numbers have the same bits in every kernel.
#[test]
fn products() {
    let random = Random::new();
    let native = |value| QuantScheme::default().with_value(value).with_store(QuantStore::Native);
    for scheme in [
        native(QuantValue::Q8S),
        native(QuantValue::Q8S).per_block([8], ScaleDtype::F32),
        native(QuantValue::Q8S).per_block([2, 4], ScaleDtype::UE8M0),
        native(QuantValue::Q4S).per_block([4, 2], ScaleDtype::UE4M3).per_tensor(ScaleDtype::F32),
    ] {
        let device = device();
        let [x, y] =
            [input(&random, &[16, 24], DType::F32, &scheme), input(&random, &[24, 8], DType::F32, &scheme)];
        let [a, b] = [&x, &y].map(|x| R::quantize_dynamic(x.float::<R>(&device), &scheme));
        let [c, d] = [&a, &b].map(|q| values(&read_float::<R>(R::dequantize(q.clone(), FloatDType::F32))));
        let (mut expected, mut limits) = (Vec::new(), Vec::new());
        for (row, column) in (0..16).flat_map(|row| (0..8).map(move |column| (row, column))) {
            let terms = || (0..24).map(|k| c[row * 24 + k] * d[k * 8 + column]);
            expected.push(terms().sum());
            // The scale of each factor may be applied after the sum: 4 roundings more.
            limits.push((24.0 + 6.0) * unit(DType::F32) * terms().map(f64::abs).sum::<f64>());
        }
        let TensorPrimitive::Float(out) = R::q_matmul(TensorPrimitive::QFloat(a), TensorPrimitive::QFloat(b))
        else {
            panic!("a product of floats was expected");
        };
        assert_within(&format!("{scheme:?}"), &read_float::<R>(out), &expected, &limits);
    }
}

#[test]
fn topk() {
    let random = Random::new();
    let scheme = QuantScheme::default().with_value(QuantValue::Q8S).with_store(QuantStore::Native);
    let x = float(&random, &[5, 9], DType::F32, View::Contiguous, -2.0, 2.0);
    same!("q_topk_with_indices", |B, device| {
        let q = B::quantize_dynamic(x.float::<B>(&device), &scheme);
        let (out, at) = B::q_topk_with_indices(q, 1, 3, IntDType::I32);
        vec![read_float::<B>(B::dequantize(out, FloatDType::F32)), read_int::<B>(at)]
    });
}

/// The schemes that Burn's data can't hold, and those that no backend can quantise to.
#[test]
fn what_is_refused() {
    let device = device();
    let x = || R::float_ones(Shape::from([4, 8]), &device, FloatDType::F32);
    let native = QuantScheme::default().with_store(QuantStore::Native);
    for scheme in [
        native.with_mode(QuantMode::Lookup),
        native.with_value(QuantValue::E4M3),
        native.with_value(QuantValue::E2M1).per_block([8], ScaleDtype::UE8M0),
        native.with_store(QuantStore::PackedU32(1)),
        // Tensor scales that would be rounded, and block scales that span f32's range.
        native.per_block([8], ScaleDtype::UE4M3).per_tensor(ScaleDtype::F16),
        native.per_block([8], ScaleDtype::F32).per_tensor(ScaleDtype::F32),
        native.per_block([8], ScaleDtype::UE8M0).per_tensor(ScaleDtype::F32),
    ] {
        let error = refused(&format!("{scheme:?}"), || R::quantize_dynamic(x(), &scheme));
        assert!(
            matches!(error, RocmError::Unsupported { op: "quantize_dynamic", .. }),
            "{scheme:?}: {error:?}"
        );
        assert!(!R::dtype_usage(&device, DType::QFloat(scheme)).contains(DTypeUsage::Storage), "{scheme:?}");
    }
    // Blocks of nothing.
    let nothing = R::float_zeros(Shape::from([0, 8]), &device, FloatDType::F32);
    let error =
        refused("a block of 0", || R::quantize_dynamic(nothing, &native.per_block([0, 8], ScaleDtype::F32)));
    assert!(matches!(error, RocmError::Invalid { op: "quantize_dynamic", .. }), "{error:?}");
    for scheme in [native.per_block([3], ScaleDtype::F32), native.per_block([3, 8], ScaleDtype::F32)] {
        assert!(panics(|| O::quantize_dynamic(
            O::float_ones(Shape::from([4, 8]), &Default::default(), FloatDType::F32),
            &scheme
        )));
        let error = refused(&format!("{scheme:?}"), || R::quantize_dynamic(x(), &scheme));
        assert!(matches!(error, RocmError::Invalid { op: "quantize_dynamic", .. }), "{scheme:?}: {error:?}");
    }
    // One level too few or too many.
    let two = native.per_block([8], ScaleDtype::UE4M3).per_tensor(ScaleDtype::F32);
    let ones = |count: usize| R::float_ones(Shape::from([count]), &device, FloatDType::F32);
    for (scheme, global) in [(two, None), (native.per_block([8], ScaleDtype::F32), Some(ones(1)))] {
        let given = burn_backend::quantization::QuantizationParametersPrimitive { scales: ones(4), global };
        let error = refused(&format!("{scheme:?}"), || R::quantize(x(), &scheme, given));
        assert!(matches!(error, RocmError::Invalid { op: "quantize", .. }), "{scheme:?}: {error:?}");
    }
    // Data that is too short.
    let scheme = native.with_value(QuantValue::Q8S);
    let data = TensorData::from_bytes_vec(vec![0; 35], [4, 8], DType::QFloat(scheme));
    let error = refused("35 bytes", || R::q_from_data(data, &device));
    assert!(matches!(error, RocmError::Invalid { op: "q_from_data", .. }), "{error:?}");
}
