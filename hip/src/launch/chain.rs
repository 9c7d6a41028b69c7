//! Chains: element-wise ops over small tensors of one length, which are deferred and launched
//! together.
//!
//! What makes a small op slow is its launch (2 to 4 us of the host's time, depending on the
//! driver), not its elements. Therefore a device's compute stream keeps a list of deferred steps.
//! Any other work on the stream, any event recorded in it and any wait for it launches the list
//! first, so only the timing differs. The kernel applies the steps to each element in their order.
//! It uses the same functors as the ops' own kernels and rounds each result to the tensor's dtype,
//! so the bits are the same.

use std::sync::atomic::Ordering;

use hip_kernels::{DType, Functor, Template};

use crate::device::Device;
use crate::error::Result;
use crate::launch::steps::{IN_MEMORY, SCALAR, Step};
use crate::memory::buffer::{Buffer, carry_faults};
use crate::profile::work::{Who, WorkKind};
use crate::summary::ledger;
use crate::trace;
use crate::watch::{PROFILE, SUMMARY, TRACE, watched};

/// An op on tensors of more bytes than this is launched at once, because its elements take longer
/// than its launch.
const MOST_BYTES: usize = 8 << 20;

/// Vector accesses need addresses that are multiples of this.
const ALIGNMENT: usize = 16;

/// Contiguous elements of a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Elements<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// The byte offset of the first element.
    pub byte_offset: usize,
}

/// The operands of an element-wise op.
#[derive(Debug, Clone, Copy)]
pub enum Operands<'a> {
    /// A value alone, for the functor `Fill`.
    Value(f32),
    /// A tensor.
    One(Elements<'a>),
    /// A tensor, and a value that is the same for every element.
    Scalar(Elements<'a>, f32),
    /// Two tensors.
    Two(Elements<'a>, Elements<'a>),
}

/// An element-wise op that may be deferred: `out[i] = functor(a[i], b[i])`, computed in f32. `out`
/// may be an operand.
#[derive(Debug, Clone, Copy)]
pub struct ElementWise<'a> {
    /// The function.
    pub functor: Functor,
    /// The dtype of all tensors.
    pub dtype: DType,
    /// The number of elements of each tensor.
    pub len: usize,
    /// The functor's arguments.
    pub operands: Operands<'a>,
    /// The result.
    pub out: Elements<'a>,
}

impl Device {
    /// How many small element-wise ops one launch can join
    /// ([`Config::chain`](crate::Config::chain)); with 0 or 1, each is launched by itself.
    pub fn chain_limit(&self) -> usize {
        self.chain_limit
    }

    /// Whether an element-wise op on tensors of `bytes` bytes may be deferred; `Err` says why not.
    /// It also needs a functor that `chain.hip` has, and tensors at 16-byte boundaries.
    pub fn defers(&self, dtype: DType, bytes: usize) -> std::result::Result<(), &'static str> {
        match dtype {
            _ if self.chain_limit == 0 => Err("chains are off on this device or by BURN_ROCM_CHAIN"),
            _ if bytes == 0 => Err("no elements"),
            _ if bytes > MOST_BYTES => Err("tensors of more than 8 MiB"),
            DType::F32 | DType::F16 | DType::BF16 => Ok(()),
            _ => Err("chains have f32, f16 and bf16 only"),
        }
    }

    /// Defers an op, to launch it together with others. Returns `false` and does nothing if the op
    /// can't be deferred: its tensors are empty, larger than 8 MiB or not at 16-byte boundaries;
    /// `chain.hip` lacks the functor or dtype; or chains are off for the device.
    ///
    /// # Errors
    /// `Invalid` for a range past its buffer's end or a buffer of another device; `Compilation` if
    /// the kernel does not compile.
    pub fn put_off(&self, op: &'static str, step: ElementWise<'_>) -> Result<bool> {
        let bytes = step.len.saturating_mul(step.dtype.size());
        if self.defers(step.dtype, bytes).is_err() {
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
        // Done before the list is locked, because this may record an event, and that launches the
        // list.
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
        let stream = self.stream();
        let mut pending = stream.chain.pending();
        let same = pending.dtype == step.dtype && pending.steps.len as usize == step.len;
        if pending.steps.count > 0 && !(same && pending.steps.fits(&next, bytes as u64)) {
            stream.launch_pending(&mut pending);
        }
        let first = pending.steps.count == 0;
        if first {
            pending.kernel = Some(self.built_in(kernel)?);
            pending.grid = self.grid_bytes(step.len * size_of::<f32>());
            pending.dtype = step.dtype;
            pending.steps.len = step.len as u32;
            // The thread that begins the list counts the kernel, because another thread may launch
            // it.
            trace::count(WorkKind::Kernel);
        }
        let watched = watched();
        if watched & PROFILE != 0 {
            pending.ops.push(Who::here());
        }
        pending.steps.push(next);
        stream.chain.any.store(true, Ordering::Release);
        if pending.steps.count as usize >= self.chain_limit {
            stream.launch_pending(&mut pending);
        }
        drop(pending);
        if watched & SUMMARY != 0 {
            ledger::joined(&kernel.to_string(), first);
        }
        if watched & TRACE != 0 {
            trace::say(&format_args!("kernel {kernel}, {}", step.functor));
        }
        Ok(true)
    }

    fn address(&self, op: &'static str, elements: Elements<'_>, bytes: usize) -> Result<u64> {
        let Elements { buffer, byte_offset } = elements;
        self.check_range(op, buffer, byte_offset, bytes)?;
        Ok((buffer.address() + byte_offset) as u64)
    }
}
