//! Ops with quantised weights.

use burn_backend::{DType, TensorMetadata};
use burn_rocm::fused::{Fp8Weight, QuantWeight, quant_linear, quant_linear_x_backward};
use burn_rocm::{RocmDevice, RocmError, RocmTensor, raise, trace};

use super::{Applied, Gradients, Kept, Op};

/// A linear layer whose weight and bias are frozen. The input is the layer's input, which the
/// gradient does not read.
#[derive(Debug)]
pub(crate) struct QuantLinearOp {
    pub(crate) weight: QuantWeight,
    pub(crate) bias: Option<RocmTensor>,
}

impl Op<1> for QuantLinearOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_quant_linear", "nn_quant_linear_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((quant_linear(x, &self.weight, self.bias.clone())?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, _: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        Ok([Some(quant_linear_x_backward(grad, &self.weight)?)])
    }
}

/// A linear layer with a weight of fp8. Its gradient is that of the layer whose inputs stay floats.
#[derive(Debug)]
pub(crate) struct Fp8LinearOp {
    pub(crate) weight: Fp8Weight,
    pub(crate) bias: Option<RocmTensor>,
}

impl Op<1> for Fp8LinearOp {
    fn names(&self) -> [&'static str; 2] {
        ["nn_fp8_linear", "nn_fp8_linear_backward"]
    }

    fn reads(&self) -> [bool; 1] {
        [false]
    }

    fn forward(&self, [x]: [RocmTensor; 1]) -> Result<Applied, RocmError> {
        Ok((self.weight.linear(x, self.bias.clone())?, vec![]))
    }

    fn backward(&self, grad: RocmTensor, _: Kept<1>, _: [bool; 1]) -> Gradients<1> {
        Ok([Some(self.weight.linear_x_backward(grad)?)])
    }
}

/// Checks the shape and device of a bias for a weight with `outs` outputs.
pub(crate) fn bias_fits(
    op: &'static str,
    outs: usize,
    device: RocmDevice,
    bias: Option<&RocmTensor>,
) -> Result<(), RocmError> {
    let Some(bias) = bias else { return Ok(()) };
    if bias.dims() == [outs] && bias.rocm_device() == device {
        return Ok(());
    }
    let expected = format!("a bias of shape [{outs}] on {device}");
    let found = format!("{:?} on {}", bias.dims(), bias.rocm_device());
    Err(RocmError::Invalid { op, expected, found })
}

/// A table's rows. Panics on an error, as Burn's ops do.
pub(crate) fn embed(weight: &QuantWeight, indices: RocmTensor, dtype: DType) -> RocmTensor {
    let shapes = |shapes: &mut trace::Shapes<'_>| shapes.add(indices.dims());
    let _op = trace::op_of("nn_quant_embedding", || indices.dtype().name(), shapes);
    weight.embedding(indices.clone(), dtype).unwrap_or_else(|error| raise(error))
}
