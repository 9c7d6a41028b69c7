//! Limits for the error of scaled dot-product attention.

use crate::limits::{growth, least, unit, wide};
use crate::{AttentionModuleOptions, DType, TensorData};

/// Whether the first device has the shared memory with which attention in f32 of 65 to 128 features
/// keeps operands there (`hip/kernels/attention_f32_kept.hip`).
///
/// # Panics
/// If there is no device.
pub fn keeps_operands() -> bool {
    hip::Device::get(0).expect("there is a device").info().holds_two_copying_blocks(115_712)
}

/// A call's operands: queries, keys and values, each `[batch, heads, sequence, features]`, and mask
/// and bias of the scores, `[batch, heads, queries, keys]`.
#[derive(Debug)]
pub struct Operands<'a> {
    /// The queries.
    pub query: &'a TensorData,
    /// The keys.
    pub key: &'a TensorData,
    /// The values.
    pub value: &'a TensorData,
    /// True hides a score.
    pub mask: Option<&'a TensorData>,
    /// Added to the scores.
    pub bias: Option<&'a TensorData>,
    /// Scale, softcap and causality.
    pub options: AttentionModuleOptions,
}

/// A row's scores, and the limit of each score's error.
struct Scores {
    value: Vec<f64>,
    off: Vec<f64>,
}

impl Operands<'_> {
    /// The limits for a result of `dtype`, to first order in its roundings. Each step (scores, cap,
    /// bias, weights, result) may be computed in f32 (f64 for f64) and rounded to `dtype`.
    ///
    /// An error `e` in a score changes the result by `p e (v - result)`, where `p` is the score's
    /// weight.
    pub fn limits(&self, dtype: DType) -> TensorData {
        let [query, key, value] =
            [self.query, self.key, self.value].map(|data| data.iter::<f64>().collect::<Vec<_>>());
        let (dims, columns) = (self.query.shape.as_slice(), self.value.shape.as_slice());
        let [pairs, queries, width] = [dims[0] * dims[1], dims[2], dims[3]];
        let [keys, columns] = [columns[2], columns[3]];
        let mask: Option<Vec<bool>> = self.mask.map(|mask| mask.iter::<bool>().collect());
        let bias: Option<Vec<f64>> = self.bias.map(|bias| bias.iter::<f64>().collect());
        let computed = wide(dtype);
        let [step, rounding] = [unit(computed), if computed == dtype { 0.0 } else { unit(dtype) }];
        let mut limits = Vec::with_capacity(pairs * queries * columns);
        for row in 0..pairs * queries {
            let (pair, i) = (row / queries, row % queries);
            let hidden = |j: usize| {
                let late = self.options.is_causal && j + queries > i + keys;
                late || mask.as_ref().is_some_and(|mask| mask[row * keys + j])
            };
            let q = &query[row * width..][..width];
            let mut scores = Scores { value: Vec::new(), off: Vec::new() };
            for j in 0..keys {
                let k = &key[(pair * keys + j) * width..][..width];
                let (mut score, mut off) = self.score(q, k, dtype);
                if let Some(bias) = &bias {
                    score += bias[row * keys + j];
                    off += (step + rounding) * score.abs();
                }
                scores.value.push(if hidden(j) { f64::NEG_INFINITY } else { score });
                scores.off.push(off);
            }
            let most = scores.value.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut weights: Vec<f64> = scores
                .value
                .iter()
                .map(|s| if *s > f64::NEG_INFINITY { (s - most).exp() } else { 0.0 })
                .collect();
            let total: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|p| *p /= total.max(f64::MIN_POSITIVE));
            // An exponential's error comes from its argument's rounding (twice for base 2) and from
            // the function itself. The sum over keys goes tile by tile, each scaled by
            // exponentials.
            let mut worst: f64 = 0.0;
            for (off, (score, p)) in scores.off.iter_mut().zip(scores.value.iter().zip(&weights)) {
                if *p > 0.0 {
                    *off += step * (3.0 * (score - most).abs() + 8.0) + 2.0 * growth(keys, computed);
                    worst = worst.max(*off);
                }
            }
            // The second order: the error of `p` times the error of the sum.
            let second = (4.0 * worst).exp();
            for column in 0..columns {
                let v = |j: usize| value[(pair * keys + j) * columns + column];
                let result: f64 = weights.iter().enumerate().map(|(j, p)| p * v(j)).sum();
                let [mut by_scores, mut by_sum, mut all] = [0.0; 3];
                for (j, p) in weights.iter().enumerate().filter(|(_, p)| **p > 0.0) {
                    by_scores += p * scores.off[j] * (v(j) - result).abs();
                    by_sum += p * v(j).abs();
                    all += v(j).abs();
                }
                // A reference in f64 has the same error as a result in f64.
                let sides = if dtype == DType::F64 { 2.0 } else { 1.0 };
                let sum = (rounding + 2.0 * growth(keys, computed)) * by_sum + 1.01 * rounding * result.abs();
                limits.push(sides * (second * by_scores + sum) + least(dtype) * (1.0 + all));
            }
        }
        TensorData::new(limits, [dims[0], dims[1], queries, columns])
    }

    /// The capped score of a query and a key, and the limit of its error.
    fn score(&self, q: &[f64], k: &[f64], dtype: DType) -> (f64, f64) {
        let computed = wide(dtype);
        let [step, rounding] = [unit(computed), if computed == dtype { 0.0 } else { unit(dtype) }];
        let scale = self.options.scale.unwrap_or(1.0 / (q.len() as f64).sqrt());
        let [mut sum, mut magnitude] = [0.0; 2];
        for (q, k) in q.iter().zip(k) {
            sum += q * k;
            magnitude += (q * k).abs();
        }
        let score = scale * sum;
        let off = growth(q.len(), computed) * (scale * magnitude).abs() + (step + rounding) * score.abs();
        let Some(cap) = self.options.softcap else { return (score, off) };
        let capped = cap * (score / cap).tanh();
        // The errors of the quotient's rounding, of the tanh, of its rounding and of the product's
        // rounding.
        (capped, off + (step + rounding) * score.abs() + (8.0 * step + 2.0 * rounding) * capped.abs())
    }
}
