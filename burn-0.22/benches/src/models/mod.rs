//! The models, with Burn's own modules and with burn-rocm-nn's.

pub(crate) mod fused;
pub(crate) mod stock;

use burn::module::Module;
use burn::tensor::{Device, Tensor};

/// A model that can be trained on batches of its own kind.
pub(crate) trait Trained: Module {
    type Batch: Clone;
    fn new(device: &Device) -> Self;
    fn batch(size: usize, device: &Device) -> Self::Batch;
    fn loss(&self, batch: Self::Batch) -> Tensor<1>;
}
