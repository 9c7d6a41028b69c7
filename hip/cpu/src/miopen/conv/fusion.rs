//! Fusion plans: a convolution, maybe a bias, and an activation. Of f32 alone, which is what MIOpen has on every chip.

use super::super::Shared;
use super::super::activation::Activation;
use super::super::handle::in_order;
use super::super::status::{input, output};
use super::super::tensor::{Tensor, tensor};
use super::call::{Buffers, Call, Kind};
use super::descriptor::{Convolution, convolution};
use crate::runtime::parallel;
use core::ffi::c_void;
use hip_provider::miopen::{Outcome, answer, give, object, object_mut, status, take};
use hip_provider::require;
use miopen_sys::*;

/// What a `miopenFusionPlanDescriptor_t` points to.
struct Plan {
    input: Tensor,
    /// Boxed: the caller has pointers to them.
    #[allow(clippy::vec_box)]
    ops: Vec<Box<Operator>>,
    compiled: Option<Compiled>,
}

/// What a `miopenFusionOpDescriptor_t` points to.
struct Operator {
    /// Its place in the plan.
    index: usize,
    op: Op,
}

enum Op {
    Convolution(Convolution, Tensor),
    Bias(Tensor),
    Activation(miopenActivationMode_t),
}

/// A plan that can run.
struct Compiled {
    call: Call,
    output: Tensor,
    biased: bool,
}

/// What a `miopenOperatorArgs_t` points to: the arguments of the ops, by their places.
#[derive(Default)]
struct Args(Vec<Option<Arg>>);

#[derive(Clone, Copy)]
enum Arg {
    Weight(*const c_void),
    Bias(*const c_void),
    Activation(Activation),
}

impl Plan {
    fn add(&mut self, op: Op) -> *mut Operator {
        self.ops.push(Box::new(Operator { index: self.ops.len(), op }));
        let last = self.ops.len() - 1;
        &raw mut *self.ops[last]
    }

    fn compile(&self) -> Outcome<Compiled> {
        let ops: Vec<&Op> = self.ops.iter().map(|operator| &operator.op).collect();
        let (conv, weight, bias) = match ops[..] {
            [Op::Convolution(conv, weight), Op::Activation(_)] => (conv, weight, None),
            [Op::Convolution(conv, weight), Op::Bias(bias), Op::Activation(_)] => (conv, weight, Some(bias)),
            _ => return Err(miopenStatusUnsupportedOp),
        };
        let input = &self.input;
        let supported = conv.mode == miopenConvolution && input.data == miopenFloat && input.dims.len() == 4;
        require(supported, miopenStatusUnsupportedOp)?;
        let output = conv.output(input, weight)?;
        if let Some(bias) = bias {
            let channels = bias.dims.get(1) == Some(&output.dims[1]) && bias.count() == output.dims[1];
            require(channels && bias.data == input.data, miopenStatusBadParm)?;
        }
        let call = Call::of(Kind::Forward, input, weight, conv, &output)?;
        Ok(Compiled { call, output, biased: bias.is_some() })
    }
}

pub(in super::super) unsafe extern "C" fn miopenCreateFusionPlan(
    fusePlanDesc: *mut miopenFusionPlanDescriptor_t,
    fuseDirection: miopenFusionDirection_t,
    inputDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor and out-pointer.
    status(|| unsafe {
        require(fuseDirection == miopenVerticalFusion, miopenStatusNotImplemented)?;
        let input = tensor(inputDesc)?.clone();
        give(fusePlanDesc, Plan { input, ops: Vec::new(), compiled: None })
    })
}

pub(in super::super) unsafe extern "C" fn miopenDestroyFusionPlan(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan.
    status(|| unsafe { take::<Plan, _>(fusePlanDesc) })
}

/// Adds an op to a plan.
///
/// # Safety
/// The caller's plan and out-pointer.
unsafe fn add(
    plan: miopenFusionPlanDescriptor_t,
    to: *mut miopenFusionOpDescriptor_t,
    op: impl FnOnce() -> Outcome<Op>,
) -> miopenStatus_t {
    status(|| {
        require(!to.is_null(), miopenStatusBadParm)?;
        // SAFETY: the caller vouches for both.
        unsafe { answer(to, object_mut::<Plan, _>(plan)?.add(op()?).cast()) }
    })
}

pub(in super::super) unsafe extern "C" fn miopenCreateOpConvForward(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    convOp: *mut miopenFusionOpDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    wDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan, descriptors and out-pointer.
    unsafe {
        add(fusePlanDesc, convOp, || {
            Ok(Op::Convolution(convolution(convDesc)?.clone(), tensor(wDesc)?.clone()))
        })
    }
}

pub(in super::super) unsafe extern "C" fn miopenCreateOpBiasForward(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    biasOp: *mut miopenFusionOpDescriptor_t,
    bDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan, descriptor and out-pointer.
    unsafe { add(fusePlanDesc, biasOp, || Ok(Op::Bias(tensor(bDesc)?.clone()))) }
}

pub(in super::super) unsafe extern "C" fn miopenCreateOpActivationForward(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    activFwdOp: *mut miopenFusionOpDescriptor_t,
    mode: miopenActivationMode_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan and out-pointer.
    unsafe {
        add(fusePlanDesc, activFwdOp, || {
            require(mode.name().is_some(), miopenStatusBadParm)?;
            Ok(Op::Activation(mode))
        })
    }
}

pub(in super::super) unsafe extern "C" fn miopenCompileFusionPlan(
    handle: miopenHandle_t,
    fusePlanDesc: miopenFusionPlanDescriptor_t,
) -> miopenStatus_t {
    in_order(handle, |_| {
        // SAFETY: the caller's plan.
        let plan = unsafe { object_mut::<Plan, _>(fusePlanDesc) }?;
        plan.compiled = None;
        plan.compiled = Some(plan.compile()?);
        Ok(())
    })
}

pub(in super::super) unsafe extern "C" fn miopenFusionPlanGetWorkSpaceSize(
    handle: miopenHandle_t,
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    workSpaceSize: *mut usize,
    _algo: miopenConvFwdAlgorithm_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, plan and out-pointer.
    in_order(handle, |_| unsafe {
        let compiled = object::<Plan, _>(fusePlanDesc)?.compiled.as_ref();
        answer(workSpaceSize, compiled.map_or(0, |compiled| compiled.call.workspace()))
    })
}

pub(in super::super) unsafe extern "C" fn miopenCreateOperatorArgs(
    args: *mut miopenOperatorArgs_t,
) -> miopenStatus_t {
    // SAFETY: the caller's out-pointer.
    status(|| unsafe { give(args, Args::default()) })
}

pub(in super::super) unsafe extern "C" fn miopenDestroyOperatorArgs(
    args: miopenOperatorArgs_t,
) -> miopenStatus_t {
    // SAFETY: the caller's arguments.
    status(|| unsafe { take::<Args, _>(args) })
}

/// Sets the argument of an op, where it is of the op's kind.
///
/// # Safety
/// The caller's arguments and op.
unsafe fn set(
    args: miopenOperatorArgs_t,
    op: miopenFusionOpDescriptor_t,
    arg: impl FnOnce(&Op) -> Outcome<Arg>,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller vouches for both.
        let (args, operator) = unsafe { (object_mut::<Args, _>(args)?, object::<Operator, _>(op)?) };
        if args.0.len() <= operator.index {
            args.0.resize(operator.index + 1, None);
        }
        args.0[operator.index] = Some(arg(&operator.op)?);
        Ok(())
    })
}

pub(in super::super) unsafe extern "C" fn miopenSetOpArgsConvForward(
    args: miopenOperatorArgs_t,
    convOp: miopenFusionOpDescriptor_t,
    _alpha: *const c_void,
    _beta: *const c_void,
    w: *const c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's arguments and op.
    unsafe {
        set(args, convOp, |op| match op {
            Op::Convolution(..) => Ok(Arg::Weight(w)),
            _ => Err(miopenStatusBadParm),
        })
    }
}

pub(in super::super) unsafe extern "C" fn miopenSetOpArgsBiasForward(
    args: miopenOperatorArgs_t,
    biasOp: miopenFusionOpDescriptor_t,
    _alpha: *const c_void,
    _beta: *const c_void,
    bias: *const c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's arguments and op.
    unsafe {
        set(args, biasOp, |op| match op {
            Op::Bias(_) => Ok(Arg::Bias(bias)),
            _ => Err(miopenStatusBadParm),
        })
    }
}

pub(in super::super) unsafe extern "C" fn miopenSetOpArgsActivForward(
    args: miopenOperatorArgs_t,
    activFwdOp: miopenFusionOpDescriptor_t,
    _alpha: *const c_void,
    _beta: *const c_void,
    activAlpha: f64,
    activBeta: f64,
    activGamma: f64,
) -> miopenStatus_t {
    // SAFETY: the caller's arguments and op.
    unsafe {
        set(args, activFwdOp, |op| match op {
            Op::Activation(mode) => {
                Ok(Arg::Activation(Activation::new(*mode, [activAlpha, activBeta, activGamma])))
            }
            _ => Err(miopenStatusBadParm),
        })
    }
}

pub(in super::super) unsafe extern "C" fn miopenExecuteFusionPlan(
    handle: miopenHandle_t,
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    inputDesc: miopenTensorDescriptor_t,
    input: *const c_void,
    outputDesc: miopenTensorDescriptor_t,
    output: *mut c_void,
    args: miopenOperatorArgs_t,
) -> miopenStatus_t {
    let none = core::ptr::null_mut();
    // SAFETY: the caller vouches for its arguments, as MIOpen asks.
    unsafe {
        miopenExecuteFusionPlan_v2(handle, fusePlanDesc, inputDesc, input, outputDesc, output, args, none, 0)
    }
}

pub(in super::super) unsafe extern "C" fn miopenExecuteFusionPlan_v2(
    handle: miopenHandle_t,
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    inputDesc: miopenTensorDescriptor_t,
    from: *const c_void,
    outputDesc: miopenTensorDescriptor_t,
    to: *mut c_void,
    args: miopenOperatorArgs_t,
    workspace: *mut c_void,
    workspaceSize: usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, plan, descriptors, arguments and buffers; the written one overlaps no other.
    in_order(handle, |_| unsafe {
        let plan = object::<Plan, _>(fusePlanDesc)?;
        let compiled = plan.compiled.as_ref().ok_or(miopenStatusBadParm)?;
        let same = *tensor(inputDesc)? == plan.input && *tensor(outputDesc)? == compiled.output;
        require(same, miopenStatusBadParm)?;
        let args = &object::<Args, _>(args)?.0;
        let arg = |index: usize| args.get(index).copied().flatten().ok_or(miopenStatusBadParm);
        let (Arg::Weight(weight), last) = (arg(0)?, arg(plan.ops.len() - 1)?) else {
            return Err(miopenStatusBadParm);
        };
        let bias = match (compiled.biased, arg(1)?) {
            (true, Arg::Bias(bias)) => Some(bias),
            (false, _) => None,
            _ => return Err(miopenStatusBadParm),
        };
        let Arg::Activation(activation) = last else { return Err(miopenStatusBadParm) };
        compiled.call.run(Buffers {
            x: from.cast_mut(),
            w: weight.cast_mut(),
            y: to,
            workspace,
            workspace_size: workspaceSize,
        })?;
        finish(&compiled.output, to, bias, activation)
    })
}

/// `y = activation(y + bias)`.
///
/// # Safety
/// `y` is the output's, and nobody else uses it meanwhile.
unsafe fn finish(
    output_of: &Tensor,
    y: *mut c_void,
    bias: Option<*const c_void>,
    activation: Activation,
) -> Outcome {
    let (batch, channels, pixels) = output_of.planes()?;
    // SAFETY: the caller's buffers, whose sizes are checked here.
    let (y, bias) = unsafe {
        let y = output::<f32>(y, output_of.count())?;
        (y, bias.map(|bias| input::<f32>(bias, channels)).transpose()?)
    };
    let y = Shared(y.as_mut_ptr());
    parallel(batch * channels, |plane| {
        let add = bias.map_or(0.0, |bias| bias[plane % channels]);
        // SAFETY: each plane is one task's alone.
        let plane = unsafe { core::slice::from_raw_parts_mut(y.get().add(plane * pixels), pixels) };
        plane.iter_mut().for_each(|value| *value = activation.forward(*value + add));
    });
    Ok(())
}
