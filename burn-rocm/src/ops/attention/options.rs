//! The options of attention, and its result.

use burn_backend::ops::AttentionModuleOptions;
use burn_std::DType;

use crate::arg::{Arg, compute};
use crate::error::{OrRaise, invalid};
use crate::ops::random;
use crate::{RocmDevice, RocmTensor};

/// Decides which scores one call of attention drops: Philox 4x32-10 of these numbers and of a
/// score's index. No mask is stored, because the backward kernels draw the same numbers again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDropout {
    /// The probability that a score is dropped, in 0..=1.
    pub prob: f64,
    /// The device's seed.
    pub seed: u64,
    /// The number of random calls since the device was seeded, below 2^63. The numbers that
    /// [`draw`](Self::draw) returns in a capture have bit 63 set; only ops of that capture take them.
    pub call: u64,
}

impl AttentionDropout {
    /// Draws the device's next seed and call number. `Backend::seed` restarts these. In a capture
    /// ([`graph`](crate::graph)) the numbers say where the kernels find them.
    ///
    /// # Panics
    /// In a capture, as Burn's ops do, if memory is short.
    pub fn draw(device: &RocmDevice, prob: f64) -> Self {
        let [seed, call] = random::next(device).or_raise();
        Self { prob, seed, call }
    }

    /// The kernels' arguments: seed, call, whether scores are dropped, the largest random word that
    /// drops a score, and the factor of the scores that stay. `ty`: the tensors' type.
    pub(super) fn args(dropout: Option<Self>, ty: hip::DType) -> [Arg; 5] {
        let dropout = dropout.filter(|dropout| dropout.prob > 0.0);
        let (seed, call, prob) = dropout.map_or((0, 0, 0.0), |d| (d.seed, d.call, d.prob));
        // A random word below prob * 2^32 drops its score.
        let words = (prob * 4294967296.0).round().max(1.0);
        let factor = if prob < 1.0 { 1.0 / (1.0 - prob) } else { 0.0 };
        [
            Arg::U64(seed),
            Arg::U64(call),
            Arg::U32(dropout.is_some() as u32),
            Arg::U32((words - 1.0) as u32),
            compute(factor.into(), ty),
        ]
    }

    /// # Errors
    /// `Invalid` for a probability outside 0..=1, and for a call from 2^63 on that was not drawn in
    /// the capture in progress: the kernels would take the seed for an address.
    pub(crate) fn check(&self, op: &'static str, query: &RocmTensor) -> hip::Result<()> {
        if !(0.0..=1.0).contains(&self.prob) {
            return invalid(op, "a probability in 0..=1", self.prob.to_string());
        }
        if !random::is_stream(query.rocm_device().index, self.seed, self.call) {
            return invalid(op, "a call below 2^63, or drawn in this capture", self.call.to_string());
        }
        Ok(())
    }
}

/// The implementation that computes attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionPath {
    /// In f16 and bf16 on a device with matrix cores: [`Tiled`](Self::Tiled) from 32 queries on,
    /// for heads of at most 128 features. Otherwise chooses [`Composed`](Self::Composed) up to
    /// [`AttentionOptions::scores`] bytes of scores, for fewer than 32 queries, and for heads that
    /// the tiled kernels do not take; else [`Tiled`](Self::Tiled), also if a window shows a query at
    /// most a quarter of the keys. So beyond that limit, memory grows linearly with the sequence
    /// length.
    #[default]
    Auto,
    /// One kernel forward. Backward, one kernel for the rows' products, one for keys and values,
    /// and one for queries. Memory grows linearly with the sequence length. Takes heads of at most
    /// 128 features. In f16 and bf16 the kernels run on matrix cores, if the device has them.
    Tiled,
    /// rocBLAS's products, and between them one kernel over the rows of scores, which are stored in
    /// memory. In f32, up to 512 keys and 64 features, without mask, causality and dropout, that
    /// kernel also computes the product before it, except on devices with f32 matrix units and with
    /// `BURN_ROCM_MATMUL=rocblas`.
    Composed,
}

/// Options of [`attention`](crate::fused::attention()).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// The factor of the scores; `1 / sqrt(features)` by default.
    pub scale: Option<f64>,
    /// Whether a query sees only the keys up to its own position, counted so that the last query
    /// sees every key. A key that a query does not see has weight 0.
    pub causal: bool,
    /// A sliding window, at least 1. With `causal`, query `i` sees the keys `j` with
    /// `i - window < j <= i`, as in Mistral; without it, those with `|i - j| < window`. Positions
    /// are counted as for `causal`. A query that no key is near enough to gives zeros. The tiled
    /// kernels skip tiles of keys that no query of a tile sees, so their work grows with the length
    /// times the window. All keys by default.
    pub window: Option<usize>,
    /// The score of a key that the mask hides, -inf by default. With -inf a query whose keys are
    /// all hidden gives zeros.
    pub fill: f64,
    /// Whether 1 is added to the sum of a row's exponentials ([Miller
    /// 2023](https://www.evanmiller.org/attention-is-off-by-one.html)).
    pub quiet: bool,
    /// Dropout of the scores before the mask, as in Burn's module: a dropped score becomes 0, and
    /// the others are divided by `1 - prob`.
    pub dropout: Option<AttentionDropout>,
    /// The implementation.
    pub path: AttentionPath,
    /// For [`AttentionPath::Auto`]: the most bytes that the scores `[batch, heads, queries, keys]`
    /// may take in memory until the gradient is computed. The default is the setting
    /// `BURN_ROCM_ATTENTION_SCORES`, or 256 MiB without that setting.
    pub scores: Option<usize>,
}

impl Default for AttentionOptions {
    fn default() -> Self {
        Self {
            scale: None,
            causal: false,
            window: None,
            fill: f64::NEG_INFINITY,
            quiet: false,
            dropout: None,
            path: AttentionPath::Auto,
            scores: None,
        }
    }
}

/// Checks a softcap for operands of this dtype. The kernels get it as f32, which rounds some softcaps to
/// 0, or as f64 if the dtype is f64. To them, 0 means no softcap.
///
/// # Errors
/// `Invalid` for `op`, if the softcap is not above 0.
pub fn check_softcap(op: &'static str, softcap: Option<f64>, dtype: DType) -> hip::Result<()> {
    let held = |softcap: f64| if dtype == DType::F64 { softcap } else { f64::from(softcap as f32) };
    match softcap {
        Some(softcap) if softcap.is_nan() || held(softcap) <= 0.0 => {
            invalid(op, "a softcap above 0", softcap.to_string())
        }
        _ => Ok(()),
    }
}

/// Options of [`attention_inference`](crate::fused::attention_inference()).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionInferenceOptions {
    /// The factor of the scores; `1 / sqrt(features)` by default.
    pub scale: Option<f64>,
    /// If given, a score becomes `softcap * tanh(score / softcap)` before the mask and the bias.
    pub softcap: Option<f64>,
    /// See [`AttentionOptions::causal`].
    pub causal: bool,
    /// See [`AttentionOptions::window`].
    pub window: Option<usize>,
}

impl From<AttentionModuleOptions> for AttentionInferenceOptions {
    fn from(options: AttentionModuleOptions) -> Self {
        let AttentionModuleOptions { scale, softcap, is_causal } = options;
        Self { scale, softcap, causal: is_causal, window: None }
    }
}

/// The result of [`attention`](crate::fused::attention()).
#[derive(Clone, Debug)]
pub struct Attended {
    /// `[batch, heads, queries, values]`, or `[rows, heads, values]` of packed sequences. On matrix
    /// cores it has the query's order of axes in memory if features are innermost; on the composed
    /// path, if the query has a single stride from each head to the next over all batches. Otherwise
    /// it is packed.
    pub out: RocmTensor,
    /// The tensors that the gradient reads besides the inputs: the output and each row's base and
    /// the reciprocal of its sum (tiled), or the weights (composed).
    pub kept: Vec<RocmTensor>,
}
