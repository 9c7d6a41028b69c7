//! Activations, forward and backward.

use miopen_sys::*;

use super::descriptor::{ActivationDesc, TensorDesc};
use super::{Dnn, NO_BF16, TensorArg, carry, data_type, one, zero};
use crate::memory::span::Span;
use crate::{DType, Result};

const OP: &str = "activation";

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `tanh(x)`
    Tanh,
    /// `max(x, 0)`
    Relu,
    /// `ln(1 + exp(x))`
    Softplus,
    /// `|x|`
    Abs,
    /// `min(max(x, 0), limit)`
    ClippedRelu(f64),
    /// `x` if positive, else `slope * x`
    LeakyRelu(f64),
    /// `x` if positive, else `alpha * (exp(x) - 1)`
    Elu(f64),
}

impl Activation {
    /// MIOpen's mode, and its alpha, beta and gamma.
    pub(super) fn parameters(self) -> (miopenActivationMode_t, [f64; 3]) {
        match self {
            Self::Sigmoid => (miopenActivationLOGISTIC, [1.0, 1.0, 1.0]),
            Self::Tanh => (miopenActivationTANH, [1.0, 1.0, 1.0]),
            Self::Relu => (miopenActivationRELU, [1.0, 1.0, 1.0]),
            Self::Softplus => (miopenActivationSOFTRELU, [1.0, 1.0, 1.0]),
            Self::Abs => (miopenActivationABS, [1.0, 1.0, 1.0]),
            Self::ClippedRelu(limit) => (miopenActivationCLIPPEDRELU, [limit, 1.0, 1.0]),
            Self::LeakyRelu(slope) => (miopenActivationLEAKYRELU, [slope, 1.0, 1.0]),
            Self::Elu(alpha) => (miopenActivationELU, [alpha, 1.0, 1.0]),
        }
    }
}

impl Dnn {
    /// `y`, the activation of the `len` elements of `x`, in f32 or f16. The two may be the same
    /// memory. MIOpen has no bf16 activation. It multiplies instead of selecting, so ReLU of -inf
    /// is NaN, and of a negative number -0.
    ///
    /// # Errors
    /// `Unsupported` for the dtype; `Invalid` for memory that is too small; `Miopen` if the library
    /// fails.
    pub fn activation_forward(
        &self,
        activation: Activation,
        dtype: DType,
        len: usize,
        x: TensorArg<'_>,
        y: TensorArg<'_>,
    ) -> Result<()> {
        let (tensor, kind, [xs, ys]) = self.activation(activation, dtype, len, [x, y])?;
        carry([x], [y]);
        if len == 0 {
            return Ok(());
        }
        let handle = self.begin(y.buffer)?;
        // SAFETY: the spans hold the tensors that the descriptor describes. The pool keeps them
        // until the stream has passed the call. The scalars are static.
        let status = unsafe {
            (self.table.miopenActivationForward)(
                handle.raw,
                kind.raw(),
                one(),
                tensor.raw(),
                xs.ptr,
                zero(),
                tensor.raw(),
                ys.ptr,
            )
        };
        self.served("miopenActivationForward", status, || format!("{activation:?}, {dtype:?}, {len}"))
    }

    /// `dx`, the gradient of `x`, from `dy`, the gradient of `y`, and the forward pass's `x` and
    /// `y`.
    ///
    /// # Errors
    /// As for [`Dnn::activation_forward`].
    #[allow(clippy::too_many_arguments)] // The tensors of MIOpen's own signature.
    pub fn activation_backward(
        &self,
        activation: Activation,
        dtype: DType,
        len: usize,
        y: TensorArg<'_>,
        dy: TensorArg<'_>,
        x: TensorArg<'_>,
        dx: TensorArg<'_>,
    ) -> Result<()> {
        let (tensor, kind, [ys, dys, xs, dxs]) = self.activation(activation, dtype, len, [y, dy, x, dx])?;
        carry([y, dy, x], [dx]);
        if len == 0 {
            return Ok(());
        }
        let handle = self.begin(dx.buffer)?;
        // SAFETY: as in `activation_forward`.
        let status = unsafe {
            (self.table.miopenActivationBackward)(
                handle.raw,
                kind.raw(),
                one(),
                tensor.raw(),
                ys.ptr,
                tensor.raw(),
                dys.ptr,
                tensor.raw(),
                xs.ptr,
                zero(),
                tensor.raw(),
                dxs.ptr,
            )
        };
        self.served("miopenActivationBackward", status, || format!("{activation:?}, {dtype:?}, {len}"))
    }

    fn activation<const N: usize>(
        &self,
        activation: Activation,
        dtype: DType,
        len: usize,
        tensors: [TensorArg<'_>; N],
    ) -> Result<(TensorDesc, ActivationDesc, [Span; N])> {
        let data_type = data_type(OP, dtype, NO_BF16)?;
        let mut spans = [Span::NULL; N];
        for (span, tensor) in spans.iter_mut().zip(tensors) {
            *span = self.span(OP, tensor, dtype, len)?;
        }
        let tensor = TensorDesc::packed(self.table, OP, data_type, &[1, 1, 1, len])?;
        let (mode, parameters) = activation.parameters();
        Ok((tensor, ActivationDesc::new(self.table, mode, parameters)?, spans))
    }
}
