//! The ops of losses.

use burn_rocm::fused::{self, BinaryTargets, ClassTargets, Residual, Total};
use burn_rocm::{RocmError, RocmTensor};

use super::{Applied, Gradients, Kept, Op};

#[derive(Debug)]
pub(crate) struct BinaryLoss {
    pub(crate) weights: Option<RocmTensor>,
    pub(crate) of: BinaryTargets,
}

impl Op<1> for BinaryLoss {
    fn names(&self) -> [&'static str; 2] {
        ["nn_binary_cross_entropy", "nn_binary_cross_entropy_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [true]
    }

    fn forward(&self, [scores]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((fused::binary_cross_entropy(scores, self.weights.clone(), &self.of)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        let [scores] = kept.first();
        Ok([Some(fused::binary_cross_entropy_backward(scores, self.weights.clone(), &self.of, grad)?)])
    }
}

#[derive(Debug)]
pub(crate) struct ClassLoss {
    pub(crate) names: [&'static str; 2],
    pub(crate) weights: Option<RocmTensor>,
    pub(crate) of: ClassTargets,
}

impl Op<1> for ClassLoss {
    fn names(&self) -> [&'static str; 2] {
        self.names
    }

    fn reads(&self) -> [bool; 1] {
        [true]
    }

    fn forward(&self, [scores]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        let (loss, saved) = fused::cross_entropy(scores, self.weights.clone(), &self.of)?;
        Ok((loss, vec![saved]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        let [scores] = kept.first();
        let weights = self.weights.clone();
        Ok([Some(fused::cross_entropy_backward(scores, weights, &self.of, &kept.saved[0], grad)?)])
    }
}

#[derive(Debug)]
pub(crate) struct ResidualLoss {
    pub(crate) names: [&'static str; 2],
    pub(crate) kind: Residual,
    pub(crate) total: Total,
}

impl Op<2> for ResidualLoss {
    fn names(&self) -> [&'static str; 2] {
        self.names
    }

    fn reads(&self) -> [bool; 2] {
        [true, true]
    }

    fn memory_bound(&self) -> bool {
        self.total == Total::Each
    }

    fn forward(&self, [a, b]: [RocmTensor; 2]) -> Result<Applied, RocmError> {
        Ok((fused::residual_loss(self.kind, a, b, self.total)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<2>, wanted: [bool; 2]) -> Gradients<2> {
        let [a, b] = kept.first();
        let of = |first, second, both| {
            fused::residual_loss_backward(self.kind, first, second, grad, self.total, both)
        };
        match wanted {
            [false, false] => Ok([None, None]),
            // The loss is even, so the gradient with respect to b is that of a with the inputs
            // swapped.
            [false, true] => Ok([None, Some(of(b, a, false)?.0)]),
            [true, both] => of(a, b, both).map(|(by_a, by_b)| [Some(by_a), by_b]),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ResidualsLoss {
    pub(crate) names: [&'static str; 2],
    pub(crate) kind: Residual,
}

impl Op<1> for ResidualsLoss {
    fn names(&self) -> [&'static str; 2] {
        self.names
    }

    fn reads(&self) -> [bool; 1] {
        [true]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, [residuals]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((fused::loss_of_residuals(self.kind, residuals)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        let [residuals] = kept.first();
        Ok([Some(fused::loss_of_residuals_backward(self.kind, residuals, grad)?)])
    }
}
