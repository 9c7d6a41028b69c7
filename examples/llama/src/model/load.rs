//! Loading of a model, one tensor after the other, straight to the device.

use std::collections::HashMap;

use burn::tensor::{DType, Distribution, Tensor, TensorData};
use burn_rocm::RocmDevice;

use super::layer::{Layer, Linear};
use super::ops::Turns;
use super::{B, Model};
use crate::config::{Config, Rope};
use crate::error::{Error, Result};
use crate::weights::{Elements, Role, Source, Weight, expected};

/// How far the loading is.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Bytes on the device so far.
    pub bytes: usize,
    /// Bytes of the whole model on the device.
    pub of: usize,
}

/// The tensors that were loaded and have no place in a layer yet.
struct Tensors {
    matrices: HashMap<(Role, Option<usize>), Tensor<B, 2>>,
    vectors: HashMap<(Role, Option<usize>), Tensor<B, 1>>,
}

impl Model {
    /// Loads a model. `progress` is called after each tensor.
    ///
    /// # Errors
    /// [`Error::Argument`] for a dtype other than f32, f16 and bf16; the errors of the source.
    pub fn load(
        config: Config,
        source: &dyn Source,
        device: &RocmDevice,
        dtype: DType,
        mut progress: impl FnMut(Loaded),
    ) -> Result<Self> {
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            let (expected, found) = ("f32, f16 or bf16".to_owned(), format!("{dtype:?}"));
            return Err(Error::Argument { name: "dtype", expected, found });
        }
        let weights = expected(&config);
        // Before anything is copied.
        source.check(&weights)?;
        let of = crate::weights::bytes(&config, dtype.size());
        let mut bytes = 0;
        let mut tensors = Tensors { matrices: HashMap::new(), vectors: HashMap::new() };
        for weight in &weights {
            let to = if weight.is_norm() { DType::F32 } else { dtype };
            let key = (weight.role, weight.layer);
            match weight.shape[..] {
                [rows, columns] => {
                    let tensor = on_device(source, weight, [rows, columns], device, to)?;
                    tensors.matrices.insert(key, tensor);
                }
                _ => {
                    let mut tensor = on_device(source, weight, [weight.len()], device, to)?;
                    if weight.is_norm() && config.norm_adds_one {
                        tensor = tensor + 1.0;
                    }
                    tensors.vectors.insert(key, tensor);
                }
            }
            bytes += weight.len() * to.size();
            progress(Loaded { bytes, of });
        }
        tensors.model(config, device, dtype)
    }
}

/// A weight on the device.
fn on_device<const D: usize>(
    source: &dyn Source,
    weight: &Weight,
    shape: [usize; D],
    device: &RocmDevice,
    dtype: DType,
) -> Result<Tensor<B, D>> {
    let elements = source.read(weight)?;
    Ok(match elements {
        Elements::Bytes(bytes, from) => {
            let data = TensorData::from_bytes_vec(bytes.to_vec(), shape, from);
            Tensor::<B, D>::from_data(data, (device, from)).cast(dtype)
        }
        Elements::F32(numbers) => {
            Tensor::<B, D>::from_data(TensorData::new(numbers, shape), (device, DType::F32)).cast(dtype)
        }
        Elements::Normal(deviation) => {
            Tensor::random(shape, Distribution::Normal(0.0, deviation), (device, dtype))
        }
        Elements::Constant(number) => Tensor::full(shape, number, (device, dtype)),
    })
}

impl Tensors {
    fn matrix(&mut self, role: Role, layer: Option<usize>) -> Result<Tensor<B, 2>> {
        self.matrices.remove(&(role, layer)).ok_or_else(|| lacking(role, layer))
    }

    fn vector(&mut self, role: Role, layer: Option<usize>) -> Result<Tensor<B, 1>> {
        self.vectors.remove(&(role, layer)).ok_or_else(|| lacking(role, layer))
    }

    fn linear(&mut self, role: Role, bias: Role, layer: Option<usize>) -> Result<Linear> {
        Ok(Linear { weight: self.matrix(role, layer)?, bias: self.vectors.remove(&(bias, layer)) })
    }

    /// Several layers of one input as one: their matrices one below the other.
    fn joined<const N: usize>(&mut self, roles: [(Role, Role); N], layer: Option<usize>) -> Result<Linear> {
        let mut weights = Vec::with_capacity(N);
        let mut biases = Vec::with_capacity(N);
        for (role, bias) in roles {
            let Linear { weight, bias } = self.linear(role, bias, layer)?;
            weights.push(weight);
            biases.extend(bias);
        }
        let bias = if biases.is_empty() { None } else { Some(Tensor::cat(biases, 0)) };
        Ok(Linear { weight: Tensor::cat(weights, 0), bias })
    }

    fn pair(
        &mut self,
        has: bool,
        roles: [Role; 2],
        layer: Option<usize>,
    ) -> Result<Option<[Tensor<B, 1>; 2]>> {
        let [first, second] = roles;
        Ok(match has {
            true => Some([self.vector(first, layer)?, self.vector(second, layer)?]),
            false => None,
        })
    }

    fn layer(&mut self, index: usize, config: &Config) -> Result<Layer> {
        let at = Some(index);
        Ok(Layer {
            index,
            attention_norm: self.vector(Role::AttentionNorm, at)?,
            heads: self.joined(
                [(Role::Query, Role::QueryBias), (Role::Key, Role::KeyBias), (Role::Value, Role::ValueBias)],
                at,
            )?,
            head_norms: self.pair(config.head_norms, [Role::QueryNorm, Role::KeyNorm], at)?,
            output: self.linear(Role::AttentionOutput, Role::AttentionOutputBias, at)?,
            post_norms: self.pair(
                config.post_norms,
                [Role::AttentionPostNorm, Role::FeedForwardPostNorm],
                at,
            )?,
            feed_forward_norm: self.vector(Role::FeedForwardNorm, at)?,
            gate_and_up: self.joined([(Role::Gate, Role::GateBias), (Role::Up, Role::UpBias)], at)?,
            down: self.linear(Role::Down, Role::DownBias, at)?,
        })
    }

    fn model(mut self, config: Config, device: &RocmDevice, dtype: DType) -> Result<Model> {
        let layers = (0..config.layers.len()).map(|index| self.layer(index, &config));
        let turns = |rope: &Rope| {
            let data = TensorData::new(rope.frequencies.clone(), [rope.frequencies.len()]);
            let frequencies = Tensor::from_data(data, (device, DType::F32));
            Turns { frequencies, factor: f64::from(rope.factor) }
        };
        Ok(Model {
            layers: layers.collect::<Result<_>>()?,
            ropes: config.ropes.iter().map(turns).collect(),
            embedding: self.matrix(Role::Embedding, None)?,
            norm: self.vector(Role::FinalNorm, None)?,
            output: if config.tied { None } else { Some(self.matrix(Role::Output, None)?) },
            device: device.clone(),
            dtype,
            config,
        })
    }
}

/// A weight that the list of expected weights lacks.
fn lacking(role: Role, layer: Option<usize>) -> Error {
    let (expected, found) = (format!("{role:?} of layer {layer:?}"), "nothing".to_owned());
    Error::Argument { name: "weights", expected, found }
}
