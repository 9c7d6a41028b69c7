//! The ops of norms.

use burn_rocm::{RocmError, RocmTensor, fused};

use super::{Applied, Gradients, Kept, Op};

#[derive(Debug)]
pub(crate) struct GroupNormOp {
    pub(crate) groups: usize,
    pub(crate) epsilon: f64,
}

impl<const N: usize> Op<N> for GroupNormOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_group_norm", "nn_group_norm_backward"]
    }

    fn reads(&self) -> [bool; N] {
        std::array::from_fn(|k| k < 2)
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let x = inputs.next().expect("x");
        let params = inputs.next().zip(inputs.next()).map(|(gamma, beta)| [gamma, beta]);
        Ok((fused::group_norm(x, params, self.groups, self.epsilon)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        let mut read = kept.inputs.into_iter().flatten();
        let x = read.next().expect("`reads` asks for it");
        let gamma = read.next();
        let params = wanted[1..].contains(&true);
        let (dx, sums) = fused::group_norm_backward(x, gamma, grad, self.groups, self.epsilon, params)?;
        Ok(by_inputs(dx, sums))
    }
}

#[derive(Debug)]
pub(crate) struct LayerNormOp {
    pub(crate) epsilon: f64,
}

impl<const N: usize> Op<N> for LayerNormOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_layer_norm", "nn_layer_norm_backward"]
    }

    fn reads(&self) -> [bool; N] {
        std::array::from_fn(|k| k < 2)
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn adds_onto(&self) -> bool {
        true
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        let mut inputs = inputs.into_iter();
        let (x, gamma) = (inputs.next().expect("x"), inputs.next().expect("gamma"));
        Ok((fused::layer_norm(x, gamma, inputs.next(), self.epsilon)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        let [x, gamma] = kept.first();
        let params = wanted[1..].contains(&true);
        let (dx, sums) = fused::layer_norm_backward(x, gamma, grad, kept.onto, self.epsilon, params)?;
        Ok(by_inputs(dx, sums))
    }
}

#[derive(Debug)]
pub(crate) struct RmsNormOp {
    pub(crate) epsilon: f64,
}

impl Op<2> for RmsNormOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_rms_norm", "nn_rms_norm_backward"]
    }

    fn reads(&self) -> [bool; 2] {
        [true, true]
    }

    fn memory_bound(&self) -> bool {
        true
    }

    fn adds_onto(&self) -> bool {
        true
    }

    fn forward(&self, [x, gamma]: [RocmTensor; 2]) -> Result<Applied, RocmError> {
        Ok((fused::rms_norm(x, gamma, self.epsilon)?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<2>, wanted: [bool; 2]) -> Gradients<2> {
        let [x, gamma] = kept.first();
        let (dx, dgamma) = fused::rms_norm_backward(x, gamma, grad, kept.onto, self.epsilon, wanted[1])?;
        Ok([Some(dx), dgamma])
    }
}

/// The gradients with respect to an op's inputs: x, and up to two parameters.
pub(crate) fn by_inputs<const N: usize>(
    dx: RocmTensor,
    sums: Option<[RocmTensor; 2]>,
) -> [Option<RocmTensor>; N] {
    let [dgamma, dbeta] = sums.map_or([None, None], |sums| sums.map(Some));
    let mut found = [Some(dx), dgamma, dbeta].into_iter();
    std::array::from_fn(|_| found.next().flatten())
}
