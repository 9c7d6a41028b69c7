//! Products against f64, within a derived bound.

use burn::backend::Autodiff;
use burn::tensor::{DType, Tensor, TensorData};
use burn_rocm::fused::{GroupScales, GroupZeros, GroupedWeights, QuantWeight, WeightParts};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_nn::language::quant::{GptqZeros, QuantLinear};
use burn_rocm_tests::Random;
use burn_rocm_tests::limits::{least, unit};
use burn_rocm_tests::lockstep::{fewer, in_lockstep};

use crate::weights::{Drawn, Zeros, awq, compressed, every, gptq};

type Ours = Autodiff<Rocm>;

fn drawn(random: &Random, count: usize, dtype: DType) -> (TensorData, Vec<f64>) {
    let values = (0..count).map(|_| random.uniform(-2.0, 2.0)).collect();
    let data = TensorData::new::<f64, _>(values, [count]).convert_dtype(dtype);
    let values = data.iter::<f64>().collect();
    (data, values)
}

fn on_device<const D: usize>(data: &TensorData, shape: [usize; D], dtype: DType) -> Tensor<Ours, D> {
    let mut data = data.clone();
    data.shape = shape.into();
    Tensor::from_data(data, (&RocmDevice::default(), dtype))
}

/// Compares with `sum of x * w + bias`, whose terms have these magnitudes. A sum in f32 of n terms
/// in any order is off by (n + 2) u of the sum of magnitudes (`limits::growth`). Each term has six
/// more roundings: of a group's scale (one), of the code times x or the scale (two), of the least
/// value's product (two) and of the scaled sum. Above 16 rows, and in gradients, the weights are
/// first rounded to the dtype: u of the dtype. The result is rounded to the dtype, once more if a
/// bias follows. Weights and results below the dtype's normal numbers are off by at most `least`,
/// and no |x| exceeds 2.
pub(crate) struct Bound {
    pub(crate) dtype: DType,
    pub(crate) terms: usize,
    pub(crate) rounds_weights: bool,
    pub(crate) biased: bool,
}

impl Bound {
    pub(crate) fn of(&self, value: f64, bias: f64, magnitude: f64) -> f64 {
        let u = unit(self.dtype);
        let mut share = (self.terms as f64 + 8.0) * unit(DType::F32);
        if self.rounds_weights {
            share += u * (1.0 + share);
        }
        let sum = share * (magnitude + bias.abs());
        let roundings = if self.biased { 2.0 } else { 1.0 };
        sum + roundings * u * (value.abs() + bias.abs() + sum) * (1.0 + u)
            + least(self.dtype) * (1.0 + 2.0 * self.terms as f64)
    }
}

fn product_is_right(random: &Random, drawn_weight: &Drawn, rows: usize, dtype: DType, biased: bool) {
    let [outs, inputs] = drawn_weight.parts.shape();
    let largest = drawn_weight.magnitudes.iter().copied().fold(0.0, f64::max);
    if dtype == DType::F16 && largest * 2.0 * outs.max(inputs) as f64 > 60000.0 {
        return; // f16 can't hold the results
    }
    let weight = QuantWeight::upload(&drawn_weight.parts, &RocmDevice::default()).unwrap();
    let (data, x) = drawn(random, rows * inputs, dtype);
    let (bias_data, bias) = drawn(random, outs, dtype);
    let bias_tensor = biased.then(|| on_device(&bias_data, [outs], dtype).inner());
    let layer = QuantLinear::new::<Rocm>(weight, bias_tensor).unwrap();
    let input = on_device(&data, [rows, inputs], dtype).require_grad();
    let y = layer.forward(input.clone());
    let (factors, grads) = drawn(random, rows * outs, dtype);
    let loss = y.clone() * on_device(&factors, [rows, outs], dtype);
    let found_grad: Vec<f64> =
        input.grad(&loss.sum().backward()).unwrap().into_data().iter::<f64>().collect();
    let found: Vec<f64> = y.into_data().iter::<f64>().collect();

    let name = format!("{} by {rows} rows of {dtype:?}, bias {biased}", drawn_weight.name);
    let floats = rows > 16;
    let bound = Bound { dtype, terms: inputs, rounds_weights: floats, biased: biased && floats };
    for row in 0..rows {
        for out in 0..outs {
            let (mut value, mut magnitude) = (0.0, 0.0);
            for input in 0..inputs {
                let at = out * inputs + input;
                value += x[row * inputs + input] * drawn_weight.values[at];
                magnitude += x[row * inputs + input].abs() * drawn_weight.magnitudes[at];
            }
            let bias = if biased { bias[out] } else { 0.0 };
            let (found, limit) = (found[row * outs + out], bound.of(value, bias, magnitude));
            let value = value + bias;
            assert!(
                (found - value).abs() <= limit,
                "{name} at ({row}, {out}): {found}, not {value} within {limit}"
            );
        }
    }
    // The gradient: `grad W`, with weights rounded to the dtype.
    let bound = Bound { dtype, terms: outs, rounds_weights: true, biased: false };
    for row in 0..rows {
        for input in 0..inputs {
            let (mut value, mut magnitude) = (0.0, 0.0);
            for out in 0..outs {
                let at = out * inputs + input;
                value += grads[row * outs + out] * drawn_weight.values[at];
                magnitude += grads[row * outs + out].abs() * drawn_weight.magnitudes[at];
            }
            let (found, limit) = (found_grad[row * inputs + input], bound.of(value, 0.0, magnitude));
            assert!(
                (found - value).abs() <= limit,
                "{name}, gradient at ({row}, {input}): {found}, not {value}"
            );
        }
    }
}

#[test]
fn products_are_within_the_bound() {
    let random = Random::new();
    let rows = [1, 2, 3, 4, 5, 16, 17, 33];
    for drawn in fewer(every(&random), 4, &random) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let count = if in_lockstep() { 2 } else { 4 };
            for _ in 0..count {
                let rows = rows[random.below(rows.len())];
                product_is_right(&random, &drawn, rows, dtype, random.below(2) == 0);
            }
        }
    }
}

/// Rows longer than the CPU device converts at a time, and than a block has threads for.
#[test]
fn long_rows() {
    let random = Random::new();
    for rows in [1, 4, 9] {
        let shape = [1 + random.below(20), 32 * (258 + random.below(20))];
        let all = [
            gptq(&random, shape, 4, Some(128), GptqZeros::LessOne, true),
            compressed(&random, shape, 8, None, Zeros::None, DType::BF16, true, false),
        ];
        for drawn in fewer(all, 2, &random) {
            product_is_right(&random, &drawn, rows, DType::BF16, true);
        }
    }
}

/// More outputs than a block computes at a time, and more groups than it keeps factors of.
#[test]
fn wide_weights() {
    let random = Random::new();
    for dtype in [DType::F16, DType::BF16] {
        let shape = || [64 + random.below(40), 32 * (33 + random.below(4))];
        let all = [
            gptq(&random, shape(), 4, Some(32), GptqZeros::Plain, false),
            compressed(&random, shape(), 8, Some(32), Zeros::Bytes, DType::F32, true, false),
            // A group for each step, and a last step that is not whole.
            gptq(&random, [70, 2016], 4, Some(128), GptqZeros::Plain, false),
        ];
        for drawn in fewer(all, 1, &random) {
            product_is_right(&random, &drawn, [1, 2, 7, 16][random.below(4)], dtype, true);
        }
    }
}

/// Weights that do not fit the floats that rocBLAS gets at a time: 32 MiB.
#[test]
fn more_weights_than_are_floats_at_a_time() {
    if in_lockstep() {
        return;
    }
    let random = Random::new();
    let (outs, inputs, rows) = (2 * 4096 + 5, 1024, 17);
    let codes: Vec<u8> = (0..outs * inputs).map(|_| random.bits() as u8).collect();
    let weights = GroupedWeights {
        shape: [outs, inputs],
        bits: 8,
        group: None,
        scales: GroupScales::F32(vec![1.0; outs]),
        zeros: GroupZeros::All(128),
        order: None,
    };
    let parts = WeightParts::grouped(weights, |out, input| codes[out * inputs + input]).unwrap();
    let weight = QuantWeight::upload(&parts, &RocmDevice::default()).unwrap();
    // Whole numbers of at most 128 * 2 * 1024: every sum is exact.
    let x: Vec<f32> = (0..rows * inputs).map(|_| random.below(5) as f32 - 2.0).collect();
    let input =
        Tensor::<Rocm, 2>::from_data(TensorData::new(x.clone(), [rows, inputs]), &RocmDevice::default());
    let y = QuantLinear::new::<Rocm>(weight, None).unwrap().forward(input).into_data();
    let y: Vec<f32> = y.iter::<f32>().collect();
    for _ in 0..2000 {
        let (row, out) = (random.below(rows), random.below(outs));
        let expected: f32 =
            (0..inputs).map(|at| x[row * inputs + at] * (f32::from(codes[out * inputs + at]) - 128.0)).sum();
        assert_eq!(y[row * outs + out], expected, "({row}, {out})");
    }
}

/// Inputs of any rank and layout, and of no rows.
#[test]
fn inputs_of_any_shape() {
    let random = Random::new();
    let drawn = awq(&random, [16, 64], Some(32));
    let weight = QuantWeight::upload(&drawn.parts, &RocmDevice::default()).unwrap();
    let layer = QuantLinear::new::<Rocm>(weight, None).unwrap();
    let (data, _) = self::drawn(&random, 3 * 2 * 64, DType::F32);
    let x = on_device(&data, [3, 2, 64], DType::F32).inner();
    let y = layer.forward(x.clone());
    assert_eq!(y.dims(), [3, 2, 16]);
    let turned = layer.forward(x.clone().swap_dims(0, 1)).swap_dims(0, 1);
    assert_eq!(turned.into_data(), y.clone().into_data());
    let flat = layer.forward(x.clone().reshape([6, 64]));
    assert_eq!(
        flat.into_data().iter::<f32>().collect::<Vec<_>>(),
        y.into_data().iter::<f32>().collect::<Vec<_>>()
    );
    assert_eq!(layer.forward(x.slice([0..0, 0..2])).dims(), [0, 2, 16]);
}

/// Two runs give the same bits.
#[test]
fn a_product_repeats_its_bits() {
    let random = Random::new();
    for drawn in fewer(every(&random), 4, &random) {
        let weight = QuantWeight::upload(&drawn.parts, &RocmDevice::default()).unwrap();
        let layer = QuantLinear::new::<Rocm>(weight, None).unwrap();
        let inputs = drawn.parts.shape()[1];
        let (data, _) = self::drawn(&random, 5 * inputs, DType::F32);
        let x = on_device(&data, [5, inputs], DType::F32).inner();
        assert_eq!(layer.forward(x.clone()).into_data(), layer.forward(x).into_data(), "{}", drawn.name);
    }
}
