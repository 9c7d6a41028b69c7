//! A convolution, its bias and an activation in one call, by MIOpen's fusion plans.
//!
//! A plan for a shape is compiled once. MIOpen then times its fused kernels for the shape. If it
//! has none it returns an error, and the shape is not tried again.

use std::ptr;

use miopen_sys::*;

use super::conv::workspace_span;
use super::descriptor::{ConvolutionDesc, FusionPlan, OperatorArgs, TensorDesc};
use super::{
    Activation, ConvDesc, Dnn, FLOATS, Handle, Refusal, TensorArg, carry, check, data_type, one, over_limit,
    zero,
};
use crate::memory::span::Span;
use crate::settings::workspace_limit;
use crate::{Error, Result, workarounds};

const OP: &str = "fused convolution";

/// The key of a plan: the convolution, whether it has a bias, and the activation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Fused {
    conv: ConvDesc,
    biased: bool,
    activation: miopenActivationMode_t,
}

/// A compiled plan and the descriptors that it was made from.
pub(super) struct Prepared {
    plan: FusionPlan,
    // The plan's ops refer to these. MIOpen copies them, but does not document it.
    _conv: ConvolutionDesc,
    _weight: TensorDesc,
    _bias: TensorDesc,
    x: TensorDesc,
    y: TensorDesc,
    ops: Ops,
    workspace: usize,
    /// Why MIOpen refuses the plan.
    refused: Refusal,
}

/// The plan's ops, which the plan owns.
struct Ops {
    conv: miopenFusionOpDescriptor_t,
    bias: miopenFusionOpDescriptor_t,
    activation: miopenFusionOpDescriptor_t,
}

// SAFETY: the ops are parts of a plan, which is plain data in MIOpen's heap, tied to no thread. One
// thread at a time uses them, under the handle's lock.
unsafe impl Send for Ops {}
// SAFETY: as above.
unsafe impl Sync for Ops {}

impl Dnn {
    /// `y`, the activation of `x * w + bias`, by a fusion plan.
    ///
    /// MIOpen multiplies instead of selecting, so ReLU of -inf is NaN, and of a negative number -0.
    ///
    /// # Errors
    /// `Miopen` or `Unsupported` if MIOpen has no plan for the shape, dtype and activation, and in
    /// deterministic mode, or if the plan needs more workspace than
    /// [`Config::workspace_limit`](crate::Config::workspace_limit) allows; `Invalid` for shapes that
    /// don't fit together, or memory that is too small or overlaps; `OutOfMemory` for the plan's
    /// workspace.
    pub fn conv_bias_activation(
        &self,
        desc: &ConvDesc,
        activation: Activation,
        x: TensorArg<'_>,
        w: TensorArg<'_>,
        bias: Option<TensorArg<'_>>,
        y: TensorArg<'_>,
    ) -> Result<()> {
        let [xs, ws, ys] = self.conv_spans(desc, x, w, y)?;
        let bs = self.span_or_null(OP, bias, desc.dtype, desc.w.first().copied().unwrap_or(0))?;
        ys.apart_from(OP, &[xs, ws, bs])?;
        carry([x, w].into_iter().chain(bias), [y]);
        desc.validate()?;
        if [xs, ws, ys].iter().any(|span| span.bytes == 0) {
            return Err(Error::unsupported_with(OP, desc.dtype, format!("empty tensors: {desc:?}")));
        }
        if desc.channels_last {
            return Err(Error::unsupported_with(OP, desc.dtype, "a plan with channels last"));
        }
        if !workarounds::fusion_is_right(desc.groups) {
            let what = format!("{} groups, for which MIOpen's plans are wrong", desc.groups);
            return Err(Error::unsupported_with(OP, desc.dtype, what));
        }
        // Plans have no attribute for determinism or for the alternative implementation.
        if self.deterministic {
            return Err(Error::unsupported_with(OP, desc.dtype, "deterministic mode"));
        }
        if self.halves.alternative(desc.dtype, desc.gradient) == Some(true) {
            return Err(Error::unsupported_with(OP, desc.dtype, "the attribute FP16_ALT_IMPL"));
        }
        let (mode, parameters) = activation.parameters();
        let key = Fused { conv: desc.clone(), biased: bias.is_some(), activation: mode };
        let prepared = self.fusions.get(&key, || {
            let handle = self.begin(y.buffer)?;
            self.plan(&handle, &key)
        })?;
        prepared.refused.check()?;
        if prepared.workspace > workspace_limit() {
            return Err(over_limit(OP, desc.dtype, prepared.workspace, format_args!("{key:?}")));
        }
        let workspace = super::workspace(y.buffer.device(), prepared.workspace)?;
        let space = workspace_span(&workspace, prepared.workspace);
        let handle = self.begin(y.buffer)?;
        let detail = || format!("{desc:?}, {activation:?}");
        // SAFETY: the spans hold the tensors that the descriptors describe. The pool gets them and
        // the workspace back after this call is enqueued, and reuses them only for later work of
        // the same stream.
        let run = unsafe { prepared.run(&handle, parameters, [xs, ws, bs, ys], space) };
        let served = run.and_then(|(call, status)| self.served(call, status, detail));
        prepared.refused.keep(0, served)
    }

    /// Makes and compiles a plan.
    fn plan(&self, handle: &Handle, fused: &Fused) -> Result<Prepared> {
        let Fused { conv: desc, biased, activation } = fused;
        let data_type = data_type(OP, desc.dtype, FLOATS)?;
        let table = self.table;
        let conv = ConvolutionDesc::of(table, OP, desc.options(), desc.groups)?;
        let tensor = |shape: &[usize]| TensorDesc::packed(table, OP, data_type, shape);
        let mut channels = vec![1; desc.y.len()];
        channels[1] = desc.w[0];
        let (x, weight, bias, y) = (tensor(&desc.x)?, tensor(&desc.w)?, tensor(&channels)?, tensor(&desc.y)?);
        let plan = FusionPlan::new(table, &x)?;
        let detail = || format!("{fused:?}");
        let mut ops = Ops { conv: ptr::null_mut(), bias: ptr::null_mut(), activation: ptr::null_mut() };
        let mut workspace = 0;
        let made = (|| {
            // SAFETY: the plan and the descriptors are valid; the out-pointers outlive the calls.
            unsafe {
                let status =
                    (table.miopenCreateOpConvForward)(plan.raw(), &mut ops.conv, conv.raw(), weight.raw());
                check(table, "miopenCreateOpConvForward", status, detail)?;
                if *biased {
                    let status = (table.miopenCreateOpBiasForward)(plan.raw(), &mut ops.bias, bias.raw());
                    check(table, "miopenCreateOpBiasForward", status, detail)?;
                }
                let status =
                    (table.miopenCreateOpActivationForward)(plan.raw(), &mut ops.activation, *activation);
                check(table, "miopenCreateOpActivationForward", status, detail)?;
                let status = (table.miopenCompileFusionPlan)(handle.raw, plan.raw());
                check(table, "miopenCompileFusionPlan", status, detail)?;
                // The workspace of the compiled kernel. MIOpen ignores the algorithm.
                let status = (table.miopenFusionPlanGetWorkSpaceSize)(
                    handle.raw,
                    plan.raw(),
                    &mut workspace,
                    miopenConvolutionFwdAlgoDirect,
                );
                check(table, "miopenFusionPlanGetWorkSpaceSize", status, detail)
            }
        })();
        let refused = Refusal::default();
        if let Err(error) = made {
            log::debug!("{OP}: {error}");
            let error = refused.keep(0, Err(error));
            if refused.check().is_ok() {
                error?;
            }
        }
        Ok(Prepared { plan, _conv: conv, _weight: weight, _bias: bias, x, y, ops, workspace, refused })
    }
}

impl Prepared {
    /// Runs the plan on x, w, the bias and y. Returns the function's name and status.
    ///
    /// # Safety
    /// The spans hold the tensors that the plan was made for, until the stream has passed the call.
    /// `space` is as large as the plan's workspace.
    unsafe fn run(
        &self,
        handle: &Handle,
        [alpha, beta, gamma]: [f64; 3],
        [x, w, bias, y]: [Span; 4],
        space: Span,
    ) -> Result<(&'static str, miopenStatus_t)> {
        let table = handle.table;
        let args = OperatorArgs::new(table)?;
        let Ops { conv, bias: add, activation } = self.ops;
        // SAFETY: the ops are the plan's; the scalars are static.
        unsafe {
            let status = (table.miopenSetOpArgsConvForward)(args.raw(), conv, one(), zero(), w.ptr);
            check(table, "miopenSetOpArgsConvForward", status, String::new)?;
            if !add.is_null() {
                let status = (table.miopenSetOpArgsBiasForward)(args.raw(), add, one(), zero(), bias.ptr);
                check(table, "miopenSetOpArgsBiasForward", status, String::new)?;
            }
            let status = (table.miopenSetOpArgsActivForward)(
                args.raw(),
                activation,
                one(),
                zero(),
                alpha,
                beta,
                gamma,
            );
            check(table, "miopenSetOpArgsActivForward", status, String::new)?;
        }
        let (plan, xd, yd) = (self.plan.raw(), self.x.raw(), self.y.raw());
        // SAFETY: the caller vouches for the memory. Plan, descriptors and arguments are valid, and
        // MIOpen reads them before the call returns.
        Ok(unsafe {
            match table.miopenExecuteFusionPlan_v2 {
                Some(call) => (
                    "miopenExecuteFusionPlan_v2",
                    call(handle.raw, plan, xd, x.ptr, yd, y.ptr, args.raw(), space.ptr, space.bytes),
                ),
                None => (
                    "miopenExecuteFusionPlan",
                    (table.miopenExecuteFusionPlan)(handle.raw, plan, xd, x.ptr, yd, y.ptr, args.raw()),
                ),
            }
        })
    }
}
