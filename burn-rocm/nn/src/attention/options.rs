//! The options of packed attention. Both versions of Burn compile this file.

use burn_rocm::fused::{AttentionDropout, AttentionOptions};

use crate::fuse::refuse;

/// Options of [`packed_attention`](super::packed_attention()).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PackedAttentionOptions {
    /// The factor of the scores; `1 / sqrt(features)` by default.
    pub scale: Option<f64>,
    /// Whether a query sees only the keys of its sequence up to its own position. The last query of a
    /// sequence is at its last key.
    pub causal: bool,
    /// A sliding window of positions in a sequence, at least 1: see
    /// [`AttentionOptions::window`](burn_rocm::fused::AttentionOptions::window). All keys by default.
    pub window: Option<usize>,
    /// Whether 1 is added to the sum of a row's exponentials ([Miller
    /// 2023](https://www.evanmiller.org/attention-is-off-by-one.html)).
    pub quiet: bool,
    /// The probability that a score is dropped in training, 0 to 1. A dropped score becomes 0, and the
    /// others are divided by `1 - dropout`. Without autodiff nothing is dropped.
    pub dropout: f64,
}

impl PackedAttentionOptions {
    /// # Panics
    /// If the window is 0 or the probability outside 0 to 1.
    pub(super) fn check(&self) {
        if self.window == Some(0) {
            refuse("packed_attention", "a window of at least 1 key", "0");
        }
        if !(0.0..=1.0).contains(&self.dropout) {
            refuse("packed_attention", "a probability of 0 to 1", self.dropout.to_string());
        }
    }

    /// The fused op's options.
    pub(super) fn fused(&self, dropout: Option<AttentionDropout>) -> AttentionOptions {
        let Self { scale, causal, window, quiet, .. } = *self;
        AttentionOptions { scale, causal, window, quiet, dropout, ..AttentionOptions::default() }
    }

    /// The offsets of sequences with these lengths.
    ///
    /// # Panics
    /// If there are 2^31 rows or more.
    pub(super) fn offsets_of(lengths: &[usize]) -> Vec<i32> {
        let mut sum = 0usize;
        let ends = lengths.iter().map(|&length| {
            sum = sum.saturating_add(length);
            let expected = || format!("sequences of at most {} rows together", i32::MAX);
            i32::try_from(sum).unwrap_or_else(|_| refuse("packed_attention", expected(), sum.to_string()))
        });
        [0].into_iter().chain(ends).collect()
    }

    /// Checks the shapes of queries, keys and values. Returns how many heads of queries share one of
    /// keys and values.
    ///
    /// # Panics
    /// If they do not fit.
    pub(super) fn check_shapes([query, key, value]: [[usize; 3]; 3], offsets: [usize; 2]) -> usize {
        let ([rows, heads, width], [others, shared, key_width]) = (query, key);
        let group = match shared {
            0 => usize::from(heads == 0),
            _ if heads.is_multiple_of(shared) => heads / shared,
            _ => 0,
        };
        let enough = offsets[0] == offsets[1] && offsets[0] > usize::from(rows + others > 0);
        if width != key_width || value[..2] != [others, shared] || group == 0 || !enough {
            refuse(
                "packed_attention",
                "queries [rows, heads, features], keys and values of as many rows, with heads that divide \
                 those of queries, and as many offsets of both, one more than sequences",
                format!("{query:?}, {key:?}, {value:?}, {offsets:?} offsets"),
            );
        }
        group.max(1)
    }
}
