//! The ops of pooling over three axes.

use burn_rocm::fused::{self, Pool3d};
use burn_rocm::{RocmError, RocmTensor};

use super::{Applied, Gradients, Kept, Op};

#[derive(Debug)]
pub(crate) struct MaxOp {
    pub(crate) pool: Pool3d,
    /// The input's shape.
    pub(crate) x: [usize; 5],
    /// Whether a gradient may be needed. The gradient reads the maxima's indices.
    pub(crate) indexed: bool,
}

impl Op<1> for MaxOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_max_pool3d", "nn_max_pool3d_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        if !self.indexed {
            return Ok((fused::max_pool3d(x, self.pool)?, vec![]));
        }
        let (out, indices) = fused::max_pool3d_with_indices(x, self.pool)?;
        Ok((out, vec![indices]))
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        let [indices] = kept.saved.try_into().expect("the maxima's places");
        Ok([Some(fused::max_pool3d_backward(self.x, self.pool, grad, indices)?)])
    }
}

#[derive(Debug)]
pub(crate) struct AvgOp {
    pub(crate) pool: Pool3d,
    /// The input's shape.
    pub(crate) x: [usize; 5],
    pub(crate) count_include_pad: bool,
}

impl Op<1> for AvgOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_avg_pool3d", "nn_avg_pool3d_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((fused::avg_pool3d(x, self.pool, self.count_include_pad)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, _: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        Ok([Some(fused::avg_pool3d_backward(self.x, grad, self.pool, self.count_include_pad)?)])
    }
}
