//! How attention is computed, and what it gives.

use crate::ops::random;
use crate::{RocmDevice, RocmTensor};

/// Which scores of one attention are dropped: a function of these numbers and of a score's place, by Philox
/// 4x32-10. No mask is stored; the gradient's kernels draw it again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDropout {
    /// The probability of a score to be dropped, in 0..=1.
    pub prob: f64,
    /// The device's seed.
    pub seed: u64,
    /// The number of the call since the device was seeded.
    pub call: u64,
}

impl AttentionDropout {
    /// The next numbers of the device, which `Backend::seed` starts again.
    pub fn draw(device: &RocmDevice, prob: f64) -> Self {
        let [seed, call] = random::next(device);
        Self { prob, seed, call }
    }
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionPath {
    /// [`Composed`](Self::Composed) up to so many bytes of scores as [`AttentionOptions::scores`] says, for fewer
    /// than 32 queries, and where the tiled kernels take no such head; else [`Tiled`](Self::Tiled). So memory is
    /// linear in the sequence from there on.
    #[default]
    Auto,
    /// One kernel forward; backward one for the rows' products, one for keys and values, one for queries. Memory is
    /// linear in the sequence. For heads of at most 128 features.
    Tiled,
    /// Products of rocBLAS and one kernel over the rows of scores between, which are in memory. In f32, up to 512
    /// keys and 64 features, without mask, causality and dropout, that kernel makes the product ahead of it too;
    /// not on devices that have matrix units for f32, nor with `BURN_ROCM_MATMUL=rocblas`.
    Composed,
}

/// Options of [`attention`](crate::fused::attention()).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// What products are multiplied by; `1 / sqrt(features)` by default.
    pub scale: Option<f64>,
    /// Whether a query sees only keys up to its own place, the last query seeing every key. A key that it does not
    /// see has no weight.
    pub causal: bool,
    /// The score of a key that the mask hides: -inf by default, where a row of hidden keys alone gives zeros.
    pub fill: f64,
    /// Whether 1 is added to the sum of a row's exponentials ([Miller
    /// 2023](https://www.evanmiller.org/attention-is-off-by-one.html)).
    pub quiet: bool,
    /// Dropout of the scores, ahead of the mask, as Burn's module has it: a dropped one is 0, the others are
    /// divided by `1 - prob`.
    pub dropout: Option<AttentionDropout>,
    /// How it is computed.
    pub path: AttentionPath,
    /// For [`AttentionPath::Auto`], the bytes of `[batch, heads, queries, keys]` scores up to which they are kept
    /// in memory until the gradient is computed. By default what the environment variable
    /// `BURN_ROCM_ATTENTION_SCORES` says, or 256 MiB.
    pub scores: Option<usize>,
}

impl Default for AttentionOptions {
    fn default() -> Self {
        Self {
            scale: None,
            causal: false,
            fill: f64::NEG_INFINITY,
            quiet: false,
            dropout: None,
            path: AttentionPath::Auto,
            scores: None,
        }
    }
}

/// What [`attention`](crate::fused::attention()) gives.
#[derive(Clone, Debug)]
pub struct Attended {
    /// `[batch, heads, queries, values]`; composed, its axes follow each other in memory as the query's do where
    /// one stride leads from each head to the next over all batches, else it is packed.
    pub out: RocmTensor,
    /// What the gradient reads beside the inputs: the output and each row's greatest score and sum (tiled), or the
    /// weights (composed).
    pub kept: Vec<RocmTensor>,
}
