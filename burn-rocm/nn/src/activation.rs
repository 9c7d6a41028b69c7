//! Activations.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::{self, silu};
use burn::tensor::backend::Backend;
use burn_rocm::{RocmError, RocmTensor, fused};

use crate::fuse::{Applied, Gradients, Kept, Op, Route};

/// SiLU, also known as swish: `x * sigmoid(x)` ([Hendrycks and Gimpel
/// 2016](https://arxiv.org/abs/1606.08415)).
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::Silu;
///
/// let zero = Tensor::<Rocm, 1>::zeros([1], &device);
/// assert_eq!(Silu::new().forward(zero).into_scalar(), 0.0);
/// ```
#[derive(Module, Clone, Debug, Default)]
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
    pub fn forward<B: Backend, const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        match Route::of("Silu") {
            Some(route) => route.unary(SiluOp, input),
            None => silu(input),
        }
    }
}

#[derive(Debug)]
struct SiluOp;

impl Op<1> for SiluOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_silu", "nn_silu_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [true]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((fused::silu(x)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        let [x] = kept.first();
        Ok([Some(fused::silu_backward(x, grad)?)])
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
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::activation::softmax;
///
/// let found = softmax(Tensor::<Rocm, 2>::ones([1, 2], &device), 1);
/// assert!((found.max().into_scalar() - 0.5f32).abs() < 1e-6);
/// ```
pub fn softmax<const D: usize, B: Backend>(tensor: Tensor<B, D>, dim: usize) -> Tensor<B, D> {
    match Route::of("softmax") {
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
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::activation::log_softmax;
///
/// let found = log_softmax(Tensor::<Rocm, 2>::ones([1, 2], &device), 1);
/// assert!((found.max().into_scalar() - 0.5f32.ln()).abs() < 1e-6);
/// ```
pub fn log_softmax<const D: usize, B: Backend>(tensor: Tensor<B, D>, dim: usize) -> Tensor<B, D> {
    match Route::of("log_softmax") {
        Some(route) => route.unary(SoftmaxOp { dim, logarithm: true }, tensor),
        None => activation::log_softmax(tensor, dim),
    }
}

/// The gradient reads the output. So every checkpointing strategy keeps the output, and nothing is
/// computed again.
#[derive(Debug)]
struct SoftmaxOp {
    dim: usize,
    logarithm: bool,
}

impl Op<1> for SoftmaxOp {
    fn names(&self) -> [&'static str; 2] {
        match self.logarithm {
            true => ["nn_log_softmax", "nn_log_softmax_backward"],
            false => ["nn_softmax", "nn_softmax_backward"],
        }
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        let y = match self.logarithm {
            true => fused::log_softmax(x, self.dim)?,
            false => fused::softmax(x, self.dim)?,
        };
        Ok((y.clone(), vec![y]))
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        let [y] = kept.saved.try_into().expect("the output");
        let found = match self.logarithm {
            true => fused::log_softmax_backward(y, grad, self.dim)?,
            false => fused::softmax_backward(y, grad, self.dim)?,
        };
        Ok([Some(found)])
    }
}
