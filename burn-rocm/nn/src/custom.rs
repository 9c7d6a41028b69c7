//! Ops of an app's own with a gradient.
//!
//! An app implements [`Op`] by kernels of its own (`burn_rocm::kernel`) or by this project's ops
//! (`burn_rocm::fused`). [`apply`] runs it on Burn's tensors; under autodiff it is recorded.
//! `docs/guide/own-kernels.md` has an example.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_backend::TensorMetadata;
use burn_rocm::{RocmError, RocmTensor};

use crate::fuse::{Route, primitive, wrap};
use crate::ops::checked::Checked;
pub use crate::ops::{Applied, Gradients, Kept, Op};

/// Runs `op` on these tensors. Its output has rank `R`.
///
/// # Errors
/// `Unsupported` if `B` is another project's backend; `Invalid` if the output has another rank.
///
/// # Panics
/// With the op's error, as Burn's ops do. The backward pass panics with `Invalid` if a gradient
/// differs from its input in shape, dtype or device.
pub fn apply<B: Backend, const N: usize, const D: usize, const R: usize>(
    op: impl Op<N>,
    inputs: [Tensor<B, D>; N],
) -> Result<Tensor<B, R>, RocmError> {
    let [name, _] = op.names();
    let Some(route) = Route::<B>::of(name) else {
        let what = format!("tensors of {}", std::any::type_name::<B>());
        return Err(RocmError::Unsupported { op: name, dtype: None, what: Some(what) });
    };
    let (output, _) = route.apply(Checked::new(op), inputs.map(primitive));
    match output.shape().num_dims() {
        rank if rank == R => Ok(wrap(output)),
        rank => Err(of_rank(name, R, rank)),
    }
}

/// The tensor of `B` for a field of an [`Op`], if it requires no gradient.
///
/// # Errors
/// `Unsupported` if `B` is another project's backend, or if the tensor requires a gradient.
pub fn constant<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> Result<RocmTensor, RocmError> {
    const NAME: &str = "custom::constant";
    let refused = |why: &str| {
        let what = format!("tensors of {}{why}", std::any::type_name::<B>());
        RocmError::Unsupported { op: NAME, dtype: None, what: Some(what) }
    };
    let route = Route::<B>::of(NAME).ok_or_else(|| refused(""))?;
    route.untracked(NAME, tensor).ok_or_else(|| refused(" that require a gradient"))
}

fn of_rank(op: &'static str, expected: usize, found: usize) -> RocmError {
    RocmError::Invalid {
        op,
        expected: format!("an output of rank {expected}"),
        found: format!("rank {found}"),
    }
}
