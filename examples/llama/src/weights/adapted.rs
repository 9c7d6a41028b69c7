//! Weights with the adapters of a PEFT folder.

use std::collections::HashMap;
use std::num::NonZero;
use std::ops::Range;
use std::thread;

use burn::tensor::{DType, TensorData};
use burn_rocm_nn::language::lora::{Peft, PeftPair};

use super::{Elements, Role, Source, Weight, expected, layer_name};
use crate::config::Config;
use crate::error::{Error, Result};

/// A matrix of low rank that is added to a weight: `scale B A`, with PEFT's `A` and `B` in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// The factor of the product `B A`.
    pub scale: f32,
    /// `[rank, inputs]`.
    pub a: Vec<f32>,
    /// `[outputs, rank]`.
    pub b: Vec<f32>,
    /// The number of rows of `a`, and of columns of `b`.
    pub rank: usize,
}

impl LowRank {
    /// The bytes of both matrices on the device.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<f32>() * (self.a.len() + self.b.len())
    }

    /// What is added to some outputs of the weight.
    pub(crate) fn outputs(mut self, range: Range<usize>) -> Self {
        self.b = self.b[range.start * self.rank..range.end * self.rank].to_vec();
        self
    }

    /// What is added to some inputs of the weight.
    pub(crate) fn inputs(mut self, range: Range<usize>) -> Self {
        let inputs = self.a.len() / self.rank;
        self.a = self.a.chunks_exact(inputs).flat_map(|row| &row[range.clone()]).copied().collect();
        self
    }

    /// Merges this into float elements `[outputs, inputs]`. The sum is computed in f32, by all
    /// processors.
    ///
    /// # Errors
    /// [`Error::Argument`] for elements that are quantised, or that the device draws.
    pub(crate) fn merged<'a>(&self, elements: Elements<'a>, shape: [usize; 2]) -> Result<Elements<'a>> {
        let mut values: Vec<f32> = match elements {
            Elements::F32(values) => values,
            Elements::Bytes(bytes, dtype) => {
                TensorData::from_bytes_vec(bytes.to_vec(), shape, dtype).iter::<f32>().collect()
            }
            Elements::Normal(_) | Elements::Constant(_) | Elements::Quantised(_) => {
                let (expected, found) = ("float weights of a file".to_owned(), "others".to_owned());
                return Err(Error::Argument { name: "lora", expected, found });
            }
        };
        self.add_to(&mut values, shape[1]);
        Ok(Elements::F32(values))
    }

    fn add_to(&self, values: &mut [f32], inputs: usize) {
        let Self { scale, ref a, ref b, rank } = *self;
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
}

/// A source whose matrices have the adapters of a PEFT folder. Matrices that are floats on the
/// device get them merged in when they are loaded, so the model runs as fast as without adapters.
/// Beside quantised matrices, the adapters stay apart.
pub struct Adapted {
    source: Box<dyn Source>,
    adapters: HashMap<(Role, Option<usize>), LowRank>,
}

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
                let [a, b] = [a, b].map(|matrix| matrix.data().iter::<f32>().collect());
                let adapter = LowRank { scale: adapter.scale as f32, a, b, rank: adapter.rank };
                adapters.insert((weight.role, weight.layer), adapter);
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
        self.source.read(weight)
    }

    fn adapter(&self, weight: &Weight) -> Option<LowRank> {
        self.adapters.get(&(weight.role, weight.layer)).cloned()
    }

    fn check(&self, weights: &[Weight]) -> Result<()> {
        self.source.check(weights)
    }

    fn quantised_bytes(&self, weight: &Weight) -> Result<Option<usize>> {
        self.source.quantised_bytes(weight)
    }

    fn read_floats(&self, weight: &Weight) -> Result<Elements<'_>> {
        self.source.read_floats(weight)
    }

    fn dtype(&self) -> DType {
        self.source.dtype()
    }
}
