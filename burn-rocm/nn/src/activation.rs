//! Activations.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::silu;
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
