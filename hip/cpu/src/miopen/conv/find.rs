//! Find mode: an algorithm is found once for a shape and then run by name; and the bias of a convolution.

use super::super::handle::in_order;
use super::call::{Buffers, Call, Descriptors, FoundCall, Kind};
use core::ffi::{c_int, c_void};
use hip_provider::miopen::{answer, plain_scalars};
use hip_provider::require;
use miopen_sys::*;
use std::sync::PoisonError;
use std::time::Instant;

unsafe fn workspace(handle: miopenHandle_t, descriptors: Descriptors, size: *mut usize) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    in_order(handle, |_| unsafe { answer(size, Call::new(descriptors)?.workspace()) })
}

/// Runs the only algorithm once, to time it.
unsafe fn find(
    handle: miopenHandle_t,
    descriptors: Descriptors,
    buffers: Buffers,
    requested: c_int,
    returned: *mut c_int,
    results: *mut miopenConvAlgoPerf_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, buffers and out-pointers; `results` has room for `requested`.
    in_order(handle, |handle| unsafe {
        require(requested >= 1 && !returned.is_null() && !results.is_null(), miopenStatusBadParm)?;
        let call = Call::new(descriptors)?;
        let start = Instant::now();
        call.run(buffers)?;
        let time = start.elapsed().as_secs_f32() * 1e3;
        // The direct algorithm has the same number in each direction's enumeration.
        let algorithm = miopenConvAlgoPerf_algorithm { fwd_algo: miopenConvolutionFwdAlgoDirect };
        results.write(miopenConvAlgoPerf_t { algorithm, time, memory: call.workspace() });
        returned.write(1);
        let mut found = handle.found.lock().unwrap_or_else(PoisonError::into_inner);
        let call = FoundCall(call);
        if !found.contains(&call) {
            found.push(call);
        }
        Ok(())
    })
}

/// Runs an algorithm that was found; without a find before it, MIOpen knows no kernel to run.
unsafe fn run(
    handle: miopenHandle_t,
    descriptors: Descriptors,
    buffers: Buffers,
    algorithm: i32,
    alpha: *const c_void,
    beta: *const c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, buffers and scalars.
    in_order(handle, |handle| unsafe {
        let call = Call::new(descriptors)?;
        plain_scalars(alpha, beta, call.data)?;
        require(algorithm == miopenConvolutionFwdAlgoDirect.0, miopenStatusBadParm)?;
        let call = FoundCall(call);
        let known = handle.found.lock().unwrap_or_else(PoisonError::into_inner).contains(&call);
        require(known, miopenStatusUnknownError)?;
        call.0.run(buffers)
    })
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionForwardGetWorkSpaceSize(
    handle: miopenHandle_t,
    wDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    yDesc: miopenTensorDescriptor_t,
    workSpaceSize: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        workspace(
            handle,
            Descriptors { kind: Kind::Forward, x: xDesc, w: wDesc, conv: convDesc, y: yDesc },
            workSpaceSize,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenFindConvolutionForwardAlgorithm(
    handle: miopenHandle_t,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    wDesc: miopenTensorDescriptor_t,
    w: *const c_void,
    convDesc: miopenConvolutionDescriptor_t,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    requestAlgoCount: c_int,
    returnedAlgoCount: *mut c_int,
    perfResults: *mut miopenConvAlgoPerf_t,
    workSpace: *mut c_void,
    workSpaceSize: usize,
    _exhaustiveSearch: bool,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        find(
            handle,
            Descriptors { kind: Kind::Forward, x: xDesc, w: wDesc, conv: convDesc, y: yDesc },
            Buffers {
                x: x.cast_mut(),
                w: w.cast_mut(),
                y,
                workspace: workSpace,
                workspace_size: workSpaceSize,
            },
            requestAlgoCount,
            returnedAlgoCount,
            perfResults,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionForward(
    handle: miopenHandle_t,
    alpha: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    wDesc: miopenTensorDescriptor_t,
    w: *const c_void,
    convDesc: miopenConvolutionDescriptor_t,
    algo: miopenConvFwdAlgorithm_t,
    beta: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    workSpace: *mut c_void,
    workSpaceSize: usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        run(
            handle,
            Descriptors { kind: Kind::Forward, x: xDesc, w: wDesc, conv: convDesc, y: yDesc },
            Buffers {
                x: x.cast_mut(),
                w: w.cast_mut(),
                y,
                workspace: workSpace,
                workspace_size: workSpaceSize,
            },
            algo.0,
            alpha,
            beta,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardDataGetWorkSpaceSize(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    wDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dxDesc: miopenTensorDescriptor_t,
    workSpaceSize: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        workspace(
            handle,
            Descriptors { kind: Kind::BackwardData, x: dxDesc, w: wDesc, conv: convDesc, y: dyDesc },
            workSpaceSize,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenFindConvolutionBackwardDataAlgorithm(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    wDesc: miopenTensorDescriptor_t,
    w: *const c_void,
    convDesc: miopenConvolutionDescriptor_t,
    dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
    requestAlgoCount: c_int,
    returnedAlgoCount: *mut c_int,
    perfResults: *mut miopenConvAlgoPerf_t,
    workSpace: *mut c_void,
    workSpaceSize: usize,
    _exhaustiveSearch: bool,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        find(
            handle,
            Descriptors { kind: Kind::BackwardData, x: dxDesc, w: wDesc, conv: convDesc, y: dyDesc },
            Buffers {
                x: dx,
                w: w.cast_mut(),
                y: dy.cast_mut(),
                workspace: workSpace,
                workspace_size: workSpaceSize,
            },
            requestAlgoCount,
            returnedAlgoCount,
            perfResults,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardData(
    handle: miopenHandle_t,
    alpha: *const c_void,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    wDesc: miopenTensorDescriptor_t,
    w: *const c_void,
    convDesc: miopenConvolutionDescriptor_t,
    algo: miopenConvBwdDataAlgorithm_t,
    beta: *const c_void,
    dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
    workSpace: *mut c_void,
    workSpaceSize: usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        run(
            handle,
            Descriptors { kind: Kind::BackwardData, x: dxDesc, w: wDesc, conv: convDesc, y: dyDesc },
            Buffers {
                x: dx,
                w: w.cast_mut(),
                y: dy.cast_mut(),
                workspace: workSpace,
                workspace_size: workSpaceSize,
            },
            algo.0,
            alpha,
            beta,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardWeightsGetWorkSpaceSize(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dwDesc: miopenTensorDescriptor_t,
    workSpaceSize: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        workspace(
            handle,
            Descriptors { kind: Kind::BackwardWeights, x: xDesc, w: dwDesc, conv: convDesc, y: dyDesc },
            workSpaceSize,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenFindConvolutionBackwardWeightsAlgorithm(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    convDesc: miopenConvolutionDescriptor_t,
    dwDesc: miopenTensorDescriptor_t,
    dw: *mut c_void,
    requestAlgoCount: c_int,
    returnedAlgoCount: *mut c_int,
    perfResults: *mut miopenConvAlgoPerf_t,
    workSpace: *mut c_void,
    workSpaceSize: usize,
    _exhaustiveSearch: bool,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        find(
            handle,
            Descriptors { kind: Kind::BackwardWeights, x: xDesc, w: dwDesc, conv: convDesc, y: dyDesc },
            Buffers {
                x: x.cast_mut(),
                w: dw,
                y: dy.cast_mut(),
                workspace: workSpace,
                workspace_size: workSpaceSize,
            },
            requestAlgoCount,
            returnedAlgoCount,
            perfResults,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardWeights(
    handle: miopenHandle_t,
    alpha: *const c_void,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    convDesc: miopenConvolutionDescriptor_t,
    algo: miopenConvBwdWeightsAlgorithm_t,
    beta: *const c_void,
    dwDesc: miopenTensorDescriptor_t,
    dw: *mut c_void,
    workSpace: *mut c_void,
    workSpaceSize: usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        run(
            handle,
            Descriptors { kind: Kind::BackwardWeights, x: xDesc, w: dwDesc, conv: convDesc, y: dyDesc },
            Buffers {
                x: x.cast_mut(),
                w: dw,
                y: dy.cast_mut(),
                workspace: workSpace,
                workspace_size: workSpaceSize,
            },
            algo.0,
            alpha,
            beta,
        )
    }
}
