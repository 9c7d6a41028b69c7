//! The numbers of the training rows' weights and batches. Both versions of Burn are built with this
//! file.

use burn::tensor::TensorData;

/// The number at `index` of a series in -1..1 from which every peer starts: the index hashed to 32
/// bits. A sequence that fills the interval evenly would not work: gradients over a batch of such
/// numbers cancel, except for little more than rounding errors. Adam scales these to whole steps,
/// so no two implementations would agree.
fn number(index: usize, series: usize) -> f64 {
    let mut x = (index as u32).wrapping_add((series as u32).wrapping_mul(0x9e37_79b9));
    for _ in 0..2 {
        x = (x ^ (x >> 16)).wrapping_mul(0x045d_9f3b);
    }
    f64::from(x ^ (x >> 16)) / f64::from(1u32 << 31) - 1.0
}

/// Tensor data of such numbers, times `scale`.
pub(crate) fn numbers(shape: &[usize], series: usize, scale: f64) -> TensorData {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| (number(i, series) * scale) as f32).collect();
    TensorData::new(values, shape.to_vec())
}
