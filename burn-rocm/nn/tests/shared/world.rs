//! Burn 0.21's names for what the tests of both versions of Burn use. `burn-0.22/burn-rocm-nn/tests/world` has the
//! names for Burn 0.22.
#![allow(dead_code, unused_imports, reason = "no test program uses all names")]

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::tensor::backend::{Backend, BackendTypes};
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
pub(crate) type Conv2d = burn::nn::conv::Conv2d<B>;
pub(crate) type BatchNorm = nn::BatchNorm<B>;
pub(crate) type MultiHeadAttention = nn::attention::MultiHeadAttention<B>;
pub(crate) type QuantLora = nn::language::lora::LoraLayer<B, nn::language::quant::QuantLinear>;

/// Whether pad tokens count in the mean of a loss.
pub(crate) const PADS_COUNT: bool = true;

/// Whether an optimizer's record holds its states on the device. Burn 0.22's holds copies on the host.
pub(crate) const RECORDS_HOLD_TENSORS: bool = true;

/// Whether a clone initialises parameters of its own. In Burn 0.22 clones are initialised together.
pub(crate) const CLONES_ARE_LAZY: bool = true;

/// Whether an optimizer has its states after a step that failed. That of Burn 0.22 loses them.
pub(crate) const OPTIMIZERS_KEEP_THEIR_STATES: bool = true;

/// A layer of a quantised weight without a bias.
pub(crate) fn quant_linear(weight: nn::language::quant::QuantWeight) -> nn::language::quant::QuantLinear {
    nn::language::quant::QuantLinear::new::<B>(weight, None).unwrap()
}

/// With autodiff.
pub(crate) fn tracking() -> <B as BackendTypes>::Device {
    Default::default()
}

/// Without autodiff.
pub(crate) fn plain() -> <Rocm as BackendTypes>::Device {
    Default::default()
}

/// Restarts the device's random numbers.
pub(crate) fn seed(seed: u64) {
    <Rocm>::seed(&plain(), seed);
}

/// The bits of a module's float parameters and running statistics, of each tensor apart.
pub(crate) fn bits<M: AutodiffModule<B>>(module: &M) -> Vec<Vec<u32>> {
    let mut bits = Bits::default();
    module.valid().visit(&mut bits);
    bits.0
}

/// The bits that replays of a training step leave as single steps do: all of them.
pub(crate) fn replayed_bits<M: AutodiffModule<B>>(module: &M) -> Vec<Vec<u32>> {
    bits(module)
}

#[derive(Default)]
struct Bits(Vec<Vec<u32>>);

impl ModuleVisitor<Rocm> for Bits {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Rocm, D>>) {
        self.0.push(param.val().into_data().iter::<f32>().map(f32::to_bits).collect());
    }
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
