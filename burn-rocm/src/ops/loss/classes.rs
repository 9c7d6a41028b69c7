//! Cross entropy of class scores, and its gradient.

use hip::defaults::Family;
use hip::{Device, Error as RocmError, Fault, Functor, Grid, KernelName, Template};

use super::{items_grid, one_gradient, room, total};
use crate::arg::{Arg, compute};
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::index::{check_size, index};
use crate::ops::launch::views;
use crate::tensor::{RocmTensor, float_type, one_device};

/// The meaning of a classifier's scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassScores {
    /// Any numbers, whose softmax gives the probabilities.
    Logits,
    /// Probabilities. Without smoothing, a target's probability is raised to at least the square
    /// root of the dtype's smallest normal number.
    Probabilities,
    /// Logarithms of probabilities.
    LogProbabilities,
}

/// The target classes of the rows, and the options of the loss.
#[derive(Clone, Debug)]
pub struct ClassTargets {
    /// The meaning of the scores.
    pub scores: ClassScores,
    /// The target class of each row: `[rows]`, of an int type.
    pub targets: RocmTensor,
    /// Label smoothing: the share of a target's weight that is spread over all classes, 0 to 1.
    pub smoothing: Option<f32>,
    /// Pad tokens: rows with these targets have no loss. At most [`MAX_PAD_TOKENS`].
    pub pad_tokens: Vec<usize>,
}

/// The most pad tokens that the kernels take.
pub const MAX_PAD_TOKENS: usize = 8;

/// The longest row that a single thread computes (`SHORT` of `loss.hip`).
const SHORT: usize = 32;

/// Whether a warp computes each row of logits, rather than a block. A warp needs no barriers. Warps
/// take short rows, and rows that are numerous enough for one warp each to fill the device. On an
/// H200, in f32: 65536 rows of 4096 in 0.26 ms by warps and in 0.59 ms by blocks, 65536 rows of
/// 1000 in 0.09 and 0.48 ms.
fn by_warps(device: &Device, rows: usize, len: usize) -> bool {
    len <= 1024 || len <= 1 << 14 && rows >= 16 * device.info().compute_units as usize
}

/// Checks that the kernels take this many pad tokens.
pub(crate) fn pad_tokens_fit(op: &'static str, pad_tokens: usize) -> hip::Result<()> {
    match pad_tokens <= MAX_PAD_TOKENS {
        true => Ok(()),
        false => invalid(op, format!("at most {MAX_PAD_TOKENS} pad tokens"), pad_tokens.to_string()),
    }
}

/// The checked arguments of both passes.
struct Rows {
    x: RocmTensor,
    targets: RocmTensor,
    weights: Option<RocmTensor>,
    kernel: [KernelName; 2],
    rows: usize,
    len: usize,
    /// How many numbers the loss keeps for the gradient. For each row of logits these are the
    /// largest logit, and the reciprocal of the sum of exponentials relative to it. (One number
    /// that joins both would lose digits.) The sum of weights comes last.
    kept: usize,
    /// The loss' divisor; 0 means the sum of the targets' weights.
    divisor: f64,
    /// Smoothing (negative: none), smallest probability of a target, divisor, pad tokens.
    scalars: [Arg; 5],
}

impl Rows {
    fn new(
        op: &'static str,
        x: RocmTensor,
        weights: Option<RocmTensor>,
        of: &ClassTargets,
    ) -> hip::Result<Self> {
        let ty = float_type(op, &x)?;
        let (&[rows, len], &[count]) = (x.dims(), of.targets.dims()) else {
            let found = format!("{:?} and {:?}", x.dims(), of.targets.dims());
            return invalid(op, "scores [rows, classes] and targets [rows]", found);
        };
        if count != rows {
            return invalid(op, format!("{rows} targets"), count.to_string());
        }
        if let Some(smoothing) = of.smoothing
            && !(0.0..=1.0).contains(&smoothing)
        {
            return invalid(op, "a smoothing of 0 to 1", smoothing.to_string());
        }
        pad_tokens_fit(op, of.pad_tokens.len())?;
        if rows > 0 {
            check_size(op, len)?;
        }
        one_device(op, &[&x, &of.targets])?;
        let targets = packed(index(op, of.targets.clone())?)?;
        let wide = compute_dtype(x.dtype_of());
        let weights = match weights {
            None => None,
            Some(weights) => {
                one_device(op, &[&x, &weights])?;
                float_type(op, &weights)?;
                if weights.dims() != [len] {
                    return invalid(op, format!("weights of shape [{len}]"), format!("{:?}", weights.dims()));
                }
                Some(packed(cast(weights, wide)?)?)
            }
        };
        let kind = match of.scores {
            ClassScores::Logits => Functor::Logits,
            ClassScores::Probabilities => Functor::Probabilities,
            ClassScores::LogProbabilities => Functor::LogProbabilities,
        };
        let of_index = targets.kernel_type()?;
        let short = len <= SHORT;
        let forward = match of.scores {
            ClassScores::Logits if short => Template::cross_entropy_short.name(),
            ClassScores::Logits if by_warps(x.hip_device(), rows, len) => {
                Template::cross_entropy_warps.name()
            }
            ClassScores::Logits => Template::cross_entropy.name(),
            _ => Template::nll_loss.functor(kind),
        };
        let backward =
            if short { Template::cross_entropy_short_backward } else { Template::cross_entropy_backward };
        let kernel = [forward, backward.functor(kind)].map(|name| name.ty(ty).ty(of_index));
        let divisor = if weights.is_some() { 0.0 } else { rows as f64 };
        let kept = if of.scores == ClassScores::Logits { 2 * rows + 1 } else { 1 };
        let least = x.dtype_of().finfo().map_or(0.0, |info| info.min_positive.sqrt());
        let mut pads = [0u64; MAX_PAD_TOKENS];
        for (pad, &token) in pads.iter_mut().zip(&of.pad_tokens) {
            *pad = token as u64;
        }
        let scalars = [
            compute(of.smoothing.unwrap_or(-1.0).into(), ty),
            compute(least.into(), ty),
            Arg::F64(divisor),
            Arg::U32(of.pad_tokens.len() as u32),
            Arg::U64x8(pads),
        ];
        Ok(Self { x: packed(x)?, targets, weights, kernel, rows, len, kept, divisor, scalars })
    }

    fn dims(&self) -> [Arg; 2] {
        [Arg::U64(self.rows as u64), Arg::U64(self.len as u64)]
    }

    /// A grid of blocks over rows, or of threads over rows if one thread computes a row.
    fn grid(&self, of: &ClassTargets) -> Grid {
        let device = self.x.hip_device();
        match (of.scores, of.smoothing) {
            (ClassScores::Logits, _) if self.len <= SHORT => items_grid(device, self.rows * self.len),
            (ClassScores::Logits, _) if by_warps(device, self.rows, self.len) => {
                let grid = device.grid_rows(self.rows, self.len.max(256));
                let warps = (grid.threads / device.info().warp_size).max(1) as usize;
                Grid { blocks: grid.blocks.min(self.rows.div_ceil(warps) as u32), ..grid }
            }
            // The kernel reads one element of each row.
            (ClassScores::Probabilities | ClassScores::LogProbabilities, None) => {
                items_grid(device, self.rows * SHORT)
            }
            _ => device.grid_rows(self.rows, self.len),
        }
    }
}

/// The mean over rows of `-log(p)`, where `p` is the probability that the scores `[rows, classes]`
/// give to the row's target. Returns the loss `[1]` and a tensor that the gradient reads.
///
/// With `weights` (`[classes]`, any float type) each row is weighted by its target's class, and the
/// divisor is the sum of all targets' weights instead of their number. With smoothing `a` a row's
/// loss is `(1 - a) w[t] (-log p[t]) + a / classes * sum(w (-log p))` ([Szegedy et al.
/// 2015](https://arxiv.org/abs/1512.00567), section 7). The row of a pad token has no loss but
/// counts in the divisor. A row whose target is not a class has no loss either, and reads of the
/// loss and its gradient report it. The loss is NaN for no rows, and if the targets' weights sum to
/// 0, for example if all targets are pad tokens that are not classes. The gradient of rows without
/// a loss is 0 even then.
///
/// # Errors
/// `Invalid` for shapes, types, devices, a smoothing or a number of pad tokens other than
/// described; `Unsupported` for integers instead of floats; an error of the device.
pub fn cross_entropy(
    x: RocmTensor,
    weights: Option<RocmTensor>,
    of: &ClassTargets,
) -> Result<(RocmTensor, RocmTensor), RocmError> {
    const OP: &str = "cross_entropy";
    let rows = Rows::new(OP, x, weights, of)?;
    let device = rows.x.hip_device();
    let dtype = rows.x.dtype_of();
    if rows.rows == 0 {
        let nan = |dtype| full_on(device, [1], f64::NAN.into(), dtype);
        return Ok((nan(dtype)?, nan(compute_dtype(dtype))?));
    }
    let saved = RocmTensor::empty(device, [rows.kept], compute_dtype(dtype))?;
    let out = RocmTensor::empty(device, [1], dtype)?;
    let grid = rows.grid(of);
    let partial = room(&rows.x, grid)?;
    let inputs = [Some(&rows.x), Some(&rows.targets), rows.weights.as_ref(), Some(&saved), partial.as_ref()];
    let [smoothing, least, divisor, count, pads] = rows.scalars;
    let scalars = [smoothing, least, divisor, count, pads, Arg::Flag(OP, Fault::Index)];
    views(OP, device, rows.kernel[0], grid, &rows.dims(), &inputs, &scalars, &out)?;
    // The kernel writes `saved` too, so a target that is not a class marks the gradient.
    hip::carry_faults([out.buffer()], [saved.buffer()]);
    let weight = crate::ops::view::narrow(saved.clone(), 0, rows.kept - 1, 1)?;
    total(OP, partial.as_ref(), Some(&weight), rows.divisor, &out)?;
    Ok((out, saved))
}

/// The gradient of [`cross_entropy`] with respect to the scores, `[rows, classes]`, from the loss'
/// gradient (`[1]`) and the tensor that the loss returned for it. It is 0 in rows without a loss.
///
/// # Errors
/// As for [`cross_entropy`].
pub fn cross_entropy_backward(
    x: RocmTensor,
    weights: Option<RocmTensor>,
    of: &ClassTargets,
    saved: &RocmTensor,
    grad: RocmTensor,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "cross_entropy_backward";
    let rows = Rows::new(OP, x, weights, of)?;
    let x = &rows.x;
    let grad = one_gradient(OP, x, grad)?;
    let out = x.empty_like()?;
    if out.is_empty() {
        return Ok(out);
    }
    if saved.dims() != [rows.kept] || saved.dtype_of() != compute_dtype(x.dtype_of()) {
        let found = format!("{:?} of {}", saved.dims(), saved.dtype_of().name());
        return invalid(OP, format!("the tensor that the loss of {} rows kept", rows.rows), found);
    }
    one_device(OP, &[x, saved])?;
    let saved = packed(saved.clone())?;
    let inputs = [Some(x), Some(&rows.targets), rows.weights.as_ref(), Some(&saved), Some(&grad)];
    let grid = match rows.len <= SHORT {
        true => x.hip_device().grid(x.len()),
        // As `TWO` of the kernel: a thread has two accesses in flight, and blocks are smaller, so that
        // more rows are in flight.
        false if Family::of(x.hip_device().info()) == Family::Nvidia && x.dtype_of().size() == 2 => {
            x.hip_device().grid_rows(rows.rows, rows.len.div_ceil(64))
        }
        false => x.hip_device().grid_rows(rows.rows, rows.len),
    };
    views(OP, x.hip_device(), rows.kernel[1], grid, &rows.dims(), &inputs, &rows.scalars, &out)?;
    Ok(out)
}
