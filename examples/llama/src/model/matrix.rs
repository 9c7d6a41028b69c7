//! The matrix of a linear layer or of an embedding, plain or quantised.

use std::ops::Range;

use burn::tensor::{DType, Int, Tensor, TensorPrimitive};
use burn_rocm::fused::{
    Projected, Projection, ProjectionWeight, QUANT_ROWS, QuantWeight, projection, quant_linear,
};

use super::B;
use super::ops::{linear, primitive, wrap};
use crate::error::Result;

/// A matrix `[outputs, inputs]`.
#[allow(clippy::large_enum_variant, reason = "a model has some hundred matrices")]
#[derive(Debug)]
pub(super) enum Matrix {
    /// Floats.
    Plain(Tensor<B, 2>),
    /// Codes with scales, which products read as they are, and the adapter beside them.
    Quantised(QuantWeight, Option<Adapter>),
}

/// A matrix of low rank, `B A`, in f32.
#[derive(Clone, Debug)]
pub(super) struct Adapter {
    /// `[rank, inputs]`.
    pub(super) a: Tensor<B, 2>,
    /// `[outputs, rank]`.
    pub(super) b: Tensor<B, 2>,
}

impl Adapter {
    /// `y + x A^T B^T`, computed in f32 and rounded to the dtype of `y` before it is added.
    ///
    /// # Shapes
    /// - x: `[tokens, inputs]`; y, output: `[tokens, outputs]`
    fn add(&self, x: Tensor<B, 2>, y: Tensor<B, 2>) -> Tensor<B, 2> {
        let narrow = linear(x.cast(DType::F32), &self.a, None);
        let dtype = y.dtype();
        y + linear(narrow, &self.b, None).cast(dtype)
    }

    /// Joins the adapters of two matrices with these numbers of outputs. The rank is the sum of both
    /// ranks. `B` has zeros where a row belongs to one matrix and a column to the other.
    fn joined(parts: [(Option<&Self>, usize); 2]) -> Option<Self> {
        let [(one, first), (other, second)] = parts;
        let below = |b: &Tensor<B, 2>, outputs: usize| {
            Tensor::zeros([outputs, b.dims()[1]], (&b.device(), DType::F32))
        };
        let one = one.map(|Self { a, b }| (a.clone(), vec![b.clone(), below(b, second)]));
        let other = other.map(|Self { a, b }| (a.clone(), vec![below(b, first), b.clone()]));
        let (a, b): (Vec<_>, Vec<_>) =
            [one, other].into_iter().flatten().map(|(a, b)| (a, Tensor::cat(b, 0))).unzip();
        (!a.is_empty()).then(|| Self { a: Tensor::cat(a, 0), b: Tensor::cat(b, 1) })
    }
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
            Self::Quantised(weight, adapter) => {
                let bias = bias.map(|bias| bias.clone().into_primitive().tensor());
                let y = quant_linear(x.clone().into_primitive().tensor(), weight, bias)?;
                let y = Tensor::from_primitive(TensorPrimitive::Float(y));
                match adapter {
                    Some(adapter) => adapter.add(x, y),
                    None => y,
                }
            }
        })
    }

    /// Whether no adapter is computed beside the product.
    pub(super) fn is_alone(&self) -> bool {
        !matches!(self, Self::Quantised(_, Some(_)))
    }

    /// Whether [`projected`](Self::projected) is one kernel for so many tokens.
    pub(super) fn takes_few(&self, tokens: usize) -> bool {
        match self {
            Self::Plain(_) => tokens == 1,
            Self::Quantised(..) => tokens <= QUANT_ROWS,
        }
    }

    /// The product with what is around it in a layer, for few tokens in one kernel, and its norm if
    /// there is one. Without the adapter.
    ///
    /// # Shapes
    /// - x: `[tokens, inputs]`
    /// - output: `[tokens, outputs]`, or half as many with a gate
    pub(super) fn projected(
        &self,
        x: Projected,
        options: Projection,
    ) -> Result<(Tensor<B, 2>, Option<Projected>)> {
        let plain;
        let weight = match self {
            Self::Plain(weight) => {
                plain = primitive(weight.clone());
                ProjectionWeight::Floats(&plain)
            }
            Self::Quantised(weight, _) => ProjectionWeight::Quantised(weight),
        };
        let (y, normed) = projection(x, weight, options)?;
        Ok((wrap(y), normed))
    }

    /// Both matrices as one, with the outputs of `next` behind; `None` if they are stored in
    /// different ways.
    pub(super) fn joined(&self, next: &Self) -> Result<Option<Self>> {
        Ok(match (self, next) {
            (Self::Plain(one), Self::Plain(other)) => {
                Some(Self::Plain(Tensor::cat(vec![one.clone(), other.clone()], 0)))
            }
            (Self::Quantised(one, first), Self::Quantised(other, second)) => {
                let parts = [(first.as_ref(), one.shape()[0]), (second.as_ref(), other.shape()[0])];
                let joined = QuantWeight::joined(&[one.clone(), other.clone()])?;
                joined.map(|joined| Self::Quantised(joined, Adapter::joined(parts)))
            }
            _ => None,
        })
    }

    /// The matrix of some outputs, in the same memory.
    pub(super) fn outputs(&self, range: Range<usize>) -> Result<Self> {
        let rows = |matrix: &Tensor<B, 2>| matrix.clone().narrow(0, range.start, range.len());
        Ok(match self {
            Self::Plain(weight) => Self::Plain(rows(weight)),
            Self::Quantised(weight, adapter) => {
                let adapter = adapter.as_ref().map(|Adapter { a, b }| Adapter { a: a.clone(), b: rows(b) });
                Self::Quantised(weight.outputs(range.clone())?, adapter)
            }
        })
    }

    /// The rows at the indices, in this dtype. Embeddings have no adapters.
    ///
    /// # Shapes
    /// - indices: `[tokens]`
    /// - output: `[tokens, inputs]`
    pub(super) fn rows(&self, indices: Tensor<B, 1, Int>, dtype: DType) -> Result<Tensor<B, 2>> {
        Ok(match self {
            Self::Plain(table) => table.clone().select(0, indices),
            Self::Quantised(weight, _) => {
                let rows = weight.embedding(indices.into_primitive(), dtype)?;
                Tensor::from_primitive(TensorPrimitive::Float(rows))
            }
        })
    }
}
