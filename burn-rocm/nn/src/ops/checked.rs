//! The check of the gradients that an app's op returns.

use std::fmt;
use std::sync::OnceLock;

use burn_backend::{DType, TensorMetadata};
use burn_rocm::{RocmDevice, RocmError, RocmTensor};

use super::{Applied, Gradients, Kept, Op};

/// An app's op whose gradients are checked against its inputs, because Burn adds and stores gradients
/// without a check.
#[derive(Debug)]
pub(crate) struct Checked<O, const N: usize> {
    op: O,
    inputs: OnceLock<[Like; N]>,
}

impl<O, const N: usize> Checked<O, N> {
    pub(crate) fn new(op: O) -> Self {
        Self { op, inputs: OnceLock::new() }
    }
}

impl<O: Op<N>, const N: usize> Op<N> for Checked<O, N> {
    fn names(&self) -> [&'static str; 2] {
        self.op.names()
    }

    fn reads(&self) -> [bool; N] {
        self.op.reads()
    }

    fn memory_bound(&self) -> bool {
        self.op.memory_bound()
    }

    fn adds_onto(&self) -> bool {
        self.op.adds_onto()
    }

    fn forward(&self, inputs: [RocmTensor; N]) -> Result<Applied, RocmError> {
        self.inputs.get_or_init(|| inputs.each_ref().map(Like::of));
        self.op.forward(inputs)
    }

    fn backward(&self, grad: RocmTensor, kept: Kept<N>, wanted: [bool; N]) -> Gradients<N> {
        let grads = self.op.backward(grad, kept, wanted)?;
        let inputs = self.inputs.get().into_iter().flatten();
        for (k, (input, grad)) in inputs.zip(&grads).enumerate() {
            let Some(found) = grad.as_ref().map(Like::of) else { continue };
            if wanted[k] && found != *input {
                return Err(RocmError::Invalid {
                    op: self.names()[1],
                    expected: format!("a gradient like input {k}, {input}"),
                    found: found.to_string(),
                });
            }
        }
        Ok(grads)
    }
}

/// What an input and its gradient have in common.
#[derive(Debug, PartialEq)]
struct Like {
    shape: Vec<usize>,
    dtype: DType,
    device: RocmDevice,
}

impl Like {
    fn of(tensor: &RocmTensor) -> Self {
        Self { shape: tensor.dims().to_vec(), dtype: tensor.dtype(), device: tensor.rocm_device() }
    }
}

impl fmt::Display for Like {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} on {}", self.shape, self.dtype.name(), self.device)
    }
}
