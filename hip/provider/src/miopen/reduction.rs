//! Reductions: their descriptor and functions.

use super::tensor::{operand, tensor};
use super::{
    Described, Handle, Operand, Outcome, Own, Tensor, answer, object, object_mut, scalar, status, with,
};
use crate::require;
use core::ffi::c_void;
use miopen_sys::*;

/// The values of a reduction descriptor.
#[derive(Clone, Copy)]
pub struct Reduction {
    /// The operation.
    pub op: miopenReduceTensorOp_t,
    /// The type of the computation.
    pub compute: miopenDataType_t,
    /// Whether NaN propagates.
    pub nan: miopenNanPropagation_t,
    /// Whether the indices of picked elements are wanted; false unless the operation is a minimum
    /// or maximum.
    pub indices: bool,
}

impl Default for Reduction {
    fn default() -> Self {
        Reduction {
            op: MIOPEN_REDUCE_TENSOR_ADD,
            compute: miopenFloat,
            nan: MIOPEN_NOT_PROPAGATE_NAN,
            indices: false,
        }
    }
}

impl Reduction {
    /// Bytes of the indices of `results` outputs.
    pub fn index_bytes(&self, results: usize) -> usize {
        if self.indices { results * size_of::<i32>() } else { 0 }
    }
}

/// Sets a reduction's operation and types.
///
/// # Safety
/// As [`miopenSetPoolingIndexType`].
pub(super) unsafe extern "C" fn miopenSetReduceTensorDescriptor<O: Own<Reduction>>(
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    reduceTensorOp: miopenReduceTensorOp_t,
    reduceTensorCompType: miopenDataType_t,
    reduceTensorNanOpt: miopenNanPropagation_t,
    reduceTensorIndices: miopenReduceTensorIndices_t,
    reduceTensorIndicesType: miopenIndicesType_t,
) -> miopenStatus_t {
    status(|| {
        let known = reduceTensorOp.name().is_some()
            && reduceTensorNanOpt.name().is_some()
            && reduceTensorIndices.name().is_some();
        require(known, miopenStatusBadParm)?;
        let compute = matches!(reduceTensorCompType, miopenFloat | miopenHalf | miopenDouble);
        require(compute, miopenStatusBadParm)?;
        // MIOpen supports no other type of indices.
        require(reduceTensorIndicesType == MIOPEN_32BIT_INDICES, miopenStatusBadParm)?;
        let picks = matches!(
            reduceTensorOp,
            MIOPEN_REDUCE_TENSOR_MIN | MIOPEN_REDUCE_TENSOR_MAX | MIOPEN_REDUCE_TENSOR_AMAX
        );
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Reduction, O>, _>(reduceTensorDesc) }?;
        own.set(Reduction {
            op: reduceTensorOp,
            compute: reduceTensorCompType,
            nan: reduceTensorNanOpt,
            indices: picks && reduceTensorIndices == MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES,
        })
    })
}

/// Reductions of a provider.
pub trait Reductions: Handle {
    /// The provider's part of a descriptor.
    type Own: Own<Reduction>;

    /// Bytes of workspace of a reduction.
    fn reduction_workspace(
        &self,
        reduction: &Described<Reduction, Self::Own>,
        a: &Described<Tensor, Self::Tensor>,
        c: &Described<Tensor, Self::Tensor>,
    ) -> Outcome<usize>;

    /// `c = alpha reduction(a) + beta c`.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn reduce(
        &self,
        reduction: &Described<Reduction, Self::Own>,
        a: &Operand<'_, Self>,
        c: &Operand<'_, Self>,
        memory: &ReductionMemory,
    ) -> Outcome;
}

pub(super) unsafe extern "C" fn miopenGetReductionIndicesSize<H: Reductions>(
    handle: miopenHandle_t,
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    aDesc: miopenTensorDescriptor_t,
    cDesc: miopenTensorDescriptor_t,
    sizeInBytes: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    unsafe {
        with::<H>(handle, |_| {
            let reduction = object::<Described<Reduction, H::Own>, _>(reduceTensorDesc)?;
            let (a, c) = (tensor::<H>(aDesc)?, tensor::<H>(cDesc)?);
            check_reduced(a, c)?;
            answer(sizeInBytes, reduction.index_bytes(c.count()))
        })
    }
}

pub(super) unsafe extern "C" fn miopenGetReductionWorkspaceSize<H: Reductions>(
    handle: miopenHandle_t,
    reduceTensorDesc: miopenReduceTensorDescriptor_t,
    aDesc: miopenTensorDescriptor_t,
    cDesc: miopenTensorDescriptor_t,
    sizeInBytes: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    unsafe {
        with::<H>(handle, |handle| {
            let reduction = object::<Described<Reduction, H::Own>, _>(reduceTensorDesc)?;
            let (a, c) = (tensor::<H>(aDesc)?, tensor::<H>(cDesc)?);
            check_reduced(a, c)?;
            answer(sizeInBytes, handle.reduction_workspace(reduction, a, c)?)
        })
    }
}

/// The memory and the scalars of a reduction.
#[derive(Clone, Copy)]
pub struct ReductionMemory {
    /// The indices of the picked elements, of [`Reduction::index_bytes`] bytes; null if none are
    /// wanted.
    pub indices: *mut c_void,
    /// The workspace and its bytes.
    pub workspace: (*mut c_void, usize),
    /// The caller's alpha and beta: readable, f64 for f64 operands, else f32.
    pub scalars: [*const c_void; 2],
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenReduceTensor<H: Reductions>(
    handle: miopenHandle_t, reduceTensorDesc: miopenReduceTensorDescriptor_t, indices: *mut c_void,
    indicesSizeInBytes: usize, workspace: *mut c_void, workspaceSizeInBytes: usize, alpha: *const c_void,
    aDesc: miopenTensorDescriptor_t, A: *const c_void, beta: *const c_void, cDesc: miopenTensorDescriptor_t,
    C: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let reduction = object::<Described<Reduction, H::Own>, _>(reduceTensorDesc)?;
            let (a, c) = (operand::<H>(aDesc, A)?, operand::<H>(cDesc, C)?);
            check_reduced(&a, &c)?;
            require(indicesSizeInBytes >= reduction.index_bytes(c.count()), miopenStatusBadParm)?;
            scalar(alpha, a.data)?;
            scalar(beta, a.data)?;
            let workspace = (workspace, workspaceSizeInBytes);
            handle.reduce(reduction, &a, &c, &ReductionMemory { indices, workspace, scalars: [alpha, beta] })
        })
    }
}

/// Checks that the output's axes are the input's, some reduced to length 1.
fn check_reduced(a: &Tensor, c: &Tensor) -> Outcome {
    let fits = a.dims.len() == c.dims.len() && a.dims.iter().zip(&c.dims).all(|(a, c)| a == c || *c == 1);
    require(fits && a.data == c.data, miopenStatusBadParm)
}
