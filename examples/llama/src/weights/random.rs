//! Random weights, for a machine without a checkpoint.

use burn::tensor::DType;

use super::{Elements, Source, Weight};
use crate::error::Result;

/// Weights that the device draws, from a normal distribution with a deviation that keeps the size
/// of activations through the layers.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Whether a norm's factor is 1 + its weight.
    pub norm_adds_one: bool,
}

impl Source for Random {
    fn read(&self, weight: &Weight) -> Result<Elements<'_>> {
        Ok(match weight.shape[..] {
            _ if weight.is_norm() => Elements::Constant(if self.norm_adds_one { 0.0 } else { 1.0 }),
            [_, inputs] => Elements::Normal((inputs as f64).powf(-0.5)),
            _ => Elements::Normal(0.02),
        })
    }

    fn check(&self, _: &[Weight]) -> Result<()> {
        Ok(())
    }

    fn dtype(&self) -> DType {
        DType::BF16
    }
}
