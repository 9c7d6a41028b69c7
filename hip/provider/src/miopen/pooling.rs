//! Pooling: its descriptor and functions.

use super::tensor::{operand, tensor};
use super::{
    Described, Handle, Operand, Outcome, Own, Tensor, answer, object, object_mut, plain_scalars, status, with,
};
use crate::require;
use core::ffi::{c_int, c_void};
use miopen_sys::*;

/// The values of a pooling descriptor.
#[derive(Clone)]
pub struct Pooling {
    /// Maxima or averages.
    pub mode: miopenPoolingMode_t,
    /// The window's lengths; 2 or 3 axes.
    pub window: Vec<usize>,
    /// Padding at each end of each axis, shorter than the window.
    pub pad: Vec<usize>,
    /// Steps of the window.
    pub stride: Vec<usize>,
    /// The type of the workspace's indices.
    pub index: miopenIndexType_t,
    /// Whether an index counts within the window or within the plane.
    pub index_mode: miopenPoolingWorkspaceIndexMode_t,
}

impl Default for Pooling {
    fn default() -> Self {
        Pooling {
            mode: miopenPoolingMax,
            window: vec![1; 2],
            pad: vec![0; 2],
            stride: vec![1; 2],
            index: miopenIndexUint8,
            index_mode: miopenPoolingWorkspaceIndexMask,
        }
    }
}

impl Pooling {
    /// Bytes of an index.
    pub fn index_size(&self) -> usize {
        match self.index {
            miopenIndexUint8 => 1,
            miopenIndexUint16 => 2,
            miopenIndexUint32 => 4,
            _ => 8,
        }
    }

    /// Bytes of workspace for `results` outputs: the indices of maxima.
    pub fn workspace(&self, results: usize) -> usize {
        if self.mode == miopenPoolingMax { results * self.index_size() } else { 0 }
    }

    /// Checks input and output against each other.
    pub(super) fn check(&self, x: &Tensor, y: &Tensor) -> Outcome {
        let rank = self.window.len() + 2;
        require(x.dims.len() == rank && y.dims.len() == rank && x.data == y.data, miopenStatusBadParm)?;
        require(x.dims[..2] == y.dims[..2], miopenStatusBadParm)?;
        require(matches!(x.data, miopenFloat | miopenHalf | miopenBFloat16), miopenStatusNotImplemented)?;
        x.require_packed()?;
        y.require_packed()?;
        for axis in 0..rank - 2 {
            let padded = x.dims[axis + 2] + 2 * self.pad[axis];
            require(padded >= self.window[axis], miopenStatusBadParm)?;
            let expected = (padded - self.window[axis]) / self.stride[axis] + 1;
            require(y.dims[axis + 2] == expected, miopenStatusBadParm)?;
        }
        Ok(())
    }

    /// Refuses an index type that is too small for the positions that the index mode counts.
    pub(super) fn check_index(&self, x: &Tensor) -> Outcome {
        let places: usize = match self.index_mode {
            miopenPoolingWorkspaceIndexMask => self.window.iter().product(),
            _ => x.dims[2..].iter().product(),
        };
        // MIOpen reserves the type's greatest number, and takes only fewer places than that.
        let greatest = u64::MAX >> (64 - 8 * self.index_size());
        require((places as u64) < greatest, miopenStatusBadParm)
    }
}

/// Sets a pooling's mode and sizes.
///
/// # Safety
/// A non-null descriptor came from [`create`] and is not destroyed; non-null lists have `nbDims`
/// values.
pub(super) unsafe extern "C" fn miopenSetNdPoolingDescriptor<O: Own<Pooling>>(
    poolDesc: miopenPoolingDescriptor_t,
    mode: miopenPoolingMode_t,
    nbDims: c_int,
    windowDimA: *const c_int,
    padA: *const c_int,
    stridesA: *const c_int,
) -> miopenStatus_t {
    status(|| {
        require(matches!(nbDims, 2 | 3), miopenStatusBadParm)?;
        let lists = [windowDimA, padA, stridesA];
        require(lists.iter().all(|list| !list.is_null()), miopenStatusBadParm)?;
        // SAFETY: the caller's lists of `nbDims` values.
        let lists = lists.map(|list| unsafe { core::slice::from_raw_parts(list, nbDims as usize) });
        let [window, pad, stride] = lists;
        require(mode.name().is_some(), miopenStatusBadParm)?;
        require(window.iter().chain(stride).all(|&value| value >= 1), miopenStatusBadParm)?;
        // With padding as long as the window, some windows would cover only padding.
        let pads = window.iter().zip(pad).all(|(&window, &pad)| pad >= 0 && pad < window);
        require(pads, miopenStatusBadParm)?;
        let [window, pad, stride] = lists.map(|list| list.iter().map(|&value| value as usize).collect());
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Pooling, O>, _>(poolDesc) }?;
        let Pooling { index, index_mode, .. } = **own;
        own.set(Pooling { mode, window, pad, stride, index, index_mode })
    })
}

/// Sets the type of a pooling's indices.
///
/// # Safety
/// A non-null descriptor came from [`create`] and is not destroyed.
pub(super) unsafe extern "C" fn miopenSetPoolingIndexType<O: Own<Pooling>>(
    poolDesc: miopenPoolingDescriptor_t,
    index_type: miopenIndexType_t,
) -> miopenStatus_t {
    status(|| {
        require(index_type.name().is_some(), miopenStatusBadParm)?;
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Pooling, O>, _>(poolDesc) }?;
        own.change(|pooling| pooling.index = index_type)
    })
}

/// Sets whether a pooling's indices count within the window or within the plane.
///
/// # Safety
/// As [`miopenSetPoolingIndexType`].
pub(super) unsafe extern "C" fn miopenSetPoolingWorkSpaceIndexMode<O: Own<Pooling>>(
    poolDesc: miopenPoolingDescriptor_t,
    workspace_index: miopenPoolingWorkspaceIndexMode_t,
) -> miopenStatus_t {
    status(|| {
        require(workspace_index.name().is_some(), miopenStatusBadParm)?;
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Pooling, O>, _>(poolDesc) }?;
        own.change(|pooling| pooling.index_mode = workspace_index)
    })
}

/// Pooling of a provider.
pub trait Poolings: Handle {
    /// The provider's part of a descriptor.
    type Own: Own<Pooling>;

    /// Pools, and stores the indices of maxima if `indices` is given.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn pool_forward(
        &self,
        pooling: &Described<Pooling, Self::Own>,
        x: &Operand<'_, Self>,
        y: &Operand<'_, Self>,
        indices: Option<*mut c_void>,
    ) -> Outcome;

    /// The gradient of [`Poolings::pool_forward`]. `values` are its input and output, whose
    /// addresses may be null.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn pool_backward(
        &self,
        pooling: &Described<Pooling, Self::Own>,
        values: [&Operand<'_, Self>; 2],
        dy: &Operand<'_, Self>,
        dx: &Operand<'_, Self>,
        indices: *mut c_void,
    ) -> Outcome;
}

pub(super) unsafe extern "C" fn miopenPoolingGetWorkSpaceSizeV2<H: Poolings>(
    poolDesc: miopenPoolingDescriptor_t,
    yDesc: miopenTensorDescriptor_t,
    workSpaceSize: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptors and out-pointer.
    status(|| unsafe {
        let pooling = object::<Described<Pooling, H::Own>, _>(poolDesc)?;
        answer(workSpaceSize, pooling.workspace(tensor::<H>(yDesc)?.count()))
    })
}

#[rustfmt::skip] // One line of arguments a group, here and below.
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenPoolingForward<H: Poolings>(
    handle: miopenHandle_t, poolDesc: miopenPoolingDescriptor_t, alpha: *const c_void,
    xDesc: miopenTensorDescriptor_t, x: *const c_void, beta: *const c_void, yDesc: miopenTensorDescriptor_t,
    y: *mut c_void, do_backward: bool, workSpace: *mut c_void, workSpaceSize: usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let pooling = object::<Described<Pooling, H::Own>, _>(poolDesc)?;
            let (x, y) = (operand::<H>(xDesc, x)?, operand::<H>(yDesc, y)?);
            pooling.check(&x, &y)?;
            plain_scalars(alpha, beta, x.data)?;
            let keeps = pooling.mode == miopenPoolingMax && do_backward;
            if keeps {
                pooling.check_index(&x)?;
                require(workSpaceSize >= pooling.workspace(y.count()), miopenStatusBadParm)?;
            }
            handle.pool_forward(pooling, &x, &y, keeps.then_some(workSpace))
        })
    }
}

/// MIOpen takes `x` and `y` but does not read them.
#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenPoolingBackward<H: Poolings>(
    handle: miopenHandle_t, poolDesc: miopenPoolingDescriptor_t, alpha: *const c_void,
    yDesc: miopenTensorDescriptor_t, y: *const c_void, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
    xDesc: miopenTensorDescriptor_t, x: *const c_void, beta: *const c_void, dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void, workSpace: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let pooling = object::<Described<Pooling, H::Own>, _>(poolDesc)?;
            let (x, dx) = (operand::<H>(xDesc, x)?, operand::<H>(dxDesc, dx)?);
            let (y, dy) = (operand::<H>(yDesc, y)?, operand::<H>(dyDesc, dy)?);
            x.require_alike(&dx)?;
            pooling.check(&x, &y)?;
            pooling.check(&dx, &dy)?;
            plain_scalars(alpha, beta, dx.data)?;
            if pooling.mode == miopenPoolingMax {
                pooling.check_index(&dx)?;
            }
            handle.pool_backward(pooling, [&x, &y], &dy, &dx, workSpace)
        })
    }
}
