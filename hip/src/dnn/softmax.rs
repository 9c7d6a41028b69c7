//! Softmax and log-softmax, forward and backward.

use miopen_sys::*;

use super::descriptor::TensorDesc;
use super::{Dnn, NO_BF16, TensorArg, carry, data_type, elements, one, zero};
use crate::memory::span::Span;
use crate::{DType, Result};

const OP: &str = "softmax";

/// A softmax over the middle dimension of a tensor seen as `outer x len x inner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SoftmaxDesc {
    /// f32 or f16; MIOpen has no bf16 softmax.
    pub dtype: DType,
    /// The product of the dimensions before `len`.
    pub outer: usize,
    /// The dimension that the softmax sums over.
    pub len: usize,
    /// The product of the dimensions after `len`.
    pub inner: usize,
    /// Whether to compute the logarithm of the softmax.
    pub log: bool,
}

impl SoftmaxDesc {
    /// Whether MIOpen has a softmax of this dtype. For other dtypes [`Dnn`]'s calls return
    /// `Unsupported`.
    pub fn takes(dtype: DType) -> bool {
        NO_BF16.contains(&dtype)
    }

    fn shape(&self) -> [usize; 4] {
        [self.outer, self.len, self.inner, 1]
    }

    fn algorithm(&self) -> miopenSoftmaxAlgorithm_t {
        if self.log { MIOPEN_SOFTMAX_LOG } else { MIOPEN_SOFTMAX_ACCURATE }
    }
}

impl Dnn {
    /// `y`, the softmax of `x`. The two may be the same memory.
    ///
    /// # Errors
    /// `Unsupported` for the dtype; `Invalid` for memory that is too small; `Miopen` if the library
    /// fails.
    pub fn softmax_forward(&self, desc: &SoftmaxDesc, x: TensorArg<'_>, y: TensorArg<'_>) -> Result<()> {
        let (tensor, [xs, ys]) = self.softmax(desc, [x, y])?;
        carry([x], [y]);
        if ys.bytes == 0 {
            return Ok(());
        }
        let handle = self.begin(y.buffer)?;
        // SAFETY: the spans hold the tensors that the descriptor describes. The pool keeps them
        // until the stream has passed the call. The scalars are static.
        let status = unsafe {
            (self.table.miopenSoftmaxForward_V2)(
                handle.raw,
                one(),
                tensor.raw(),
                xs.ptr,
                zero(),
                tensor.raw(),
                ys.ptr,
                desc.algorithm(),
                MIOPEN_SOFTMAX_MODE_CHANNEL,
            )
        };
        self.served("miopenSoftmaxForward_V2", status, || format!("{desc:?}"))
    }

    /// `dx`, the gradient of `x`, from `y` and its gradient `dy`.
    ///
    /// # Errors
    /// As for [`Dnn::softmax_forward`].
    pub fn softmax_backward(
        &self,
        desc: &SoftmaxDesc,
        y: TensorArg<'_>,
        dy: TensorArg<'_>,
        dx: TensorArg<'_>,
    ) -> Result<()> {
        let (tensor, [ys, dys, dxs]) = self.softmax(desc, [y, dy, dx])?;
        carry([y, dy], [dx]);
        if dxs.bytes == 0 {
            return Ok(());
        }
        let handle = self.begin(dx.buffer)?;
        // SAFETY: as in `softmax_forward`.
        let status = unsafe {
            (self.table.miopenSoftmaxBackward_V2)(
                handle.raw,
                one(),
                tensor.raw(),
                ys.ptr,
                tensor.raw(),
                dys.ptr,
                zero(),
                tensor.raw(),
                dxs.ptr,
                desc.algorithm(),
                MIOPEN_SOFTMAX_MODE_CHANNEL,
            )
        };
        self.served("miopenSoftmaxBackward_V2", status, || format!("{desc:?}"))
    }

    fn softmax<const N: usize>(
        &self,
        desc: &SoftmaxDesc,
        tensors: [TensorArg<'_>; N],
    ) -> Result<(TensorDesc, [Span; N])> {
        let data_type = data_type(OP, desc.dtype, NO_BF16)?;
        let count = elements(OP, &desc.shape())?;
        let mut spans = [Span::NULL; N];
        for (span, tensor) in spans.iter_mut().zip(tensors) {
            *span = self.span(OP, tensor, desc.dtype, count)?;
        }
        Ok((TensorDesc::packed(self.table, OP, data_type, &desc.shape())?, spans))
    }
}
