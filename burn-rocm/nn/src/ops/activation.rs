//! The ops of activations.

use burn_rocm::{RocmError, RocmTensor, fused};

use super::{Applied, Gradients, Kept, Op};

#[derive(Debug)]
pub(crate) struct SiluOp;

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

/// The gradient reads the output. So every checkpointing strategy keeps the output, and nothing is
/// recomputed.
#[derive(Debug)]
pub(crate) struct SoftmaxOp {
    pub(crate) dim: usize,
    pub(crate) logarithm: bool,
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
