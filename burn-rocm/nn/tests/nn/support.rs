//! The backends, and the comparison of a module with Burn's.

pub(crate) use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::backend::AutodiffBackend;
pub(crate) use burn::tensor::{DType, Tensor, TensorData};
use burn_rocm_tests::limits::{self, Terms, growth, in_turn, unit, wide};
use burn_rocm_tests::lockstep::in_lockstep;
pub(crate) use burn_rocm_tests::{Random, Tolerance};

/// This backend, with either strategy.
pub(crate) type Ours = Autodiff<burn_rocm::Rocm>;
pub(crate) type Balanced = Autodiff<burn_rocm::Rocm, BalancedCheckpointing>;
/// The oracle.
pub(crate) type Oracle = Autodiff<burn_flex::Flex>;

/// A tensor of `dtype` from data.
pub(crate) fn tensor<B: AutodiffBackend, const D: usize>(data: &TensorData, dtype: DType) -> Tensor<B, D> {
    Tensor::from_data(data.clone(), (&Default::default(), dtype))
}

/// Uniform values in -2..2.
pub(crate) fn uniform(random: &Random, shape: &[usize]) -> TensorData {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.uniform(-2.0, 2.0)).collect();
    TensorData::new(values, shape.to_vec())
}

/// Whole multiples of `unit`, at most `most` of them.
pub(crate) fn multiples(random: &Random, shape: &[usize], most: usize, unit: f64) -> TensorData {
    let of = |_| (random.below(2 * most + 1) as f64 - most as f64) * unit;
    TensorData::new((0..shape.iter().product()).map(of).collect::<Vec<f64>>(), shape.to_vec())
}

/// The magnitudes of the data, in f64.
pub(crate) fn magnitudes(data: &TensorData) -> TensorData {
    TensorData::new(data.iter::<f64>().map(f64::abs).collect(), data.shape.clone())
}

/// Each result's reference and limits. A limit is `share` of the result's magnitude: what the same
/// ops give for operands without signs.
pub(crate) fn limited(
    reference: Vec<TensorData>,
    magnitude: &[TensorData],
    share: f64,
    dtype: DType,
) -> Vec<[TensorData; 2]> {
    assert_eq!(reference.len(), magnitude.len(), "a magnitude for each result");
    let limits = magnitude.iter().map(|data| limits::shares(data, share, dtype));
    reference.into_iter().zip(limits).map(|(reference, limits)| [reference, limits]).collect()
}

/// A reference, and limits for results that are rounded once: `terms` numbers are added, and 32
/// more roundings allow for functions and factors. The losses' kernels keep the contract of
/// [`in_turn`]: up to 2^14 elements go to one block, more to a block for every 2048. The reference
/// adds one number after the other, in f64.
pub(crate) fn rounded_once(
    reference: TensorData,
    magnitude: &TensorData,
    terms: usize,
    dtype: DType,
) -> [TensorData; 2] {
    let terms = if dtype == DType::F64 { terms } else { in_turn(terms) };
    let limits = limits::sums(&reference, magnitude, Terms::of(terms + 32, dtype));
    [reference, limits]
}

/// How often a limit allows one side's error. The reference is computed in f64, so beside a result
/// in f64 its error is as large as the result's; beside other types it is negligible.
pub(crate) fn sides(dtype: DType) -> f64 {
    if dtype == DType::F64 { 2.0 } else { 1.0 }
}

/// What GELU's approximations in f16 and bf16 add to the error of `z Phi(z)`, as a share of `|z|`,
/// and to that of its slope. `normal.h` states `2^-18 + (24 + 1.5 z^2) r` of `|z| Phi(-|z|)`, and
/// for the slope of `Phi(-|z|) + |z| phi(z)`, which is at most 0.5. The largest of these products
/// is below `2^-19 + 13 r`, and `r` is `2^-24`.
pub(crate) fn of_gelu(dtype: DType) -> f64 {
    if wide(dtype) == dtype { 0.0 } else { 2f64.powi(-18) }
}

/// The error allowed to a layer's results, as a share of their magnitudes. The results are
/// `act(x w + b)` and the gradients of the sum of its squares with respect to `x`, `w` and `b`. The
/// magnitudes are those of the layer without its activation. No sum has more than `terms` products.
///
/// The errors to first order, with `g` for [`growth`] of the sums, `u` for the unit of `dtype` and
/// `r` for the unit of the type it is computed in:
/// - `x w` is off by `g`. It is rounded to `dtype`, and again with the bias added: `g + 2 u`.
/// - An activation has a slope of at most 1.13 (gelu's) and an error of its own of `8 r`, and `n`
///   ([`of_gelu`]). Its result is rounded to `dtype`: `1.13 g + 3.3 u + 8 r + n`.
/// - The gradient with respect to `x w` is twice the activation times its slope, and has the errors
///   of both. The activation times its second derivative is at most 0.3; `relu` times its slope has
///   no jump. Two more values are rounded to `dtype`: `1.6 g + 6.6 u + 17 r + 4.3 n`.
/// - The other gradients are sums of products with this one. Each sum is off by `1.13 g` more and
///   rounded to `dtype`: `2.8 g + 7.8 u + 17 r + 4.3 n`.
pub(crate) fn layer_share(terms: usize, dtype: DType) -> f64 {
    let g = growth(terms, wide(dtype));
    1.01 * sides(dtype) * (3.0 * g + 8.0 * unit(dtype) + 17.0 * unit(wide(dtype)) + 4.3 * of_gelu(dtype))
}

/// The error allowed to a loss of the elements of `a` and `b`, and to the gradients of its square,
/// as a share of their magnitudes. The loss is a sum or mean of `terms` squared errors or Huber
/// losses; the magnitudes are those of [`squares`] or [`hubers`] of `|a| + |b|`.
///
/// The errors to first order, with `g`, `u` and `r` as for [`layer_share`]:
/// - `a` may be a product rounded to `dtype`, and the residual `a - b` may be rounded too:
///   `2 u + r`.
/// - Its square has twice that error. The loss is their sum, rounded to `dtype`: `5 u + 2 r + g`.
/// - A gradient is the loss times the residual, rounded to `dtype`. The gradient with respect to a
///   factor of `a` is rounded once more: `9 u + 8 r + g`.
/// - A Huber loss has a slope of at most its bound where a square has the residual. The slope of
///   [`hubers`] is the sum of both.
pub(crate) fn loss_share(terms: usize, dtype: DType) -> f64 {
    let g = growth(terms, wide(dtype));
    1.01 * sides(dtype) * (12.0 * unit(dtype) + 8.0 * unit(wide(dtype)) + g)
}

/// The squares of sums of magnitudes.
pub(crate) fn squares<B: AutodiffBackend, const D: usize>(sum: Tensor<B, D>) -> Tensor<B, D> {
    sum.clone() * sum
}

/// An upper bound of Huber losses, where `sum` has the residuals' magnitudes or more. Its slope,
/// `bound + sum`, is an upper bound too: a Huber loss has a slope of at most `bound`, which is off
/// by no more than the residual is.
pub(crate) fn hubers<B: AutodiffBackend, const D: usize>(sum: Tensor<B, D>, bound: f64) -> Tensor<B, D> {
    sum.clone() * bound + squares(sum) * 0.5
}

/// Asserts that each result has `dtype` and is within its limits.
#[track_caller]
pub(crate) fn assert_limits(
    what: &impl std::fmt::Display,
    dtype: DType,
    found: &[TensorData],
    expected: &[[TensorData; 2]],
) {
    assert_eq!(found.len(), expected.len(), "{what}: number of results");
    for (k, (found, [reference, limits])) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.dtype, dtype, "{what}, result {k}");
        limits::assert_within(&format_args!("{what}, result {k}"), found, reference, limits);
    }
}

/// The gradients of all parameters of a module, in order. A parameter without one fails the test.
pub(crate) fn gradients_of<B: AutodiffBackend>(
    module: &impl Module<B>,
    grads: &B::Gradients,
) -> Vec<TensorData> {
    struct Read<'a, B: AutodiffBackend>(&'a B::Gradients, Vec<TensorData>);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Read<'_, B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let value = param.val();
            // Running statistics have no gradient.
            if value.is_require_grad() {
                let grad = value.grad(self.0).unwrap_or_else(|| panic!("no gradient of {}", param.id));
                self.1.push(grad.into_data());
            }
        }
    }
    let mut read = Read(grads, Vec::new());
    module.visit(&mut read);
    read.1
}

/// Asserts that the results of a body on this backend, with each checkpointing strategy, are within
/// a tolerance of its results on the oracle.
///
/// The body sees the backend as `B`, and returns a `Vec<TensorData>`.
macro_rules! against_burn {
    ($what:expr, $tolerance:expr, |$B:ident| theirs $theirs:expr, ours $ours:expr) => {{
        burn_rocm_tests::trace::to_file();
        let theirs: Vec<burn::tensor::TensorData> = {
            type $B = $crate::support::Oracle;
            $theirs
        };
        let ours: Vec<burn::tensor::TensorData> = {
            type $B = $crate::support::Ours;
            $ours
        };
        burn_rocm_tests::assert_close(&$what, &ours, &theirs, $tolerance);
        let ours: Vec<burn::tensor::TensorData> = {
            type $B = $crate::support::Balanced;
            $ours
        };
        burn_rocm_tests::assert_close(&format!("{}, recomputed", $what), &ours, &theirs, $tolerance);
    }};
}
pub(crate) use against_burn;

/// Asserts that the results of a body on this backend, with each checkpointing strategy, have
/// `dtype` and are within their limits. `expected` has a reference and limits for each result.
///
/// The body sees the backend as `B`, and returns a `Vec<TensorData>`.
macro_rules! within_limits {
    ($what:expr, $dtype:expr, $expected:expr, |$B:ident| $ours:expr) => {{
        burn_rocm_tests::trace::to_file();
        let expected: Vec<[burn::tensor::TensorData; 2]> = $expected;
        let ours: Vec<burn::tensor::TensorData> = {
            type $B = $crate::support::Ours;
            $ours
        };
        $crate::support::assert_limits(&$what, $dtype, &ours, &expected);
        let ours: Vec<burn::tensor::TensorData> = {
            type $B = $crate::support::Balanced;
            $ours
        };
        $crate::support::assert_limits(&format!("{}, recomputed", $what), $dtype, &ours, &expected);
    }};
}
pub(crate) use within_limits;

/// Fifty training steps; fewer in lockstep, where a step takes some hundred times as long.
pub(crate) fn steps() -> usize {
    if in_lockstep() { 5 } else { 50 }
}
