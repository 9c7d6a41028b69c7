//! Fusion plans: they can be made, and none compiles, as for a shape that MIOpen has no fused kernel for. The
//! convolution and a kernel take their place. (cuDNN's fused call would take f32 and f16 in one of its algorithms
//! alone.)

use super::handle::with;
use super::tensor::tensor;
use core::ffi::c_void;
use hip_provider::miopen::{Outcome, answer, give, object, status, take};
use hip_provider::require;
use miopen_sys::*;

/// What a `miopenFusionPlanDescriptor_t` points to, and its ops.
#[allow(dead_code)] // Of a size, so that each has an address of its own.
struct Plan(u8);

/// What a `miopenOperatorArgs_t` points to.
#[allow(dead_code)]
struct Args(u8);

pub(super) unsafe extern "C" fn miopenCreateFusionPlan(
    fusePlanDesc: *mut miopenFusionPlanDescriptor_t,
    fuseDirection: miopenFusionDirection_t,
    inputDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor and out-pointer.
    status(|| unsafe {
        require(fuseDirection == miopenVerticalFusion, miopenStatusNotImplemented)?;
        tensor(inputDesc)?;
        give(fusePlanDesc, Plan(0))
    })
}

pub(super) unsafe extern "C" fn miopenDestroyFusionPlan(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan.
    status(|| unsafe { take::<Plan, _>(fusePlanDesc) })
}

pub(super) unsafe extern "C" fn miopenCompileFusionPlan(
    handle: miopenHandle_t,
    _fusePlanDesc: miopenFusionPlanDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle.
    unsafe { with(handle, |_| Err(miopenStatusUnsupportedOp)) }
}

pub(super) unsafe extern "C" fn miopenFusionPlanGetWorkSpaceSize(
    _handle: miopenHandle_t,
    _fusePlanDesc: miopenFusionPlanDescriptor_t,
    workSpaceSize: *mut usize,
    _algo: miopenConvFwdAlgorithm_t,
) -> miopenStatus_t {
    // SAFETY: the caller's out-pointer.
    status(|| unsafe { answer(workSpaceSize, 0) })
}

/// An op of a plan: the plan itself stands for it.
///
/// # Safety
/// The caller's plan and out-pointer.
unsafe fn add(plan: miopenFusionPlanDescriptor_t, op: *mut miopenFusionOpDescriptor_t) -> Outcome {
    require(!plan.is_null(), miopenStatusBadParm)?;
    // SAFETY: the caller's out-pointer.
    unsafe { answer(op, plan.cast()) }
}

pub(super) unsafe extern "C" fn miopenCreateOpConvForward(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    convOp: *mut miopenFusionOpDescriptor_t,
    _convDesc: miopenConvolutionDescriptor_t,
    _wDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan and out-pointer.
    status(|| unsafe { add(fusePlanDesc, convOp) })
}

pub(super) unsafe extern "C" fn miopenCreateOpActivationForward(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    activFwdOp: *mut miopenFusionOpDescriptor_t,
    _mode: miopenActivationMode_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan and out-pointer.
    status(|| unsafe { add(fusePlanDesc, activFwdOp) })
}

pub(super) unsafe extern "C" fn miopenCreateOpBiasForward(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    biasOp: *mut miopenFusionOpDescriptor_t,
    _bDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan and out-pointer.
    status(|| unsafe { add(fusePlanDesc, biasOp) })
}

pub(super) unsafe extern "C" fn miopenCreateOperatorArgs(args: *mut miopenOperatorArgs_t) -> miopenStatus_t {
    // SAFETY: the caller's out-pointer.
    status(|| unsafe { give(args, Args(0)) })
}

pub(super) unsafe extern "C" fn miopenDestroyOperatorArgs(args: miopenOperatorArgs_t) -> miopenStatus_t {
    // SAFETY: the caller's arguments.
    status(|| unsafe { take::<Args, _>(args) })
}

pub(super) unsafe extern "C" fn miopenSetOpArgsConvForward(
    args: miopenOperatorArgs_t,
    _convOp: miopenFusionOpDescriptor_t,
    _alpha: *const c_void,
    _beta: *const c_void,
    _w: *const c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's arguments.
    status(|| unsafe { object::<Args, _>(args).map(|_| ()) })
}

pub(super) unsafe extern "C" fn miopenSetOpArgsActivForward(
    args: miopenOperatorArgs_t,
    _activFwdOp: miopenFusionOpDescriptor_t,
    _alpha: *const c_void,
    _beta: *const c_void,
    _activAlpha: f64,
    _activBeta: f64,
    _activGamma: f64,
) -> miopenStatus_t {
    // SAFETY: the caller's arguments.
    status(|| unsafe { object::<Args, _>(args).map(|_| ()) })
}

pub(super) unsafe extern "C" fn miopenSetOpArgsBiasForward(
    args: miopenOperatorArgs_t,
    _biasOp: miopenFusionOpDescriptor_t,
    _alpha: *const c_void,
    _beta: *const c_void,
    _bias: *const c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's arguments.
    status(|| unsafe { object::<Args, _>(args).map(|_| ()) })
}

pub(super) unsafe extern "C" fn miopenExecuteFusionPlan(
    handle: miopenHandle_t,
    _fusePlanDesc: miopenFusionPlanDescriptor_t,
    _inputDesc: miopenTensorDescriptor_t,
    _input: *const c_void,
    _outputDesc: miopenTensorDescriptor_t,
    _output: *mut c_void,
    _args: miopenOperatorArgs_t,
) -> miopenStatus_t {
    // SAFETY: the caller vouches for the handle. The status is MIOpen's for a plan that was not
    // compiled.
    unsafe { with(handle, |_| Err(miopenStatusBadParm)) }
}

pub(super) unsafe extern "C" fn miopenExecuteFusionPlan_v2(
    handle: miopenHandle_t,
    _fusePlanDesc: miopenFusionPlanDescriptor_t,
    _inputDesc: miopenTensorDescriptor_t,
    _input: *const c_void,
    _outputDesc: miopenTensorDescriptor_t,
    _output: *mut c_void,
    _args: miopenOperatorArgs_t,
    _workspace: *mut c_void,
    _workspaceSize: usize,
) -> miopenStatus_t {
    // SAFETY: as above.
    unsafe { with(handle, |_| Err(miopenStatusBadParm)) }
}
