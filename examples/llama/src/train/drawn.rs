//! Weights before training, the same on every machine.

use burn::tensor::DType;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::rng::Rng;
use crate::weights::{Elements, Role, Source, Weight, expected};

/// Weights from a seed. Matrices are uniform with the deviation `1 / sqrt(inputs)`; those whose
/// output is added to the residual have it divided by `sqrt(2 layers)`, so that the sum keeps its
/// size ([Radford et al. 2019](https://openai.com/research/better-language-models)).
#[derive(Clone, Debug)]
pub struct Drawn {
    weights: Vec<Weight>,
    layers: usize,
    norm_adds_one: bool,
    seed: u64,
}

impl Drawn {
    /// The weights of a model with these settings.
    pub fn new(config: &Config, seed: u64) -> Self {
        let (layers, norm_adds_one) = (config.layers.len(), config.norm_adds_one);
        Self { weights: expected(config), layers, norm_adds_one, seed }
    }
}

impl Source for Drawn {
    fn read(&self, weight: &Weight) -> Result<Elements<'_>> {
        let Some(index) = self.weights.iter().position(|other| other == weight) else {
            let (expected, found) = ("a weight of the model".to_owned(), format!("{weight:?}"));
            return Err(Error::Argument { name: "weights", expected, found });
        };
        let &[_, inputs] = &weight.shape[..] else {
            let number = if weight.is_norm() && !self.norm_adds_one { 1.0 } else { 0.0 };
            return Ok(Elements::Constant(number));
        };
        let onto = matches!(weight.role, Role::AttentionOutput | Role::Down);
        let parts = if onto { 2 * self.layers } else { 1 };
        // A uniform number within a bound has a deviation of the bound over sqrt(3).
        let bound = (3.0 / (inputs * parts) as f64).sqrt();
        let mut rng = Rng::new(self.seed.wrapping_add((index as u64) << 32));
        let number = |_| ((2.0 * rng.uniform() - 1.0) * bound) as f32;
        Ok(Elements::F32((0..weight.len()).map(number).collect()))
    }

    fn check(&self, _: &[Weight]) -> Result<()> {
        Ok(())
    }

    fn dtype(&self) -> DType {
        DType::F32
    }
}
