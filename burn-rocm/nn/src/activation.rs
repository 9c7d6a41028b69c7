//! Activations.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::{self, silu};
use burn::tensor::backend::Backend;
use burn_rocm::{RocmError, RocmTensor, fused};

use crate::fuse::{Applied, Kept, Op, Route};

/// SiLU, also known as swish: `x * sigmoid(x)` ([Hendrycks and Gimpel 2016](https://arxiv.org/abs/1606.08415)).
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
        match Route::of() {
            Some(route) => route.unary(SiluOp, input),
            None => silu(input),
        }
    }
}

#[derive(Debug)]
struct SiluOp;

impl Op for SiluOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_silu", "nn_silu_backward"]
    }

    fn reads(&self) -> &'static [bool] {
        &[true]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, inputs: Vec<RocmTensor>) -> Result<Applied, RocmError> {
        let [x] = inputs.try_into().expect("one input");
        Ok((fused::silu(x)?, vec![]))
    }

    fn backward(
        &self,
        grad: RocmTensor,
        kept: Kept,
        _: &[bool],
    ) -> Result<Vec<Option<RocmTensor>>, RocmError> {
        let [x] = kept.inputs.try_into().expect("one input");
        Ok(vec![x.map(|x| fused::silu_backward(x, grad)).transpose()?])
    }
}

/// The softmax along a dim, in one kernel, and its gradient in another (Burn composes that of five).
///
/// # Shapes
/// - tensor, output: `[..]`
///
/// # Panics
/// For a dim that the tensor has not.
pub fn softmax<const D: usize, B: Backend>(tensor: Tensor<B, D>, dim: usize) -> Tensor<B, D> {
    match Route::of() {
        Some(route) => route.unary(SoftmaxOp { dim, logarithm: false }, tensor),
        None => activation::softmax(tensor, dim),
    }
}

/// The logarithm of the softmax along a dim, in one kernel, and its gradient in another.
///
/// # Shapes
/// - tensor, output: `[..]`
///
/// # Panics
/// For a dim that the tensor has not.
pub fn log_softmax<const D: usize, B: Backend>(tensor: Tensor<B, D>, dim: usize) -> Tensor<B, D> {
    match Route::of() {
        Some(route) => route.unary(SoftmaxOp { dim, logarithm: true }, tensor),
        None => activation::log_softmax(tensor, dim),
    }
}

/// Its gradient reads the output, which is kept whatever the strategy: there is nothing to compute again.
#[derive(Debug)]
struct SoftmaxOp {
    dim: usize,
    logarithm: bool,
}

impl Op for SoftmaxOp {
    fn names(&self) -> [&'static str; 2] {
        match self.logarithm {
            true => ["nn_log_softmax", "nn_log_softmax_backward"],
            false => ["nn_softmax", "nn_softmax_backward"],
        }
    }

    fn reads(&self) -> &'static [bool] {
        &[false]
    }

    fn forward(&self, inputs: Vec<RocmTensor>) -> Result<Applied, RocmError> {
        let [x] = inputs.try_into().expect("one input");
        let y = match self.logarithm {
            true => fused::log_softmax(x, self.dim)?,
            false => fused::softmax(x, self.dim)?,
        };
        Ok((y.clone(), vec![y]))
    }

    fn backward(
        &self,
        grad: RocmTensor,
        kept: Kept,
        _: &[bool],
    ) -> Result<Vec<Option<RocmTensor>>, RocmError> {
        let [y] = kept.saved.try_into().expect("the output");
        let found = match self.logarithm {
            true => fused::log_softmax_backward(y, grad, self.dim)?,
            false => fused::softmax_backward(y, grad, self.dim)?,
        };
        Ok(vec![Some(found)])
    }
}
