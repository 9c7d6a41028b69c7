//! The steps of a chain in the layout of `chain.hip`, and a stream's list of deferred steps.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};
use hip_kernels::DType;

use crate::launch::grid::Grid;
use crate::launch::kernel::Kernel;
use crate::profile::work::Who;
use crate::settings::STEPS;

/// The values of `Source` in `chain.hip`: where a step finds an operand.
pub(crate) const IN_MEMORY: u8 = 0;
const LAST: u8 = 1;
const BEFORE_LAST: u8 = 2;
pub(crate) const SCALAR: u8 = 3;

/// `Step` of `chain.hip`. An operand is an address, or for `SCALAR` the value's bits.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Step {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) out: u64,
    pub(crate) functor: u32,
    pub(crate) source_a: u8,
    pub(crate) source_b: u8,
    pub(crate) stored: u8,
    pub(crate) unused: u8,
}

impl Step {
    /// Whether the step reads this tensor from memory.
    fn reads(&self, tensor: u64) -> bool {
        (self.source_a == IN_MEMORY && self.a == tensor) || (self.source_b == IN_MEMORY && self.b == tensor)
    }

    /// The addresses of the step's tensors.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = u64> {
        let a = (self.source_a != SCALAR).then_some(self.a);
        let b = (self.source_b != SCALAR).then_some(self.b);
        [a, b, Some(self.out)].into_iter().flatten()
    }
}

/// `Chain` of `chain.hip`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Steps {
    pub(crate) len: u32,
    pub(crate) count: u32,
    step: [Step; STEPS],
}

impl Steps {
    fn so_far(&self) -> &[Step] {
        &self.step[..self.count as usize]
    }

    /// Whether the step may join the list. If two steps use overlapping memory and one writes it,
    /// their tensors must begin at the same address, so that each thread reads only elements that
    /// it wrote itself.
    pub(crate) fn fits(&self, step: &Step, bytes: u64) -> bool {
        let apart = |a: u64, b: u64| a == b || a.abs_diff(b) >= bytes;
        self.so_far().iter().all(|before| {
            step.tensors().all(|tensor| apart(before.out, tensor))
                && before.tensors().all(|tensor| apart(tensor, step.out))
        })
    }

    /// How often the steps read or write a whole tensor in memory.
    fn tensors(&self) -> usize {
        let from_memory = |source: u8| usize::from(source == IN_MEMORY);
        let of =
            |step: &Step| from_memory(step.source_a) + from_memory(step.source_b) + usize::from(step.stored);
        self.so_far().iter().map(of).sum()
    }

    /// Adds a step. An operand that is one of the last two results is read from registers.
    pub(crate) fn push(&mut self, mut step: Step) {
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
        // A value that this step overwrites need not be stored, unless a step in between reads it
        // from memory.
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

/// The deferred steps, and the kernel and grid of their launch.
pub(crate) struct Pending {
    pub(crate) steps: Steps,
    pub(crate) dtype: DType,
    pub(crate) kernel: Option<Arc<Kernel>>,
    pub(crate) grid: Grid,
    /// The steps' ops, as far as they were profiled.
    pub(crate) ops: Vec<Who>,
}

impl Pending {
    /// The bytes that the steps read from memory and write to it.
    pub(crate) fn bytes(&self) -> usize {
        self.steps.tensors() * self.steps.len as usize * self.dtype.size()
    }
}

/// A stream's list of deferred steps.
pub(crate) struct Chain {
    /// Whether the list has a step. Set and cleared under the lock, read without it. A thread that
    /// gets a tensor from another thread sees the steps that the other thread deferred before.
    pub(crate) any: AtomicBool,
    pending: Mutex<Pending>,
}

impl Default for Chain {
    fn default() -> Self {
        let pending = Pending {
            steps: Steps::zeroed(),
            dtype: DType::F32,
            kernel: None,
            grid: Grid { blocks: 0, threads: 0 },
            ops: Vec::new(),
        };
        Self { any: AtomicBool::new(false), pending: Mutex::new(pending) }
    }
}

impl Chain {
    pub(crate) fn pending(&self) -> MutexGuard<'_, Pending> {
        // A panic can't leave it broken: the list consists of plain values, and every statement
        // that changes them leaves them consistent.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(steps.tensors(), 5);
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
