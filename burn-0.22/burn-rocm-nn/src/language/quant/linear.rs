//! Layers with quantised weights.

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::{DType, Device, Int, Tensor};
use burn_rocm::fused::{Fp8Weight, QuantWeight};
use burn_rocm::{RocmError, RocmTensor, raise};

use crate::fuse::{Route, from_rocm, on_rocm, primitive, rocm, wrap};
use crate::ops::quant::{Fp8LinearOp, QuantLinearOp, bias_fits, embed};

fn elsewhere(op: &'static str, device: &Device) -> RocmError {
    let what = format!("tensors on {device:?}");
    RocmError::Unsupported { op, dtype: None, what: Some(what) }
}

/// A linear layer with a quantised weight and perhaps a bias, both frozen: `x W^T + b`. Under
/// autodiff, it has a gradient with respect to its input.
///
/// As a Burn module, it has no parameters: optimizers pass it over, and records leave it out.
/// [`LoraLayer`](crate::language::lora::LoraLayer) adds an adapter that can be trained.
///
/// The weight has no autodiff, but the layer remembers that of its device, on which adapters are
/// made. [`to_device`](Module::to_device) sets it if the layer has none, and else leaves it as it
/// is, as for parameters.
#[derive(Clone, Debug)]
pub struct QuantLinear {
    weight: QuantWeight,
    bias: Option<RocmTensor>,
    device: Device,
}

impl QuantLinear {
    /// A layer of a weight and a bias `[outs]`, whose dtype is that of the inputs. The layer's
    /// device is the bias's, with its autodiff. Without a bias, it is the weight's without autodiff.
    ///
    /// # Errors
    /// `Unsupported` for a bias on another project's device, and for a bias that requires a
    /// gradient; `Invalid` for a bias of another shape or device.
    pub fn new(weight: QuantWeight, bias: Option<Tensor<1>>) -> Result<Self, RocmError> {
        let device = bias.as_ref().map(Tensor::device);
        let bias = bias.as_ref().map(crate::custom::constant).transpose()?;
        bias_fits("QuantLinear", weight.shape()[0], weight.device(), bias.as_ref())?;
        let device = device.unwrap_or_else(|| Device::rocm(weight.device().index));
        Ok(Self { weight, bias, device })
    }

    /// The weight.
    pub fn weight(&self) -> &QuantWeight {
        &self.weight
    }

    /// The layer's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Applies the layer.
    ///
    /// # Shapes
    /// - x: `[.., inputs]`
    /// - output: `[.., outs]`
    ///
    /// # Panics
    /// With the op's error, as Burn's ops do.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let Some(route) = Route::of("QuantLinear", &x) else { raise(elsewhere("QuantLinear", &x.device())) };
        let op = QuantLinearOp { weight: self.weight.clone(), bias: self.bias.clone() };
        wrap(route.apply(op, [primitive(x)]).0)
    }
}

/// Panics, as Burn's ops do, for another project's device and with an error of a device.
impl Module for QuantLinear {
    fn visit<V: ModuleVisitor>(&self, _: &mut V) {}

    fn map<M: ModuleMapper>(self, _: &mut M) -> Self {
        self
    }

    fn to_device(self, device: &Device) -> Self {
        if !on_rocm(device) {
            raise(elsewhere("QuantLinear", device));
        }
        let own = rocm(Tensor::<1>::empty([1], device)).rocm_device();
        let weight = self.weight.to_device(&own).unwrap_or_else(|error| raise(error));
        let bias = self.bias.map(|bias| rocm(from_rocm::<1>(bias).to_device(device)));
        let device = match self.device.is_autodiff() {
            true => device.clone().with_autodiff_context_from(&self.device),
            false => device.clone(),
        };
        Self { weight, bias, device }
    }

    fn fork(self, device: &Device) -> Self {
        self.to_device(device)
    }

    /// Devices differ by their hardware alone. The first one of a model also tells whether the model
    /// has autodiff, so the layer adds its own with the autodiff that it remembers.
    fn collect_devices(&self, mut devices: Devices) -> Devices {
        if !devices.contains(&self.device) {
            devices.push(self.device.clone());
        }
        devices
    }

    fn materialize(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        Self { device: self.device.clone().without_autodiff(), ..self.clone() }
    }

    fn train(self) -> Self {
        Self { device: self.device.autodiff(), ..self }
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
    /// `Unsupported` for a bias on another project's device, and for a bias that requires a
    /// gradient; `Invalid` for a bias of another shape or device.
    pub fn new(weight: Fp8Weight, bias: Option<Tensor<1>>) -> Result<Self, RocmError> {
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
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let Some(route) = Route::of("Fp8Linear", &x) else { raise(elsewhere("Fp8Linear", &x.device())) };
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
    pub fn forward(&self, indices: Tensor<1, Int>) -> Tensor<2> {
        let device = indices.device();
        let Some(route) = Route::on(&device) else { raise(elsewhere("QuantEmbedding", &device)) };
        let rows = from_rocm(embed(&self.weight, route.int(indices), self.dtype));
        if route.records() { Tensor::from_inner(rows) } else { rows }
    }
}
