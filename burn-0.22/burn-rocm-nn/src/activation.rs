//! Activations.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::{self, silu};

use crate::fuse::Route;
use crate::ops::activation::{SiluOp, SoftmaxOp};

/// SiLU, also known as swish: `x * sigmoid(x)` ([Hendrycks and Gimpel
/// 2016](https://arxiv.org/abs/1606.08415)).
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::Silu;
///
/// let zero = Tensor::<1>::zeros([1], &device);
/// assert_eq!(Silu::new().forward(zero).into_scalar::<f32>(), 0.0);
/// ```
#[derive(Module, Debug, Default)]
pub struct Silu {}

impl Silu {
    /// The module.
    pub fn new() -> Self {
        Self {}
    }

    /// `x * sigmoid(x)` of each element, in one kernel, and its gradient in another.
    ///
    /// # Shapes
    /// - input, output: `[..]`
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match Route::of("Silu", &input) {
            Some(route) => route.unary(SiluOp, input),
            None => silu(input),
        }
    }
}

/// The softmax along a dim in one kernel, and its gradient in another (Burn composes the gradient
/// from five ops).
///
/// # Shapes
/// - tensor, output: `[..]`
///
/// # Panics
/// For a dim beyond the tensor's rank.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::activation::softmax;
///
/// let found = softmax(Tensor::<2>::ones([1, 2], &device), 1);
/// assert!((found.max().into_scalar::<f32>() - 0.5f32).abs() < 1e-6);
/// ```
pub fn softmax<const D: usize>(tensor: Tensor<D>, dim: usize) -> Tensor<D> {
    match Route::of("softmax", &tensor) {
        Some(route) => route.unary(SoftmaxOp { dim, logarithm: false }, tensor),
        None => activation::softmax(tensor, dim),
    }
}

/// The logarithm of the softmax along a dim in one kernel, and its gradient in another.
///
/// # Shapes
/// - tensor, output: `[..]`
///
/// # Panics
/// For a dim beyond the tensor's rank.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// # let device = burn::tensor::Device::rocm(0);
/// use burn_rocm_nn::activation::log_softmax;
///
/// let found = log_softmax(Tensor::<2>::ones([1, 2], &device), 1);
/// assert!((found.max().into_scalar::<f32>() - 0.5f32.ln()).abs() < 1e-6);
/// ```
pub fn log_softmax<const D: usize>(tensor: Tensor<D>, dim: usize) -> Tensor<D> {
    match Route::of("log_softmax", &tensor) {
        Some(route) => route.unary(SoftmaxOp { dim, logarithm: true }, tensor),
        None => activation::log_softmax(tensor, dim),
    }
}
