//! The matrix of a linear layer or of an embedding, plain or quantised.

use std::ops::Range;

use burn::tensor::{DType, Int, Tensor, TensorPrimitive};
use burn_rocm::fused::{QuantWeight, quant_linear};

use super::B;
use super::ops::linear;
use crate::error::Result;

/// A matrix `[outputs, inputs]`.
#[derive(Debug)]
pub(super) enum Matrix {
    /// Floats.
    Plain(Tensor<B, 2>),
    /// Codes with scales, which products read as they are.
    Quantised(QuantWeight),
}

impl Matrix {
    /// `x` times the transposed matrix, plus the bias.
    ///
    /// # Shapes
    /// - x: `[tokens, inputs]`; bias: `[outputs]`
    /// - output: `[tokens, outputs]`
    pub(super) fn product(&self, x: Tensor<B, 2>, bias: Option<&Tensor<B, 1>>) -> Result<Tensor<B, 2>> {
        Ok(match self {
            Self::Plain(weight) => linear(x, weight, bias),
            Self::Quantised(weight) => {
                let bias = bias.map(|bias| bias.clone().into_primitive().tensor());
                let y = quant_linear(x.into_primitive().tensor(), weight, bias)?;
                Tensor::from_primitive(TensorPrimitive::Float(y))
            }
        })
    }

    /// Both matrices as one, with the outputs of `next` behind; `None` if they are stored in
    /// different ways.
    pub(super) fn joined(&self, next: &Self) -> Result<Option<Self>> {
        Ok(match (self, next) {
            (Self::Plain(one), Self::Plain(other)) => {
                Some(Self::Plain(Tensor::cat(vec![one.clone(), other.clone()], 0)))
            }
            (Self::Quantised(one), Self::Quantised(other)) => {
                QuantWeight::joined(&[one.clone(), other.clone()])?.map(Self::Quantised)
            }
            _ => None,
        })
    }

    /// The matrix of some outputs, in the same memory.
    pub(super) fn outputs(&self, range: Range<usize>) -> Result<Self> {
        Ok(match self {
            Self::Plain(weight) => Self::Plain(weight.clone().narrow(0, range.start, range.len())),
            Self::Quantised(weight) => Self::Quantised(weight.outputs(range)?),
        })
    }

    /// The rows at the indices, in this dtype.
    ///
    /// # Shapes
    /// - indices: `[tokens]`
    /// - output: `[tokens, inputs]`
    pub(super) fn rows(&self, indices: Tensor<B, 1, Int>, dtype: DType) -> Result<Tensor<B, 2>> {
        Ok(match self {
            Self::Plain(table) => table.clone().select(0, indices),
            Self::Quantised(weight) => {
                let rows = weight.embedding(indices.into_primitive(), dtype)?;
                Tensor::from_primitive(TensorPrimitive::Float(rows))
            }
        })
    }
}
