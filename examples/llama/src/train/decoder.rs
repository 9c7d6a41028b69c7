//! A model that can be trained: the same architecture as [`Model`](crate::model::Model), on any of
//! this project's autodiff backends, without a cache.

use burn::module::{Module, Param, ParamId};
use burn::nn::Linear;
use burn::tensor::activation::{gelu, gelu_approximate};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Distribution, Int, Tensor, TensorData};
use burn_rocm::RocmDevice;
use burn_rocm_nn::attention::{PackedAttentionOptions, PackedSequences, packed_attention};
use burn_rocm_nn::language::lora::{FrozenLinear, Lora, LoraLayer, Peft};
use burn_rocm_nn::language::quant::{QuantLinear, RoundTo};
use burn_rocm_nn::language::{AttentionRule, attention};
use burn_rocm_nn::{RmsNorm, Silu};

use crate::config::{Activation, Config, LayerConfig, Rope};
use crate::error::{Error, Result};
use crate::model::Stored;
use crate::weights::{Elements, Role, Source, Weight, expected, layer_name};

/// Which parameters are trained.
#[derive(Clone, Copy, Debug)]
pub enum Trained<'a> {
    /// All of them.
    All,
    /// New adapters.
    Adapters(&'a Lora),
    /// The adapters of a file.
    Again(&'a Peft),
}

/// A linear layer with floats, or with a weight that stays quantised.
#[allow(clippy::large_enum_variant, reason = "a box is no module of Burn's")]
#[derive(Module, Debug)]
pub enum Base<B: Backend> {
    /// Floats.
    Floats(Linear<B>),
    /// Codes with scales.
    Quantised(QuantLinear),
}

impl<B: Backend> FrozenLinear<B> for Base<B> {
    fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        match self {
            Self::Floats(linear) => linear.forward(x),
            Self::Quantised(linear) => linear.forward(x),
        }
    }

    fn sizes(&self) -> [usize; 2] {
        match self {
            Self::Floats(linear) => linear.sizes(),
            Self::Quantised(linear) => FrozenLinear::<B>::sizes(linear),
        }
    }

    fn device(&self) -> B::Device {
        match self {
            Self::Floats(linear) => FrozenLinear::device(linear),
            Self::Quantised(linear) => FrozenLinear::<B>::device(linear),
        }
    }

    fn adapter_dtype(&self) -> DType {
        match self {
            Self::Floats(linear) => linear.adapter_dtype(),
            Self::Quantised(linear) => FrozenLinear::<B>::adapter_dtype(linear),
        }
    }
}

/// A layer that may have an adapter.
type Adapted<B> = LoraLayer<B, Base<B>>;

/// A decoder. Made by [`Decoder::load`].
#[derive(Module, Debug)]
pub struct Decoder<B: Backend> {
    embedding: Param<Tensor<B, 2>>,
    layers: Vec<Layer<B>>,
    norm: RmsNorm<B>,
    /// The output matrix, unless it is the embedding.
    output: Option<Adapted<B>>,
    #[module(skip)]
    config: Config,
}

/// One layer.
#[derive(Module, Debug)]
pub struct Layer<B: Backend> {
    attention_norm: RmsNorm<B>,
    query: Adapted<B>,
    key: Adapted<B>,
    value: Adapted<B>,
    query_norm: Option<RmsNorm<B>>,
    key_norm: Option<RmsNorm<B>>,
    output: Adapted<B>,
    attention_post_norm: Option<RmsNorm<B>>,
    feed_forward_norm: RmsNorm<B>,
    gate: Adapted<B>,
    up: Adapted<B>,
    down: Adapted<B>,
    feed_forward_post_norm: Option<RmsNorm<B>>,
}

/// The places of the tokens of a batch: where its sequences begin, and the angles of the rotary
/// embeddings.
#[derive(Clone, Debug)]
pub struct Places<B: Backend> {
    sequences: PackedSequences<B>,
    /// The number of sequences, and the tokens of each.
    shape: [usize; 2],
    /// Cosines and sines for each rotary embedding, `[rows, 1, pairs]`.
    angles: Vec<[Tensor<B, 3>; 2]>,
}

impl<B: Backend> Places<B> {
    /// The places of `batch` sequences of `time` tokens each.
    pub fn new(config: &Config, [batch, time]: [usize; 2], device: &B::Device, dtype: DType) -> Self {
        let table = |rope: &Rope, function: fn(f32) -> f32| {
            let pairs = rope.frequencies.len();
            let row = |at: usize| {
                rope.frequencies.iter().map(move |frequency| function(at as f32 * frequency) * rope.factor)
            };
            let numbers: Vec<f32> = (0..batch).flat_map(|_| (0..time).flat_map(row)).collect();
            let data = TensorData::new(numbers, [batch * time, 1, pairs]);
            Tensor::<B, 3>::from_data(data, (device, DType::F32)).cast(dtype)
        };
        Self {
            sequences: PackedSequences::of_lengths(&vec![time; batch], device),
            shape: [batch, time],
            angles: config.ropes.iter().map(|rope| [f32::cos, f32::sin].map(|f| table(rope, f))).collect(),
        }
    }
}

/// Makes the modules of a decoder.
struct Maker<'a, B: Backend> {
    config: &'a Config,
    source: &'a dyn Source,
    weights: Vec<Weight>,
    trained: Trained<'a>,
    round: Option<RoundTo>,
    device: &'a B::Device,
    dtype: DType,
}

impl<B: Backend<Device = RocmDevice>> Maker<'_, B> {
    fn tensor<const D: usize>(&self, weight: &Weight, dtype: DType) -> Result<Tensor<B, D>> {
        self.floats(self.source.read_floats(weight)?, weight, dtype)
    }

    fn floats<const D: usize>(
        &self,
        elements: Elements<'_>,
        weight: &Weight,
        dtype: DType,
    ) -> Result<Tensor<B, D>> {
        let shape: [usize; D] = weight.shape.clone().try_into().map_err(|_| Error::Argument {
            name: "weights",
            expected: format!("{D} axes of {:?}", weight.role),
            found: format!("{:?}", weight.shape),
        })?;
        let device = self.device;
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

    fn weight(&self, role: Role, layer: Option<usize>) -> Option<&Weight> {
        self.weights.iter().find(|weight| weight.role == role && weight.layer == layer)
    }

    fn needed(&self, role: Role, layer: Option<usize>) -> Result<&Weight> {
        self.weight(role, layer).ok_or_else(|| Error::Argument {
            name: "weights",
            expected: format!("{role:?} of layer {layer:?}"),
            found: "nothing".to_owned(),
        })
    }

    fn param<const D: usize>(&self, tensor: Tensor<B, D>) -> Param<Tensor<B, D>> {
        // `Param::from_tensor` would require a gradient of every tensor.
        Param::initialized(ParamId::new(), tensor.set_require_grad(matches!(self.trained, Trained::All)))
    }

    fn matrix(&self, role: Role, layer: Option<usize>) -> Result<Param<Tensor<B, 2>>> {
        Ok(self.param(self.tensor::<2>(self.needed(role, layer)?, self.dtype)?))
    }

    fn linear(&self, role: Role, bias: Option<Role>, layer: Option<usize>) -> Result<Adapted<B>> {
        let weight = self.needed(role, layer)?;
        let name = layer_name(weight, self.config.family);
        let bias = bias.and_then(|role| self.weight(role, layer));
        let bias = bias.map(|bias| self.tensor::<1>(bias, self.dtype)).transpose()?;
        let base = match self.stored(weight, role)? {
            Stored::Codes(weight) => Base::Quantised(QuantLinear::new(weight, bias)?),
            Stored::Floats(elements) => {
                // Files have `[outputs, inputs]`. A trained matrix is contiguous, which optimizers want.
                let weight = self.floats::<2>(elements, weight, self.dtype)?.transpose();
                let weight = match self.trained {
                    Trained::All => weight + 0.0,
                    _ => weight,
                };
                let bias = bias.map(|bias| self.param(bias));
                Base::Floats(Linear { weight: self.param(weight), bias })
            }
        };
        Ok(match self.trained {
            Trained::All => Adapted::plain(&name, base),
            Trained::Adapters(lora) => lora.adapt(&name, base),
            Trained::Again(peft) => peft.adapt(&name, base)?,
        })
    }

    /// A matrix, whose codes stay where they can: they can't be trained, and no product takes f64. An
    /// adapter of the source is merged into floats.
    fn stored(&self, weight: &Weight, role: Role) -> Result<Stored<'_>> {
        let &[outputs, inputs] = &weight.shape[..] else {
            let (expected, found) = (format!("a matrix of {role:?}"), format!("{:?}", weight.shape));
            return Err(Error::Argument { name: "weights", expected, found });
        };
        let stored = if matches!(self.trained, Trained::All) || self.dtype == DType::F64 {
            Stored::Floats(self.source.read_floats(weight)?)
        } else {
            let round = self.round.filter(|_| role != Role::Output);
            Stored::new(self.source.read(weight)?, [outputs, inputs], self.device, round)?
        };
        match (stored, self.source.adapter(weight)) {
            (stored, None) => Ok(stored),
            (Stored::Floats(elements), Some(adapter)) => {
                Ok(Stored::Floats(adapter.merged(elements, [outputs, inputs])?))
            }
            (Stored::Codes(_), Some(_)) => Err(Error::Argument {
                name: "lora",
                expected: "float weights, into which adapters are merged before others are trained"
                    .to_owned(),
                found: format!("quantised {role:?} of layer {:?}", weight.layer),
            }),
        }
    }

    /// A norm. Its factor is f32 beside 16-bit activations.
    fn norm(&self, role: Role, layer: Option<usize>) -> Result<RmsNorm<B>> {
        let dtype = if self.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let mut gamma = self.tensor::<1>(self.needed(role, layer)?, dtype)?;
        if self.config.norm_adds_one {
            gamma = gamma + 1.0;
        }
        Ok(RmsNorm { gamma: self.param(gamma), epsilon: self.config.epsilon })
    }

    fn norm_if(&self, has: bool, role: Role, layer: Option<usize>) -> Result<Option<RmsNorm<B>>> {
        has.then(|| self.norm(role, layer)).transpose()
    }

    fn layer(&self, index: usize) -> Result<Layer<B>> {
        use Role::*;
        let (at, config) = (Some(index), self.config);
        Ok(Layer {
            attention_norm: self.norm(AttentionNorm, at)?,
            query: self.linear(Query, Some(QueryBias), at)?,
            key: self.linear(Key, Some(KeyBias), at)?,
            value: self.linear(Value, Some(ValueBias), at)?,
            query_norm: self.norm_if(config.head_norms, QueryNorm, at)?,
            key_norm: self.norm_if(config.head_norms, KeyNorm, at)?,
            output: self.linear(AttentionOutput, Some(AttentionOutputBias), at)?,
            attention_post_norm: self.norm_if(config.post_norms, AttentionPostNorm, at)?,
            feed_forward_norm: self.norm(FeedForwardNorm, at)?,
            gate: self.linear(Gate, Some(GateBias), at)?,
            up: self.linear(Up, Some(UpBias), at)?,
            down: self.linear(Down, Some(DownBias), at)?,
            feed_forward_post_norm: self.norm_if(config.post_norms, FeedForwardPostNorm, at)?,
        })
    }
}

impl<B: Backend<Device = RocmDevice>> Decoder<B> {
    /// Loads a decoder. Only what is `trained` requires gradients. If that is adapters, matrices that
    /// the source has quantised stay so.
    ///
    /// # Errors
    /// As [`load_quantised`](Self::load_quantised).
    pub fn load(
        config: &Config,
        source: &dyn Source,
        trained: Trained<'_>,
        device: &RocmDevice,
        dtype: DType,
    ) -> Result<Self> {
        Self::load_quantised(config, source, trained, None, device, dtype)
    }

    /// [`load`](Self::load), with the layers' float matrices rounded. The embedding and the output
    /// matrix stay floats.
    ///
    /// # Errors
    /// [`Error::Argument`] for a dtype other than f64, f32, f16 and bf16, and for matrices that would
    /// be both rounded and trained, or rounded and f64; [`Error::Lora`] for adapters that don't fit;
    /// the errors of the source.
    pub fn load_quantised(
        config: &Config,
        source: &dyn Source,
        trained: Trained<'_>,
        round: Option<RoundTo>,
        device: &RocmDevice,
        dtype: DType,
    ) -> Result<Self> {
        if !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
            let (expected, found) = ("f64, f32, f16 or bf16".to_owned(), format!("{dtype:?}"));
            return Err(Error::Argument { name: "dtype", expected, found });
        }
        if round.is_some() && (matches!(trained, Trained::All) || dtype == DType::F64) {
            let expected = "adapters to train, in f32, f16 or bf16".to_owned();
            let all = if matches!(trained, Trained::All) { "all weights" } else { "adapters" };
            let found = format!("{all}, in {dtype:?}");
            return Err(Error::Argument { name: "quantize", expected, found });
        }
        let weights = expected(config);
        source.check(&weights)?;
        if let Trained::Again(peft) = trained {
            let names: Vec<String> =
                weights.iter().filter(|w| w.shape.len() == 2).map(|w| layer_name(w, config.family)).collect();
            peft.check_layers(|layer| names.iter().any(|name| name == layer))?;
        }
        let maker = Maker::<B> { config, source, weights, trained, round, device, dtype };
        let output = if config.tied { None } else { Some(maker.linear(Role::Output, None, None)?) };
        Ok(Self {
            embedding: maker.matrix(Role::Embedding, None)?,
            layers: (0..config.layers.len()).map(|index| maker.layer(index)).collect::<Result<_>>()?,
            norm: maker.norm(Role::FinalNorm, None)?,
            output,
            config: config.clone(),
        })
    }
}

impl<B: Backend> Decoder<B> {
    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The logits after each token.
    ///
    /// # Shapes
    /// - tokens: `[batch, time]`, as `places` has them
    /// - output: `[batch * time, vocabulary]`
    pub fn forward(&self, tokens: Tensor<B, 2, Int>, places: &Places<B>) -> Tensor<B, 2> {
        let [batch, time] = tokens.dims();
        let mut hidden = self.embedding.val().select(0, tokens.reshape([batch * time]));
        if let Some(scale) = self.config.embedding_scale {
            hidden = hidden.clone() * crate::model::rounded(scale, hidden.dtype());
        }
        for (layer, settings) in self.layers.iter().zip(&self.config.layers) {
            hidden = layer.forward(hidden, &self.config, settings, places);
        }
        let hidden = self.norm.forward(hidden);
        let logits = match &self.output {
            Some(output) => output.forward(hidden),
            None => hidden.matmul(self.embedding.val().transpose()),
        };
        match self.config.logit_softcap {
            Some(cap) => (logits / cap).tanh() * cap,
            None => logits,
        }
    }

    /// The layers with adapters.
    pub fn adapted(&self) -> impl Iterator<Item = &Adapted<B>> {
        let all = self.layers.iter().flat_map(Layer::linears).chain(&self.output);
        all.filter(|layer| layer.adapter.is_some())
    }

    /// The weights without adapters, as a checkpoint has them. Those that are quantised are left out.
    pub fn weights(&self) -> Vec<(Weight, TensorOf<B>)> {
        let of = |weight: &Weight| {
            let layer = weight.layer.map(|index| &self.layers[index]);
            match layer {
                Some(layer) => layer.weight(weight.role, self.config.norm_adds_one),
                None => match weight.role {
                    Role::Embedding => Some(TensorOf::Matrix(self.embedding.val())),
                    Role::FinalNorm => Some(factor(&self.norm, self.config.norm_adds_one)),
                    _ => self.output.as_ref().and_then(matrix),
                },
            }
        };
        let all = expected(&self.config);
        all.into_iter().filter_map(|weight| of(&weight).map(|tensor| (weight, tensor))).collect()
    }
}

/// A weight of either rank.
#[derive(Clone, Debug)]
pub enum TensorOf<B: Backend> {
    /// `[outputs, inputs]`.
    Matrix(Tensor<B, 2>),
    /// `[features]`.
    Vector(Tensor<B, 1>),
}

/// The floats of a layer.
fn floats<B: Backend>(layer: &Adapted<B>) -> Option<&Linear<B>> {
    match &layer.base {
        Base::Floats(linear) => Some(linear),
        Base::Quantised(_) => None,
    }
}

fn matrix<B: Backend>(layer: &Adapted<B>) -> Option<TensorOf<B>> {
    floats(layer).map(|linear| TensorOf::Matrix(linear.weight.val().transpose()))
}

fn factor<B: Backend>(norm: &RmsNorm<B>, adds_one: bool) -> TensorOf<B> {
    let gamma = norm.gamma.val();
    TensorOf::Vector(if adds_one { gamma - 1.0 } else { gamma })
}

impl<B: Backend> Layer<B> {
    fn linears(&self) -> [&Adapted<B>; 7] {
        [&self.query, &self.key, &self.value, &self.output, &self.gate, &self.up, &self.down]
    }

    fn weight(&self, role: Role, adds_one: bool) -> Option<TensorOf<B>> {
        use Role::*;
        let norm = |norm: &RmsNorm<B>| Some(factor(norm, adds_one));
        let bias = |layer: &Adapted<B>| {
            let bias = floats(layer).and_then(|linear| linear.bias.as_ref());
            bias.map(|bias| TensorOf::Vector(bias.val()))
        };
        match role {
            AttentionNorm => norm(&self.attention_norm),
            AttentionPostNorm => self.attention_post_norm.as_ref().and_then(norm),
            FeedForwardNorm => norm(&self.feed_forward_norm),
            FeedForwardPostNorm => self.feed_forward_post_norm.as_ref().and_then(norm),
            QueryNorm => self.query_norm.as_ref().and_then(norm),
            KeyNorm => self.key_norm.as_ref().and_then(norm),
            Query => matrix(&self.query),
            Key => matrix(&self.key),
            Value => matrix(&self.value),
            AttentionOutput => matrix(&self.output),
            Gate => matrix(&self.gate),
            Up => matrix(&self.up),
            Down => matrix(&self.down),
            QueryBias => bias(&self.query),
            KeyBias => bias(&self.key),
            ValueBias => bias(&self.value),
            AttentionOutputBias => bias(&self.output),
            GateBias => bias(&self.gate),
            UpBias => bias(&self.up),
            DownBias => bias(&self.down),
            Embedding | Output | FinalNorm => None,
        }
    }

    /// # Shapes
    /// - hidden, output: `[rows, width]`
    fn forward(
        &self,
        hidden: Tensor<B, 2>,
        config: &Config,
        settings: &LayerConfig,
        places: &Places<B>,
    ) -> Tensor<B, 2> {
        let post = |norm: &Option<RmsNorm<B>>, x| match norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let attended = self.attend(self.attention_norm.forward(hidden.clone()), config, settings, places);
        let hidden = hidden + post(&self.attention_post_norm, attended);
        let x = self.feed_forward_norm.forward(hidden.clone());
        let gate = self.gate.forward(x.clone());
        let gate = match config.activation {
            Activation::Silu => Silu::new().forward(gate),
            Activation::Gelu => gelu(gate),
            Activation::GeluTanh => gelu_approximate(gate),
        };
        let fed = self.down.forward(gate * self.up.forward(x));
        hidden + post(&self.feed_forward_post_norm, fed)
    }

    fn attend(
        &self,
        x: Tensor<B, 2>,
        config: &Config,
        settings: &LayerConfig,
        places: &Places<B>,
    ) -> Tensor<B, 2> {
        let [rows, _] = x.dims();
        let heads = |layer: &Adapted<B>, norm: &Option<RmsNorm<B>>, count: usize| {
            let x = layer.forward(x.clone()).reshape([rows, count, config.head_dim]);
            match norm {
                Some(norm) => norm.forward(x),
                None => x,
            }
        };
        let angles = &places.angles[settings.rope];
        let query = rotate(heads(&self.query, &self.query_norm, config.heads), angles);
        let key = rotate(heads(&self.key, &self.key_norm, config.kv_heads), angles);
        let value = heads(&self.value, &None, config.kv_heads);
        let (scale, window) = (Some(config.scale), settings.window);
        let context = if config.score_softcap.is_some() {
            // Packed attention has no softcaps. This one takes Burn's ops where a gradient is wanted.
            let [batch, time] = places.shape;
            let [query, key, value] = [query, key, value].map(|x| {
                let [_, heads, features] = x.dims();
                x.reshape([batch, time, heads, features]).swap_dims(1, 2)
            });
            let rule = AttentionRule { scale, softcap: config.score_softcap, causal: true, window };
            attention(query, key, value, &rule).swap_dims(1, 2).flatten(0, 1)
        } else {
            let options =
                PackedAttentionOptions { scale, causal: true, window, ..PackedAttentionOptions::default() };
            packed_attention(query, key, value, places.sequences.clone(), &options)
        };
        self.output.forward(context.reshape([rows, config.heads * config.head_dim]))
    }
}

/// Rotary position embedding: rotates features `i` and `i + pairs` of each head. Later features
/// stay.
///
/// # Shapes
/// - x, output: `[rows, heads, features]`
fn rotate<B: Backend>(x: Tensor<B, 3>, [cos, sin]: &[Tensor<B, 3>; 2]) -> Tensor<B, 3> {
    let ([_, _, features], [_, _, pairs]) = (x.dims(), cos.dims());
    let [cos, sin] = [cos, sin].map(|table| table.clone());
    let first = x.clone().narrow(2, 0, pairs);
    let second = x.clone().narrow(2, pairs, pairs);
    let mut parts =
        vec![first.clone() * cos.clone() - second.clone() * sin.clone(), second * cos + first * sin];
    if features > 2 * pairs {
        parts.push(x.narrow(2, 2 * pairs, features - 2 * pairs));
    }
    Tensor::cat(parts, 2)
}
