//! Reductions over any set of dimensions.

use std::ffi::c_void;

use miopen_sys::*;

use super::descriptor::{ReduceTensorDesc, TensorDesc};
use super::{Dnn, TensorArg, carry, check, data_type, elements, one, over_limit, zero};
use crate::memory::span::Span;
use crate::settings::workspace_limit;
use crate::{DType, Error, Result};

const OP: &str = "reduce";

/// The op of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The product.
    Product,
    /// The smallest element.
    Min,
    /// The largest element.
    Max,
    /// The largest absolute value.
    AbsMax,
    /// The mean.
    Mean,
    /// The sum of the absolute values.
    Norm1,
    /// The square root of the sum of squares.
    Norm2,
}

/// A reduction's shapes and op.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceDesc {
    /// f32, f16, bf16 or f64. f16 and bf16 accumulate in f32.
    pub dtype: DType,
    /// Shape of the input, of rank 1 to 5.
    pub x: Vec<usize>,
    /// Shape of the output: that of the input with 1 for each reduced dimension.
    pub y: Vec<usize>,
    /// The op.
    pub op: Reduction,
}

static ONE: f64 = 1.0;
static ZERO: f64 = 0.0;

impl ReduceDesc {
    fn validate(&self, indices: bool) -> Result<()> {
        let invalid = |expected: &str| Err(Error::invalid(OP, expected, format!("{self:?}")));
        if self.x.len() != self.y.len() || !(1..=5).contains(&self.x.len()) {
            return invalid("two shapes of the same rank, 1 to 5");
        }
        if self.x.iter().zip(&self.y).any(|(&x, &y)| y != x && y != 1) {
            return invalid("an output of the input's dimensions, or 1");
        }
        if self.x.contains(&0) {
            return invalid("an input with elements");
        }
        if indices && !matches!(self.op, Reduction::Min | Reduction::Max | Reduction::AbsMax) {
            return invalid("indices of a min or max only");
        }
        Ok(())
    }
}

impl Dnn {
    /// `y`, the reduction of `x`. `indices` (u32, shaped like `y`; only for `Min`, `Max` and
    /// `AbsMax`) receives the row-major index of each found element within the reduced dimensions.
    /// NaN propagates. The maximum of elements that are all -inf is the lowest finite number, and
    /// the minimum of elements that are all inf is the highest.
    ///
    /// # Errors
    /// `Unsupported` for the dtype; `Invalid` for shapes that don't fit together, or memory that is
    /// too small or overlaps; `OutOfMemory` for the workspace; `Miopen` if the library fails.
    pub fn reduce(
        &self,
        desc: &ReduceDesc,
        x: TensorArg<'_>,
        y: TensorArg<'_>,
        indices: Option<TensorArg<'_>>,
    ) -> Result<()> {
        let data_type = data_type(OP, desc.dtype, &[DType::F32, DType::F16, DType::BF16, DType::F64])?;
        desc.validate(indices.is_some())?;
        let (xs, ys) = (
            self.span(OP, x, desc.dtype, elements(OP, &desc.x)?)?,
            self.span(OP, y, desc.dtype, elements(OP, &desc.y)?)?,
        );
        let is = self.span_or_null(OP, indices, DType::U32, elements(OP, &desc.y)?)?;
        ys.apart_from(OP, &[xs, is])?;
        is.apart_from(OP, &[xs])?;
        carry([x], [y].into_iter().chain(indices));

        let table = self.table;
        let double = desc.dtype == DType::F64;
        let kind = ReduceTensorDesc::new(
            table,
            desc.op.raw(),
            if double { miopenDouble } else { miopenFloat },
            if indices.is_some() {
                MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES
            } else {
                MIOPEN_REDUCE_TENSOR_NO_INDICES
            },
        )?;
        let x_desc = TensorDesc::packed(table, OP, data_type, &desc.x)?;
        let y_desc = TensorDesc::packed(table, OP, data_type, &desc.y)?;
        let (mut bytes, mut index_bytes) = (0, 0);
        {
            let handle = self.begin(y.buffer)?;
            // SAFETY: the descriptors are valid; the sizes outlive the calls.
            let status = unsafe {
                (table.miopenGetReductionWorkspaceSize)(
                    handle.raw,
                    kind.raw(),
                    x_desc.raw(),
                    y_desc.raw(),
                    &mut bytes,
                )
            };
            check(self.table, "miopenGetReductionWorkspaceSize", status, || format!("{desc:?}"))?;
            // SAFETY: as above.
            let status = unsafe {
                (table.miopenGetReductionIndicesSize)(
                    handle.raw,
                    kind.raw(),
                    x_desc.raw(),
                    y_desc.raw(),
                    &mut index_bytes,
                )
            };
            check(self.table, "miopenGetReductionIndicesSize", status, || format!("{desc:?}"))?;
        }
        if indices.is_some() && index_bytes != is.bytes {
            return Err(Error::invalid(OP, format!("{index_bytes} bytes of indices"), is.bytes.to_string()));
        }
        if bytes > workspace_limit() {
            return Err(over_limit(OP, desc.dtype, bytes, format_args!("{desc:?}")));
        }
        let workspace = super::workspace(y.buffer.device(), bytes)?;
        let space = if bytes == 0 { Span::NULL } else { Span { ptr: workspace.as_ptr(), bytes } };
        let (alpha, beta): (*const c_void, *const c_void) =
            if double { ((&raw const ONE).cast(), (&raw const ZERO).cast()) } else { (one(), zero()) };
        let handle = self.begin(y.buffer)?;
        // SAFETY: the spans hold the tensors that the descriptors describe and the bytes that
        // MIOpen asked for. The pool keeps them until the stream has passed the call. The scalars
        // are static.
        let status = unsafe {
            (table.miopenReduceTensor)(
                handle.raw,
                kind.raw(),
                is.ptr,
                is.bytes,
                space.ptr,
                space.bytes,
                alpha,
                x_desc.raw(),
                xs.ptr,
                beta,
                y_desc.raw(),
                ys.ptr,
            )
        };
        self.served("miopenReduceTensor", status, || format!("{desc:?}"))
    }
}

impl Reduction {
    fn raw(self) -> miopenReduceTensorOp_t {
        match self {
            Self::Sum => MIOPEN_REDUCE_TENSOR_ADD,
            Self::Product => MIOPEN_REDUCE_TENSOR_MUL,
            Self::Min => MIOPEN_REDUCE_TENSOR_MIN,
            Self::Max => MIOPEN_REDUCE_TENSOR_MAX,
            Self::AbsMax => MIOPEN_REDUCE_TENSOR_AMAX,
            Self::Mean => MIOPEN_REDUCE_TENSOR_AVG,
            Self::Norm1 => MIOPEN_REDUCE_TENSOR_NORM1,
            Self::Norm2 => MIOPEN_REDUCE_TENSOR_NORM2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked() {
        let desc =
            |x: &[usize], y: &[usize], op| ReduceDesc { dtype: DType::F32, x: x.into(), y: y.into(), op };
        desc(&[2, 3], &[1, 3], Reduction::Max).validate(true).unwrap();
        assert!(desc(&[2, 3], &[1, 3], Reduction::Sum).validate(true).is_err());
        assert!(desc(&[2, 3], &[3], Reduction::Sum).validate(false).is_err());
        assert!(desc(&[2, 3], &[2, 2], Reduction::Sum).validate(false).is_err());
        assert!(desc(&[2, 0], &[2, 1], Reduction::Sum).validate(false).is_err());
    }
}
