//! Ops with collectives and their gradients: sums of layers whose weights are divided among ranks,
//! and batch norm over all ranks.

use burn_rocm::fused::{self, BatchStatistics};
use burn_rocm::{Communicator, ReduceOp, RocmError, RocmTensor, graph};

use super::{Applied, Gradients, Kept, Op};

fn sum(ranks: &Communicator, tensor: RocmTensor) -> Result<RocmTensor, RocmError> {
    match ranks.size() {
        1 => Ok(tensor),
        _ => ranks.all_reduce_joined(ReduceOp::Sum, tensor),
    }
}

/// The sum over the ranks. The ranks go on with the same values, so each has the sum's gradient.
#[derive(Debug)]
pub(crate) struct Sum(pub(crate) Communicator);

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
pub(crate) struct Same(pub(crate) Communicator);

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

/// The inputs are x, gamma, beta, running mean and running variance. Saves the whole batch's
/// statistics and the new running statistics.
#[derive(Debug)]
pub(crate) struct SyncBatchNormTrain {
    pub(crate) momentum: f64,
    pub(crate) epsilon: f64,
    pub(crate) ranks: Communicator,
    /// Whether the running statistics are written where they are.
    pub(crate) in_place: bool,
}

impl Op<5> for SyncBatchNormTrain {
    fn names(&self) -> [&'static str; 2] {
        ["nn_sync_batch_norm", "nn_sync_batch_norm_backward"]
    }

    fn reads(&self) -> [bool; 5] {
        [true, true, false, false, false]
    }

    fn forward(&self, inputs: [RocmTensor; 5]) -> Result<Applied, RocmError> {
        // Otherwise the other ranks wait for this one.
        self.normalise(inputs).inspect_err(|_| self.ranks.abort())
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<5>, _: [bool; 5]) -> Gradients<5> {
        self.gradients(grad, kept).inspect_err(|_| self.ranks.abort())
    }
}

impl SyncBatchNormTrain {
    fn normalise(&self, [x, gamma, beta, mean, variance]: [RocmTensor; 5]) -> Result<Applied, RocmError> {
        let elements = match x.dims() {
            [_, 0, ..] | [] | [_] => 0,
            dims => x.len() / dims[1],
        };
        if elements == 0 {
            return Err(RocmError::Invalid {
                op: "SyncBatchNorm",
                expected:
                    "[batch_size, channels, ..] with at least one element of each channel on every rank"
                        .into(),
                found: format!("{:?}", x.dims()),
            });
        }
        let running = [mean.clone(), variance.clone()];
        let own = fused::batch_norm_train(
            x.clone(),
            gamma.clone(),
            beta.clone(),
            running,
            self.momentum,
            self.epsilon,
        )?;
        let part = fused::batch_part(own.statistics, elements)?;
        let parts = self.ranks.all_gather_joined(part)?;
        let of = fused::batch_of_parts(parts, self.epsilon)?;
        let moments = of.mean_and_variance()?;
        let output = fused::batch_norm_infer(x, gamma, beta, moments.clone(), self.epsilon)?;
        let [new_mean, new_variance] = moments;
        let new_mean = fused::running_after(mean.clone(), new_mean, self.momentum)?;
        let new_variance = fused::running_after(variance.clone(), new_variance, self.momentum)?;
        let mut saved = vec![of.normal, of.moments, of.count];
        if self.in_place {
            // Where the next replay finds them.
            graph::write(&mean, new_mean)?;
            graph::write(&variance, new_variance)?;
            saved.extend([mean, variance]);
        } else {
            saved.extend([new_mean, new_variance]);
        }
        Ok((output, saved))
    }

    fn gradients(&self, grad: RocmTensor, mut kept: Kept<5>) -> Gradients<5> {
        let [x, gamma] = kept.first();
        let [normal, moments, count, _, _] = kept.saved.try_into().expect("five are saved");
        let of = BatchStatistics { normal, moments, count };
        let part = fused::part_gradients(x.clone(), gamma.clone(), &of, grad, self.epsilon)?;
        let all = self.ranks.all_reduce_joined(ReduceOp::Sum, part.weighted.clone())?;
        let [by_gamma, by_beta] = part.by_parameters(&gamma)?;
        let by_x = fused::gradient_of_parts(x, gamma, &of, part, all, self.epsilon)?;
        Ok([Some(by_x), Some(by_gamma), Some(by_beta), None, None])
    }
}
