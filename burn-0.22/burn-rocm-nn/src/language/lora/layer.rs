//! A frozen layer with an adapter.

use burn::module::{Initializer, Module, Param};
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::module::linear;
use burn::tensor::{DType, Device, Tensor};

use super::{AdapterConfig, Lora, LoraError, Peft, PeftMatrix, PeftPair};
use crate::language::quant::QuantLinear;

/// A layer that an adapter can be added to. Burn's [`Linear`] and [`QuantLinear`] are; layers with
/// other weights may implement it.
pub trait FrozenLinear: Module {
    /// The layer's output.
    ///
    /// # Shapes
    /// - x: `[.., inputs]`
    /// - output: `[.., outputs]`
    fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D>;

    /// The numbers of inputs and of outputs.
    fn sizes(&self) -> [usize; 2];

    /// The device on which adapters of the layer are made.
    fn device(&self) -> Device;

    /// The layer beside adapters on `device`, the layer's [`device`](Self::device). A layer whose
    /// tensors don't tell whether a model has autodiff remembers it.
    fn beside(self, device: &Device) -> Self {
        let _ = device;
        self
    }

    /// The dtype of adapters that are made for this layer: f32, unless the layer computes in f64.
    fn adapter_dtype(&self) -> DType {
        DType::F32
    }

    /// The layer with `delta` `[inputs, outputs]` added to its weights; `None` if nothing can be added
    /// to them.
    fn plus(self, delta: Tensor<2>) -> Option<Self> {
        let _ = delta;
        None
    }
}

impl FrozenLinear for Linear {
    fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        Linear::forward(self, x)
    }

    fn sizes(&self) -> [usize; 2] {
        self.weight.shape().dims()
    }

    fn device(&self) -> Device {
        self.weight.val().device()
    }

    fn adapter_dtype(&self) -> DType {
        match self.weight.val().dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        }
    }

    /// Adds in the wider of both dtypes, and rounds once to that of the weights. An adapter that Burn
    /// attached to the weights becomes a part of them first.
    fn plus(mut self, delta: Tensor<2>) -> Option<Self> {
        self.weight = self.weight.materialize().map(|weight| {
            let dtype = weight.dtype();
            let is_tracked = weight.is_require_grad();
            let sum = (weight.detach().cast(delta.dtype()) + delta.detach()).cast(dtype);
            sum.set_require_grad(is_tracked)
        });
        Some(self)
    }
}

/// The weight stays quantised, forward and backward, and nothing can be added to it
/// ([QLoRA](https://arxiv.org/abs/2305.14314)).
impl FrozenLinear for QuantLinear {
    fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        QuantLinear::forward(self, x)
    }

    fn sizes(&self) -> [usize; 2] {
        let [outputs, inputs] = self.weight().shape();
        [inputs, outputs]
    }

    /// The layer's device with autodiff, because adapters are made to be trained. For inference
    /// alone, [`valid`](Module::valid) drops it. For gradient checkpointing, move the layer to such a
    /// device first.
    fn device(&self) -> Device {
        QuantLinear::device(self).clone().autodiff()
    }

    fn beside(self, device: &Device) -> Self {
        self.to_device(device)
    }
}

/// The two matrices of an adapter.
#[derive(Module, Debug)]
pub struct Adapter {
    /// `A`, `[inputs, rank]`: PEFT's `lora_A.weight` transposed.
    pub a: Param<Tensor<2>>,
    /// `B`, `[rank, outputs]`: PEFT's `lora_B.weight` transposed.
    pub b: Param<Tensor<2>>,
    /// Dropout of the input.
    pub dropout: Dropout,
    /// The factor of `x A B`.
    pub scale: f64,
}

impl Adapter {
    /// A new adapter: `A` is uniform within `1 / sqrt(inputs)`, as in PEFT, and `B` is 0.
    fn new<L: FrozenLinear>(config: AdapterConfig, base: &L) -> Self {
        let ([inputs, outputs], device, dtype) = (base.sizes(), base.device(), base.adapter_dtype());
        let bound = (inputs.max(1) as f64).powf(-0.5);
        let cast = |param: Param<Tensor<2>>| param.map(|tensor| leaf(tensor.cast(dtype)));
        Self::of(
            config,
            cast(Initializer::Uniform { min: -bound, max: bound }.init([inputs, config.rank], &device)),
            cast(Initializer::Zeros.init([config.rank, outputs], &device)),
        )
    }

    fn of(config: AdapterConfig, a: Param<Tensor<2>>, b: Param<Tensor<2>>) -> Self {
        Self { a, b, dropout: DropoutConfig::new(config.dropout).init(), scale: config.scale }
    }

    /// What the adapter adds to the layer's output, in the adapter's dtype.
    ///
    /// # Shapes
    /// - x: `[.., inputs]`
    /// - output: `[.., outputs]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let a = self.a.val();
        let x = self.dropout.forward(x.cast(a.dtype()));
        // The scale multiplies `x A`, which has fewer features than the output.
        linear(linear(x, a, None) * self.scale, self.b.val(), None)
    }

    /// `scale * A B`, `[inputs, outputs]`.
    pub fn delta(&self) -> Tensor<2> {
        (self.a.val() * self.scale).matmul(self.b.val())
    }
}

/// A leaf of the graph that requires a gradient; a plain tensor on a device without autodiff.
fn leaf<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match tensor.is_autodiff() {
        true => tensor.detach().require_grad(),
        false => tensor,
    }
}

/// A layer of a model that may have an adapter. [`Lora::adapt`] and [`Peft::adapt`] make one, whose
/// layer is frozen.
///
/// A record has the parameters of the layer and of the adapter.
#[derive(Module, Debug)]
pub struct LoraLayer<L: Module> {
    /// The layer.
    pub base: L,
    /// The adapter.
    pub adapter: Option<Adapter>,
    /// The layer's name in the checkpoint of the model.
    #[module(skip)]
    pub name: String,
}

/// A [`LoraLayer`] of Burn's linear layer.
pub type LoraLinear = LoraLayer<Linear>;

impl Lora {
    /// The layer, frozen. It gets a new adapter if its name is a target. At first the adapter
    /// changes nothing, because its second matrix is 0.
    pub fn adapt<L: FrozenLinear>(&self, name: &str, base: L) -> LoraLayer<L> {
        let adapter = self.adapter(name).map(|config| Adapter::new(config, &base));
        LoraLayer::frozen(name, base, adapter)
    }
}

impl Peft {
    /// The layer, frozen. If its name is a target, it gets the file's adapter.
    ///
    /// # Errors
    /// [`LoraError::Tensor`] if the file lacks the adapter or has it for other sizes.
    pub fn adapt<L: FrozenLinear>(&self, name: &str, base: L) -> Result<LoraLayer<L>, LoraError> {
        let (device, dtype) = (base.device(), base.adapter_dtype());
        let of = |matrix: &PeftMatrix| {
            let tensor = Tensor::<2>::from_data(matrix.data(), (&device, matrix.dtype)).cast(dtype);
            Param::from_tensor(leaf(tensor.transpose() + 0.0))
        };
        let pair = self.pair(name, base.sizes())?;
        let adapter = pair.map(|(config, pair)| Adapter::of(config, of(&pair.a), of(&pair.b)));
        Ok(LoraLayer::frozen(name, base, adapter))
    }
}

impl<L: FrozenLinear> LoraLayer<L> {
    /// The layer as it is: without an adapter, and not frozen.
    pub fn plain(name: &str, base: L) -> Self {
        Self::of(name, base, None)
    }

    fn frozen(name: &str, base: L, adapter: Option<Adapter>) -> Self {
        let device = base.device();
        Self::of(name, base.no_grad().beside(&device), adapter)
    }

    fn of(name: &str, base: L, adapter: Option<Adapter>) -> Self {
        Self { base, adapter, name: name.to_owned() }
    }

    /// The layer's output, to which the adapter's is added. Both are computed in their own dtypes,
    /// and the sum has that of the layer.
    ///
    /// # Shapes
    /// - x: `[.., inputs]`
    /// - output: `[.., outputs]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let Some(adapter) = &self.adapter else { return self.base.forward(x) };
        let output = self.base.forward(x.clone());
        let dtype = output.dtype();
        output + adapter.forward(x).cast(dtype)
    }

    /// The layer with its adapter merged into the weights: `W + scale A B`, added in the adapter's
    /// dtype and rounded once to that of the weights. A layer without an adapter is returned as it
    /// is.
    ///
    /// # Errors
    /// [`LoraError::Layer`] if the layer's weights can't be added to ([`FrozenLinear::plus`]).
    pub fn merged(&self) -> Result<L, LoraError> {
        self.with(self.base.clone(), 1.0)
    }

    /// Undoes [`merged`](Self::merged): the layer with `scale A B` subtracted from its weights, rounded
    /// once. So a layer that was merged and unmerged may differ from the original by two roundings
    /// of its weights. Only a copy of the original is exact.
    ///
    /// # Errors
    /// As [`merged`](Self::merged).
    pub fn unmerged(&self, merged: L) -> Result<L, LoraError> {
        self.with(merged, -1.0)
    }

    fn with(&self, layer: L, sign: f64) -> Result<L, LoraError> {
        let Some(adapter) = &self.adapter else { return Ok(layer) };
        layer.plus(adapter.delta() * sign).ok_or_else(|| LoraError::Layer {
            layer: self.name.clone(),
            expected: "weights to which an adapter can be added".to_owned(),
            found: std::any::type_name::<L>().to_owned(),
        })
    }

    /// The adapter with the layer's name, as PEFT's files have it. Waits for the device.
    ///
    /// # Errors
    /// [`LoraError::Read`] if the device reports an error.
    pub fn pair(&self) -> Result<Option<(String, PeftPair)>, LoraError> {
        let Some(adapter) = &self.adapter else { return Ok(None) };
        let read = |param: &Param<Tensor<2>>| {
            let matrix = param.val().detach().transpose();
            let (shape, dtype) = (matrix.dims(), matrix.dtype());
            let data = matrix
                .try_into_data()
                .map_err(|why| LoraError::Read { layer: self.name.clone(), reason: why.to_string() })?;
            Ok(PeftMatrix { shape, dtype, bytes: data.as_bytes().to_vec() })
        };
        Ok(Some((self.name.clone(), PeftPair { a: read(&adapter.a)?, b: read(&adapter.b)? })))
    }
}
