//! Softmax by cuDNN.

use super::handle::{Handle, Operand, check};
use super::status::answered;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, Softmax, Softmaxes};
use miopen_sys::*;

fn raw(softmax: Softmax) -> (cudnn::cudnnSoftmaxAlgorithm_t, cudnn::cudnnSoftmaxMode_t) {
    use cudnn::{cudnnSoftmaxAlgorithm_t::*, cudnnSoftmaxMode_t::*};
    let algorithm = match softmax.algorithm {
        MIOPEN_SOFTMAX_FAST => CUDNN_SOFTMAX_FAST,
        MIOPEN_SOFTMAX_ACCURATE => CUDNN_SOFTMAX_ACCURATE,
        _ => CUDNN_SOFTMAX_LOG,
    };
    let mode = match softmax.mode {
        MIOPEN_SOFTMAX_MODE_INSTANCE => CUDNN_SOFTMAX_MODE_INSTANCE,
        _ => CUDNN_SOFTMAX_MODE_CHANNEL,
    };
    (algorithm, mode)
}

impl Softmaxes for Handle {
    unsafe fn softmax_forward(&self, softmax: Softmax, x: &Operand<'_>, y: &Operand<'_>) -> Outcome {
        check(&[x, y])?;
        let ((algo, mode), [alpha, beta]) = (raw(softmax), softmax.scalars);
        let (xt, x, yt, y) = (x.own.raw, x.at, y.own.raw, y.at);
        // SAFETY: live handle and descriptors, buffers of their sizes, the caller's scalars.
        answered(unsafe { cudnn::cudnnSoftmaxForward(self.raw, algo, mode, alpha, xt, x, beta, yt, y) })
    }

    unsafe fn softmax_backward(
        &self,
        softmax: Softmax,
        y: &Operand<'_>,
        dy: &Operand<'_>,
        dx: &Operand<'_>,
    ) -> Outcome {
        check(&[y, dy, dx])?;
        let ((algo, mode), [alpha, beta]) = (raw(softmax), softmax.scalars);
        let (yt, y, dyt, dy, dxt, dx) = (y.own.raw, y.at, dy.own.raw, dy.at, dx.own.raw, dx.at);
        // SAFETY: as above.
        answered(unsafe {
            cudnn::cudnnSoftmaxBackward(self.raw, algo, mode, alpha, yt, y, dyt, dy, beta, dxt, dx)
        })
    }
}
