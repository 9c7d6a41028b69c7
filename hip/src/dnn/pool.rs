//! Pooling in 2-D and 3-D, forward and backward.

use miopen_sys::*;

use super::descriptor::{PoolingDesc, TensorDesc, ints};
use super::{Dnn, NO_BF16, Refusal, TensorArg, carry, check, data_type, elements, one, zero};
use crate::memory::span::Span;
use crate::{DType, Error, Result};

const OP: &str = "pooling";

/// How a pooling combines the elements of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolMode {
    /// Its largest element.
    Max,
    /// The mean of its elements, including the zeros of the padding.
    AverageInclusive,
    /// The mean of those of its elements that lie inside the input.
    AverageExclusive,
}

/// A pooling's shapes and options. The spatial rank is 2 or 3; `window`, `stride` and `padding`
/// have one entry for each spatial axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolDesc {
    /// f32 or f16; MIOpen has no bf16 pooling.
    pub dtype: DType,
    /// Shape of the input: batch, channels, then depth (3-D), height, width.
    pub x: Vec<usize>,
    /// Shape of the output.
    pub y: Vec<usize>,
    /// Size of the window.
    pub window: Vec<usize>,
    /// Steps of the window.
    pub stride: Vec<usize>,
    /// Padding at each end of each spatial dimension.
    pub padding: Vec<usize>,
    /// How the elements of a window are combined.
    pub mode: PoolMode,
    /// The dtype of the indices: u32 or i32, or u64 or i64.
    pub index: DType,
}

/// Descriptors for one shape.
pub(super) struct Prepared {
    pool: PoolingDesc,
    x: TensorDesc,
    y: TensorDesc,
    /// Bytes of the indices.
    indices: usize,
    /// Why MIOpen refuses the shape.
    refused: Refusal,
}

impl PoolDesc {
    /// Whether MIOpen pools this dtype. For other dtypes [`Dnn`]'s calls return `Unsupported`.
    pub fn takes(dtype: DType) -> bool {
        NO_BF16.contains(&dtype)
    }

    fn validate(&self) -> Result<()> {
        let invalid = |expected: String| Err(Error::invalid(OP, expected, format!("{self:?}")));
        let rank = self.x.len();
        if !(rank == 4 || rank == 5) || self.y.len() != rank {
            return invalid("an input and an output of rank 4 or 5".into());
        }
        if [&self.window, &self.stride, &self.padding].iter().any(|list| list.len() != rank - 2) {
            return invalid("window, stride and padding for each spatial dimension".into());
        }
        if self.window.contains(&0) || self.stride.contains(&0) {
            return invalid("windows and strides of at least 1".into());
        }
        if self.padding.iter().zip(&self.window).any(|(padding, window)| padding >= window) {
            return invalid("padding less than the window".into());
        }
        let mut y = self.x[..2].to_vec();
        for i in 0..rank - 2 {
            let padded = self.padding[i].checked_mul(2).and_then(|both| both.checked_add(self.x[i + 2]));
            match padded.and_then(|padded| padded.checked_sub(self.window[i])) {
                Some(steps) => y.push(steps / self.stride[i] + 1),
                None => return invalid("a window that fits the padded input".into()),
            }
        }
        if y != self.y {
            return invalid(format!("an output {y:?}"));
        }
        Ok(())
    }
}

impl Dnn {
    /// `y` from `x`. With [`PoolMode::Max`], `indices` (shaped like `y`, of type `desc.index`)
    /// receives each maximum's index in its channel of the unpadded input, `(slice * height + row)
    /// * width + column`; the gradient needs it.
    ///
    /// The first of equal elements wins. MIOpen starts from the lowest finite number and takes
    /// greater elements. So NaN is never the maximum, and a window that holds only NaN and -inf
    /// gives that number and index 0.
    ///
    /// # Errors
    /// `Unsupported` for the dtypes; `Invalid` for shapes that don't fit together, or memory that
    /// is too small or overlaps; `Miopen` if the library fails.
    pub fn pool_forward(
        &self,
        desc: &PoolDesc,
        x: TensorArg<'_>,
        y: TensorArg<'_>,
        indices: Option<TensorArg<'_>>,
    ) -> Result<()> {
        let [xs, ys] = self.pool_spans(desc, x, y)?;
        let prepared = self.poolings.get(desc, || self.prepare_pool(desc))?;
        let kept = self.indices(desc, &prepared, indices)?;
        ys.apart_from(OP, &[xs, kept])?;
        kept.apart_from(OP, &[xs])?;
        carry([x], [y].into_iter().chain(indices));
        if ys.bytes == 0 {
            return Ok(());
        }
        prepared.refused.check()?;
        let handle = self.begin(y.buffer)?;
        // SAFETY: the spans hold the tensors that the descriptors describe, and `kept` the bytes
        // that MIOpen asks for. The pool keeps them until the stream has passed the call. The
        // scalars are static.
        let status = unsafe {
            (self.table.miopenPoolingForward)(
                handle.raw,
                prepared.pool.raw(),
                one(),
                prepared.x.raw(),
                xs.ptr,
                zero(),
                prepared.y.raw(),
                ys.ptr,
                kept.bytes > 0,
                kept.ptr,
                kept.bytes,
            )
        };
        prepared.refused.keep(0, self.served("miopenPoolingForward", status, || format!("{desc:?}")))
    }

    /// `dx`, the gradient of `x`, from `dy`, the gradient of `y`, and for [`PoolMode::Max`] the
    /// forward pass's `indices`.
    ///
    /// MIOpen's function also takes `x` and `y`, but reads neither. This crate passes the gradients
    /// in their places.
    ///
    /// # Errors
    /// As for [`Dnn::pool_forward`]; `Invalid` also for [`PoolMode::Max`] without indices.
    pub fn pool_backward(
        &self,
        desc: &PoolDesc,
        dy: TensorArg<'_>,
        dx: TensorArg<'_>,
        indices: Option<TensorArg<'_>>,
    ) -> Result<()> {
        let [dxs, dys] = self.pool_spans(desc, dx, dy)?;
        let prepared = self.poolings.get(desc, || self.prepare_pool(desc))?;
        if desc.mode == PoolMode::Max && indices.is_none() {
            return Err(Error::invalid(OP, "the indices of the maxima", "none"));
        }
        let kept = self.indices(desc, &prepared, indices)?;
        dxs.apart_from(OP, &[dys, kept])?;
        carry([dy].into_iter().chain(indices), [dx]);
        if dxs.bytes == 0 || dys.bytes == 0 {
            return Ok(());
        }
        prepared.refused.check()?;
        let handle = self.begin(dx.buffer)?;
        // SAFETY: as in `pool_forward`.
        let status = unsafe {
            (self.table.miopenPoolingBackward)(
                handle.raw,
                prepared.pool.raw(),
                one(),
                prepared.y.raw(),
                dys.ptr,
                prepared.y.raw(),
                dys.ptr,
                prepared.x.raw(),
                dxs.ptr,
                zero(),
                prepared.x.raw(),
                dxs.ptr,
                kept.ptr,
            )
        };
        prepared.refused.keep(1, self.served("miopenPoolingBackward", status, || format!("{desc:?}")))
    }

    fn pool_spans(&self, desc: &PoolDesc, x: TensorArg<'_>, y: TensorArg<'_>) -> Result<[Span; 2]> {
        let span = |tensor, shape: &[usize]| self.span(OP, tensor, desc.dtype, elements(OP, shape)?);
        Ok([span(x, &desc.x)?, span(y, &desc.y)?])
    }

    /// The indices, which MIOpen takes as its workspace; null if none are kept.
    fn indices(&self, desc: &PoolDesc, prepared: &Prepared, indices: Option<TensorArg<'_>>) -> Result<Span> {
        match indices {
            Some(indices) if desc.mode == PoolMode::Max => {
                Span::new(OP, self.device, indices.buffer, indices.offset, prepared.indices)
            }
            _ => Ok(Span::NULL),
        }
    }

    fn prepare_pool(&self, desc: &PoolDesc) -> Result<Prepared> {
        let data_type = data_type(OP, desc.dtype, NO_BF16)?;
        desc.validate()?;
        let index = match desc.index {
            DType::U32 | DType::I32 => miopenIndexUint32,
            DType::U64 | DType::I64 => miopenIndexUint64,
            other => return Err(Error::unsupported_with(OP, desc.dtype, format!("indices of {other}"))),
        };
        let mode = match desc.mode {
            PoolMode::Max => miopenPoolingMax,
            PoolMode::AverageInclusive => miopenPoolingAverageInclusive,
            PoolMode::AverageExclusive => miopenPoolingAverage,
        };
        let table = self.table;
        let (window, padding, stride) =
            (ints(OP, &desc.window)?, ints(OP, &desc.padding)?, ints(OP, &desc.stride)?);
        let pool = PoolingDesc::new(table, mode, &window, &padding, &stride, index)?;
        let x = TensorDesc::packed(table, OP, data_type, &desc.x)?;
        let y = TensorDesc::packed(table, OP, data_type, &desc.y)?;
        let mut indices = 0;
        if desc.mode == PoolMode::Max && desc.y.iter().all(|&dim| dim > 0) {
            // SAFETY: the descriptors are valid; `indices` outlives the call.
            let status =
                unsafe { (table.miopenPoolingGetWorkSpaceSizeV2)(pool.raw(), y.raw(), &mut indices) };
            check(self.table, "miopenPoolingGetWorkSpaceSizeV2", status, || format!("{desc:?}"))?;
        }
        Ok(Prepared { pool, x, y, indices, refused: Refusal::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desc(x: &[usize], y: &[usize], window: usize, stride: usize, padding: usize) -> PoolDesc {
        let n = x.len() - 2;
        PoolDesc {
            dtype: DType::F32,
            x: x.to_vec(),
            y: y.to_vec(),
            window: vec![window; n],
            stride: vec![stride; n],
            padding: vec![padding; n],
            mode: PoolMode::Max,
            index: DType::I64,
        }
    }

    #[test]
    fn shapes_are_checked() {
        desc(&[2, 3, 8, 8], &[2, 3, 4, 4], 2, 2, 0).validate().unwrap();
        desc(&[2, 3, 11, 9], &[2, 3, 6, 5], 3, 2, 1).validate().unwrap();
        desc(&[2, 3, 5, 11, 9], &[2, 3, 3, 6, 5], 3, 2, 1).validate().unwrap();
        assert!(desc(&[2, 3, 8, 8], &[2, 3, 5, 4], 2, 2, 0).validate().is_err(), "output");
        assert!(desc(&[2, 3, 8, 8], &[2, 3, 6, 6], 2, 2, 2).validate().is_err(), "padding");
        assert!(desc(&[2, 3, 2, 2], &[2, 3, 1, 1], 3, 1, 0).validate().is_err(), "window");
        let half = usize::MAX / 2 + 1;
        assert!(desc(&[2, 3, 2, 2], &[2, 3, 1, 1], half + 1, 1, half).validate().is_err(), "overflow");
        assert!(desc(&[2, 3, 8], &[2, 3, 4], 2, 2, 0).validate().is_err(), "rank");
        let wrong = PoolDesc { stride: vec![2; 3], ..desc(&[2, 3, 8, 8], &[2, 3, 4, 4], 2, 2, 0) };
        assert!(wrong.validate().is_err(), "strides of another rank");
    }
}
