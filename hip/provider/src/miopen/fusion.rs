//! Fusion plans: a 2-D convolution of f32, optionally a bias, and an activation. MIOpen fuses these
//! on every chip.

use super::tensor::tensor;
use super::{
    Activation, Convolution, ConvolutionBuffers, Convolutions, Described, Outcome, Tensor, answer,
    convolution, give, object, object_mut, status, take, with,
};
use crate::require;
use core::ffi::c_void;
use miopen_sys::*;

/// Fused convolutions of a provider.
pub trait Fusions: Convolutions {
    /// A convolution with a bias and an activation.
    type Fused;

    /// Prepares a convolution of f32, followed by a bias and an activation, for these tensors:
    /// input, weights and output.
    fn fuse(conv: &Convolution, tensors: [&Tensor; 3]) -> Outcome<Self::Fused>;

    /// Bytes of workspace of a fused convolution.
    fn fused_workspace(fused: &Self::Fused) -> usize;

    /// Runs a fused convolution.
    ///
    /// # Safety
    /// As [`Handle`](super::Handle) says of computations.
    unsafe fn run_fused(
        fused: &Self::Fused,
        output: &Tensor,
        buffers: ConvolutionBuffers,
        bias: Option<*const c_void>,
        activation: Activation,
    ) -> Outcome;
}

/// The object behind a `miopenFusionPlanDescriptor_t`.
struct Plan<H: Fusions> {
    input: Tensor,
    /// Boxed, because the caller has pointers to the ops.
    #[allow(clippy::vec_box)]
    ops: Vec<Box<Operator>>,
    compiled: Option<Compiled<H::Fused>>,
}

/// The object behind a `miopenFusionOpDescriptor_t`.
struct Operator {
    /// Its index in the plan.
    index: usize,
    op: Op,
}

enum Op {
    Convolution(Convolution, Tensor),
    Bias(Tensor),
    Activation(miopenActivationMode_t),
}

/// A compiled plan.
struct Compiled<F> {
    fused: F,
    output: Tensor,
    biased: bool,
}

/// The object behind a `miopenOperatorArgs_t`: the ops' arguments, each at its op's index.
#[derive(Default)]
struct Args(Vec<Option<Arg>>);

#[derive(Clone, Copy)]
enum Arg {
    Weight(*const c_void),
    Bias(*const c_void),
    Activation(Activation),
}

impl<H: Fusions> Plan<H> {
    fn compile(&self) -> Outcome<Compiled<H::Fused>> {
        let ops: Vec<&Op> = self.ops.iter().map(|operator| &operator.op).collect();
        let (conv, weight, bias) = match ops[..] {
            [Op::Convolution(conv, weight), Op::Activation(_)] => (conv, weight, None),
            [Op::Convolution(conv, weight), Op::Bias(bias), Op::Activation(_)] => (conv, weight, Some(bias)),
            _ => return Err(miopenStatusUnsupportedOp),
        };
        let input = &self.input;
        let supported = !conv.is_transposed() && input.data == miopenFloat && input.dims.len() == 4;
        require(supported, miopenStatusUnsupportedOp)?;
        let output = conv.output(input, weight)?;
        if let Some(bias) = bias {
            let channels = bias.dims.get(1) == Some(&output.dims[1]) && bias.count() == output.dims[1];
            require(channels && bias.data == input.data, miopenStatusBadParm)?;
        }
        convolution::check(conv, [input, weight, &output])?;
        let fused = H::fuse(conv, [input, weight, &output])?;
        Ok(Compiled { fused, output, biased: bias.is_some() })
    }
}

pub(super) unsafe extern "C" fn miopenCreateFusionPlan<H: Fusions>(
    fusePlanDesc: *mut miopenFusionPlanDescriptor_t,
    fuseDirection: miopenFusionDirection_t,
    inputDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's descriptor and out-pointer.
    status(|| unsafe {
        require(fuseDirection == miopenVerticalFusion, miopenStatusNotImplemented)?;
        let input = (**tensor::<H>(inputDesc)?).clone();
        give(fusePlanDesc, Plan::<H> { input, ops: Vec::new(), compiled: None })
    })
}

pub(super) unsafe extern "C" fn miopenDestroyFusionPlan<H: Fusions>(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan.
    status(|| unsafe { take::<Plan<H>, _>(fusePlanDesc) })
}

/// Adds an op to a plan.
///
/// # Safety
/// The caller's plan and out-pointer.
unsafe fn add<H: Fusions>(
    plan: miopenFusionPlanDescriptor_t,
    to: *mut miopenFusionOpDescriptor_t,
    op: impl FnOnce() -> Outcome<Op>,
) -> miopenStatus_t {
    status(|| {
        require(!to.is_null(), miopenStatusBadParm)?;
        // SAFETY: the caller vouches for it.
        let ops = &mut unsafe { object_mut::<Plan<H>, _>(plan) }?.ops;
        let index = ops.len();
        ops.push(Box::new(Operator { index, op: op()? }));
        // The pointer is taken after the push, because moving a box invalidates pointers into it.
        // SAFETY: the caller's out-pointer.
        unsafe { answer(to, (&raw mut *ops[index]).cast()) }
    })
}

pub(super) unsafe extern "C" fn miopenCreateOpConvForward<H: Fusions>(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    convOp: *mut miopenFusionOpDescriptor_t,
    convDesc: miopenConvolutionDescriptor_t,
    wDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan, descriptors and out-pointer.
    unsafe {
        add::<H>(fusePlanDesc, convOp, || {
            let conv = object::<Described<Convolution, H::Own>, _>(convDesc)?;
            Ok(Op::Convolution((**conv).clone(), (**tensor::<H>(wDesc)?).clone()))
        })
    }
}

pub(super) unsafe extern "C" fn miopenCreateOpBiasForward<H: Fusions>(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    biasOp: *mut miopenFusionOpDescriptor_t,
    bDesc: miopenTensorDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan, descriptor and out-pointer.
    unsafe { add::<H>(fusePlanDesc, biasOp, || Ok(Op::Bias((**tensor::<H>(bDesc)?).clone()))) }
}

pub(super) unsafe extern "C" fn miopenCreateOpActivationForward<H: Fusions>(
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    activFwdOp: *mut miopenFusionOpDescriptor_t,
    mode: miopenActivationMode_t,
) -> miopenStatus_t {
    // SAFETY: the caller's plan and out-pointer.
    unsafe {
        add::<H>(fusePlanDesc, activFwdOp, || {
            require(mode.name().is_some(), miopenStatusBadParm)?;
            Ok(Op::Activation(mode))
        })
    }
}

pub(super) unsafe extern "C" fn miopenCompileFusionPlan<H: Fusions>(
    handle: miopenHandle_t,
    fusePlanDesc: miopenFusionPlanDescriptor_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle and plan.
    unsafe {
        with::<H>(handle, |_| {
            let plan = object_mut::<Plan<H>, _>(fusePlanDesc)?;
            plan.compiled = None;
            plan.compiled = Some(plan.compile()?);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn miopenFusionPlanGetWorkSpaceSize<H: Fusions>(
    handle: miopenHandle_t,
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    workSpaceSize: *mut usize,
    _algo: miopenConvFwdAlgorithm_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, plan and out-pointer.
    unsafe {
        with::<H>(handle, |_| {
            let compiled = object::<Plan<H>, _>(fusePlanDesc)?.compiled.as_ref();
            answer(workSpaceSize, compiled.map_or(0, |compiled| H::fused_workspace(&compiled.fused)))
        })
    }
}

pub(super) unsafe extern "C" fn miopenCreateOperatorArgs(args: *mut miopenOperatorArgs_t) -> miopenStatus_t {
    // SAFETY: the caller's out-pointer.
    status(|| unsafe { give(args, Args::default()) })
}

pub(super) unsafe extern "C" fn miopenDestroyOperatorArgs(args: miopenOperatorArgs_t) -> miopenStatus_t {
    // SAFETY: the caller's arguments.
    status(|| unsafe { take::<Args, _>(args) })
}

/// Sets an op's argument. `arg` gives `None` for an op of another kind.
///
/// # Safety
/// The caller's arguments and op.
unsafe fn set(
    args: miopenOperatorArgs_t,
    op: miopenFusionOpDescriptor_t,
    arg: impl FnOnce(&Op) -> Option<Arg>,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller vouches for both.
        let (args, operator) = unsafe { (object_mut::<Args, _>(args)?, object::<Operator, _>(op)?) };
        if args.0.len() <= operator.index {
            args.0.resize(operator.index + 1, None);
        }
        args.0[operator.index] = Some(arg(&operator.op).ok_or(miopenStatusBadParm)?);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn miopenSetOpArgsConvForward(
    args: miopenOperatorArgs_t,
    convOp: miopenFusionOpDescriptor_t,
    _alpha: *const c_void,
    _beta: *const c_void,
    w: *const c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's arguments and op.
    unsafe { set(args, convOp, |op| matches!(op, Op::Convolution(..)).then_some(Arg::Weight(w))) }
}

pub(super) unsafe extern "C" fn miopenSetOpArgsBiasForward(
    args: miopenOperatorArgs_t,
    biasOp: miopenFusionOpDescriptor_t,
    _alpha: *const c_void,
    _beta: *const c_void,
    bias: *const c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's arguments and op.
    unsafe { set(args, biasOp, |op| matches!(op, Op::Bias(_)).then_some(Arg::Bias(bias))) }
}

pub(super) unsafe extern "C" fn miopenSetOpArgsActivForward(
    args: miopenOperatorArgs_t,
    activFwdOp: miopenFusionOpDescriptor_t,
    _alpha: *const c_void,
    _beta: *const c_void,
    activAlpha: f64,
    activBeta: f64,
    activGamma: f64,
) -> miopenStatus_t {
    let parameters = [activAlpha, activBeta, activGamma];
    // SAFETY: the caller's arguments and op.
    unsafe {
        set(args, activFwdOp, |op| match *op {
            Op::Activation(mode) => Some(Arg::Activation(Activation { mode, parameters })),
            _ => None,
        })
    }
}

pub(super) unsafe extern "C" fn miopenExecuteFusionPlan<H: Fusions>(
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
        miopenExecuteFusionPlan_v2::<H>(
            handle,
            fusePlanDesc,
            inputDesc,
            input,
            outputDesc,
            output,
            args,
            none,
            0,
        )
    }
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenExecuteFusionPlan_v2<H: Fusions>(
    handle: miopenHandle_t,
    fusePlanDesc: miopenFusionPlanDescriptor_t,
    inputDesc: miopenTensorDescriptor_t,
    input: *const c_void,
    outputDesc: miopenTensorDescriptor_t,
    output: *mut c_void,
    args: miopenOperatorArgs_t,
    workspace: *mut c_void,
    workspaceSize: usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, plan, descriptors, arguments and buffers; the written one
    // overlaps no other.
    unsafe {
        with::<H>(handle, |_| {
            let plan = object::<Plan<H>, _>(fusePlanDesc)?;
            let compiled = plan.compiled.as_ref().ok_or(miopenStatusBadParm)?;
            let same =
                **tensor::<H>(inputDesc)? == plan.input && **tensor::<H>(outputDesc)? == compiled.output;
            require(same, miopenStatusBadParm)?;
            let args = &object::<Args, _>(args)?.0;
            let arg = |index: usize| args.get(index).copied().flatten().ok_or(miopenStatusBadParm);
            let (Arg::Weight(w), last) = (arg(0)?, arg(plan.ops.len() - 1)?) else {
                return Err(miopenStatusBadParm);
            };
            let bias = match (compiled.biased, arg(1)?) {
                (true, Arg::Bias(bias)) => Some(bias),
                (false, _) => None,
                _ => return Err(miopenStatusBadParm),
            };
            let Arg::Activation(activation) = last else { return Err(miopenStatusBadParm) };
            let (x, w, workspace_size) = (input.cast_mut(), w.cast_mut(), workspaceSize);
            let buffers = ConvolutionBuffers { x, w, y: output, workspace, workspace_size };
            H::run_fused(&compiled.fused, &compiled.output, buffers, bias, activation)
        })
    }
}
