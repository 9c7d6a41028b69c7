//! Layers with quantised weights.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Int, Tensor};
use burn_rocm::fused::{Fp8Weight, QuantWeight};
use burn_rocm::{RocmError, RocmTensor, raise};

use crate::fuse::{Route, primitive, wrap};
use crate::ops::quant::{Fp8LinearOp, QuantLinearOp, bias_fits, embed};

fn elsewhere<B: Backend>(op: &'static str) -> RocmError {
    let what = format!("tensors of {}", std::any::type_name::<B>());
    RocmError::Unsupported { op, dtype: None, what: Some(what) }
}

/// A linear layer with a quantised weight and perhaps a bias, both frozen: `x W^T + b`. Under
/// autodiff, it has a gradient with respect to its input.
///
/// It is no Burn module, because it has no parameters. In a module, it is a field with
/// `#[module(skip)]`.
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
        let Some(route) = Route::<B>::of("QuantLinear") else { raise(elsewhere::<B>("QuantLinear")) };
        let op = QuantLinearOp { weight: self.weight.clone(), bias: self.bias.clone() };
        wrap(route.apply(op, [primitive(x)]).0)
    }
}

/// A linear layer with a weight of fp8 and perhaps a bias, both frozen: `x W^T + b`. The weight says whether
/// inputs become fp8 too ([`Fp8Weight::with_inputs`]). Under autodiff, the layer has a gradient with respect to its
/// input, computed as if inputs stayed floats.
///
/// It is no Burn module, because it has no parameters. In a module, it is a field with
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
