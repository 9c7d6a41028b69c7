//! Reductions by cuDNN.

use super::handle::{Handle, Operand, check};
use super::status::{answered, check_buffer};
use super::tensor;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, Own, Reduction, ReductionMemory, Reductions, Tensor};
use miopen_sys::*;
use std::ptr;

/// cuDNN's descriptor.
pub(super) struct Raw(cudnn::cudnnReduceTensorDescriptor_t);

/// What a `miopenReduceTensorDescriptor_t` points to.
type Described = hip_provider::miopen::Described<Reduction, Raw>;
type TensorOf<'a> = &'a hip_provider::miopen::Described<Tensor, tensor::Raw>;

impl Own<Reduction> for Raw {
    fn new() -> Outcome<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the function is cuDNN's, the pointer valid.
        answered(unsafe { cudnn::cudnnCreateReduceTensorDescriptor(&mut raw) })?;
        Ok(Raw(raw))
    }

    fn set(&mut self, values: &Reduction) -> Outcome {
        use cudnn::{
            cudnnDataType_t::*, cudnnIndicesType_t::*, cudnnNanPropagation_t::*,
            cudnnReduceTensorIndices_t::*, cudnnReduceTensorOp_t::*,
        };
        let op = match values.op {
            MIOPEN_REDUCE_TENSOR_ADD => CUDNN_REDUCE_TENSOR_ADD,
            MIOPEN_REDUCE_TENSOR_MUL => CUDNN_REDUCE_TENSOR_MUL,
            MIOPEN_REDUCE_TENSOR_MIN => CUDNN_REDUCE_TENSOR_MIN,
            MIOPEN_REDUCE_TENSOR_MAX => CUDNN_REDUCE_TENSOR_MAX,
            MIOPEN_REDUCE_TENSOR_AMAX => CUDNN_REDUCE_TENSOR_AMAX,
            MIOPEN_REDUCE_TENSOR_AVG => CUDNN_REDUCE_TENSOR_AVG,
            MIOPEN_REDUCE_TENSOR_NORM1 => CUDNN_REDUCE_TENSOR_NORM1,
            _ => CUDNN_REDUCE_TENSOR_NORM2,
        };
        let compute = match values.compute {
            miopenFloat => CUDNN_DATA_FLOAT,
            miopenHalf => CUDNN_DATA_HALF,
            _ => CUDNN_DATA_DOUBLE,
        };
        let propagates = values.nan == MIOPEN_PROPAGATE_NAN;
        let nan = if propagates { CUDNN_PROPAGATE_NAN } else { CUDNN_NOT_PROPAGATE_NAN };
        let indices = if values.indices {
            CUDNN_REDUCE_TENSOR_FLATTENED_INDICES
        } else {
            CUDNN_REDUCE_TENSOR_NO_INDICES
        };
        // SAFETY: cuDNN's descriptor.
        answered(unsafe {
            cudnn::cudnnSetReduceTensorDescriptor(self.0, op, compute, nan, indices, CUDNN_32BIT_INDICES)
        })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: cuDNN's descriptor; calls that read it have returned.
        let _ = unsafe { cudnn::cudnnDestroyReduceTensorDescriptor(self.0) };
    }
}

impl Reductions for Handle {
    type Own = Raw;

    fn reduction_workspace(&self, reduction: &Described, a: TensorOf<'_>, c: TensorOf<'_>) -> Outcome<usize> {
        let mut bytes = 0;
        let (raw, a, c) = (reduction.own.0, a.own.raw, c.own.raw);
        // SAFETY: live handle and descriptors, a valid pointer.
        answered(unsafe { cudnn::cudnnGetReductionWorkspaceSize(self.raw, raw, a, c, &mut bytes) })?;
        Ok(bytes)
    }

    unsafe fn reduce(
        &self,
        reduction: &Described,
        a: &Operand<'_>,
        c: &Operand<'_>,
        memory: &ReductionMemory,
    ) -> Outcome {
        let ReductionMemory { indices, workspace: (workspace, size), scalars: [alpha, beta] } = *memory;
        let bytes = reduction.index_bytes(c.count());
        check(&[a, c])?;
        check_buffer(workspace, size)?;
        check_buffer(indices, bytes)?;
        let (raw, at, a, ct, c) = (reduction.own.0, a.own.raw, a.at, c.own.raw, c.at);
        // SAFETY: live handle and descriptors, buffers of their sizes, the caller's scalars.
        answered(unsafe {
            cudnn::cudnnReduceTensor(
                self.raw, raw, indices, bytes, workspace, size, alpha, at, a, beta, ct, c,
            )
        })
    }
}
