//! Weights with adapters merged into them.

use std::collections::HashMap;
use std::num::NonZero;
use std::thread;

use burn::tensor::{DType, TensorData};
use burn_rocm_nn::language::lora::{Peft, PeftPair};

use super::{Elements, Role, Source, Weight, expected, layer_name};
use crate::config::Config;
use crate::error::{Error, Result};

/// A source whose matrices have the adapters of a PEFT folder merged into them: `W + scale B A`,
/// with PEFT's `A` and `B`, computed in f32 when the weight is read. So the model runs as fast as
/// without adapters.
pub struct Adapted {
    source: Box<dyn Source>,
    adapters: HashMap<(Role, Option<usize>), Adapter>,
}

/// The scale, and the matrices A and B in f32.
type Adapter = (f32, [Vec<f32>; 2]);

impl Adapted {
    /// Checks the adapters against the model.
    ///
    /// # Errors
    /// [`Error::Lora`] if an adapter belongs to no layer of the model, or a layer that is a target
    /// has no adapter or one of another size.
    pub fn new(source: Box<dyn Source>, peft: &Peft, config: &Config) -> Result<Self> {
        let mut adapters = HashMap::new();
        let mut layers = Vec::new();
        for weight in expected(config) {
            let [outputs, inputs] = weight.shape[..] else { continue };
            if weight.role == Role::Embedding {
                continue;
            }
            let layer = own_name(peft, &layer_name(&weight, config.family));
            if let Some((adapter, PeftPair { a, b })) = peft.pair(&layer, [inputs, outputs])? {
                let wide = [a, b].map(|matrix| matrix.data().iter::<f32>().collect());
                adapters.insert((weight.role, weight.layer), (adapter.scale as f32, wide));
            }
            layers.push(layer);
        }
        peft.check_layers(|layer| layers.iter().any(|own| own == layer))?;
        Ok(Self { source, adapters })
    }

    /// The number of weights with adapters.
    pub fn count(&self) -> usize {
        self.adapters.len()
    }
}

/// A layer's name in the adapters' model. The text part of a larger model has a longer one, such as
/// `model.language_model.layers.0.mlp.up_proj` for `model.layers.0.mlp.up_proj`.
fn own_name(peft: &Peft, layer: &str) -> String {
    let end = layer.strip_prefix("model").unwrap_or(layer);
    let is_longer = |name: &&str| name.ends_with(end) && name.starts_with("model.");
    peft.layers().find(is_longer).unwrap_or(layer).to_owned()
}

impl Source for Adapted {
    fn read(&self, weight: &Weight) -> Result<Elements<'_>> {
        let Some((scale, [a, b])) = self.adapters.get(&(weight.role, weight.layer)) else {
            return self.source.read(weight);
        };
        // A sum with an adapter does not stay quantised.
        let mut values: Vec<f32> = match self.source.read_floats(weight)? {
            Elements::F32(values) => values,
            Elements::Bytes(bytes, dtype) => {
                TensorData::from_bytes_vec(bytes.to_vec(), weight.shape.clone(), dtype)
                    .iter::<f32>()
                    .collect()
            }
            // The device draws random weights; `read_floats` gives none that are quantised.
            Elements::Normal(_) | Elements::Constant(_) | Elements::Quantised(_) => {
                let (expected, found) = ("weights of a file".to_owned(), "random weights".to_owned());
                return Err(Error::Argument { name: "lora", expected, found });
            }
        };
        let inputs = values.len() / weight.shape[0];
        add(&mut values, inputs, *scale, a, b);
        Ok(Elements::F32(values))
    }

    fn check(&self, weights: &[Weight]) -> Result<()> {
        self.source.check(weights)
    }

    fn quantised_bytes(&self, weight: &Weight) -> Result<Option<usize>> {
        match self.adapters.contains_key(&(weight.role, weight.layer)) {
            true => Ok(None),
            false => self.source.quantised_bytes(weight),
        }
    }

    fn dtype(&self) -> DType {
        self.source.dtype()
    }
}

/// Adds `scale B A` to `values` `[outputs, inputs]`, by all processors.
///
/// # Shapes
/// - a: `[rank, inputs]`; b: `[outputs, rank]`
fn add(values: &mut [f32], inputs: usize, scale: f32, a: &[f32], b: &[f32]) {
    let rank = a.len() / inputs;
    let rows = |values: &mut [f32], b: &[f32]| {
        let mut sum = vec![0.0; inputs];
        for (row, b) in values.chunks_exact_mut(inputs).zip(b.chunks_exact(rank)) {
            sum.fill(0.0);
            for (a, b) in a.chunks_exact(inputs).zip(b) {
                sum.iter_mut().zip(a).for_each(|(sum, a)| *sum += a * b);
            }
            row.iter_mut().zip(&sum).for_each(|(value, sum)| *value += scale * sum);
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let share = (values.len() / inputs).div_ceil(threads);
    thread::scope(|scope| {
        for (values, b) in values.chunks_mut(share * inputs).zip(b.chunks(share * rank)) {
            scope.spawn(move || rows(values, b));
        }
    });
}
