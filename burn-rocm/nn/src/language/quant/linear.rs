//! Layers with quantised weights.

use burn::module::{
    AutodiffModule, Content, Devices, EmptyRecord, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper,
    ModuleVisitor,
};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Int, Tensor};
use burn_rocm::fused::{Fp8Weight, QuantWeight};
use burn_rocm::{Rocm, RocmError, RocmTensor, raise};

use crate::fuse::{Route, from_rocm, primitive, rocm, wrap};
use crate::ops::quant::{Fp8LinearOp, QuantLinearOp, bias_fits, embed};

fn elsewhere<B: Backend>(op: &'static str) -> RocmError {
    let what = format!("tensors of {}", std::any::type_name::<B>());
    RocmError::Unsupported { op, dtype: None, what: Some(what) }
}

fn route<B: Backend>() -> Route<B> {
    Route::<B>::of("QuantLinear").unwrap_or_else(|| raise(elsewhere::<B>("QuantLinear")))
}

/// A linear layer with a quantised weight and perhaps a bias, both frozen: `x W^T + b`. Under
/// autodiff, it has a gradient with respect to its input.
///
/// As a Burn module, it has no parameters: optimizers pass it over, and records leave it out.
/// [`LoraLayer`](crate::language::lora::LoraLayer) adds an adapter that can be trained.
#[derive(Clone, Debug)]
pub struct QuantLinear {
    weight: QuantWeight,
    bias: Option<RocmTensor>,
}

impl QuantLinear {
    /// A layer of a weight and a bias `[outs]`, whose dtype is that of the inputs.
    ///
    /// # Errors
    /// `Unsupported` for another backend than this project's, and for a bias that requires a
    /// gradient; `Invalid` for a bias of another shape or device.
    pub fn new<B: Backend>(weight: QuantWeight, bias: Option<Tensor<B, 1>>) -> Result<Self, RocmError> {
        let bias = bias.as_ref().map(crate::custom::constant).transpose()?;
        bias_fits("QuantLinear", weight.shape()[0], weight.device(), bias.as_ref())?;
        Ok(Self { weight, bias })
    }

    /// The weight.
    pub fn weight(&self) -> &QuantWeight {
        &self.weight
    }

    /// Applies the layer.
    ///
    /// # Shapes
    /// - x: `[.., inputs]`
    /// - output: `[.., outs]`
    ///
    /// # Panics
    /// With the op's error, as Burn's ops do.
    pub fn forward<B: Backend, const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let op = QuantLinearOp { weight: self.weight.clone(), bias: self.bias.clone() };
        wrap(route::<B>().apply(op, [primitive(x)]).0)
    }

    /// The device of the weight as one of `B`. Panics for another backend than this project's.
    pub(crate) fn device_of<B: Backend>(&self) -> B::Device {
        route::<B>().own_device(self.weight.device())
    }
}

/// Panics, as Burn's ops do, for another backend than this project's and with an error of a device.
impl<B: Backend> Module<B> for QuantLinear {
    type Record = EmptyRecord;

    fn visit<V: ModuleVisitor<B>>(&self, _: &mut V) {}

    fn map<M: ModuleMapper<B>>(self, _: &mut M) -> Self {
        self
    }

    fn load_record(self, _: EmptyRecord) -> Self {
        self
    }

    fn into_record(self) -> EmptyRecord {
        EmptyRecord::new()
    }

    fn to_device(self, device: &B::Device) -> Self {
        let device = route::<B>().device(device);
        let weight = self.weight.to_device(&device).unwrap_or_else(|error| raise(error));
        let bias = self.bias.map(|bias| rocm(from_rocm::<Rocm, 1>(bias).to_device(&device)));
        Self { weight, bias }
    }

    fn fork(self, device: &B::Device) -> Self {
        Module::<B>::to_device(self, device)
    }

    fn collect_devices(&self, mut devices: Devices<B>) -> Devices<B> {
        let own = self.device_of::<B>();
        if !devices.contains(&own) {
            devices.push(own);
        }
        devices
    }
}

impl<B: AutodiffBackend> AutodiffModule<B> for QuantLinear {
    type InnerModule = Self;

    fn valid(&self) -> Self {
        self.clone()
    }

    fn from_inner(module: Self) -> Self {
        module
    }
}

impl ModuleDisplayDefault for QuantLinear {
    fn content(&self, content: Content) -> Option<Content> {
        let [outs, inputs] = self.weight.shape();
        content
            .set_top_level_type("QuantLinear")
            .add("d_input", &inputs)
            .add("d_output", &outs)
            .add_debug_attribute("format", &self.weight.format())
            .add("bias", &self.bias.is_some())
            .optional()
    }
}

impl ModuleDisplay for QuantLinear {}

/// A linear layer with a weight of fp8 and perhaps a bias, both frozen: `x W^T + b`. The weight says whether
/// inputs become fp8 too ([`Fp8Weight::with_inputs`]). Under autodiff, the layer has a gradient with respect to its
/// input, computed as if inputs stayed floats.
///
/// It is not a Burn module. A module keeps it in a field with
/// `#[module(skip)]`.
#[derive(Clone, Debug)]
pub struct Fp8Linear {
    weight: Fp8Weight,
    bias: Option<RocmTensor>,
}

impl Fp8Linear {
    /// A layer of a weight and a bias `[outs]`, whose dtype is that of the inputs.
    ///
    /// # Errors
    /// `Unsupported` for another backend than this project's, and for a bias that requires a
    /// gradient; `Invalid` for a bias of another shape or device.
    pub fn new<B: Backend>(weight: Fp8Weight, bias: Option<Tensor<B, 1>>) -> Result<Self, RocmError> {
        let bias = bias.as_ref().map(crate::custom::constant).transpose()?;
        bias_fits("Fp8Linear", weight.shape()[0], weight.device(), bias.as_ref())?;
        Ok(Self { weight, bias })
    }

    /// The weight.
    pub fn weight(&self) -> &Fp8Weight {
        &self.weight
    }

    /// Applies the layer.
    ///
    /// # Shapes
    /// - x: `[.., inputs]`
    /// - output: `[.., outs]`
    ///
    /// # Panics
    /// With the op's error, as Burn's ops do.
    pub fn forward<B: Backend, const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let Some(route) = Route::<B>::of("Fp8Linear") else { raise(elsewhere::<B>("Fp8Linear")) };
        let op = Fp8LinearOp { weight: self.weight.clone(), bias: self.bias.clone() };
        wrap(route.apply(op, [primitive(x)]).0)
    }
}

/// A quantised table of embeddings, frozen.
#[derive(Clone, Debug)]
pub struct QuantEmbedding {
    weight: QuantWeight,
    dtype: DType,
}

impl QuantEmbedding {
    /// A table whose rows are read as `dtype`: f32, f16 or bf16.
    pub fn new(weight: QuantWeight, dtype: DType) -> Self {
        Self { weight, dtype }
    }

    /// The table.
    pub fn weight(&self) -> &QuantWeight {
        &self.weight
    }

    /// The rows at the indices.
    ///
    /// # Shapes
    /// - indices: `[count]`
    /// - output: `[count, width]`
    ///
    /// # Panics
    /// With the op's error, as Burn's ops do.
    pub fn forward<B: Backend>(&self, indices: Tensor<B, 1, Int>) -> Tensor<B, 2> {
        let Some(route) = Route::<B>::of("QuantEmbedding") else { raise(elsewhere::<B>("QuantEmbedding")) };
        route.constant(embed(&self.weight, route.int(indices), self.dtype))
    }
}
