//! `miopenReduceTensor`.

use super::handle::with;
use super::status::{answered, check_buffer};
use super::tensor::tensor;
use core::ffi::c_void;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, Own, Reduction, answer, check_reduced, object, scalar};
use hip_provider::require;
use miopen_sys::*;
use std::ptr;

/// cuDNN's descriptor.
pub(super) struct Raw(cudnn::cudnnReduceTensorDescriptor_t);

/// What a `miopenReduceTensorDescriptor_t` points to.
type Described = hip_provider::miopen::Described<Reduction, Raw>;

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

pub(super) unsafe extern "C" fn miopenGetReductionIndicesSize(
    handle: miopenHandle_t,
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    aDesc: miopenTensorDescriptor_t,
    cDesc: miopenTensorDescriptor_t,
    sizeInBytes: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    unsafe {
        with(handle, |_| {
            let (a, c) = (tensor(aDesc)?, tensor(cDesc)?);
            check_reduced((&a.dims, a.data), (&c.dims, c.data))?;
            answer(sizeInBytes, object::<Described, _>(reduceTensorDesc)?.index_bytes(c.count()))
        })
    }
}

pub(super) unsafe extern "C" fn miopenGetReductionWorkspaceSize(
    handle: miopenHandle_t,
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    aDesc: miopenTensorDescriptor_t,
    cDesc: miopenTensorDescriptor_t,
    sizeInBytes: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    unsafe {
        with(handle, |handle| {
            let (own, a, c) = (object::<Described, _>(reduceTensorDesc)?, tensor(aDesc)?, tensor(cDesc)?);
            check_reduced((&a.dims, a.data), (&c.dims, c.data))?;
            let mut bytes = 0;
            answered(cudnn::cudnnGetReductionWorkspaceSize(handle.raw, own.own.0, a.raw, c.raw, &mut bytes))?;
            answer(sizeInBytes, bytes)
        })
    }
}

pub(super) unsafe extern "C" fn miopenReduceTensor(
    handle: miopenHandle_t,
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    indices: *mut c_void,
    indicesSizeInBytes: usize,
    workspace: *mut c_void,
    workspaceSizeInBytes: usize,
    alpha: *const c_void,
    aDesc: miopenTensorDescriptor_t,
    A: *const c_void,
    beta: *const c_void,
    cDesc: miopenTensorDescriptor_t,
    C: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (own, a, c) = (object::<Described, _>(reduceTensorDesc)?, tensor(aDesc)?, tensor(cDesc)?);
            check_reduced((&a.dims, a.data), (&c.dims, c.data))?;
            scalar(alpha, a.data)?;
            scalar(beta, a.data)?;
            check_buffer(A, a.bytes())?;
            check_buffer(C, c.bytes())?;
            check_buffer(workspace, workspaceSizeInBytes)?;
            let bytes = own.index_bytes(c.count());
            require(indicesSizeInBytes >= bytes, miopenStatusBadParm)?;
            check_buffer(indices, bytes)?;
            answered(cudnn::cudnnReduceTensor(
                handle.raw,
                own.own.0,
                indices,
                bytes,
                workspace,
                workspaceSizeInBytes,
                alpha,
                a.raw,
                A,
                beta,
                c.raw,
                C,
            ))
        })
    }
}
