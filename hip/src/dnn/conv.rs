//! Convolution in 2-D and 3-D: forward, gradient of the data, gradient of the weights.
//!
//! A transposed convolution is the data gradient of the plain convolution with the same weights.
//!
//! At first, MIOpen's immediate mode chooses a shape's solution from a database or heuristics,
//! without timing. A shape that is used a third time probably belongs to a training loop. So the
//! third use times the shape's algorithms, and later uses take the fastest.
//! [`Config::conv_find`](crate::Config::conv_find) can select one of these two modes alone. What was
//! timed is kept in the [tuning store](crate::tuning), so a later process times nothing.

mod calls;
mod choose;
mod fresh;
mod order;
mod problem;

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use miopen_sys::{MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC, MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL};

use super::descriptor::{ConvolutionDesc, TensorDesc};
use super::{Dnn, FLOATS, Handle, Refusal, TensorArg, carry, check, data_type, elements, is_short_of_memory};
use crate::device::capture::is_capturing;
use crate::memory::span::Span;
use crate::profile::work::Load;
use crate::settings::settings;
use crate::tuning::{TuningEntry, tuning_store};
use crate::{Buffer, DType, Error, Result};
use calls::Operands;
use choose::{Task, find_mode};
pub(super) use fresh::Fresh;
pub(super) use order::Orders;
pub use order::channels_last;
use problem::Text;
pub use problem::{ConvDirection, ConvProblem};

const OP: &str = "convolution";

/// A convolution's shapes and options. The spatial rank is 2 or 3; `stride`, `padding` and
/// `dilation` have one entry for each spatial axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvDesc {
    /// f32, f16 or bf16 (the latter two accumulated in f32).
    pub dtype: DType,
    /// Shape of the input: batch, channels, then depth (3-D), height, width.
    pub x: Vec<usize>,
    /// Shape of the weights: channels of the output, channels of the input / groups, then the
    /// window.
    pub w: Vec<usize>,
    /// Shape of the output.
    pub y: Vec<usize>,
    /// Steps of the window.
    pub stride: Vec<usize>,
    /// Zeros at each end of each spatial dimension.
    pub padding: Vec<usize>,
    /// Distances between the elements of the window.
    pub dilation: Vec<usize>,
    /// Groups of channels that are convolved separately.
    pub groups: usize,
    /// Whether the result is a gradient. On gfx90a, f16 gradients use MIOpen's alternative
    /// implementation, which keeps subnormal values
    /// ([`Config::f16_alternative`](crate::Config::f16_alternative)). [`ConvDesc::new`] sets it to
    /// false.
    pub gradient: bool,
    /// Whether the channels of all three tensors are adjacent in memory: `x` and `y` in the order
    /// batch, height, width, channels (NHWC), `w` in the order output channels, height, width,
    /// input channels (KRSC). Only for 2-D. The shapes stay in the order above. [`ConvDesc::new`]
    /// sets it to false.
    pub channels_last: bool,
}

/// Descriptors and solutions for one shape and direction.
pub(super) struct Prepared {
    conv: ConvolutionDesc,
    x: TensorDesc,
    w: TensorDesc,
    y: TensorDesc,
    /// Whether MIOpen was asked for its alternative implementation of f16.
    alternative: bool,
    /// The chosen solution, then fallbacks for when there is no memory for its workspace.
    choices: Vec<Choice>,
    /// The tuning store's entry that `choices` begins with.
    stored: OnceLock<TuningEntry>,
    /// The store's generation when the entry was last looked up there.
    asked: AtomicU64,
    /// The timed algorithms, which replace `choices`; empty if timing failed.
    timed: OnceLock<Vec<Choice>>,
    /// The number of uses in auto mode.
    uses: AtomicU32,
    /// Microseconds of the fastest timed algorithm.
    fastest: OnceLock<f64>,
    /// Why MIOpen refuses the shape.
    refused: Refusal,
}

/// One way to compute a convolution.
#[derive(Debug, Clone, Copy)]
struct Choice {
    workspace: usize,
    solution: Solution,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Solution {
    /// A solution id of immediate mode.
    Immediate(u64),
    /// An algorithm that find mode timed, as the direction's enum numbers it.
    Found(i32),
}

impl ConvDesc {
    /// Whether MIOpen convolves this dtype. For other dtypes [`Dnn`]'s calls return `Unsupported`.
    pub fn takes(dtype: DType) -> bool {
        FLOATS.contains(&dtype)
    }

    /// The descriptor for an input and weights. It computes the output's shape.
    ///
    /// # Errors
    /// `Invalid` if the shapes and options do not fit together.
    pub fn new(
        dtype: DType,
        x: &[usize],
        w: &[usize],
        stride: &[usize],
        padding: &[usize],
        dilation: &[usize],
        groups: usize,
    ) -> Result<Self> {
        let mut desc = Self {
            dtype,
            x: x.to_vec(),
            w: w.to_vec(),
            y: x.to_vec(),
            stride: stride.to_vec(),
            padding: padding.to_vec(),
            dilation: dilation.to_vec(),
            groups,
            gradient: false,
            channels_last: false,
        };
        desc.y = desc.output()?;
        Ok(desc)
    }

    /// The elements of the three tensors, and the multiplications and additions of direct sums. Both
    /// are the same in each direction.
    fn load(&self) -> Load {
        let count = |dims: &[usize]| dims.iter().map(|&dim| dim as u64).product::<u64>();
        let [x, w, y] = [&self.x, &self.w, &self.y].map(|dims| count(dims));
        Load { bytes: (x + w + y) * self.dtype.size() as u64, flops: 2 * y * count(&self.w[1..]) }
    }

    /// The output's shape for this input, weights and options.
    fn output(&self) -> Result<Vec<usize>> {
        let rank = self.x.len();
        let invalid = |expected: &str| Err(Error::invalid(OP, expected, format!("{self:?}")));
        if !(rank == 4 || rank == 5) || self.w.len() != rank {
            return invalid("an input and weights of rank 4 or 5");
        }
        if self.channels_last && rank != 4 {
            return invalid("an input of rank 4 if its channels are last");
        }
        if [&self.stride, &self.padding, &self.dilation].iter().any(|list| list.len() != rank - 2) {
            return invalid("stride, padding and dilation for each spatial dimension");
        }
        if self.groups == 0 || self.stride.contains(&0) || self.dilation.contains(&0) {
            return invalid("at least one group, and strides and dilations of at least 1");
        }
        if self.w[1].checked_mul(self.groups) != Some(self.x[1]) || !self.w[0].is_multiple_of(self.groups) {
            return invalid("channels that the groups divide");
        }
        let mut y = vec![self.x[0], self.w[0]];
        for i in 0..rank - 2 {
            let window = self.w[i + 2]
                .checked_sub(1)
                .and_then(|steps| steps.checked_mul(self.dilation[i])?.checked_add(1));
            let padded = self.padding[i].checked_mul(2).and_then(|both| both.checked_add(self.x[i + 2]));
            match (window, padded) {
                (Some(window), Some(padded)) if window <= padded => {
                    y.push((padded - window) / self.stride[i] + 1);
                }
                _ => return invalid("a window that is not empty and fits the padded input"),
            }
        }
        Ok(y)
    }

    pub(super) fn options(&self) -> [&[usize]; 3] {
        [&self.padding, &self.stride, &self.dilation]
    }

    pub(super) fn validate(&self) -> Result<()> {
        let y = self.output()?;
        if y != self.y {
            return Err(Error::invalid(OP, format!("an output {y:?}"), format!("{:?}", self.y)));
        }
        Ok(())
    }
}

impl Dnn {
    /// Whether MIOpen has refused this convolution, in any direction.
    pub fn conv_refuses(&self, desc: &ConvDesc) -> bool {
        let refused = |prepared: Arc<Prepared>| prepared.refused.check().is_err();
        self.convolutions.iter().any(|known| known.peek(desc).is_some_and(refused))
    }

    /// `y = x * w`, the convolution.
    ///
    /// # Errors
    /// `Unsupported` for the dtype; `Invalid` for shapes that don't fit together, or memory that is
    /// too small or overlaps; `OutOfMemory` if no solution's workspace fits; `Miopen` if the
    /// library fails.
    pub fn conv_forward(
        &self,
        desc: &ConvDesc,
        x: TensorArg<'_>,
        w: TensorArg<'_>,
        y: TensorArg<'_>,
    ) -> Result<()> {
        let [xs, ws, ys] = self.conv_spans(desc, x, w, y)?;
        ys.apart_from(OP, &[xs, ws])?;
        carry([x, w], [y]);
        self.convolve(ConvDirection::Forward, desc, [xs, ws, ys], y)
    }

    /// `dx`, the gradient of `x`, from `dy`, the gradient of `y`. This is also the transposed
    /// convolution of `dy`.
    ///
    /// # Errors
    /// As for [`Dnn::conv_forward`].
    pub fn conv_backward_data(
        &self,
        desc: &ConvDesc,
        dy: TensorArg<'_>,
        w: TensorArg<'_>,
        dx: TensorArg<'_>,
    ) -> Result<()> {
        let [xs, ws, ys] = self.conv_spans(desc, dx, w, dy)?;
        xs.apart_from(OP, &[ws, ys])?;
        carry([dy, w], [dx]);
        self.convolve(ConvDirection::BackwardData, desc, [xs, ws, ys], dx)
    }

    /// `dw`, the gradient of `w`, from `dy`, the gradient of `y`.
    ///
    /// # Errors
    /// As for [`Dnn::conv_forward`].
    pub fn conv_backward_weights(
        &self,
        desc: &ConvDesc,
        dy: TensorArg<'_>,
        x: TensorArg<'_>,
        dw: TensorArg<'_>,
    ) -> Result<()> {
        let [xs, ws, ys] = self.conv_spans(desc, x, dw, dy)?;
        ws.apart_from(OP, &[xs, ys])?;
        carry([dy, x], [dw]);
        self.convolve(ConvDirection::BackwardWeights, desc, [xs, ws, ys], dw)
    }

    pub(super) fn conv_spans(
        &self,
        desc: &ConvDesc,
        x: TensorArg<'_>,
        w: TensorArg<'_>,
        y: TensorArg<'_>,
    ) -> Result<[Span; 3]> {
        let span = |tensor, shape: &[usize]| self.span(OP, tensor, desc.dtype, elements(OP, shape)?);
        Ok([span(x, &desc.x)?, span(w, &desc.w)?, span(y, &desc.y)?])
    }

    /// Computes the tensor that `direction` names. `spans` are those of x, w and y; `out` is the
    /// tensor that is written.
    fn convolve(
        &self,
        direction: ConvDirection,
        desc: &ConvDesc,
        spans: [Span; 3],
        out: TensorArg<'_>,
    ) -> Result<()> {
        let written = match direction {
            ConvDirection::Forward => spans[2],
            ConvDirection::BackwardData => spans[0],
            ConvDirection::BackwardWeights => spans[1],
        };
        if written.bytes == 0 {
            return desc.validate();
        }
        if spans.iter().any(|span| span.bytes == 0) {
            // The result is zeros, because a sum of no terms is 0.0, whose bits are 0 in every
            // float type.
            desc.validate()?;
            return out.buffer.device().fill_bytes(out.buffer, out.offset, 0, written.bytes);
        }
        let known = &self.convolutions[direction as usize];
        let prepare = || self.prepare(direction, desc, spans, out.buffer);
        let mut prepared = known.get(desc, prepare)?;
        if self.has_news(Task { prepared: &prepared, direction, desc, spans, at: out.buffer })?
            && let Ok(new) = prepare()
        {
            prepared = known.replace(desc, new);
        }
        let device = out.buffer.device();
        prepared.refused.check()?;
        let (mut failed, mut too_large) = (None, 0);
        // Timed algorithms are ways of their own, because their kernels may not have run yet.
        let choices = self.chosen(Task { prepared: &prepared, direction, desc, spans, at: out.buffer });
        let first = if std::ptr::eq(choices, prepared.choices.as_slice()) { 0 } else { 32 };
        for (way, choice) in (first..).zip(choices) {
            let workspace = match super::workspace(device, choice.workspace) {
                Ok(workspace) => workspace,
                Err(error @ Error::OutOfMemory { .. }) => {
                    failed.get_or_insert(error);
                    too_large += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if too_large > 0 {
                device.pool.made_up_for(too_large);
            }
            let space = workspace_span(&workspace, choice.workspace);
            let handle = self.begin(out.buffer)?;
            let operands = prepared.operands(&handle, direction, spans);
            // SAFETY: the spans hold the tensors that the descriptors describe. The pool gets them
            // and the workspace back after this call is enqueued, and reuses them only for later
            // work of the same stream.
            let (call, status) = unsafe {
                match choice.solution {
                    Solution::Immediate(id) => operands.immediate(space, id),
                    Solution::Found(algorithm) => operands.found(space, algorithm),
                }
            };
            let alternative = prepared.alternative();
            let detail = || format!("{}, {choice:?}{alternative}", Text(direction, desc));
            let served = self.served_load(call, status, desc.load(), detail);
            if let Err(error) = &served
                && !is_short_of_memory(error)
                && !is_capturing()
                && let Solution::Immediate(id) = choice.solution
                && let Some(entry) = prepared.stored.get()
                && u64::try_from(entry.solution) == Ok(id)
            {
                log::warn!("MIOpen refuses solution {id} of the tuning store, which forgets it");
                tuning_store().refused(&entry.device, &entry.library, &entry.problem);
            }
            return prepared.refused.keep(way, served);
        }
        if too_large > 1 {
            // The caller makes up for the one error that it gets.
            device.pool.made_up_for(too_large - 1);
        }
        Err(failed.unwrap_or_else(|| no_solution(direction, desc)))
    }

    fn prepare(
        &self,
        direction: ConvDirection,
        desc: &ConvDesc,
        spans: [Span; 3],
        at: &Buffer,
    ) -> Result<Prepared> {
        let data_type = data_type(OP, desc.dtype, FLOATS)?;
        desc.validate()?;
        let table = self.table;
        let tensor = |shape: &[usize]| match desc.channels_last {
            true => TensorDesc::channels_last(table, OP, data_type, shape),
            false => TensorDesc::packed(table, OP, data_type, shape),
        };
        let mut prepared = Prepared {
            conv: ConvolutionDesc::of(table, OP, desc.options(), desc.groups)?,
            x: tensor(&desc.x)?,
            w: tensor(&desc.w)?,
            y: tensor(&desc.y)?,
            alternative: false,
            choices: Vec::new(),
            stored: OnceLock::new(),
            asked: AtomicU64::new(tuning_store().generation()),
            timed: OnceLock::new(),
            uses: AtomicU32::new(0),
            fastest: OnceLock::new(),
            refused: Refusal::default(),
        };
        if self.deterministic {
            prepared.conv.set(MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC, 1)?;
        }
        // Without the attribute, MIOpen decides by direction. It would then use the alternative for
        // a transposed convolution too, which is not a gradient.
        let alternative = self.halves.alternative(desc.dtype, desc.gradient);
        if let Some(on) = alternative {
            prepared.conv.set(MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL, on.into())?;
        }
        prepared.alternative = alternative == Some(true);
        if let Some(mode) = find_mode(settings()?.conv_find) {
            prepared.conv.set_find_mode(mode)?;
        }
        let choices = self.choices(Task { prepared: &prepared, direction, desc, spans, at });
        prepared.choices = match choices {
            Ok(choices) => choices,
            Err(error) => {
                let error = prepared.refused.keep(0, Err(error));
                if prepared.refused.check().is_ok() {
                    return error.map(|()| prepared);
                }
                Vec::new()
            }
        };
        log::debug!("{direction:?} of {desc:?}: {:?}", prepared.choices);
        Ok(prepared)
    }
}

impl Prepared {
    /// What the trace says of the f16 alternative.
    fn alternative(&self) -> &'static str {
        if self.alternative { ", FP16_ALT_IMPL" } else { "" }
    }

    /// What the tuning store calls this.
    fn problem(&self, direction: ConvDirection, desc: &ConvDesc) -> String {
        format!("{}{}", Text(direction, desc), self.alternative())
    }

    fn operands<'a>(
        &'a self,
        handle: &'a Handle,
        direction: ConvDirection,
        spans: [Span; 3],
    ) -> Operands<'a> {
        Operands {
            handle,
            direction,
            conv: self.conv.raw(),
            x: (self.x.raw(), spans[0]),
            w: (self.w.raw(), spans[1]),
            y: (self.y.raw(), spans[2]),
        }
    }
}

/// The error of a convolution for which MIOpen has no solution.
fn no_solution(direction: ConvDirection, desc: &ConvDesc) -> Error {
    let what = format!("{direction:?} of {desc:?}, for which MIOpen has no solution");
    Error::unsupported_with(OP, desc.dtype, what)
}

/// The workspace as MIOpen takes it; null if none is needed.
pub(super) fn workspace_span(buffer: &Buffer, bytes: usize) -> Span {
    if bytes == 0 { Span::NULL } else { Span { ptr: buffer.as_ptr(), bytes } }
}

#[cfg(test)]
mod tests;
