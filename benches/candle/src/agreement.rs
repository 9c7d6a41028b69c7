//! Both sides compute the same. candle rounds the inputs of a product to Q8_0: 32 neighbours to whole
//! multiples of their greatest magnitude / 127. This backend multiplies them as f32.

use burn::tensor::{Tensor, TensorData, TensorPrimitive};
use burn_rocm::fused::{QuantWeight, quant_linear};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_nn::language::quant::gguf::GgufBlocks;
use candle_core::quantized::QMatMul;
use candle_core::{Device, Module};
use half::f16;

use crate::result::Result;
use crate::weights::{BLOCK, BLOCK_BYTES, Random, matrix};

/// Multiplies random inputs with a random matrix on both sides. Returns the largest difference of
/// an output, as a part of the bound.
///
/// The bound: candle's multiple is off by half of the greatest input of the block / 127, and the
/// greatest / 127 is rounded to f16, whose unit is 2^-11. Each side's f32 sums of n terms are off by
/// (n + 8) 2^-24 of the sum of magnitudes.
pub fn product(random: &mut Random, shape: [usize; 2]) -> Result<f64> {
    let [outs, inputs] = shape;
    let bytes = random.blocks(shape);
    let x: Vec<f32> = (0..inputs).map(|_| random.number() + random.number()).collect();

    let parts = GgufBlocks::Q4_0.parts(&bytes, shape)?;
    let weight = QuantWeight::upload(&parts, &RocmDevice::default())?;
    let input = Tensor::<Rocm, 2>::from_data(TensorData::new(x.clone(), [1, inputs]), &RocmDevice::default());
    let y = quant_linear(input.into_primitive().tensor(), &weight, None)?;
    let y = Tensor::<Rocm, 2>::from_primitive(TensorPrimitive::Float(y)).into_data();
    let ours: Vec<f32> = y.iter::<f32>().collect();

    let input = candle_core::Tensor::from_vec(x.clone(), (1, inputs), &Device::Cpu)?;
    let product = QMatMul::from_qtensor(matrix(bytes.clone(), shape)?)?;
    let theirs: Vec<f32> = product.forward(&input)?.squeeze(0)?.to_vec1()?;

    let rounding: Vec<f64> = x
        .chunks(BLOCK)
        .flat_map(|block| {
            let greatest = block.iter().fold(0f32, |greatest, x| greatest.max(x.abs()));
            block.iter().map(move |x| f64::from(greatest) * 0.5 / 127.0 + f64::from(x.abs()) * 1.01 / 2048.0)
        })
        .collect();
    let mut worst = 0f64;
    for (out, row) in bytes.chunks(inputs / BLOCK * BLOCK_BYTES).enumerate().take(outs) {
        let mut bound = 0.0;
        for (at, block) in row.chunks(BLOCK_BYTES).enumerate() {
            let scale = f16::from_le_bytes([block[0], block[1]]).to_f64();
            for k in 0..BLOCK {
                let byte = block[2 + k % 16];
                let code = if k < 16 { byte & 15 } else { byte >> 4 };
                let weight = ((f64::from(code) - 8.0) * scale).abs();
                let sums = 2.0 * (inputs as f64 + 8.0) * 2f64.powi(-24);
                let x = f64::from(x[at * BLOCK + k].abs());
                bound += weight * (rounding[at * BLOCK + k] * (1.0 + sums) + x * sums);
            }
        }
        worst = worst.max(f64::from((ours[out] - theirs[out]).abs()) / bound);
    }
    Ok(worst)
}

/// The norm of the difference of two vectors / the norm of the first.
pub fn difference(one: &[f32], other: &[f32]) -> f64 {
    let length =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    length(&mut one.iter().zip(other).map(|(a, b)| a - b)) / length(&mut one.iter().copied())
}
