//! References and limits for the gradients of deformable convolution.

use crate::limits::{self, Terms};
use crate::{Backend, DType, FloatDType, TensorData, TensorMetadata, read_float};
use burn_backend::tensor::{Device, FloatTensor};

/// The oracle's reference and its limits, for each gradient. A gradient is a sum of at most `terms`
/// products of an output's gradient, a weight, a mask and a sample between four pixels.
///
/// `operands` are input, offsets, weight, mask, bias and the output's gradient. `gradients` gives
/// the gradients by the first five; the oracle computes them in f32, even for f64.
pub fn limited<B: Backend>(
    operands: [FloatTensor<B>; 6],
    terms: usize,
    dtype: DType,
    device: &Device<B>,
    gradients: impl Fn([FloatTensor<B>; 6]) -> Vec<FloatTensor<B>>,
) -> Vec<TensorData> {
    // Each side sums in f32, with at most 12 roundings for each term: 24 for both.
    let sums = Terms { wide: DType::F32, roundings: 1, ..Terms::of(24 * terms, dtype) };
    let exact = operands.map(|t| B::float_cast(t, FloatDType::F32));
    let size = TensorMetadata::shape(&exact[0]).to_vec();
    let (h, w) = (size[2], size[3]);
    // The offset's gradient consists of differences of neighbours, down and across. Neighbours of
    // opposite signs, in the same pattern in every channel, turn the differences into sums.
    let signs = [0, 1].map(|axis| {
        let sign = |i: usize| if [i / w, i % w][axis].is_multiple_of(2) { 1.0f32 } else { -1.0 };
        let data = TensorData::new((0..h * w).map(sign).collect::<Vec<_>>(), [1, 1, h, w]);
        B::float_from_data(data, device)
    });
    let mut magnitudes = exact.clone().map(B::float_abs);
    magnitudes[1] = exact[1].clone();
    let [down, across] = signs.map(|sign| {
        let mut turned = magnitudes.clone();
        turned[0] = B::float_mul(turned[0].clone(), sign);
        read_float::<B>(gradients(turned).swap_remove(1))
    });
    let greater = |(a, b): (f32, f32)| a.abs().max(b.abs());
    let of_offset: Vec<f32> = down.iter::<f32>().zip(across.iter::<f32>()).map(greater).collect();
    let of_offset = TensorData::new(of_offset, down.shape.clone());
    let pairs = gradients(exact).into_iter().zip(gradients(magnitudes));
    let of = |(k, (out, magnitude)): (usize, (FloatTensor<B>, FloatTensor<B>))| {
        let [reference, magnitude] = [out, magnitude].map(read_float::<B>);
        let magnitude = if k == 1 { &of_offset } else { &magnitude };
        let limits = limits::sums(&reference, magnitude, sums);
        [reference, limits]
    };
    pairs.enumerate().flat_map(of).collect()
}
