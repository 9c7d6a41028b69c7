//! Element-wise chains: ops over small tensors of one length that are put off and launched together.
//!
//! What such an op costs is its launch (2 to 4 us of the host's time, by driver), not its elements. A device's
//! compute stream therefore keeps a list of steps; whatever else is queued on the stream, recorded in it or waited
//! for launches the list first, so that nothing can tell the difference but by the clock. The steps are done one
//! after the other for each element, by the same functors as in kernels of their own, and each rounds its result to
//! the tensor's dtype: the bits are the same.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};
use hip_kernels::{CHAIN, DType, KernelName};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::Result;
use crate::launch::Grid;
use crate::marks::carry_faults;
use crate::module::Kernel;
use crate::provider::ProviderKind;
use crate::settings::{STEPS, settings};
use crate::stream::Stream;
use crate::trace;

/// Bytes of a tensor above which an op is launched at once: its elements then take longer than its launch.
const MOST_BYTES: usize = 8 << 20;

/// Vector accesses need addresses at multiples of this.
const ALIGNMENT: usize = 16;

/// `Source` of `chain.hip`.
const IN_MEMORY: u8 = 0;
const LAST: u8 = 1;
const BEFORE_LAST: u8 = 2;
const SCALAR: u8 = 3;

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
    /// A functor's name, as in `KernelName`.
    pub functor: &'static str,
    /// Of all tensors.
    pub dtype: DType,
    /// Elements of each.
    pub len: usize,
    /// What the functor takes.
    pub operands: Operands<'a>,
    /// The result.
    pub out: Elements<'a>,
}

/// `Step` of `chain.hip`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Step {
    a: u64,
    b: u64,
    out: u64,
    functor: u32,
    source_a: u8,
    source_b: u8,
    stored: u8,
    unused: u8,
}

impl Step {
    /// Whether the step reads this tensor from memory.
    fn reads(&self, tensor: u64) -> bool {
        (self.source_a == IN_MEMORY && self.a == tensor) || (self.source_b == IN_MEMORY && self.b == tensor)
    }

    /// The addresses that the step names.
    fn tensors(&self) -> impl Iterator<Item = u64> {
        let a = (self.source_a != SCALAR).then_some(self.a);
        let b = (self.source_b != SCALAR).then_some(self.b);
        [a, b, Some(self.out)].into_iter().flatten()
    }
}

/// `Chain` of `chain.hip`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Steps {
    len: u32,
    count: u32,
    step: [Step; STEPS],
}

impl Steps {
    fn so_far(&self) -> &[Step] {
        &self.step[..self.count as usize]
    }

    /// Whether the step may follow: where two steps name the same memory and one writes it, they name it from the
    /// same address on, so that a thread finds what it wrote itself.
    fn fits(&self, step: &Step, bytes: u64) -> bool {
        let apart = |a: u64, b: u64| a == b || a.abs_diff(b) >= bytes;
        self.so_far().iter().all(|before| {
            step.tensors().all(|tensor| apart(before.out, tensor))
                && before.tensors().all(|tensor| apart(tensor, step.out))
        })
    }

    /// Adds a step whose operands are in memory, or in registers where the last two results are meant.
    fn push(&mut self, mut step: Step) {
        let from_end = |n: usize| self.so_far().iter().rev().nth(n).map(|before| before.out);
        let source = |tensor: u64| match Some(tensor) {
            tensor if tensor == from_end(0) => LAST,
            tensor if tensor == from_end(1) => BEFORE_LAST,
            _ => IN_MEMORY,
        };
        for (from, tensor) in [(&mut step.source_a, step.a), (&mut step.source_b, step.b)] {
            if *from != SCALAR {
                *from = source(tensor);
            }
        }
        // The value that this step writes over needs no place in memory, unless a step in between read it there.
        if !step.reads(step.out) {
            let mut later = false;
            for before in self.step[..self.count as usize].iter_mut().rev() {
                if before.out == step.out {
                    before.stored = u8::from(later);
                    break;
                }
                later |= before.reads(step.out);
            }
        }
        self.step[self.count as usize] = step;
        self.count += 1;
    }
}

struct Pending {
    steps: Steps,
    dtype: DType,
    kernel: Option<Arc<Kernel>>,
    grid: Grid,
}

/// The steps that a stream has put off.
pub(crate) struct Chain {
    /// Whether there is one: set and cleared under the lock, read without it. A thread that was told of a tensor by
    /// another one sees what that one put off before.
    any: AtomicBool,
    pending: Mutex<Pending>,
}

impl Default for Chain {
    fn default() -> Self {
        let pending = Pending {
            steps: Steps::zeroed(),
            dtype: DType::F32,
            kernel: None,
            grid: Grid { blocks: 0, threads: 0 },
        };
        Self { any: AtomicBool::new(false), pending: Mutex::new(pending) }
    }
}

impl Stream {
    /// Launches the ops that were put off. An error is kept for the next read or sync.
    #[inline]
    pub(crate) fn catch_up(&self) {
        if self.chain.any.load(Ordering::Acquire) {
            self.launch_pending(&mut self.pending());
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        // A list of plain values, whole after every statement that changes it.
        self.chain.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn launch_pending(&self, pending: &mut Pending) {
        if let Some(kernel) = pending.kernel.take()
            && let Err(error) = self.launch_steps(&kernel, pending.grid, &mut pending.steps)
        {
            self.context().record(error);
        }
        pending.steps.count = 0;
        // After the launch: who finds no step to wait for is behind it.
        self.chain.any.store(false, Ordering::Release);
    }

    fn launch_steps(&self, kernel: &Kernel, grid: Grid, steps: &mut Steps) -> Result<()> {
        let mut parameters = [std::ptr::from_mut(steps).cast::<c_void>()];
        // SAFETY: the one argument is laid out as the kernel's parameter; `put_off` checked that the tensors lie
        // inside their buffers, whose memory the pool gives out again only to work that comes later in this stream.
        unsafe { self.launch(kernel, grid, 0, &mut parameters) }
    }
}

/// Steps that a list holds at most, by the settings and the kind of device: 0 where nothing is put off.
pub(crate) fn limit(kind: ProviderKind) -> Result<usize> {
    Ok(settings()?.chain.unwrap_or(match kind {
        // A launch costs less there than the look at whether it can be joined.
        ProviderKind::Cpu => 0,
        ProviderKind::Rocm | ProviderKind::Cuda => STEPS,
    }))
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
        let Some(functor) = CHAIN.iter().position(|&name| name == step.functor) else { return Ok(false) };
        let kernel = KernelName::new("chain").ty(step.dtype);
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
        let next = Step { a, b, out, functor: functor as u32, source_a, source_b, stored: 1, unused: 0 };
        if next.tensors().any(|address| !address.is_multiple_of(ALIGNMENT as u64)) {
            return Ok(false);
        }
        let stream = self.compute_stream();
        let mut pending = stream.pending();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn step(a: u64, b: Option<u64>, out: u64) -> Step {
        let source_b = if b.is_some() { IN_MEMORY } else { SCALAR };
        Step { a, b: b.unwrap_or(0), out, functor: 0, source_a: IN_MEMORY, source_b, stored: 1, unused: 0 }
    }

    #[test]
    fn results_stay_in_registers_and_are_stored_once() {
        let mut steps = Steps::zeroed();
        // x1 = x * s, y = g * s, x2 = x1 + y in x's place, z = x2 * y
        for next in [step(0, None, 0), step(64, None, 128), step(0, Some(128), 0), step(0, Some(128), 192)] {
            assert!(steps.fits(&next, 64));
            steps.push(next);
        }
        let sources: Vec<_> = steps.so_far().iter().map(|s| (s.source_a, s.source_b, s.stored)).collect();
        assert_eq!(
            sources,
            [(IN_MEMORY, SCALAR, 0), (IN_MEMORY, SCALAR, 1), (BEFORE_LAST, LAST, 1), (LAST, BEFORE_LAST, 1)]
        );
    }

    #[test]
    fn what_a_step_reads_from_memory_is_stored() {
        let mut steps = Steps::zeroed();
        for next in [
            step(0, None, 0),
            step(64, None, 64),
            step(128, None, 128),
            step(192, Some(0), 192),
            step(0, None, 0),
        ] {
            steps.push(next);
        }
        assert_eq!(steps.so_far()[3].source_b, IN_MEMORY);
        assert_eq!(steps.so_far().iter().map(|s| s.stored).collect::<Vec<_>>(), [1; 5]);
    }

    #[test]
    fn memory_that_overlaps_elsewhere_does_not_follow() {
        let mut steps = Steps::zeroed();
        steps.push(step(0, Some(256), 512));
        for (next, follows) in [
            (step(512, None, 1024), true),
            (step(528, None, 1024), false), // reads what was written, shifted
            (step(1024, Some(496), 1024), false),
            (step(1024, None, 16), false), // writes over what was read, shifted
            (step(1024, None, 240), false),
            (step(1024, None, 512), true),
            (step(16, Some(240), 1024), true), // reads what was read
        ] {
            assert_eq!(steps.fits(&next, 64), follows, "{} {} {}", next.a, next.b, next.out);
        }
    }
}
