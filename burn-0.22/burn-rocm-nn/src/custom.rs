//! Ops of an app's own with a gradient.
//!
//! An app implements [`Op`] by kernels of its own (`burn_rocm::kernel`) or by this project's ops
//! (`burn_rocm::fused`). [`apply`] runs it on Burn's tensors; under autodiff it is recorded.
//! `docs/guide/own-kernels.md` has an example.

use burn::tensor::Tensor;
use burn_backend::TensorMetadata;
use burn_rocm::{RocmError, RocmTensor};

use crate::fuse::{Route, primitive, wrap};
use crate::ops::checked::Checked;
pub use crate::ops::{Applied, Gradients, Kept, Op};

/// Runs `op` on these tensors. Its output has rank `R`.
///
/// # Errors
/// `Unsupported` if the tensors are on another project's device; `Invalid` if there are none, or if
/// the output has another rank.
///
/// # Panics
/// With the op's error, as Burn's ops do. The backward pass panics with `Invalid` if a gradient
/// differs from its input in shape, dtype or device.
pub fn apply<const N: usize, const D: usize, const R: usize>(
    op: impl Op<N>,
    inputs: [Tensor<D>; N],
) -> Result<Tensor<R>, RocmError> {
    let [name, _] = op.names();
    let Some(first) = inputs.first() else {
        return Err(RocmError::Invalid { op: name, expected: "tensors".into(), found: "none".into() });
    };
    let device = first.device();
    let Some(route) = Route::of(name, first) else {
        let what = format!("tensors on {device:?}");
        return Err(RocmError::Unsupported { op: name, dtype: None, what: Some(what) });
    };
    let (output, _) = route.apply(Checked::new(op), inputs.map(primitive));
    match output.shape().num_dims() {
        rank if rank == R => Ok(wrap(output)),
        rank => Err(of_rank(name, R, rank)),
    }
}

/// The tensor for a field of an [`Op`], if it requires no gradient.
///
/// # Errors
/// `Unsupported` if the tensor is on another project's device, or if it requires a gradient.
pub fn constant<const D: usize>(tensor: &Tensor<D>) -> Result<RocmTensor, RocmError> {
    const NAME: &str = "custom::constant";
    Route::of(NAME, tensor).and_then(|route| route.untracked(NAME, tensor)).ok_or_else(|| {
        let what = format!("a tensor on {:?} that requires a gradient", tensor.device());
        RocmError::Unsupported { op: NAME, dtype: None, what: Some(what) }
    })
}

fn of_rank(op: &'static str, expected: usize, found: usize) -> RocmError {
    RocmError::Invalid {
        op,
        expected: format!("an output of rank {expected}"),
        found: format!("rank {found}"),
    }
}
