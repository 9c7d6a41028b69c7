//! Burn 0.21's names for what the tests of both versions of Burn use. `burn-0.22/burn-rocm-nn/tests/world` has the
//! names for Burn 0.22.
#![allow(dead_code, unused_imports, reason = "no test program uses all names")]

use burn::backend::Autodiff;
use burn::tensor::backend::BackendTypes;
use burn::tensor::{Int, Tensor, TensorPrimitive};
use burn_rocm::{Rocm, RocmTensor};

pub(crate) use burn_rocm_nn as nn;
pub(crate) use burn_rocm_tests::again;

type B = Autodiff<Rocm>;

/// With autodiff.
pub(crate) type Tracked<const D: usize> = Tensor<B, D>;
pub(crate) type TrackedInt<const D: usize> = Tensor<B, D, Int>;
/// Without autodiff.
pub(crate) type Plain<const D: usize> = Tensor<Rocm, D>;
pub(crate) type PlainInt<const D: usize> = Tensor<Rocm, D, Int>;
pub(crate) type Linear = burn::nn::Linear<B>;
pub(crate) type MultiHeadAttention = nn::attention::MultiHeadAttention<B>;

/// Whether pad tokens count in the mean of a loss.
pub(crate) const PADS_COUNT: bool = true;

/// Whether an optimizer's record holds its states on the device. Burn 0.22's holds copies on the host.
pub(crate) const RECORDS_HOLD_TENSORS: bool = true;

/// With autodiff.
pub(crate) fn tracking() -> <B as BackendTypes>::Device {
    Default::default()
}

/// Without autodiff.
pub(crate) fn plain() -> <Rocm as BackendTypes>::Device {
    Default::default()
}

pub(crate) fn rocm<const D: usize>(tensor: Plain<D>) -> RocmTensor {
    tensor.into_primitive().tensor()
}

pub(crate) fn rocm_int<const D: usize>(tensor: PlainInt<D>) -> RocmTensor {
    tensor.into_primitive()
}

pub(crate) fn from_rocm<const D: usize>(tensor: RocmTensor) -> Plain<D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}
