//! `miopenReduceTensor`.

use super::handle::with;
use super::status::{answered, check_buffer};
use super::tensor::{Tensor, tensor};
use core::ffi::c_void;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, answer, give, object, object_mut, scalar, status, take};
use hip_provider::require;
use miopen_sys::*;
use std::ptr;

/// What a `miopenReduceTensorDescriptor_t` points to.
struct Reduction {
    raw: cudnn::cudnnReduceTensorDescriptor_t,
    set: bool,
    /// Whether indices are asked for of an operation that picks an element.
    indices: bool,
}

impl Drop for Reduction {
    fn drop(&mut self) {
        // SAFETY: cuDNN's descriptor; calls that read it have returned.
        let _ = unsafe { cudnn::cudnnDestroyReduceTensorDescriptor(self.raw) };
    }
}

pub(super) unsafe extern "C" fn miopenCreateReduceTensorDescriptor(
    reduceTensorDesc: *mut miopenReduceTensorDescriptor_t,
) -> miopenStatus_t {
    status(|| {
        let mut raw = ptr::null_mut();
        // SAFETY: the function is cuDNN's, the pointer valid; the out-pointer is the caller's.
        unsafe {
            answered(cudnn::cudnnCreateReduceTensorDescriptor(&mut raw))?;
            give(reduceTensorDesc, Reduction { raw, set: false, indices: false })
        }
    })
}

pub(super) unsafe extern "C" fn miopenDestroyReduceTensorDescriptor(
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor.
    status(|| unsafe { take::<Reduction, _>(reduceTensorDesc) })
}

pub(super) unsafe extern "C" fn miopenSetReduceTensorDescriptor(
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    reduceTensorOp: miopenReduceTensorOp_t,
    reduceTensorCompType: miopenDataType_t,
    reduceTensorNanOpt: miopenNanPropagation_t,
    reduceTensorIndices: miopenReduceTensorIndices_t,
    reduceTensorIndicesType: miopenIndicesType_t,
) -> miopenStatus_t {
    status(|| {
        use cudnn::{
            cudnnIndicesType_t::*, cudnnNanPropagation_t::*, cudnnReduceTensorIndices_t::*,
            cudnnReduceTensorOp_t::*,
        };
        let op = match reduceTensorOp {
            MIOPEN_REDUCE_TENSOR_ADD => CUDNN_REDUCE_TENSOR_ADD,
            MIOPEN_REDUCE_TENSOR_MUL => CUDNN_REDUCE_TENSOR_MUL,
            MIOPEN_REDUCE_TENSOR_MIN => CUDNN_REDUCE_TENSOR_MIN,
            MIOPEN_REDUCE_TENSOR_MAX => CUDNN_REDUCE_TENSOR_MAX,
            MIOPEN_REDUCE_TENSOR_AMAX => CUDNN_REDUCE_TENSOR_AMAX,
            MIOPEN_REDUCE_TENSOR_AVG => CUDNN_REDUCE_TENSOR_AVG,
            MIOPEN_REDUCE_TENSOR_NORM1 => CUDNN_REDUCE_TENSOR_NORM1,
            MIOPEN_REDUCE_TENSOR_NORM2 => CUDNN_REDUCE_TENSOR_NORM2,
            _ => return Err(miopenStatusBadParm),
        };
        let compute = match reduceTensorCompType {
            miopenFloat => cudnn::cudnnDataType_t::CUDNN_DATA_FLOAT,
            miopenHalf => cudnn::cudnnDataType_t::CUDNN_DATA_HALF,
            miopenDouble => cudnn::cudnnDataType_t::CUDNN_DATA_DOUBLE,
            _ => return Err(miopenStatusBadParm),
        };
        let nan = match reduceTensorNanOpt {
            MIOPEN_NOT_PROPAGATE_NAN => CUDNN_NOT_PROPAGATE_NAN,
            MIOPEN_PROPAGATE_NAN => CUDNN_PROPAGATE_NAN,
            _ => return Err(miopenStatusBadParm),
        };
        require(reduceTensorIndices.name().is_some(), miopenStatusBadParm)?;
        // The only type of indices that MIOpen has.
        require(reduceTensorIndicesType == MIOPEN_32BIT_INDICES, miopenStatusBadParm)?;
        let picks = matches!(
            reduceTensorOp,
            MIOPEN_REDUCE_TENSOR_MIN | MIOPEN_REDUCE_TENSOR_MAX | MIOPEN_REDUCE_TENSOR_AMAX
        );
        let wanted = picks && reduceTensorIndices == MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES;
        let indices =
            if wanted { CUDNN_REDUCE_TENSOR_FLATTENED_INDICES } else { CUDNN_REDUCE_TENSOR_NO_INDICES };
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Reduction, _>(reduceTensorDesc) }?;
        // SAFETY: cuDNN's descriptor.
        answered(unsafe {
            cudnn::cudnnSetReduceTensorDescriptor(own.raw, op, compute, nan, indices, CUDNN_32BIT_INDICES)
        })?;
        (own.set, own.indices) = (true, wanted);
        Ok(())
    })
}

/// Checks that `c` is `a` with some axes of length 1.
fn shapes(a: &Tensor, c: &Tensor) -> Outcome {
    let fits = a.dims.len() == c.dims.len() && a.dims.iter().zip(&c.dims).all(|(a, c)| a == c || *c == 1);
    require(fits && a.data == c.data, miopenStatusBadParm)
}

/// # Safety
/// A non-null `descriptor` is live.
unsafe fn reduction<'a>(descriptor: miopenReduceTensorDescriptor_t) -> Outcome<&'a Reduction> {
    // SAFETY: the caller vouches for it.
    let own = unsafe { object::<Reduction, _>(descriptor) }?;
    require(own.set, miopenStatusBadParm)?;
    Ok(own)
}

fn index_bytes(reduction: &Reduction, c: &Tensor) -> usize {
    if reduction.indices { c.count() * size_of::<i32>() } else { 0 }
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
            shapes(a, c)?;
            answer(sizeInBytes, index_bytes(reduction(reduceTensorDesc)?, c))
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
            let (own, a, c) = (reduction(reduceTensorDesc)?, tensor(aDesc)?, tensor(cDesc)?);
            shapes(a, c)?;
            let mut bytes = 0;
            answered(cudnn::cudnnGetReductionWorkspaceSize(handle.raw, own.raw, a.raw, c.raw, &mut bytes))?;
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
            let (own, a, c) = (reduction(reduceTensorDesc)?, tensor(aDesc)?, tensor(cDesc)?);
            shapes(a, c)?;
            scalar(alpha, a.data)?;
            scalar(beta, a.data)?;
            check_buffer(A, a.bytes())?;
            check_buffer(C, c.bytes())?;
            check_buffer(workspace, workspaceSizeInBytes)?;
            let bytes = index_bytes(own, c);
            require(indicesSizeInBytes >= bytes, miopenStatusBadParm)?;
            check_buffer(indices, bytes)?;
            answered(cudnn::cudnnReduceTensor(
                handle.raw,
                own.raw,
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
