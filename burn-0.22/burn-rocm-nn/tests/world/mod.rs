//! Burn 0.22's names for what the tests of both versions of Burn use. `burn-rocm/nn/tests/shared/world.rs` has the
//! names for Burn 0.21.
#![allow(dead_code, unused_imports, reason = "no test program uses all names")]

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Int, Tensor};
use burn_rocm::{Rocm, RocmTensor};

#[expect(unreachable_pub, reason = "the file is a module of a library, too")]
#[path = "../../../../tests/src/again.rs"]
mod again;

pub(crate) use again::again;
pub(crate) use burn::nn::Linear;
pub(crate) use burn::nn::conv::Conv2d;
pub(crate) use burn_rocm_nn_022 as nn;
pub(crate) use nn::BatchNorm;
pub(crate) use nn::attention::MultiHeadAttention;

pub(crate) type QuantLora = nn::language::lora::LoraLayer<nn::language::quant::QuantLinear>;

/// With autodiff, as [`tracking`] is.
pub(crate) type Tracked<const D: usize> = Tensor<D>;
pub(crate) type TrackedInt<const D: usize> = Tensor<D, Int>;
/// Without autodiff, as [`plain`] is.
pub(crate) type Plain<const D: usize> = Tensor<D>;
pub(crate) type PlainInt<const D: usize> = Tensor<D, Int>;

/// Whether pad tokens count in the mean of a loss.
pub(crate) const PADS_COUNT: bool = false;

/// Whether an optimizer's record holds its states on the device. Burn 0.22's holds copies on the host.
pub(crate) const RECORDS_HOLD_TENSORS: bool = false;

/// Whether a clone initialises parameters of its own. In Burn 0.22 clones are initialised together.
pub(crate) const CLONES_ARE_LAZY: bool = false;

/// Whether an optimizer has its states after a step that failed. That of Burn 0.22 loses them.
pub(crate) const OPTIMIZERS_KEEP_THEIR_STATES: bool = false;

/// A layer of a quantised weight without a bias.
pub(crate) fn quant_linear(weight: nn::language::quant::QuantWeight) -> nn::language::quant::QuantLinear {
    nn::language::quant::QuantLinear::new(weight, None).unwrap()
}

/// With autodiff.
pub(crate) fn tracking() -> Device {
    plain().autodiff()
}

/// Without autodiff.
pub(crate) fn plain() -> Device {
    Device::rocm(0)
}

/// Restarts the device's random numbers.
pub(crate) fn seed(seed: u64) {
    plain().seed(seed);
}

/// The bits of a module's float parameters and running statistics, of each tensor apart.
pub(crate) fn bits<M: Module>(module: &M) -> Vec<Vec<u32>> {
    let mut bits = Bits::default();
    module.valid().visit(&mut bits);
    bits.0
}

/// The bits that replays of a training step leave as single steps do: those of trained parameters.
/// For Burn 0.22's `BatchNorm`, each replay starts from the running statistics before the capture.
pub(crate) fn replayed_bits<M: Module>(module: &M) -> Vec<Vec<u32>> {
    let mut bits = TrainedBits::default();
    module.visit(&mut bits);
    bits.0
}

#[derive(Default)]
struct TrainedBits(Vec<Vec<u32>>);

impl ModuleVisitor for TrainedBits {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if value.is_require_grad() {
            self.0.push(value.inner().into_data().iter::<f32>().map(f32::to_bits).collect());
        }
    }
}

#[derive(Default)]
struct Bits(Vec<Vec<u32>>);

impl ModuleVisitor for Bits {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().into_data().iter::<f32>().map(f32::to_bits).collect());
    }
}

pub(crate) fn rocm<const D: usize>(tensor: Plain<D>) -> RocmTensor {
    tensor.try_into_primitive::<Rocm>().unwrap()
}

pub(crate) fn rocm_int<const D: usize>(tensor: PlainInt<D>) -> RocmTensor {
    tensor.try_into_primitive::<Rocm>().unwrap()
}

pub(crate) fn from_rocm<const D: usize>(tensor: RocmTensor) -> Plain<D> {
    Tensor::from_primitive::<Rocm>(tensor)
}
