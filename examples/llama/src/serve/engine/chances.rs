//! The probabilities that a request asks for.

use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_rocm::fused::decode::LateFloats;

use super::job::Chances;
use crate::error::Result;
use crate::model::B;

/// The most rows that are sorted at once, so that memory does not grow with their number. With the
/// 128,256 tokens of Llama 3, they take 131 MB. No speed was measured for this number.
const SORTED: usize = 32;

/// The most bytes that [`LateLargest::begin`] takes on the device at once, for logits of `rows` rows.
pub(crate) fn largest_bytes(rows: usize, vocabulary: usize) -> usize {
    // For each logit: as given (up to 4 bytes), its copy in f32, its sorted value, its index, and two
    // buffers of pairs of key and index (8 bytes each), between which the sort merges.
    const EACH: usize = 4 + 4 + 4 + 4 + 2 * 8;
    rows.min(SORTED).saturating_mul(vocabulary).saturating_mul(EACH)
}

/// The largest logits of rows, on their way to the host.
#[derive(Debug)]
pub(super) struct LateLargest {
    parts: Vec<LateFloats>,
    count: usize,
}

/// Of each row: the logit of the drawn token, the largest logits, and their tokens.
#[derive(Debug, Default)]
pub(super) struct Largest {
    numbers: Vec<f32>,
    count: usize,
}

impl LateLargest {
    /// Begins to read the `count` largest logits of each row in `rows`, and does not wait. The device
    /// finds them; among equals, the smaller id comes first.
    ///
    /// # Shapes
    /// - logits: `[all, vocabulary]`; drawn: at least a token for each of all rows
    pub(super) fn begin(
        logits: &Tensor<B, 2>,
        drawn: &Tensor<B, 1, Int>,
        rows: &[i32],
        count: usize,
    ) -> Result<Self> {
        let count = count.min(logits.dims()[1]);
        let most = (LateFloats::MOST / (1 + 2 * count)).clamp(1, SORTED);
        let part = |rows: &[i32]| {
            let len = rows.len();
            let rows = TensorData::new(rows.to_vec(), [len]);
            let rows: Tensor<B, 1, Int> = Tensor::from_data(rows, (&logits.device(), DType::I32));
            let logits = logits.clone().select(0, rows.clone()).cast(DType::F32);
            let drawn = drawn.clone().select(0, rows).reshape([len, 1]);
            let drawn = logits.clone().gather(1, drawn);
            let (largest, ids) = logits.sort_descending_with_indices(1);
            // A vocabulary has at most 2^21 tokens, whose ids are exact in f32.
            let ids = ids.narrow(1, 0, count).float().cast(DType::F32);
            let all = Tensor::cat(vec![drawn, largest.narrow(1, 0, count), ids], 1);
            LateFloats::begin(all.into_primitive().tensor())
        };
        let parts = rows.chunks(most).map(part).collect::<std::result::Result<_, _>>()?;
        Ok(Self { parts, count })
    }

    /// The numbers. Waits for the copies, not for steps that were enqueued behind them.
    pub(super) fn wait(self) -> Result<Largest> {
        let mut numbers = Vec::new();
        for part in self.parts {
            numbers.extend(part.wait()?);
        }
        Ok(Largest { numbers, count: self.count })
    }
}

impl Largest {
    /// The probabilities of a row, in which the drawn token has this one.
    pub(super) fn of_row(&self, row: usize, drawn: f32, count: usize) -> Chances {
        let numbers = self.numbers.chunks_exact(1 + 2 * self.count).nth(row);
        let Some((&logit, best)) = numbers.and_then(<[f32]>::split_first) else {
            return Chances { drawn, best: Vec::new() };
        };
        // The logarithm of the sum of all exponentials.
        let sum = f64::from(logit) - f64::from(drawn);
        let (logits, ids) = best.split_at(self.count);
        let best = ids.iter().zip(logits).take(count);
        let best = best.map(|(&id, &logit)| (id as u32, (f64::from(logit) - sum) as f32)).collect();
        Chances { drawn, best }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_the_logarithms_of_the_softmax() {
        let logit = |chance: f32| chance.ln() + 3.0;
        // Token 7 was drawn in the first row, and token 4 in the second.
        let numbers = [
            [logit(0.25), logit(0.5), logit(0.25), 9.0, 7.0],
            [logit(0.75), logit(0.75), logit(0.125), 4.0, 2_097_151.0],
        ];
        let largest = Largest { numbers: numbers.concat(), count: 2 };
        // Logits below 4 and logarithms are rounded by up to 2^-22, three of them in all.
        let near = |found: f32, expected: f32| (found - expected.ln()).abs() < 1e-6;
        let Chances { drawn, best } = largest.of_row(0, 0.25f32.ln(), 2);
        assert_eq!((drawn, best[1]), (0.25f32.ln(), (7, 0.25f32.ln())));
        assert!(best[0].0 == 9 && near(best[0].1, 0.5), "{best:?}");
        let Chances { best, .. } = largest.of_row(1, 0.75f32.ln(), 2);
        assert_eq!(best[0], (4, 0.75f32.ln()));
        assert!(best[1].0 == 2_097_151 && near(best[1].1, 0.125), "{best:?}");
        assert_eq!(largest.of_row(1, 0.75f32.ln(), 1).best.len(), 1);
    }
}
