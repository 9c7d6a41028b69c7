//! Immediate mode: solutions are asked for by shape and run by id.

use super::super::handle::in_order;
use super::call::{Buffers, Call, Descriptors, Kind};
use core::ffi::c_void;
use hip_provider::miopen::{Outcome, answer};
use hip_provider::require;
use miopen_sys::*;

/// The one solution of each direction: planes filled with their padding, the filter's taps as offsets into them.
/// Its number is this library's own.
const SOLUTION: u64 = 1001;

unsafe fn count(handle: miopenHandle_t, descriptors: Descriptors, count: *mut usize) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    in_order(handle, |_| unsafe {
        Call::new(descriptors)?;
        answer(count, 1)
    })
}

unsafe fn solutions(
    handle: miopenHandle_t,
    descriptors: Descriptors,
    most: usize,
    count: *mut usize,
    to: *mut miopenConvSolution_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointers; `to` has room for `most`.
    in_order(handle, |_| unsafe {
        let call = Call::new(descriptors)?;
        require(!to.is_null(), miopenStatusBadParm)?;
        if most > 0 {
            to.write(miopenConvSolution_t {
                time: call.estimate(),
                workspace_size: call.workspace(),
                solution_id: SOLUTION,
                algorithm: miopenConvolutionAlgoDirect,
            });
        }
        answer(count, most.min(1))
    })
}

/// Checks a call and the id of its solution.
unsafe fn checked(descriptors: Descriptors, solution: u64) -> Outcome<Call> {
    // SAFETY: the caller's descriptors.
    let call = unsafe { Call::new(descriptors) }?;
    require(solution == SOLUTION, miopenStatusBadParm)?;
    Ok(call)
}

unsafe fn workspace(
    handle: miopenHandle_t,
    descriptors: Descriptors,
    solution: u64,
    size: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    in_order(handle, |_| unsafe { answer(size, checked(descriptors, solution)?.workspace()) })
}

unsafe fn compile(handle: miopenHandle_t, descriptors: Descriptors, solution: u64) -> miopenStatus_t {
    // SAFETY: the caller's handle and descriptors.
    in_order(handle, |_| unsafe { checked(descriptors, solution).map(|_| ()) })
}

unsafe fn immediate(
    handle: miopenHandle_t,
    descriptors: Descriptors,
    buffers: Buffers,
    solution: u64,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and buffers.
    in_order(handle, |_| unsafe { checked(descriptors, solution)?.run(buffers) })
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionForwardGetSolutionCount(
    handle: miopenHandle_t,
    wDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    yDesc: miopenTensorDescriptor_t,
    solutionCount: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        count(
            handle,
            Descriptors { kind: Kind::Forward, x: xDesc, w: wDesc, conv: convDesc, y: yDesc },
            solutionCount,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionForwardGetSolution(
    handle: miopenHandle_t,
    wDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    yDesc: miopenTensorDescriptor_t,
    maxSolutionCount: usize,
    solutionCount: *mut usize,
    solutions: *mut miopenConvSolution_t,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        self::solutions(
            handle,
            Descriptors { kind: Kind::Forward, x: xDesc, w: wDesc, conv: convDesc, y: yDesc },
            maxSolutionCount,
            solutionCount,
            solutions,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionForwardGetSolutionWorkspaceSize(
    handle: miopenHandle_t,
    wDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    yDesc: miopenTensorDescriptor_t,
    solution_id: u64,
    workSpaceSize: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        workspace(
            handle,
            Descriptors { kind: Kind::Forward, x: xDesc, w: wDesc, conv: convDesc, y: yDesc },
            solution_id,
            workSpaceSize,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionForwardCompileSolution(
    handle: miopenHandle_t,
    wDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    yDesc: miopenTensorDescriptor_t,
    solution_id: u64,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        compile(
            handle,
            Descriptors { kind: Kind::Forward, x: xDesc, w: wDesc, conv: convDesc, y: yDesc },
            solution_id,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionForwardImmediate(
    handle: miopenHandle_t,
    wDesc: miopenTensorDescriptor_t,
    w: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    convDesc: miopenConvolutionDescriptor_t,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    workSpace: *mut c_void,
    workSpaceSize: usize,
    solution_id: u64,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        immediate(
            handle,
            Descriptors { kind: Kind::Forward, x: xDesc, w: wDesc, conv: convDesc, y: yDesc },
            Buffers {
                x: x.cast_mut(),
                w: w.cast_mut(),
                y,
                workspace: workSpace,
                workspace_size: workSpaceSize,
            },
            solution_id,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardDataGetSolutionCount(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    wDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dxDesc: miopenTensorDescriptor_t,
    solutionCount: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        count(
            handle,
            Descriptors { kind: Kind::BackwardData, x: dxDesc, w: wDesc, conv: convDesc, y: dyDesc },
            solutionCount,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardDataGetSolution(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    wDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dxDesc: miopenTensorDescriptor_t,
    maxSolutionCount: usize,
    solutionCount: *mut usize,
    solutions: *mut miopenConvSolution_t,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        self::solutions(
            handle,
            Descriptors { kind: Kind::BackwardData, x: dxDesc, w: wDesc, conv: convDesc, y: dyDesc },
            maxSolutionCount,
            solutionCount,
            solutions,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardDataGetSolutionWorkspaceSize(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    wDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dxDesc: miopenTensorDescriptor_t,
    solution_id: u64,
    workSpaceSize: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        workspace(
            handle,
            Descriptors { kind: Kind::BackwardData, x: dxDesc, w: wDesc, conv: convDesc, y: dyDesc },
            solution_id,
            workSpaceSize,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardDataCompileSolution(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    wDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dxDesc: miopenTensorDescriptor_t,
    solution_id: u64,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        compile(
            handle,
            Descriptors { kind: Kind::BackwardData, x: dxDesc, w: wDesc, conv: convDesc, y: dyDesc },
            solution_id,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardDataImmediate(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    wDesc: miopenTensorDescriptor_t,
    w: *const c_void,
    convDesc: miopenConvolutionDescriptor_t,
    dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
    workSpace: *mut c_void,
    workSpaceSize: usize,
    solution_id: u64,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        immediate(
            handle,
            Descriptors { kind: Kind::BackwardData, x: dxDesc, w: wDesc, conv: convDesc, y: dyDesc },
            Buffers {
                x: dx,
                w: w.cast_mut(),
                y: dy.cast_mut(),
                workspace: workSpace,
                workspace_size: workSpaceSize,
            },
            solution_id,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardWeightsGetSolutionCount(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dwDesc: miopenTensorDescriptor_t,
    solutionCount: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        count(
            handle,
            Descriptors { kind: Kind::BackwardWeights, x: xDesc, w: dwDesc, conv: convDesc, y: dyDesc },
            solutionCount,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardWeightsGetSolution(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dwDesc: miopenTensorDescriptor_t,
    maxSolutionCount: usize,
    solutionCount: *mut usize,
    solutions: *mut miopenConvSolution_t,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        self::solutions(
            handle,
            Descriptors { kind: Kind::BackwardWeights, x: xDesc, w: dwDesc, conv: convDesc, y: dyDesc },
            maxSolutionCount,
            solutionCount,
            solutions,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dwDesc: miopenTensorDescriptor_t,
    solution_id: u64,
    workSpaceSize: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        workspace(
            handle,
            Descriptors { kind: Kind::BackwardWeights, x: xDesc, w: dwDesc, conv: convDesc, y: dyDesc },
            solution_id,
            workSpaceSize,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardWeightsCompileSolution(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    dwDesc: miopenTensorDescriptor_t,
    solution_id: u64,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        compile(
            handle,
            Descriptors { kind: Kind::BackwardWeights, x: xDesc, w: dwDesc, conv: convDesc, y: dyDesc },
            solution_id,
        )
    }
}

pub(in super::super) unsafe extern "C" fn miopenConvolutionBackwardWeightsImmediate(
    handle: miopenHandle_t,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    convDesc: miopenConvolutionDescriptor_t,
    dwDesc: miopenTensorDescriptor_t,
    dw: *mut c_void,
    workSpace: *mut c_void,
    workSpaceSize: usize,
    solution_id: u64,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        immediate(
            handle,
            Descriptors { kind: Kind::BackwardWeights, x: xDesc, w: dwDesc, conv: convDesc, y: dyDesc },
            Buffers {
                x: x.cast_mut(),
                w: dw,
                y: dy.cast_mut(),
                workspace: workSpace,
                workspace_size: workSpaceSize,
            },
            solution_id,
        )
    }
}
