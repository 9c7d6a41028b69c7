//! The C functions of convolution: immediate mode and find mode, each in three directions.
//!
//! A solution's id is cuDNN's number of the algorithm plus one, an algorithm's value in find mode is that number:
//! callers hand back what they were given.

use super::conv::{Buffers, Call, Descriptors, Kind};
use super::handle::with;
use core::ffi::{c_int, c_void};
use hip_provider::miopen::{answer, plain_scalars};
use hip_provider::require;
use miopen_sys::*;

/// cuDNN's number of a solution.
fn number(solution_id: u64) -> Result<u32, miopenStatus_t> {
    u32::try_from(solution_id).ok().and_then(|id| id.checked_sub(1)).ok_or(miopenStatusBadParm)
}

/// The functions of immediate mode, whose signatures differ in the order of descriptors and buffers alone.
macro_rules! immediate {
    ($kind:ident, ($a:ident $ap:ident, $b:ident $bp:ident, $c:ident $cp:ident), [$x:ident $w:ident $y:ident],
     [$xp:ident $wp:ident $yp:ident],
     $count:ident, $get:ident, $workspace:ident, $compile:ident, $run:ident) => {
        pub(super) unsafe extern "C" fn $count(
            handle: miopenHandle_t,
            $a: miopenTensorDescriptor_t,
            $b: miopenTensorDescriptor_t,
            conv: miopenConvolutionDescriptor_t,
            $c: miopenTensorDescriptor_t,
            solutionCount: *mut usize,
        ) -> miopenStatus_t {
            let descriptors = Descriptors { kind: Kind::$kind, x: $x, w: $w, conv, y: $y };
            // SAFETY: the caller's handle, descriptors and out-pointer.
            unsafe {
                with(handle, |handle| {
                    answer(solutionCount, Call::new(descriptors)?.algorithms(handle)?.len())
                })
            }
        }

        pub(super) unsafe extern "C" fn $get(
            handle: miopenHandle_t,
            $a: miopenTensorDescriptor_t,
            $b: miopenTensorDescriptor_t,
            conv: miopenConvolutionDescriptor_t,
            $c: miopenTensorDescriptor_t,
            maxSolutionCount: usize,
            solutionCount: *mut usize,
            solutions: *mut miopenConvSolution_t,
        ) -> miopenStatus_t {
            let descriptors = Descriptors { kind: Kind::$kind, x: $x, w: $w, conv, y: $y };
            // SAFETY: the caller's handle, descriptors, out-pointer and room for `maxSolutionCount` entries.
            unsafe {
                with(handle, |handle| {
                    require(!solutions.is_null(), miopenStatusBadParm)?;
                    let all = Call::new(descriptors)?.algorithms(handle)?;
                    let count = all.len().min(maxSolutionCount);
                    for (place, algorithm) in all[..count].iter().enumerate() {
                        solutions.add(place).write(miopenConvSolution_t {
                            // Not timed: the order of cuDNN's expectation.
                            time: (place + 1) as f32,
                            workspace_size: algorithm.workspace,
                            solution_id: u64::from(algorithm.number) + 1,
                            algorithm: miopenConvolutionAlgoImplicitGEMM,
                        });
                    }
                    answer(solutionCount, count)
                })
            }
        }

        pub(super) unsafe extern "C" fn $workspace(
            handle: miopenHandle_t,
            $a: miopenTensorDescriptor_t,
            $b: miopenTensorDescriptor_t,
            conv: miopenConvolutionDescriptor_t,
            $c: miopenTensorDescriptor_t,
            solution_id: u64,
            workSpaceSize: *mut usize,
        ) -> miopenStatus_t {
            let descriptors = Descriptors { kind: Kind::$kind, x: $x, w: $w, conv, y: $y };
            // SAFETY: the caller's handle, descriptors and out-pointer.
            unsafe {
                with(handle, |handle| {
                    answer(workSpaceSize, Call::new(descriptors)?.workspace(handle, number(solution_id)?)?)
                })
            }
        }

        /// cuDNN compiles nothing ahead: only whether it takes the call.
        pub(super) unsafe extern "C" fn $compile(
            handle: miopenHandle_t,
            $a: miopenTensorDescriptor_t,
            $b: miopenTensorDescriptor_t,
            conv: miopenConvolutionDescriptor_t,
            $c: miopenTensorDescriptor_t,
            solution_id: u64,
        ) -> miopenStatus_t {
            let descriptors = Descriptors { kind: Kind::$kind, x: $x, w: $w, conv, y: $y };
            // SAFETY: the caller's handle and descriptors.
            unsafe {
                with(handle, |handle| {
                    Call::new(descriptors)?.workspace(handle, number(solution_id)?).map(|_| ())
                })
            }
        }

        pub(super) unsafe extern "C" fn $run(
            handle: miopenHandle_t,
            $a: miopenTensorDescriptor_t,
            $ap: *const c_void,
            $b: miopenTensorDescriptor_t,
            $bp: *const c_void,
            conv: miopenConvolutionDescriptor_t,
            $c: miopenTensorDescriptor_t,
            $cp: *mut c_void,
            workSpace: *mut c_void,
            workSpaceSize: usize,
            solution_id: u64,
        ) -> miopenStatus_t {
            let descriptors = Descriptors { kind: Kind::$kind, x: $x, w: $w, conv, y: $y };
            let ($ap, $bp) = ($ap.cast_mut(), $bp.cast_mut());
            let buffers =
                Buffers { x: $xp, w: $wp, y: $yp, workspace: workSpace, workspace_size: workSpaceSize };
            // SAFETY: the caller's handle, descriptors and buffers.
            unsafe {
                with(handle, |handle| Call::new(descriptors)?.run(handle, number(solution_id)?, buffers))
            }
        }
    };
}
immediate!(
    Forward,
    (w wp, x xp, y yp),
    [x w y],
    [xp wp yp],
    miopenConvolutionForwardGetSolutionCount,
    miopenConvolutionForwardGetSolution,
    miopenConvolutionForwardGetSolutionWorkspaceSize,
    miopenConvolutionForwardCompileSolution,
    miopenConvolutionForwardImmediate
);
immediate!(
    BackwardData,
    (y yp, w wp, x xp),
    [x w y],
    [xp wp yp],
    miopenConvolutionBackwardDataGetSolutionCount,
    miopenConvolutionBackwardDataGetSolution,
    miopenConvolutionBackwardDataGetSolutionWorkspaceSize,
    miopenConvolutionBackwardDataCompileSolution,
    miopenConvolutionBackwardDataImmediate
);
immediate!(
    BackwardWeights,
    (y yp, x xp, w wp),
    [x w y],
    [xp wp yp],
    miopenConvolutionBackwardWeightsGetSolutionCount,
    miopenConvolutionBackwardWeightsGetSolution,
    miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize,
    miopenConvolutionBackwardWeightsCompileSolution,
    miopenConvolutionBackwardWeightsImmediate
);

/// The functions of find mode. `($a, $b, $c)`: the order in the workspace's function; `($fa, $fb, $fc)`: in the others.
macro_rules! find {
    ($kind:ident, $enum:ident, $field:ident, ($a:ident $b:ident $c:ident),
     ($fa:ident $fap:ident, $fb:ident $fbp:ident, $fc:ident $fcp:ident), [$x:ident $w:ident $y:ident],
     [$xp:ident $wp:ident $yp:ident],
     $workspace:ident, $find:ident, $run:ident) => {
        /// The largest workspace of any algorithm.
        pub(super) unsafe extern "C" fn $workspace(
            handle: miopenHandle_t,
            $a: miopenTensorDescriptor_t,
            $b: miopenTensorDescriptor_t,
            conv: miopenConvolutionDescriptor_t,
            $c: miopenTensorDescriptor_t,
            workSpaceSize: *mut usize,
        ) -> miopenStatus_t {
            let descriptors = Descriptors { kind: Kind::$kind, x: $x, w: $w, conv, y: $y };
            // SAFETY: the caller's handle, descriptors and out-pointer.
            unsafe {
                with(handle, |handle| {
                    let all = Call::new(descriptors)?.algorithms(handle)?;
                    answer(workSpaceSize, all.iter().map(|one| one.workspace).max().unwrap_or(0))
                })
            }
        }

        pub(super) unsafe extern "C" fn $find(
            handle: miopenHandle_t,
            $fa: miopenTensorDescriptor_t,
            $fap: *const c_void,
            $fb: miopenTensorDescriptor_t,
            $fbp: *const c_void,
            conv: miopenConvolutionDescriptor_t,
            $fc: miopenTensorDescriptor_t,
            $fcp: *mut c_void,
            requestAlgoCount: c_int,
            returnedAlgoCount: *mut c_int,
            perfResults: *mut miopenConvAlgoPerf_t,
            workSpace: *mut c_void,
            workSpaceSize: usize,
            _exhaustiveSearch: bool,
        ) -> miopenStatus_t {
            let descriptors = Descriptors { kind: Kind::$kind, x: $x, w: $w, conv, y: $y };
            let ($fap, $fbp) = ($fap.cast_mut(), $fbp.cast_mut());
            let buffers =
                Buffers { x: $xp, w: $wp, y: $yp, workspace: workSpace, workspace_size: workSpaceSize };
            // SAFETY: the caller's handle, descriptors, buffers and room for `requestAlgoCount` entries.
            unsafe {
                with(handle, |handle| {
                    require(requestAlgoCount > 0 && !perfResults.is_null(), miopenStatusBadParm)?;
                    let all = Call::new(descriptors)?.find(handle, buffers)?;
                    require(!all.is_empty(), miopenStatusNotImplemented)?;
                    let count = all.len().min(requestAlgoCount as usize);
                    for (place, found) in all[..count].iter().enumerate() {
                        perfResults.add(place).write(miopenConvAlgoPerf_t {
                            algorithm: miopenConvAlgoPerf_algorithm { $field: $enum(found.number as i32) },
                            time: found.time,
                            memory: found.workspace,
                        });
                    }
                    answer(returnedAlgoCount, count as c_int)
                })
            }
        }

        pub(super) unsafe extern "C" fn $run(
            handle: miopenHandle_t,
            alpha: *const c_void,
            $fa: miopenTensorDescriptor_t,
            $fap: *const c_void,
            $fb: miopenTensorDescriptor_t,
            $fbp: *const c_void,
            conv: miopenConvolutionDescriptor_t,
            algo: $enum,
            beta: *const c_void,
            $fc: miopenTensorDescriptor_t,
            $fcp: *mut c_void,
            workSpace: *mut c_void,
            workSpaceSize: usize,
        ) -> miopenStatus_t {
            let descriptors = Descriptors { kind: Kind::$kind, x: $x, w: $w, conv, y: $y };
            let ($fap, $fbp) = ($fap.cast_mut(), $fbp.cast_mut());
            let buffers =
                Buffers { x: $xp, w: $wp, y: $yp, workspace: workSpace, workspace_size: workSpaceSize };
            // SAFETY: the caller's handle, descriptors, scalars and buffers.
            unsafe {
                with(handle, |handle| {
                    plain_scalars(alpha, beta, miopenFloat)?;
                    let number = u32::try_from(algo.0).map_err(|_| miopenStatusBadParm)?;
                    Call::new(descriptors)?.run(handle, number, buffers)
                })
            }
        }
    };
}
find!(
    Forward,
    miopenConvFwdAlgorithm_t,
    fwd_algo,
    (w x y),
    (x xp, w wp, y yp),
    [x w y],
    [xp wp yp],
    miopenConvolutionForwardGetWorkSpaceSize,
    miopenFindConvolutionForwardAlgorithm,
    miopenConvolutionForward
);
find!(
    BackwardData,
    miopenConvBwdDataAlgorithm_t,
    bwd_data_algo,
    (y w x),
    (y yp, w wp, x xp),
    [x w y],
    [xp wp yp],
    miopenConvolutionBackwardDataGetWorkSpaceSize,
    miopenFindConvolutionBackwardDataAlgorithm,
    miopenConvolutionBackwardData
);
find!(
    BackwardWeights,
    miopenConvBwdWeightsAlgorithm_t,
    bwd_weights_algo,
    (y x w),
    (y yp, x xp, w wp),
    [x w y],
    [xp wp yp],
    miopenConvolutionBackwardWeightsGetWorkSpaceSize,
    miopenFindConvolutionBackwardWeightsAlgorithm,
    miopenConvolutionBackwardWeights
);
