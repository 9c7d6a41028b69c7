//! The steps of a chain in the layout of `chain.h`, and a stream's lists of deferred steps.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};
use hip_kernels::{DType, Functor};

use crate::launch::grid::Grid;
use crate::launch::kernel::Kernel;
use crate::launch::map::{Map, NEIGHBOURS, ONE};
use crate::profile::work::Who;
use crate::settings::STEPS;

/// The values of `Source` in `chain.h` for operands without a map.
const IN_MEMORY: u8 = 0;
const LAST: u8 = 1;
const BEFORE_LAST: u8 = 2;
const SCALAR: u8 = 3;

/// The values of `Program`, and the functors with which a norm begins.
const INTERPRETED: u16 = 0;
const NORM: u16 = 1;
const SHIFT: u16 = 2;
const NORM_FUNCTORS: [Functor; 4] = [Functor::Sub, Functor::Div, Functor::Mul, Functor::Add];

/// `MAPS` of `chain.h`.
const MAPS: usize = 4;

/// How many lists a stream keeps. Ops on a norm's statistics come between ops on its input, so two
/// lengths alternate.
const LISTS: usize = 2;

/// `Step` of `chain.h`. An operand is an address, or for `SCALAR` the value's bits.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Step {
    a: u64,
    b: u64,
    out: u64,
    functor: u8,
    source_a: u8,
    source_b: u8,
    stored: u8,
    map_a: u8,
    map_b: u8,
    from: u8,
    to: u8,
}

impl Step {
    /// Whether the step reads this result from memory.
    fn reads(&self, result: u64) -> bool {
        (self.source_a == IN_MEMORY && self.a == result) || (self.source_b == IN_MEMORY && self.b == result)
    }
}

/// The kernel's argument, `Chain` of `chain.h`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Steps {
    len: u32,
    count: u16,
    /// `Program` of `chain.h`.
    program: u16,
    step: [Step; STEPS],
    map: [Map; MAPS],
}

/// A tensor in memory that a step accesses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    /// The address of the first element.
    pub(crate) address: u64,
    /// The memory from the element at the lowest address to the end of the one at the highest.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// How a thread reads the elements (`Source`), and the map, unless they lie as the result's do.
    pub(crate) mapped: Option<(u8, Map)>,
}

/// The values of `Type` in `chain.h`.
fn type_code(dtype: DType) -> u8 {
    match dtype {
        DType::F16 => 1,
        DType::BF16 => 2,
        _ => 0,
    }
}

impl Access {
    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether two steps may access both in one launch if one of them writes: if each thread
    /// accesses the same elements in both, or the two have no common memory.
    fn is_safe_beside(&self, other: &Self) -> bool {
        let whole = self.mapped.is_none() && other.mapped.is_none();
        // Tensors of one list have the same length, so those that end alike too have elements of
        // one size.
        let alike = whole && self.start == other.start && self.end == other.end;
        alike || !self.overlaps(other)
    }
}

/// An operand of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand {
    Scalar(f32),
    Tensor(Access),
    /// A tensor that a step of a list reads from registers.
    InRegisters,
}

impl Operand {
    fn access(&self) -> Option<&Access> {
        match self {
            Self::Scalar(_) | Self::InRegisters => None,
            Self::Tensor(access) => Some(access),
        }
    }
}

/// An op that is to join a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Next {
    pub(crate) functor: u8,
    /// The type of its operands.
    pub(crate) from: DType,
    /// The type of its result.
    pub(crate) to: DType,
    pub(crate) operands: [Operand; 2],
    pub(crate) out: Access,
    /// Whether it copies f16 or bf16, and so must keep the bits of a NaN. A list of several dtypes
    /// computes in f32, and does not.
    pub(crate) copies_halves: bool,
}

impl Next {
    fn reads(&self) -> impl Iterator<Item = &Access> {
        self.operands.iter().filter_map(Operand::access)
    }

    /// Whether its own operands may be read and its result written in one launch.
    pub(crate) fn is_sound(&self) -> bool {
        self.reads().all(|read| read.is_safe_beside(&self.out))
    }
}

/// A list of deferred steps, and the kernel and grid of their launch.
pub(crate) struct Pending {
    pub(crate) steps: Steps,
    /// The tensors of each step.
    nexts: Vec<Next>,
    /// How many of the maps are used.
    maps: usize,
    /// The type of all tensors; `None` if they have several types.
    pub(crate) dtype: Option<DType>,
    pub(crate) kernel: Option<Arc<Kernel>>,
    pub(crate) grid: Grid,
    /// Whether results that are not stored stay in registers. The CPU device's blocks of one thread
    /// pass them on through memory, and so write them.
    keeps_registers: bool,
    /// The steps' ops, as far as they were profiled.
    pub(crate) ops: Vec<Who>,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            steps: Steps::zeroed(),
            nexts: Vec::new(),
            maps: 0,
            dtype: None,
            kernel: None,
            grid: Grid { blocks: 0, threads: 0 },
            keeps_registers: false,
            ops: Vec::new(),
        }
    }
}

impl Pending {
    /// Begins a list of ops of `len` elements.
    pub(crate) fn begin(&mut self, grid: Grid, len: usize) {
        self.grid = grid;
        self.keeps_registers = grid.threads > 1;
        self.steps.len = len as u32;
    }

    /// Removes all steps.
    pub(crate) fn clear(&mut self) {
        self.steps.count = 0;
        self.maps = 0;
        self.nexts.clear();
        self.ops.clear();
    }

    pub(crate) fn count(&self) -> usize {
        self.steps.count as usize
    }

    /// Whether it has steps, over `len` elements.
    pub(crate) fn is_of(&self, len: usize) -> bool {
        self.count() > 0 && self.steps.len as usize == len
    }

    /// Whether an op over `len` elements suits the list: the lengths are the same, and so are the
    /// dtypes, unless the op converts or the list has several dtypes already. A copy of f16
    /// or bf16 can't be in a list of several dtypes.
    pub(crate) fn takes(&self, next: &Next, len: usize) -> bool {
        let is_mixed = next.from != next.to || self.dtype.is_none();
        let copies = || next.copies_halves || self.nexts.iter().any(|before| before.copies_halves);
        self.is_of(len) && if is_mixed { !copies() } else { self.dtype == Some(next.to) }
    }

    /// The address of the last result.
    pub(crate) fn last_result(&self) -> Option<u64> {
        self.so_far().last().map(|step| step.out)
    }

    /// Whether a step reads or writes memory from `start` to `end`.
    pub(crate) fn uses(&self, start: u64, end: u64) -> bool {
        let within = |access: &Access| access.start < end && start < access.end;
        self.nexts.iter().any(|next| within(&next.out) || next.reads().any(within))
    }

    /// Whether the op may run before or after the list: they share no memory that one of them
    /// writes.
    pub(crate) fn is_apart_from(&self, next: &Next) -> bool {
        self.nexts.iter().all(|before| {
            !before.out.overlaps(&next.out)
                && next.reads().all(|read| !read.overlaps(&before.out))
                && before.reads().all(|read| !read.overlaps(&next.out))
        })
    }

    /// Whether the op may join the list.
    pub(crate) fn fits(&self, next: &Next) -> bool {
        let maps = next.reads().filter_map(|read| read.mapped).filter(|(_, map)| !self.used().contains(map));
        self.maps + maps.count() <= MAPS
            && self.nexts.iter().all(|before| {
                before.out.is_safe_beside(&next.out)
                    && next.reads().all(|read| read.is_safe_beside(&before.out))
                    && before.reads().all(|read| read.is_safe_beside(&next.out))
            })
    }

    /// The steps as the kernel's argument.
    pub(crate) fn argument(&self) -> Steps {
        Steps { program: self.program(), ..self.steps }
    }

    /// The program of `chain.h` that is compiled for exactly these steps, or `INTERPRETED`.
    fn program(&self) -> u16 {
        match NORM_FUNCTORS {
            all if self.is_mapped(&all) => NORM,
            [.., last] if self.is_mapped(&[last]) => SHIFT,
            _ => INTERPRETED,
        }
    }

    /// Whether the steps are these functors of values with one map, and after them at most a sum
    /// with another tensor and a ReLU, in this order.
    fn is_mapped(&self, functors: &[Functor]) -> bool {
        let functor = |functor: Functor| functor.in_chain().map(|number| number as u8);
        let (Some(first), Some(last)) = (self.so_far().first(), self.so_far().last()) else { return false };
        let Some((mapped, more)) = self.so_far().split_at_checked(functors.len()) else { return false };
        let by_map = |step: &Step| {
            [ONE, NEIGHBOURS].contains(&step.source_b)
                && (step.source_b, step.map_b) == (first.source_b, first.map_b)
        };
        let (adds, relu) = match more {
            [] => (None, None),
            [one] if Some(one.functor) == functor(Functor::Relu) => (None, Some(one)),
            [one] => (Some(one), None),
            [one, two] => (Some(one), Some(two)),
            _ => return false,
        };
        let is_sum = |step: &Step| Some(step.functor) == functor(Functor::Add) && step.source_b == IN_MEMORY;
        let follows = self.so_far()[1..].iter().all(|step| step.source_a == LAST);
        let stored = self.so_far().iter().rev().skip(1).all(|step| step.stored == 0) && last.stored == 1;
        self.dtype.is_some()
            && first.source_a == IN_MEMORY
            && follows
            && stored
            && mapped
                .iter()
                .zip(functors)
                .all(|(step, &of)| Some(step.functor) == functor(of) && by_map(step))
            && adds.is_none_or(is_sum)
            && relu.is_none_or(|step| Some(step.functor) == functor(Functor::Relu))
    }

    fn used(&self) -> &[Map] {
        &self.steps.map[..self.maps]
    }

    fn so_far(&self) -> &[Step] {
        &self.steps.step[..self.count()]
    }

    /// Adds an op that fits. An operand that is one of the last two results is read from registers.
    pub(crate) fn push(&mut self, mut next: Next) {
        let [(a, source_a, map_a), (b, source_b, map_b)] = next.operands.map(|operand| self.place(operand));
        let (functor, out) = (next.functor, next.out.address);
        let (from, to) = (type_code(next.from), type_code(next.to));
        let step = Step { a, b, out, functor, source_a, source_b, stored: 1, map_a, map_b, from, to };
        // A value that this step overwrites need not be stored, unless a step in between reads it
        // from memory.
        if !step.reads(out)
            && let Some(at) = self.so_far().iter().rposition(|before| before.out == out)
        {
            let read = self.so_far()[at + 1..].iter().any(|between| between.reads(out));
            self.steps.step[at].stored &= u8::from(read);
        }
        if self.keeps_registers {
            // Nobody accesses the memory of an operand in registers.
            for (operand, source) in next.operands.iter_mut().zip([source_a, source_b]) {
                if [LAST, BEFORE_LAST].contains(&source) {
                    *operand = Operand::InRegisters;
                }
            }
        }
        let at = self.count();
        self.steps.step[at] = step;
        self.steps.count += 1;
        self.nexts.push(next);
    }

    /// An operand's address or bits, its source and its map.
    fn place(&mut self, operand: Operand) -> (u64, u8, u8) {
        let access = match operand {
            Operand::Scalar(value) => return (u64::from(value.to_bits()), SCALAR, 0),
            Operand::InRegisters => return (0, LAST, 0),
            Operand::Tensor(access) => access,
        };
        if let Some((source, map)) = access.mapped {
            let at = self.used().iter().position(|used| *used == map).unwrap_or(self.maps);
            self.steps.map[at] = map;
            self.maps = self.maps.max(at + 1);
            return (access.address, source, at as u8);
        }
        let from_end = |n: usize| self.so_far().iter().rev().nth(n).map(|before| before.out);
        let source = match Some(access.address) {
            address if address == from_end(0) => LAST,
            address if address == from_end(1) => BEFORE_LAST,
            _ => IN_MEMORY,
        };
        (access.address, source, 0)
    }

    /// Forgets results in memory from `start` to `end`, which no later op reads: they need not be
    /// stored, unless a later step of the list reads them from memory.
    pub(crate) fn forget(&mut self, start: u64, end: u64) {
        for at in 0..self.count() {
            let out = self.steps.step[at].out;
            if (start..end).contains(&out) {
                let mut later =
                    self.so_far()[at + 1..].iter().take_while(|step| step.out != out || step.reads(out));
                let read = later.any(|step| step.reads(out));
                self.steps.step[at].stored &= u8::from(read);
                if self.keeps_registers && self.steps.step[at].stored == 0 {
                    // No thread accesses the memory, so it may hold another result of the list, of
                    // any size. So its address no longer stands for this step's value.
                    self.nexts[at].out = Access { start: 0, end: 0, ..self.nexts[at].out };
                    self.steps.step[at].out = 0;
                }
            }
        }
    }

    /// The bytes that the steps read from memory and write to it.
    pub(crate) fn bytes(&self) -> usize {
        let steps = self.so_far().iter().zip(&self.nexts);
        let of = |access: &Access| (access.end - access.start) as usize;
        steps
            .map(|(step, next)| {
                let read = |source: u8, operand: &Operand| match operand {
                    Operand::Tensor(access) if access.mapped.is_some() || source == IN_MEMORY => of(access),
                    _ => 0,
                };
                let [a, b] = &next.operands;
                read(step.source_a, a) + read(step.source_b, b) + usize::from(step.stored) * of(&next.out)
            })
            .sum()
    }
}

/// A stream's lists of deferred steps. No list reads or writes what another one writes, so they may
/// be launched in any order.
#[derive(Default)]
pub(crate) struct Chain {
    /// Whether a list has a step. Set and cleared under the lock, read without it. A thread that
    /// gets a tensor from another thread sees the steps that the other thread deferred before.
    pub(crate) any: AtomicBool,
    pending: Mutex<[Pending; LISTS]>,
}

impl Chain {
    pub(crate) fn pending(&self) -> MutexGuard<'_, [Pending; LISTS]> {
        // A panic can't leave it broken: the lists consist of plain values, and every statement
        // that changes them leaves them consistent.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
