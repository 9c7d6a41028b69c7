//! Collectives with a gradient, for layers whose weights are divided among ranks.

use burn_rocm::{Communicator, ReduceOp, RocmError, RocmTensor};

use crate::ops::{Applied, Gradients, Kept, Op};

fn sum(ranks: &Communicator, tensor: RocmTensor) -> Result<RocmTensor, RocmError> {
    match ranks.size() {
        1 => Ok(tensor),
        _ => ranks.all_reduce(ReduceOp::Sum, tensor)?.join(),
    }
}

/// The sum over the ranks. The ranks go on with the same values, so each has the sum's gradient.
#[derive(Debug)]
pub(super) struct Sum(pub(super) Communicator);

impl Op<1> for Sum {
    fn names(&self) -> [&'static str; 2] {
        ["nn_sum_of_ranks", "nn_sum_of_ranks_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((sum(&self.0, x)?, Vec::new()))
    }

    fn backward(&self, grad: RocmTensor, _: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        Ok([Some(grad)])
    }
}

/// The same values on every rank, of which each rank computes a part of the output. So the gradient
/// is the sum over the ranks.
#[derive(Debug)]
pub(super) struct Same(pub(super) Communicator);

impl Op<1> for Same {
    fn names(&self) -> [&'static str; 2] {
        ["nn_same_on_ranks", "nn_same_on_ranks_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((x, Vec::new()))
    }

    fn backward(&self, grad: RocmTensor, _: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        Ok([Some(sum(&self.0, grad)?)])
    }
}
