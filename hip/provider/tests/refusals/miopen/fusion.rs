//! Fusion plans.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use miopen_sys::*;

use super::{
    BAD, LAST, MISSING, NO_HANDLE, REFUSED, UNKNOWN, UNSUPPORTED, dangling, done, floats, handle, miopen,
    refused, strided, tensor, unset,
};
use crate::{Runs, asked, check, looked};

fn convolution(mode: miopenConvolutionMode_t, pad: c_int) -> miopenConvolutionDescriptor_t {
    let (t, mut made, pad, ones) = (miopen(), null_mut(), [pad; 2], [1; 2]);
    let (pad, ones) = (pad.as_ptr(), ones.as_ptr());
    unsafe {
        done((t.miopenCreateConvolutionDescriptor)(&mut made));
        done((t.miopenInitConvolutionNdDescriptor)(made, 2, pad, ones, ones, mode));
    }
    made
}

fn plan(input: miopenTensorDescriptor_t) -> miopenFusionPlanDescriptor_t {
    let mut made = null_mut();
    done(unsafe { (miopen().miopenCreateFusionPlan)(&mut made, miopenVerticalFusion, input) });
    made
}

/// An op of a plan.
#[derive(Clone, Copy)]
enum Op {
    Convolution(miopenConvolutionDescriptor_t, miopenTensorDescriptor_t),
    Bias(miopenTensorDescriptor_t),
    Activation(miopenActivationMode_t),
}

impl Op {
    fn add(self, plan: miopenFusionPlanDescriptor_t, to: *mut miopenFusionOpDescriptor_t) -> miopenStatus_t {
        let t = miopen();
        unsafe {
            match self {
                Op::Convolution(conv, w) => (t.miopenCreateOpConvForward)(plan, to, conv, w),
                Op::Bias(bias) => (t.miopenCreateOpBiasForward)(plan, to, bias),
                Op::Activation(mode) => (t.miopenCreateOpActivationForward)(plan, to, mode),
            }
        }
    }
}

#[derive(Clone)]
struct Plan {
    handle: miopenHandle_t,
    input: miopenTensorDescriptor_t,
    ops: Vec<Op>,
}

fn good() -> Plan {
    let conv = Op::Convolution(convolution(miopenConvolution, 1), floats(&[6, 4, 3, 3]));
    let ops = vec![conv, Op::Bias(floats(&[1, 6, 1, 1])), Op::Activation(miopenActivationRELU)];
    Plan { handle: handle(), input: floats(&[2, 4, 9, 9]), ops }
}

impl Plan {
    /// The plan and its ops.
    fn make(&self) -> (miopenFusionPlanDescriptor_t, Vec<miopenFusionOpDescriptor_t>) {
        let plan = plan(self.input);
        let made = self.ops.iter().map(|op| {
            let mut made = null_mut();
            done(op.add(plan, &mut made));
            made
        });
        (plan, made.collect())
    }
}

/// What a call that only sets something up does: no provider is asked.
fn noted(status: miopenStatus_t) -> miopenStatus_t {
    if status == miopenStatusSuccess {
        asked("no provider");
    }
    status
}

#[test]
fn plans_and_ops_are_made() {
    let t = miopen();
    let mut made = null_mut();
    type Create = (*mut miopenFusionPlanDescriptor_t, miopenFusionDirection_t, miopenTensorDescriptor_t);
    let create = |(to, direction, input): &mut Create| {
        noted(unsafe { (t.miopenCreateFusionPlan)(*to, *direction, *input) })
    };
    let (none, cant) = (unset(), refused(&[1]));
    check(
        "miopenCreateFusionPlan",
        (&raw mut made, miopenVerticalFusion, good().input),
        create,
        &[
            ("null", &|c| c.0 = null_mut(), BAD),
            ("another direction", &|c| c.1 = miopenFusionDirection_t(1), MISSING),
            ("no input", &|c| c.2 = null_mut(), BAD),
            ("an input without values", &|c| c.2 = none, BAD),
            ("an input that the provider can't serve", &|c| c.2 = cant, REFUSED),
        ],
    );
    assert_eq!(unsafe { (t.miopenDestroyFusionPlan)(null_mut()) }, miopenStatusBadParm);
    let mut op = null_mut();
    type Add = (miopenFusionPlanDescriptor_t, *mut miopenFusionOpDescriptor_t, Op);
    let add = |(plan, to, op): &mut Add| noted(op.add(*plan, *to));
    for op_of in good().ops {
        check(
            "an op",
            (made, &raw mut op, op_of),
            add,
            &[("no plan", &|c| c.0 = null_mut(), BAD), ("null", &|c| c.1 = null_mut(), BAD)],
        );
    }
    let (conv, weight) = (convolution(miopenConvolution, 0), floats(&[1; 4]));
    check(
        "an op",
        (made, &raw mut op, Op::Bias(weight)),
        add,
        &[
            ("no convolution", &|c| c.2 = Op::Convolution(null_mut(), weight), BAD),
            ("no weights", &|c| c.2 = Op::Convolution(conv, null_mut()), BAD),
            ("weights without values", &|c| c.2 = Op::Convolution(conv, none), BAD),
            ("no bias", &|c| c.2 = Op::Bias(null_mut()), BAD),
            ("a bias that the provider can't serve", &|c| c.2 = Op::Bias(cant), REFUSED),
            ("an unknown activation", &|c| c.2 = Op::Activation(miopenActivationMode_t(UNKNOWN)), BAD),
        ],
    );
    assert_eq!(unsafe { (t.miopenDestroyFusionPlan)(made) }, miopenStatusSuccess);
}

#[test]
fn plans_are_compiled() {
    let t = miopen();
    let compile = |p: &mut Plan| unsafe { (t.miopenCompileFusionPlan)(p.handle, p.make().0) };
    let conv = |mode, pad, dims: &[c_int]| Op::Convolution(convolution(mode, pad), floats(dims));
    let transposed = conv(miopenTranspose, 1, &[6, 4, 3, 3]);
    let large = conv(miopenConvolution, 0, &[6, 4, 10, 3]);
    let (mut volumes, zeros, ones) = (null_mut(), [0; 3], [1; 3]);
    let (zeros, ones) = (zeros.as_ptr(), ones.as_ptr());
    unsafe {
        done((t.miopenCreateConvolutionDescriptor)(&mut volumes));
        done((t.miopenInitConvolutionNdDescriptor)(volumes, 3, zeros, ones, ones, miopenConvolution));
    }
    let volume_weights = Op::Convolution(volumes, floats(&[6, 4, 3, 3, 1]));
    let flat = conv(miopenConvolution, 0, &[6, 4, 3]);
    let largest = conv(miopenConvolution, 1, &[6, 4, 11, 3]);
    let bias = |dims: &[c_int]| Op::Bias(floats(dims));
    let (five, twelve, first) = (bias(&[1, 5, 1, 1]), bias(&[2, 6, 1, 1]), bias(&[6]));
    let halves = Op::Bias(tensor(miopenHalf, &[1, 6, 1, 1]));
    let half_weights = Op::Convolution(convolution(miopenConvolution, 1), tensor(miopenHalf, &[6, 4, 3, 3]));
    let (half, volume) = (tensor(miopenHalf, &[2, 4, 9, 9]), floats(&[2, 4, 9, 9, 1]));
    check(
        "miopenCompileFusionPlan",
        good(),
        compile,
        &[
            ("no handle", &|p| p.handle = null_mut(), NO_HANDLE),
            ("no ops", &|p| p.ops.clear(), UNSUPPORTED),
            ("no activation", &|p| p.ops.truncate(2), UNSUPPORTED),
            ("a convolution alone", &|p| p.ops.truncate(1), UNSUPPORTED),
            ("no convolution", &|p| p.ops = p.ops.split_off(1), UNSUPPORTED),
            ("no bias", &|p| p.ops = vec![p.ops[0], p.ops[2]], Runs),
            ("the bias last", &|p| p.ops.swap(1, 2), UNSUPPORTED),
            ("two activations", &|p| p.ops.push(p.ops[2]), UNSUPPORTED),
            ("a transposed convolution", &|p| p.ops[0] = transposed, UNSUPPORTED),
            ("f16", &|p| p.input = half, UNSUPPORTED),
            ("three axes", &|p| p.input = volume, UNSUPPORTED),
            ("weights of another rank", &|p| p.ops[0] = flat, BAD),
            ("a convolution of three axes", &|p| p.ops[0] = volume_weights, BAD),
            ("a window longer than the input", &|p| p.ops[0] = large, BAD),
            ("a window as long as the padded input", &|p| p.ops[0] = largest, Runs),
            ("weights of another type", &|p| p.ops[0] = half_weights, BAD),
            ("a bias of other channels", &|p| p.ops[1] = five, BAD),
            ("a bias for each sample", &|p| p.ops[1] = twelve, BAD),
            ("a bias of one axis", &|p| p.ops[1] = first, BAD),
            ("a bias of another type", &|p| p.ops[1] = halves, BAD),
        ],
    );
    assert_eq!(unsafe { (t.miopenCompileFusionPlan)(handle(), null_mut()) }, miopenStatusBadParm);
    done(compile(&mut good()));
    assert_eq!(LAST.take(), "[2, 4, 9, 9] [6, 4, 3, 3] [2, 6, 9, 9]");
    // An op that is refused is not in the plan.
    let (plan, _) = good().make();
    assert_eq!(Op::Bias(floats(&[1, 6, 1, 1])).add(plan, null_mut()), miopenStatusBadParm);
    done(unsafe { (t.miopenCompileFusionPlan)(handle(), plan) });
    // The workspace of a plan that is not compiled is 0.
    let (plan, _) = good().make();
    let size = |handle, plan, to| unsafe {
        (t.miopenFusionPlanGetWorkSpaceSize)(handle, plan, to, miopenConvolutionFwdAlgoDirect)
    };
    let mut bytes = 9;
    done(size(handle(), plan, &mut bytes));
    assert_eq!(bytes, 0);
    done(unsafe { (t.miopenCompileFusionPlan)(handle(), plan) });
    done(size(handle(), plan, &mut bytes));
    assert_eq!(bytes, 6);
    assert_eq!(size(null_mut(), plan, &mut bytes), miopenStatusNotInitialized);
    assert_eq!(size(handle(), null_mut(), &mut bytes), miopenStatusBadParm);
    assert_eq!(size(handle(), plan, null_mut()), miopenStatusBadParm);
    looked();
}

#[derive(Clone)]
struct Run {
    handle: miopenHandle_t,
    plan: Plan,
    compiled: bool,
    /// For each op the op whose argument is set: a convolution's, a bias's, an activation's.
    set: [Option<usize>; 3],
    has_args: bool,
    x: miopenTensorDescriptor_t,
    y: miopenTensorDescriptor_t,
}

/// The statuses of setting arguments, and of the run.
fn run(c: &Run) -> (Vec<miopenStatus_t>, miopenStatus_t) {
    let (t, mut args) = (miopen(), null_mut());
    let (plan, ops) = c.plan.make();
    let mut statuses = Vec::new();
    unsafe {
        done((t.miopenCreateOperatorArgs)(&mut args));
        if c.compiled {
            done((t.miopenCompileFusionPlan)(handle(), plan));
        }
        for (kind, op) in c.set.iter().enumerate() {
            let Some(op) = op.map(|op| ops[op]) else { continue };
            statuses.push(match kind {
                0 => (t.miopenSetOpArgsConvForward)(args, op, null(), null(), dangling()),
                1 => (t.miopenSetOpArgsBiasForward)(args, op, null(), null(), dangling()),
                _ => (t.miopenSetOpArgsActivForward)(args, op, null(), null(), 1.0, 2.0, 3.0),
            });
        }
        looked();
        let given = if c.has_args { args } else { null_mut() };
        let (x, y) = (dangling(), dangling());
        let status = (t.miopenExecuteFusionPlan)(c.handle, plan, c.x, x, c.y, y, given);
        (statuses, status)
    }
}

#[test]
fn plans_run() {
    let good = Run {
        handle: handle(),
        plan: good(),
        compiled: true,
        set: [Some(0), Some(1), Some(2)],
        has_args: true,
        x: floats(&[2, 4, 9, 9]),
        y: floats(&[2, 6, 9, 9]),
    };
    let gaps = strided(miopenFloat, &[2, 4, 9, 9], Some(&[400, 100, 10, 1]));
    let (none, cant) = (unset(), refused(&[1]));
    check(
        "miopenExecuteFusionPlan",
        good.clone(),
        |c: &mut Run| run(c).1,
        &[
            ("no handle", &|c| c.handle = null_mut(), NO_HANDLE),
            ("not compiled", &|c| c.compiled = false, BAD),
            ("no input", &|c| c.x = null_mut(), BAD),
            ("no output", &|c| c.y = null_mut(), BAD),
            ("an input without values", &|c| c.x = none, BAD),
            ("an output that the provider can't serve", &|c| c.y = cant, REFUSED),
            ("another input", &|c| c.x = c.y, BAD),
            ("another input's strides", &|c| c.x = gaps, BAD),
            ("another output", &|c| c.y = c.x, BAD),
            ("no arguments", &|c| c.has_args = false, BAD),
            ("no weights", &|c| c.set[0] = None, BAD),
            ("no bias", &|c| c.set[1] = None, BAD),
            ("no activation", &|c| c.set[2] = None, BAD),
            (
                "a plan without bias",
                &|c| (c.plan.ops, c.set) = (vec![c.plan.ops[0], c.plan.ops[2]], [Some(0), None, Some(1)]),
                Runs,
            ),
        ],
    );
    assert_eq!(
        unsafe {
            (miopen().miopenExecuteFusionPlan)(
                handle(),
                null_mut(),
                good.x,
                null(),
                good.y,
                null_mut(),
                dangling(),
            )
        },
        miopenStatusBadParm
    );
    // Another op's argument.
    for kind in 0..3 {
        for op in 0..3 {
            let mut set = [None; 3];
            set[kind] = Some(op);
            let expected = if kind == op { miopenStatusSuccess } else { miopenStatusBadParm };
            assert_eq!(run(&Run { set, ..good.clone() }).0, [expected], "argument {kind} for op {op}");
        }
    }
    let t = miopen();
    let ((_, ops), mut args) = (good.plan.make(), null_mut());
    unsafe {
        done((t.miopenCreateOperatorArgs)(&mut args));
        for (args, op) in [(null_mut(), ops[0]), (args, null_mut())] {
            assert_eq!((t.miopenSetOpArgsConvForward)(args, op, null(), null(), null()), miopenStatusBadParm);
        }
    }
    done(run(&good).1);
    assert_eq!(LAST.take(), "bias: true, miopenActivationRELU");
    looked();
}
