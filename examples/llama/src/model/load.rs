//! Loading of a model, one tensor after the other, straight to the device.

use std::collections::HashMap;

use burn::tensor::{DType, Distribution, Tensor, TensorData};
use burn_rocm::fused::{QuantWeight, WeightParts};
use burn_rocm::{Communicator, RocmDevice};
use burn_rocm_nn::language::quant::{RoundTo, round_to_nearest};

use super::layer::{Joined, Layer, Linear};
use super::matrix::{Adapter, Matrix};
use super::ops::Turns;
use super::{B, Model};
use crate::config::{Config, Rope};
use crate::error::{Error, Result};
use crate::weights::{Elements, LowRank, Part, Role, Source, Weight, expected};

/// How far the loading is.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Bytes on the device so far.
    pub bytes: usize,
    /// Bytes of the whole model on the device.
    pub of: usize,
}

/// What float matrices become when they are loaded. Matrices that are quantised already stay so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantise {
    /// The matrices of the layers.
    pub layers: Option<RoundTo>,
    /// The embedding and the output matrix.
    pub output: Option<RoundTo>,
}

impl Quantise {
    fn of(self, role: Role) -> Option<RoundTo> {
        match role {
            Role::Embedding | Role::Output => self.output,
            _ => self.layers,
        }
    }
}

/// The dtype of a weight's elements, if they are floats.
fn dtype_of(weight: &Weight, dtype: DType) -> DType {
    if weight.is_norm() { DType::F32 } else { dtype }
}

/// The bytes that a weight takes on the device; if it is rounded, with scales of f16.
fn bytes_of(weight: &Weight, source: &dyn Source, dtype: DType, quantise: Quantise) -> Result<usize> {
    let codes = match (source.quantised_bytes(weight)?, &weight.shape[..]) {
        (None, &[rows, columns]) => quantise.of(weight.role).map(|to| to.device_bytes([rows, columns])),
        (bytes, _) => bytes,
    };
    Ok(match codes {
        Some(bytes) => bytes + source.adapter(weight).map_or(0, |adapter| adapter.bytes()),
        None => weight.len() * dtype_of(weight, dtype).size(),
    })
}

/// The bytes that the weights of a model take on the device. Those that are rounded count with
/// scales of f16, as in [`RoundTo::device_bytes`].
///
/// # Errors
/// The errors of the source.
pub fn weight_bytes(config: &Config, source: &dyn Source, dtype: DType, quantise: Quantise) -> Result<usize> {
    expected(config).iter().map(|weight| bytes_of(weight, source, dtype, quantise)).sum()
}

/// The bytes that the weights take if adapters are trained beside them. The embedding is floats
/// then, even if the source has codes.
///
/// # Errors
/// The errors of the source.
pub fn frozen_bytes(
    config: &Config,
    source: &dyn Source,
    dtype: DType,
    layers: Option<RoundTo>,
) -> Result<usize> {
    let bytes = |weight: &Weight| match weight.role {
        Role::Embedding => Ok(weight.len() * dtype.size()),
        _ => bytes_of(weight, source, dtype, Quantise { layers, output: None }),
    };
    expected(config).iter().map(bytes).sum()
}

/// The bytes of weights that a pass reads on each of some ranks: all but the embedding's, unless
/// that is the output matrix too. `config` and `source` are those of a rank's [`Part`].
///
/// # Errors
/// The errors of the source.
pub fn pass_bytes(
    config: &Config,
    source: &dyn Source,
    dtype: DType,
    quantise: Quantise,
    ranks: usize,
) -> Result<usize> {
    let output = if config.tied { Role::Embedding } else { Role::Output };
    let part = if config.vocabulary.is_multiple_of(ranks) { ranks } else { 1 };
    let bytes = |weight: &Weight| {
        let bytes = bytes_of(weight, source, dtype, quantise)?;
        Ok(match weight.role {
            role if role == output => bytes / part,
            Role::Embedding => 0,
            _ => bytes,
        })
    };
    expected(config).iter().map(bytes).sum()
}

/// The tensors that were loaded and have no place in a layer yet.
struct Tensors {
    matrices: HashMap<(Role, Option<usize>), Matrix>,
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
        progress: impl FnMut(Loaded),
    ) -> Result<Self> {
        Self::load_quantised(config, source, device, dtype, Quantise::default(), progress)
    }

    /// [`load`](Self::load), with float matrices rounded.
    ///
    /// # Errors
    /// As [`load`](Self::load); [`Error::Device`] for numbers that are not finite.
    pub fn load_quantised(
        config: Config,
        source: &dyn Source,
        device: &RocmDevice,
        dtype: DType,
        quantise: Quantise,
        mut progress: impl FnMut(Loaded),
    ) -> Result<Self> {
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            let (expected, found) = ("f32, f16 or bf16".to_owned(), format!("{dtype:?}"));
            return Err(Error::Argument { name: "dtype", expected, found });
        }
        let weights = expected(&config);
        // Before anything is copied.
        source.check(&weights)?;
        let of = weight_bytes(&config, source, dtype, quantise)?;
        let mut bytes = 0;
        let mut tensors = Tensors { matrices: HashMap::new(), vectors: HashMap::new() };
        let mut layers = Vec::with_capacity(config.layers.len());
        for (at, weight) in weights.iter().enumerate() {
            let to = dtype_of(weight, dtype);
            let key = (weight.role, weight.layer);
            match weight.shape[..] {
                [rows, columns] => {
                    let shape = [rows, columns];
                    let matrix = matrix(source, weight, shape, device, to, quantise.of(weight.role))?;
                    tensors.matrices.insert(key, matrix);
                }
                _ => {
                    let mut tensor = on_device(source, weight, [weight.len()], device, to)?;
                    if weight.is_norm() && config.norm_adds_one {
                        tensor = tensor + 1.0;
                    }
                    tensors.vectors.insert(key, tensor);
                }
            }
            // Each layer as soon as it is complete, so that one layer's matrices alone are twice on
            // the device while they are joined.
            let complete = weights.get(at + 1).is_none_or(|next| next.layer != weight.layer);
            if let (Some(layer), true) = (weight.layer, complete) {
                layers.push(tensors.layer(layer, &config)?);
            }
            bytes += bytes_of(weight, source, dtype, quantise)?;
            progress(Loaded { bytes, of });
        }
        tensors.model(layers, config, device, dtype)
    }
}

impl Model {
    /// This rank's part of a model: some heads, and some features of the feed-forward layers. Each
    /// rank has the whole output matrix. If the number of ranks divides the vocabulary, each
    /// computes some of its outputs. All ranks make the same calls in the same order, and each gets
    /// the whole logits. `config` and `source` are the whole model's.
    ///
    /// # Errors
    /// As [`load_quantised`](Self::load_quantised) and [`Part::new`]; [`Error::Argument`] or
    /// [`Error::Device`] if a part would begin within a group of quantised weights.
    pub fn load_part(
        config: &Config,
        source: &dyn Source,
        ranks: &Communicator,
        dtype: DType,
        quantise: Quantise,
        progress: impl FnMut(Loaded),
    ) -> Result<Self> {
        let part = Part::new(source, config, ranks.rank(), ranks.size())?;
        let own = part.config().clone();
        let divided = [own.heads * own.head_dim, own.inner];
        let (size, vocabulary) = (ranks.size(), own.vocabulary);
        // For weights that are quantised in a file, `WeightParts::inputs` reports this.
        if let Some(group) = quantise.layers.map(RoundTo::group)
            && let Some(inputs) = divided.into_iter().find(|inputs| size > 1 && !inputs.is_multiple_of(group))
        {
            let expected = format!("parts of whole groups of {group} quantised weights");
            let found = format!("{size}, whose parts have {inputs} inputs");
            return Err(Error::Argument { name: "devices", expected, found });
        }
        let mut model = Self::load_quantised(own, &part, &ranks.device(), dtype, quantise, progress)?;
        if vocabulary.is_multiple_of(size) {
            let each = vocabulary / size;
            let range = ranks.rank() * each..(ranks.rank() + 1) * each;
            model.output = Some(model.output.as_ref().unwrap_or(&model.embedding).outputs(range)?);
        }
        model.ranks = Some(ranks.clone());
        Ok(model)
    }
}

/// A matrix that the source has or `round` makes quantised, on the device; or else its floats.
#[allow(clippy::large_enum_variant, reason = "one exists at a time")]
pub(crate) enum Stored<'a> {
    Codes(QuantWeight),
    Floats(Elements<'a>),
}

impl<'a> Stored<'a> {
    /// Uploads a matrix that is or becomes quantised.
    pub(crate) fn new(
        elements: Elements<'a>,
        shape: [usize; 2],
        device: &RocmDevice,
        round: Option<RoundTo>,
    ) -> Result<Self> {
        let upload = |parts: &WeightParts| Ok(Self::Codes(QuantWeight::upload(parts, device)?));
        match (elements, round) {
            (Elements::Quantised(parts), _) => upload(&parts),
            (elements, None) => Ok(Self::Floats(elements)),
            // The device draws the codes: rounding 8 billion random floats would take minutes.
            (Elements::Normal(deviation), Some(to)) => {
                Ok(Self::Codes(QuantWeight::random(shape, to.bits(), to.group(), deviation, device)?))
            }
            (Elements::F32(numbers), Some(to)) => upload(&round_to_nearest(&numbers, shape, to)?),
            (elements, Some(to)) => {
                // The device converts the numbers, and the host rounds them.
                let numbers = of_elements(elements, shape, device, DType::F32)?.try_into_data();
                let numbers = numbers.map_err(|why| Error::Read(why.to_string()))?;
                let numbers = numbers.to_vec::<f32>().map_err(|why| Error::Read(format!("{why:?}")))?;
                upload(&round_to_nearest(&numbers, shape, to)?)
            }
        }
    }
}

/// A matrix on the device with its adapter. Floats become quantised if `round` says so.
fn matrix(
    source: &dyn Source,
    weight: &Weight,
    shape: [usize; 2],
    device: &RocmDevice,
    dtype: DType,
    round: Option<RoundTo>,
) -> Result<Matrix> {
    let adapter = source.adapter(weight);
    match Stored::new(source.read(weight)?, shape, device, round)? {
        // Codes can't hold the sum, and adapters were trained beside them.
        Stored::Codes(weight) => {
            let adapter = adapter.map(|adapter| beside(adapter, shape, device)).transpose()?;
            Ok(Matrix::Quantised(weight, adapter))
        }
        Stored::Floats(elements) => {
            let elements = match adapter {
                Some(adapter) => adapter.merged(elements, shape)?,
                None => elements,
            };
            Ok(Matrix::Plain(of_elements(elements, shape, device, dtype)?))
        }
    }
}

/// An adapter on the device.
fn beside(adapter: LowRank, [outputs, inputs]: [usize; 2], device: &RocmDevice) -> Result<Adapter> {
    let LowRank { scale, a, b, rank } = adapter;
    let tensor = |numbers, shape: [usize; 2]| of_elements(Elements::F32(numbers), shape, device, DType::F32);
    let scaled = a.into_iter().map(|a| scale * a).collect();
    Ok(Adapter { a: tensor(scaled, [rank, inputs])?, b: tensor(b, [outputs, rank])? })
}

/// A weight on the device.
fn on_device<const D: usize>(
    source: &dyn Source,
    weight: &Weight,
    shape: [usize; D],
    device: &RocmDevice,
    dtype: DType,
) -> Result<Tensor<B, D>> {
    of_elements(source.read(weight)?, shape, device, dtype)
}

/// Floats on the device.
fn of_elements<const D: usize>(
    elements: Elements<'_>,
    shape: [usize; D],
    device: &RocmDevice,
    dtype: DType,
) -> Result<Tensor<B, D>> {
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
        Elements::Quantised(_) => {
            let (expected, found) = ("floats".to_owned(), "quantised elements".to_owned());
            return Err(Error::Argument { name: "weights", expected, found });
        }
    })
}

impl Tensors {
    fn matrix(&mut self, role: Role, layer: Option<usize>) -> Result<Matrix> {
        self.matrices.remove(&(role, layer)).ok_or_else(|| lacking(role, layer))
    }

    fn vector(&mut self, role: Role, layer: Option<usize>) -> Result<Tensor<B, 1>> {
        self.vectors.remove(&(role, layer)).ok_or_else(|| lacking(role, layer))
    }

    fn linear(&mut self, role: Role, bias: Role, layer: Option<usize>) -> Result<Linear> {
        Ok(Linear { weight: self.matrix(role, layer)?, bias: self.vectors.remove(&(bias, layer)) })
    }

    fn joined<const N: usize>(&mut self, roles: [(Role, Role); N], layer: Option<usize>) -> Result<Joined> {
        let layers = roles.into_iter().map(|(role, bias)| self.linear(role, bias, layer));
        Joined::new(layers.collect::<Result<Vec<_>>>()?)
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

    fn model(
        mut self,
        layers: Vec<Layer>,
        config: Config,
        device: &RocmDevice,
        dtype: DType,
    ) -> Result<Model> {
        let turns = |rope: &Rope| {
            let data = TensorData::new(rope.frequencies.clone(), [rope.frequencies.len()]);
            let frequencies = Tensor::from_data(data, (device, DType::F32));
            Turns { frequencies, factor: f64::from(rope.factor) }
        };
        Ok(Model {
            layers,
            ropes: config.ropes.iter().map(turns).collect(),
            embedding: self.matrix(Role::Embedding, None)?,
            norm: self.vector(Role::FinalNorm, None)?,
            output: if config.tied { None } else { Some(self.matrix(Role::Output, None)?) },
            device: device.clone(),
            dtype,
            config,
            ranks: None,
        })
    }
}

/// A weight that the list of expected weights lacks.
fn lacking(role: Role, layer: Option<usize>) -> Error {
    let (expected, found) = (format!("{role:?} of layer {layer:?}"), "nothing".to_owned());
    Error::Argument { name: "weights", expected, found }
}
