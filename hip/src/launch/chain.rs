//! Element-wise chains: ops over small tensors of one length that are put off and launched together.
//!
//! What such an op costs is its launch (2 to 4 us of the host's time, by driver), not its elements. A device's
//! compute stream therefore keeps a list of steps; whatever else is queued on the stream, recorded in it or waited
//! for launches the list first, so that nothing can tell the difference but by the clock. The steps are done one
//! after the other for each element, by the same functors as in kernels of their own, and each rounds its result to
//! the tensor's dtype: the bits are the same.

use std::sync::atomic::Ordering;

use hip_kernels::{DType, Functor, Template};

use crate::device::Device;
use crate::error::Result;
use crate::launch::steps::{IN_MEMORY, SCALAR, Step};
use crate::memory::buffer::{Buffer, carry_faults};
use crate::trace;

/// Bytes of a tensor above which an op is launched at once: its elements then take longer than its launch.
const MOST_BYTES: usize = 8 << 20;

/// Vector accesses need addresses at multiples of this.
const ALIGNMENT: usize = 16;

/// Packed elements of a buffer, from an offset in bytes on.
#[derive(Debug, Clone, Copy)]
pub struct Elements<'a> {
    /// Where they are.
    pub buffer: &'a Buffer,
    /// The first one's place.
    pub byte_offset: usize,
}

/// What an element-wise step takes.
#[derive(Debug, Clone, Copy)]
pub enum Operands<'a> {
    /// Nothing but a value, of the dtype that is computed in: the functor is `Fill`.
    Value(f32),
    /// A tensor.
    One(Elements<'a>),
    /// A tensor and a value, the same for every element, of the dtype that is computed in.
    Scalar(Elements<'a>, f32),
    /// Two tensors.
    Two(Elements<'a>, Elements<'a>),
}

/// An element-wise op that may be put off: `out[i] = functor(a[i], b[i])`. `out` may be an operand.
#[derive(Debug, Clone, Copy)]
pub struct ElementWise<'a> {
    /// What is computed.
    pub functor: Functor,
    /// Of all tensors.
    pub dtype: DType,
    /// Elements of each.
    pub len: usize,
    /// What the functor takes.
    pub operands: Operands<'a>,
    /// The result.
    pub out: Elements<'a>,
}

impl Device {
    /// The small element-wise ops that one launch joins at most; 0 or 1 where each is launched by itself
    /// (`BURN_ROCM_CHAIN`).
    pub fn chain_limit(&self) -> usize {
        self.chain_limit
    }

    /// Takes an op to be launched together with others, or says `false` where it is not one to be put off: larger
    /// than 8 MiB, of a functor or dtype that `chain.hip` does not have, not at 16-byte boundaries, or on a device
    /// where chains are off (`BURN_ROCM_CHAIN`).
    ///
    /// # Errors
    /// `Invalid` for a range past its buffer's end or a buffer of another device; `Compilation` for the kernel.
    pub fn put_off(&self, op: &'static str, step: ElementWise<'_>) -> Result<bool> {
        let bytes = step.len.saturating_mul(step.dtype.size());
        if self.chain_limit == 0 || bytes > MOST_BYTES || bytes == 0 {
            return Ok(false);
        }
        if !matches!(step.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Ok(false);
        }
        let Some(functor) = step.functor.in_chain() else { return Ok(false) };
        let kernel = Template::chain.ty(step.dtype);
        let (a, b, value) = match step.operands {
            Operands::Value(value) => (None, None, value),
            Operands::One(a) => (Some(a), None, 0.0),
            Operands::Scalar(a, value) => (Some(a), None, value),
            Operands::Two(a, b) => (Some(a), Some(b), 0.0),
        };
        // Before the list is locked: this may record an event, which launches the list.
        carry_faults([a, b].into_iter().flatten().map(|read| read.buffer), [step.out.buffer]);
        let place = |elements: Option<Elements<'_>>| match elements {
            None => Ok((SCALAR, u64::from(value.to_bits()))),
            Some(elements) => Ok((IN_MEMORY, self.address(op, elements, bytes)?)),
        };
        let ((source_a, a), (source_b, b)) = (place(a)?, place(b)?);
        let out = self.address(op, step.out, bytes)?;
        let next = Step { a, b, out, functor, source_a, source_b, stored: 1, unused: 0 };
        if next.tensors().any(|address| !address.is_multiple_of(ALIGNMENT as u64)) {
            return Ok(false);
        }
        let stream = self.compute_stream();
        let mut pending = stream.chain.pending();
        let same = pending.dtype == step.dtype && pending.steps.len as usize == step.len;
        if pending.steps.count > 0 && !(same && pending.steps.fits(&next, bytes as u64)) {
            stream.launch_pending(&mut pending);
        }
        if pending.steps.count == 0 {
            pending.kernel = Some(self.built_in(kernel)?);
            pending.grid = self.grid_bytes(step.len * size_of::<f32>());
            pending.dtype = step.dtype;
            pending.steps.len = step.len as u32;
            // Of the thread that begins the list: another may be the one that launches it.
            trace::count(trace::Kind::Kernel);
        }
        pending.steps.push(next);
        stream.chain.any.store(true, Ordering::Release);
        if pending.steps.count as usize >= self.chain_limit {
            stream.launch_pending(&mut pending);
        }
        drop(pending);
        trace::said(|| format!("kernel {kernel}, {}", step.functor));
        Ok(true)
    }

    fn address(&self, op: &'static str, elements: Elements<'_>, bytes: usize) -> Result<u64> {
        let Elements { buffer, byte_offset } = elements;
        self.check_range(op, buffer, byte_offset, bytes)?;
        Ok((buffer.address() + byte_offset) as u64)
    }
}
