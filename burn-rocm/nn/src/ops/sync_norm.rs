//! Batch norm over a batch of which each rank has a part.

use burn_rocm::fused::{self, BatchStatistics};
use burn_rocm::{Communicator, ReduceOp, RocmError, RocmTensor};

use super::{Applied, Gradients, Kept, Op};

/// The inputs are x, gamma, beta, running mean and running variance. Saves the whole batch's
/// statistics and the new running statistics.
#[derive(Debug)]
pub(crate) struct SyncBatchNormTrain {
    pub(crate) momentum: f64,
    pub(crate) epsilon: f64,
    pub(crate) ranks: Communicator,
}

impl Op<5> for SyncBatchNormTrain {
    fn names(&self) -> [&'static str; 2] {
        ["nn_sync_batch_norm", "nn_sync_batch_norm_backward"]
    }

    fn reads(&self) -> [bool; 5] {
        [true, true, false, false, false]
    }

    fn forward(&self, [x, gamma, beta, mean, variance]: [RocmTensor; 5]) -> Result<Applied, RocmError> {
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
        let parts = self.ranks.all_gather(part)?.join()?;
        let of = fused::batch_of_parts(parts, self.epsilon)?;
        let moments = of.mean_and_variance()?;
        let output = fused::batch_norm_infer(x, gamma, beta, moments.clone(), self.epsilon)?;
        let [new_mean, new_variance] = moments;
        let new_mean = fused::running_after(mean, new_mean, self.momentum)?;
        let new_variance = fused::running_after(variance, new_variance, self.momentum)?;
        Ok((output, vec![of.normal, of.moments, of.count, new_mean, new_variance]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<5>, _: [bool; 5]) -> Gradients<5> {
        let [x, gamma] = kept.first();
        let [normal, moments, count, _, _] = kept.saved.try_into().expect("five are saved");
        let of = BatchStatistics { normal, moments, count };
        let part = fused::part_gradients(x.clone(), gamma.clone(), &of, grad, self.epsilon)?;
        let all = self.ranks.all_reduce(ReduceOp::Sum, part.weighted.clone())?.join()?;
        let [by_gamma, by_beta] = part.by_parameters(&gamma)?;
        let by_x = fused::gradient_of_parts(x, gamma, &of, part, all, self.epsilon)?;
        Ok([Some(by_x), Some(by_gamma), Some(by_beta), None, None])
    }
}
