//! Batch norm over a batch of which each rank has a part: what the ranks exchange, and what they
//! compute from it.

use hip::{Error as RocmError, Functor};

use super::batch::{batch_norm_backward, batch_norm_infer};
use super::row;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::binary::{binary, scalar};
use crate::ops::cast::cast;
use crate::ops::pack::{flat, one_value, pack};
use crate::ops::reduce::sum_dim;
use crate::ops::unary::{clamp, unary};
use crate::ops::view::{narrow, reshape};
use crate::tensor::RocmTensor;

/// Statistics of a batch.
#[derive(Clone, Debug)]
pub struct BatchStatistics {
    /// The mean and `1 / sqrt(variance + epsilon)` of each channel: `[2, channels]`, in f64 for f64
    /// and in f32 for all other dtypes.
    pub normal: RocmTensor,
    /// The mean and the biased variance: `[2, channels]`.
    pub moments: RocmTensor,
    /// The number of elements in a channel, `[1]`.
    pub count: RocmTensor,
}

/// What a rank tells the others of its part, `[2 * channels + 1]`: the
/// [`statistics`](super::batch::BatchNormed::statistics) and the number of elements in a channel.
///
/// # Errors
/// `Invalid` for statistics of another shape; an error of the device.
pub fn batch_part(statistics: RocmTensor, elements: usize) -> Result<RocmTensor, RocmError> {
    let &[2, _] = statistics.dims() else {
        return invalid("batch_part", "statistics [2, channels]", format!("{:?}", statistics.dims()));
    };
    let count = one_value(&statistics.rocm_device(), elements as f64, statistics.dtype_of())?;
    pack(&[statistics, count])
}

/// The statistics of the whole batch from the parts of all ranks, `[ranks, 2 * channels + 1]`
/// ([Chan et al. 1979](http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf),
/// formula 2.1, for several parts): with weights `w = count / sum(count)`,
/// `mean = sum(w * mean_r)` and `variance = sum(w * (variance_r + (mean_r - mean)^2))`.
///
/// # Errors
/// `Invalid` for parts of another shape; an error of the device.
pub fn batch_of_parts(parts: RocmTensor, epsilon: f64) -> Result<BatchStatistics, RocmError> {
    const OP: &str = "batch_of_parts";
    let &[_, width] = parts.dims() else {
        return invalid(OP, "[ranks, 2 * channels + 1]", format!("{:?}", parts.dims()));
    };
    let channels = width / 2;
    let mul = |a, b| binary(OP, Functor::Mul, a, b);
    let add = |a, b| binary(OP, Functor::Add, a, b);
    let means = narrow(parts.clone(), 1, 0, channels)?;
    let inverse = narrow(parts.clone(), 1, channels, channels)?;
    let counts = narrow(parts, 1, 2 * channels, 1)?;
    let count = sum_dim(OP, counts.clone(), 0)?;
    let weights = binary(OP, Functor::Div, counts, count.clone())?;
    // Rounding may take a variance of 0 below it.
    let variances = unary(OP, Functor::Recip, mul(inverse.clone(), inverse)?)?;
    let variances = clamp(OP, scalar(OP, Functor::Sub, variances, epsilon.into())?, Some(0.0.into()), None)?;
    let mean = sum_dim(OP, mul(weights.clone(), means.clone())?, 0)?;
    let apart = binary(OP, Functor::Sub, means, mean.clone())?;
    let spread = add(variances, mul(apart.clone(), apart)?)?;
    let variance = sum_dim(OP, mul(weights, spread)?, 0)?;
    let deviation = unary(OP, Functor::Sqrt, scalar(OP, Functor::Add, variance.clone(), epsilon.into())?)?;
    let normal = pack(&[mean.clone(), unary(OP, Functor::Recip, deviation)?])?;
    let moments = pack(&[mean, variance])?;
    let two = |tensor| reshape(tensor, &[2, channels]);
    Ok(BatchStatistics { normal: two(normal)?, moments: two(moments)?, count: flat(count)? })
}

/// A running statistic after this batch: `before * (1 - momentum) + now * momentum`, in the dtype
/// that it had.
///
/// # Errors
/// `Invalid` for other shapes; an error of the device.
pub fn running_after(before: RocmTensor, now: RocmTensor, momentum: f64) -> Result<RocmTensor, RocmError> {
    const OP: &str = "running_after";
    let (given, wide) = (before.dtype_of(), now.dtype_of());
    let before = scalar(OP, Functor::Mul, cast(before, wide)?, (1.0 - momentum).into())?;
    let now = scalar(OP, Functor::Mul, now, momentum.into())?;
    cast(binary(OP, Functor::Add, before, now)?, given)
}

impl BatchStatistics {
    /// The mean and the biased variance, `[channels]` each.
    ///
    /// # Errors
    /// An error of the device.
    pub fn mean_and_variance(&self) -> Result<[RocmTensor; 2], RocmError> {
        Ok([row(&self.moments, 0)?, row(&self.moments, 1)?])
    }
}

impl PartGradients {
    /// The gradients of gamma and beta, in the dtype of gamma.
    ///
    /// # Errors
    /// An error of the device.
    pub fn by_parameters(&self, gamma: &RocmTensor) -> Result<[RocmTensor; 2], RocmError> {
        let sums = cast(self.sums.clone(), gamma.dtype_of())?;
        Ok([row(&sums, 0)?, row(&sums, 1)?])
    }
}

/// The gradients of this rank's part.
#[derive(Clone, Debug)]
pub struct PartGradients {
    /// With respect to x, as if this rank's part were the whole batch.
    by_x: RocmTensor,
    /// `sum(grad * n)` and `sum(grad)` over this rank's part, where `n` is the normalised x:
    /// `[2, channels]`.
    sums: RocmTensor,
    /// The sums times this rank's weight, `count / sum(count)`: what the ranks must add up.
    pub weighted: RocmTensor,
}

/// This rank's part of the gradients of batch norm, with the statistics of the whole batch.
///
/// # Errors
/// As [`batch_norm_backward`].
pub fn part_gradients(
    x: RocmTensor,
    gamma: RocmTensor,
    of: &BatchStatistics,
    grad: RocmTensor,
    epsilon: f64,
) -> Result<PartGradients, RocmError> {
    const OP: &str = "part_gradients";
    let elements = elements(&x);
    // In the type of the statistics, so that the sums are not rounded to a half.
    let gamma = cast(gamma, compute_dtype(x.dtype_of()))?;
    let [by_x, by_gamma, by_beta] = batch_norm_backward(x, gamma, of.normal.clone(), grad, epsilon)?;
    let sums = reshape(pack(&[by_gamma.clone(), by_beta])?, &[2, by_gamma.len()])?;
    let weight = scalar(OP, Functor::Mul, unary(OP, Functor::Recip, of.count.clone())?, elements.into())?;
    let weighted = binary(OP, Functor::Mul, sums.clone(), weight)?;
    Ok(PartGradients { by_x, sums, weighted })
}

/// The gradient with respect to this rank's x, from the sum of all ranks' weighted sums.
///
/// With `s` for a rank's `sum(grad * n)` and `t` for its `sum(grad)`, batch norm's gradient
/// ([Ioffe and Szegedy 2015](https://arxiv.org/abs/1502.03167), section 3) subtracts
/// `(t + n * s) / count` from the output's. As the means over all ranks replace this rank's, it
/// changes by `gamma / deviation / count * ((t - mean t) + n * (s - mean s))`.
///
/// # Errors
/// As [`batch_norm_infer`].
pub fn gradient_of_parts(
    x: RocmTensor,
    gamma: RocmTensor,
    of: &BatchStatistics,
    part: PartGradients,
    all: RocmTensor,
    epsilon: f64,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "gradient_of_parts";
    let elements = elements(&x);
    let gamma = cast(gamma, compute_dtype(x.dtype_of()))?;
    let apart = binary(OP, Functor::Sub, part.sums, all)?;
    let slope = binary(OP, Functor::Mul, gamma, row(&of.normal, 1)?)?;
    let slope = scalar(OP, Functor::Mul, slope, (1.0 / elements).into())?;
    let terms = binary(OP, Functor::Mul, apart, reshape(slope.clone(), &[1, slope.len()])?)?;
    let moments = of.mean_and_variance()?;
    let change = batch_norm_infer(x, row(&terms, 0)?, row(&terms, 1)?, moments, epsilon)?;
    binary(OP, Functor::Add, part.by_x, change)
}

/// The elements of a channel.
fn elements(x: &RocmTensor) -> f64 {
    let channels = x.dims().get(1).copied().unwrap_or(1).max(1);
    (x.len() / channels) as f64
}
